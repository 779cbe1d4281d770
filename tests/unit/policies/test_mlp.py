import json

import numpy as np
import pytest
import torch

from burnish.core.contracts import TrainablePolicy, ValuePolicy
from burnish.core.errors import CheckpointError, ConfigError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import ActionSample
from burnish.policies.mlp import Config
from tests.unit.policies.divergence import check_divergence, perturb

ENV = EnvSpec(
    id="test",
    observation={
        "observation.state": ArraySpec((3,)),
        "observation.wrench": ArraySpec((2,), low=-10.0, high=10.0),
        "observation.images.top": ArraySpec((8, 8, 3), "uint8"),
        "privileged.pose": ArraySpec((4,)),
    },
    action=ArraySpec((2,), low=(-1.0, 0.0), high=(1.0, 0.1)),
    control_dt=0.1,
    max_episode_steps=10,
    tasks=("t",),
)
CONFIG = Config(chunk_steps=4, hidden=(16,), critic_keys=("privileged.pose",))


def observe(batch=5, seed=0):
    draw = np.random.default_rng(seed)
    return {
        "observation.state": draw.normal(size=(batch, 3)).astype(np.float32),
        "observation.wrench": draw.normal(0, 5, (batch, 2)).astype(np.float32),
        "privileged.pose": draw.normal(size=(batch, 4)).astype(np.float32),
        "task": ["t"] * batch,
    }


def make(config=CONFIG, seed=0, **changes):
    return config.build(ENV, generator=stream(seed), **changes)


def test_it_keeps_the_contracts():
    policy = make()
    assert isinstance(policy, TrainablePolicy)
    assert isinstance(policy, ValuePolicy)
    assert policy.spec.chunk_steps == 4
    assert tuple(policy.spec.observation) == ("observation.state", "observation.wrench")


@pytest.mark.parametrize("per_step_std", [False, True])
@pytest.mark.parametrize("steps", [4, 2])
def test_log_prob_of_act_is_that_of_evaluate(per_step_std, steps):
    policy = perturb(make(Config(chunk_steps=4, per_step_std=per_step_std)))
    observation = observe(64)
    sample = policy.act(observation, generator=stream(1))
    assert sample.action_chunk.shape == (64, 4, 2)
    assert sample.action_chunk.dtype == sample.log_prob.dtype == np.float32
    offered = ActionSample(sample.action_chunk[:, :steps], sample.log_prob[:, :steps])
    evaluation = policy.evaluate(observation, offered, np.full(64, steps))
    np.testing.assert_allclose(evaluation.log_prob.detach(), offered.log_prob, atol=1e-5)
    assert evaluation.entropy.shape == (64,)


def test_log_prob_is_in_normalised_units():
    policy = make()
    mean = policy.act(observe(1), generator=stream(0), deterministic=True).action_chunk
    # One std (0.3) away from the mean in every entry; limits are [-1, 1] and [0, 0.1].
    chunk = mean + 0.3 * np.array([1.0, 0.05], np.float32)
    found = policy.evaluate(observe(1), ActionSample(chunk, None), [4]).log_prob
    np.testing.assert_allclose(found.detach(), -1 - 2 * np.log(0.3) - np.log(2 * np.pi), rtol=1e-5)


def test_sampling_uses_only_the_generator_given():
    policy = make()
    first, again, other = (policy.act(observe(), generator=stream(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.action_chunk, again.action_chunk)
    assert not np.array_equal(first.action_chunk, other.action_chunk)


def test_deterministic_act_is_the_mean_and_has_no_log_prob():
    policy = make()
    sample = policy.act(observe(), generator=stream(1), deterministic=True)
    assert not sample.log_prob.any()
    loss = policy.imitation_loss(observe(), sample.action_chunk, np.full(5, 4))
    np.testing.assert_allclose(loss.detach(), 0, atol=1e-6)


def test_imitation_counts_executed_steps_only():
    policy = make()
    chunk = policy.act(observe(), generator=stream(1), deterministic=True).action_chunk
    chunk[:, 0] += [0.5, 0.0]
    chunk[:, 2:] += 9.0
    loss = policy.imitation_loss(observe(), chunk, np.full(5, 2))
    np.testing.assert_allclose(loss.detach(), 0.5 / 4, atol=1e-6)


def test_divergence_is_zero_at_the_reference_and_grows_away_from_it():
    check_divergence(make(), observe())


def test_divergence_compares_actions_not_normalised_numbers():
    policy = make()
    other = make(statistics={"action": {"mean": [0.2, 0.02], "std": [0.5, 0.01]}})
    sample = policy.act(observe(), generator=stream(1))
    found = policy.divergence(observe(), sample, other, np.full(5, 4)).detach()

    def distribution(p):
        mean = torch.from_numpy(p.act(observe(), generator=stream(1), deterministic=True).action_chunk)
        return torch.distributions.Normal(mean, (0.3 * p.action_scale).expand_as(mean))

    expected = torch.distributions.kl_divergence(distribution(other), distribution(policy)).sum((1, 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_value_reads_privileged_keys_and_the_actor_may_not():
    policy = make()
    value = policy.value(observe())
    assert value.shape == (5,)
    with_other_pose = {**observe(), "privileged.pose": np.zeros((5, 4), np.float32)}
    assert not torch.equal(value, policy.value(with_other_pose))
    with pytest.raises(SpecError, match="privileged entries reach teachers and critics only"):
        make(Config(state_keys=("observation.state", "privileged.pose")))


def test_parameter_groups_share_nothing_and_cover_all():
    policy = make()
    groups = policy.parameter_groups()
    assert set(groups) == {"actor", "critic"}
    ids = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(ids) == sorted(id(parameter) for parameter in policy.parameters())


def test_clone_is_frozen_and_stays_behind():
    policy = make()
    twin = policy.clone()
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    perturb(policy)
    assert not np.array_equal(
        *(p.act(observe(), generator=stream(0), deterministic=True).action_chunk for p in (policy, twin))
    )


def test_running_normalisation_moves_only_when_told():
    policy = make(Config(running_normalisation=True))
    before = policy.normalisation()
    policy.act(observe(50), generator=stream(0))
    assert policy.normalisation() == before
    policy.update_normalisation(observe(50))
    rows = np.concatenate([observe(50)[key] for key in policy.spec.observation], -1)
    np.testing.assert_allclose(policy.state_mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(policy.state_scale, rows.std(0), rtol=1e-5)
    fixed = make()
    fixed.update_normalisation(observe(50))
    assert fixed.normalisation() == make().normalisation()


def test_save_and_load_give_the_same_policy(tmp_path):
    policy = perturb(make())
    policy.save(tmp_path / "p")
    restored = make(seed=9)
    restored.load(tmp_path / "p")
    for key, item in policy.state_dict().items():
        assert torch.equal(item, restored.state_dict()[key])
    assert policy.normalisation() == restored.normalisation()
    assert {file.name for file in (tmp_path / "p").iterdir()} == {"config.json", "model.safetensors"}


def test_a_saved_actor_can_be_the_start_of_another_policy(tmp_path):
    statistics = {"observation.state": {"mean": [1.0] * 3, "std": [2.0] * 3}}
    saved = perturb(make(Config(chunk_steps=4, hidden=(16,)), statistics=statistics))
    saved.save(tmp_path)
    start = Config(
        path=str(tmp_path), chunk_steps=4, hidden=(16,), critic_keys=("privileged.pose",), init_std=0.1, min_std=0.05
    )
    policy = start.build(ENV, generator=stream(3))
    first, second = (p.act(observe(), generator=stream(0), deterministic=True) for p in (saved, policy))
    np.testing.assert_array_equal(first.action_chunk, second.action_chunk)
    assert policy.log_std.exp().detach().numpy() == pytest.approx(0.1)
    assert policy.config.path is None
    with pytest.raises(CheckpointError, match="reads"):
        Config(path=str(tmp_path), chunk_steps=4, hidden=(16,), state_keys=("observation.state",)).build(
            ENV, generator=stream(3)
        )
    with pytest.raises(CheckpointError, match="do not fit"):
        Config(path=str(tmp_path), chunk_steps=4, hidden=(8,)).build(ENV, generator=stream(3))


def test_load_explains_what_does_not_fit(tmp_path):
    policy = make()
    with pytest.raises(CheckpointError, match="Cannot read"):
        policy.load(tmp_path)
    policy.save(tmp_path)
    with pytest.raises(CheckpointError, match="built with"):
        make(Config(chunk_steps=4, hidden=(8,))).load(tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**description, "normalisation": "0"}))
    with pytest.raises(CheckpointError, match="normalisation"):
        policy.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**description, "policy": "act"}))
    with pytest.raises(CheckpointError, match="not 'mlp'"):
        policy.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(description))
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="Cannot read"):
        policy.load(tmp_path)


@pytest.mark.parametrize(
    "bad", [{"chunk_steps": 0}, {"hidden": (0,)}, {"init_std": 0.001}, {"min_std": 0.0}, {"activation": "sine"}]
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ConfigError, match="mlp"):
        Config(**bad)


@pytest.mark.parametrize("key", ["observation.stat", "observation.images.top"])
def test_unknown_keys_and_images_are_refused(key):
    with pytest.raises(ConfigError, match="is no vector of environment 'test'"):
        make(Config(state_keys=(key,)))
