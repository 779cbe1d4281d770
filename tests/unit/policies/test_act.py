import numpy as np
import pytest
import torch

from burnish.core.contracts import CachingPolicy, ValuePolicy
from burnish.core.errors import CheckError, CheckpointError, ConfigError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import ActionSample
from burnish.policies.act import Config
from tests.unit.policies.divergence import check_divergence, perturb

VECTORS = {
    "observation.state": ArraySpec((5,)),
    "observation.environment_state": ArraySpec((2,)),
    "observation.wrench": ArraySpec((3,), low=-20.0, high=20.0),
    "privileged.pose": ArraySpec((4,)),
}
CAMERAS = {f"observation.images.{name}": ArraySpec((64, 64, 3), "uint8") for name in ("top", "wrist")}


def make_env(observation):
    return EnvSpec(
        id="test",
        observation=observation,
        action=ArraySpec((3,), low=-0.01, high=0.01),
        control_dt=0.1,
        max_episode_steps=10,
        tasks=("t",),
    )


STATE_ENV, CAMERA_ENV = make_env(VECTORS), make_env({**VECTORS, **CAMERAS})
SMALL = {"chunk_steps": 4, "dim_model": 16, "n_heads": 2, "dim_feedforward": 32, "critic_hidden": (8,)}
CAMERA_KEYS = ("observation.state", *CAMERAS)


def observe(env_spec, batch=5, seed=0):
    draw = np.random.default_rng(seed)
    observation = {
        key: draw.integers(0, 256, (batch, *spec.shape)).astype(np.uint8)
        if spec.is_image
        else draw.normal(size=(batch, *spec.shape)).astype(np.float32)
        for key, spec in env_spec.observation.items()
    }
    return {**observation, "task": ["t"] * batch}


def make(env_spec=STATE_ENV, seed=0, statistics=None, **changes):
    return Config(**{**SMALL, **changes}).build(env_spec, generator=stream(seed), statistics=statistics)


@pytest.fixture(scope="module")
def cameras():
    return perturb(make(CAMERA_ENV, observation_keys=CAMERA_KEYS, freeze_backbone=True))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("steps", [4, 2])
def test_log_prob_of_act_is_that_of_evaluate(layers, pre_norm, steps):
    policy = perturb(make(n_encoder_layers=layers, n_decoder_layers=layers, pre_norm=pre_norm))
    observation = observe(STATE_ENV, 33)
    sample = policy.act(observation, generator=stream(1))
    assert sample.action_chunk.shape == (33, 4, 3)
    assert sample.action_chunk.dtype == sample.log_prob.dtype == np.float32
    offered = ActionSample(sample.action_chunk[:, :steps], sample.log_prob[:, :steps])
    evaluation = policy.evaluate(observation, offered, np.full(33, steps))
    np.testing.assert_allclose(evaluation.log_prob.detach(), offered.log_prob, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("extra", [(), ("observation.wrench",)])
def test_mean_and_gradients_are_those_of_the_stock_network(layers, pre_norm, extra):
    policy = perturb(
        make(n_encoder_layers=layers, n_decoder_layers=layers, pre_norm=pre_norm, extra_state_keys=extra), 0.2
    )
    observation = observe(STATE_ENV)
    state = np.concatenate([observation[key] for key in ("observation.state", *extra)], -1)
    batch = {
        "observation.state": policy.normalisers["state"](torch.from_numpy(state)),
        "observation.environment_state": torch.from_numpy(observation["observation.environment_state"]),
    }
    results = []
    for mean in (policy._mean(observation), policy.stock.model(batch)[0]):
        policy.zero_grad()
        mean.square().sum().backward()
        results.append((mean.detach(), [p.grad for p in policy.stock.parameters()]))
    (ours, our_gradients), (stock, stock_gradients) = results
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(our_gradients, stock_gradients, strict=True):
        # What cannot matter (the latent's weight, queries of the first self-attention) gets none here and zero there.
        torch.testing.assert_close(torch.zeros_like(theirs) if mine is None else mine, theirs, rtol=1e-3, atol=1e-3)


def test_camera_mean_is_that_of_the_stock_network(cameras):
    observation = observe(CAMERA_ENV, 2)
    images = [
        cameras.normalisers[key.replace(".", "_")](torch.from_numpy(observation[key]).float() / 255).permute(0, 3, 1, 2)
        for key in CAMERAS
    ]
    batch = {"observation.state": torch.from_numpy(observation["observation.state"]), "observation.images": images}
    with torch.no_grad():
        torch.testing.assert_close(cameras._mean(observation), cameras.stock.model(batch)[0], rtol=1e-4, atol=1e-4)


def test_divergence_is_zero_at_the_reference_and_grows_away_from_it():
    check_divergence(make(), observe(STATE_ENV))


def test_dropout_is_never_applied():
    policy = make()
    for module in policy.stock.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    policy.train()
    observation = observe(STATE_ENV)
    first, again = (policy._mean(observation) for _ in range(2))
    assert torch.equal(first, again)
    assert not policy.stock.training


def test_entries_that_never_varied_are_not_explored():
    statistics = {"action": {"mean": [0.0, 0.0, 0.005], "std": [0.01, 0.01, 0.0]}}
    policy = make(statistics=statistics)
    policy._action.scale[2] = 0.0
    policy.free.copy_(policy._action.scale > 0)
    policy._all_free = False
    observation = observe(STATE_ENV)
    sample = policy.act(observation, generator=stream(1))
    np.testing.assert_allclose(sample.action_chunk[..., 2], 0.005)
    assert sample.action_chunk[..., 0].std() > 0
    log_prob = policy.evaluate(observation, sample, np.full(5, 4)).log_prob
    np.testing.assert_allclose(log_prob.detach(), sample.log_prob, atol=1e-5)


def test_the_critic_starts_from_the_actors_encoder_and_shares_nothing_trainable():
    policy = make(critic_keys=("privileged.pose",))
    assert isinstance(policy, ValuePolicy)
    for name, item in policy.critic.encoder.state_dict().items():
        assert torch.equal(item, policy.stock.model.state_dict()[name])
    groups = policy.parameter_groups()
    ids = [id(parameter) for group in groups.values() for parameter in group]
    assert len(ids) == len(set(ids))
    assert set(groups) == {"actor", "critic"}
    observation = observe(STATE_ENV)
    value = policy.value(observation)
    assert value.shape == (5,)
    value.sum().backward()
    assert not any(p.grad is not None for p in policy.stock.parameters())
    other = {**observation, "privileged.pose": np.zeros((5, 4), np.float32)}
    assert not torch.equal(value, policy.value(other))


def test_privileged_keys_are_refused_for_the_actor():
    with pytest.raises(SpecError, match="privileged entries reach teachers and critics only"):
        make(extra_state_keys=("privileged.pose",))


@pytest.mark.parametrize("frozen", ["freeze_backbone", "freeze_encoder"])
def test_cached_features_change_nothing(frozen):
    policy = make(CAMERA_ENV, observation_keys=CAMERA_KEYS, critic_keys=("privileged.pose",), **{frozen: True})
    assert isinstance(policy, CachingPolicy)
    observation = observe(CAMERA_ENV, 3)
    cached = policy.precompute(observation)
    assert not set(cached) & set(CAMERAS)
    assert all(not isinstance(item, torch.Tensor) for item in cached.values())
    assert policy.precompute(cached) is cached
    sample, executed = policy.act(observation, generator=stream(1)), np.full(3, 4)
    np.testing.assert_allclose(policy.evaluate(cached, sample, executed).log_prob.detach(), sample.log_prob, atol=1e-4)
    torch.testing.assert_close(policy.value(cached), policy.value(observation))
    reference = policy.clone()
    assert not policy.divergence(cached, sample, reference, executed).any()
    as_tensors = {key: torch.as_tensor(item) if key != "task" else item for key, item in observation.items()}
    assert any(
        key.startswith("features.") and isinstance(item, torch.Tensor)
        for key, item in policy.precompute(as_tensors).items()
    )


def test_stale_features_are_refused(cameras):
    observation = observe(CAMERA_ENV, 2)
    cached = cameras.precompute(observation)
    policy = cameras.clone()
    with torch.no_grad():
        policy.stock.model.backbone.conv1.weight.mul_(1.01)
    sample = policy.act(observation, generator=stream(0))
    with pytest.raises(CheckError, match="stale"):
        policy.evaluate(cached, sample, np.full(2, 4))
    with pytest.raises(CheckError, match="stale"):
        policy.value(cached)


def test_without_a_frozen_part_there_is_nothing_to_cache():
    observation = observe(STATE_ENV)
    assert make().precompute(observation) is observation
    assert set(make(CAMERA_ENV, observation_keys=CAMERA_KEYS).parameter_groups()) == {"actor", "critic", "backbone"}


def test_imitation_is_the_mean_absolute_error_in_normalised_units():
    policy, observation = make(), observe(STATE_ENV)
    chunk = policy.act(observation, generator=stream(1), deterministic=True).action_chunk
    chunk[:, 0] += [0.005, 0.0, 0.0]
    chunk[:, 2:] += 9.0
    loss = policy.imitation_loss(observation, chunk, np.full(5, 2))
    np.testing.assert_allclose(loss.detach(), 0.5 / 6, atol=1e-5)


def test_save_and_load_give_the_same_policy(tmp_path):
    options = {"extra_state_keys": ("observation.wrench",), "critic_keys": ("privileged.pose",)}
    policy = perturb(make(statistics={"action": {"mean": [0.001] * 3, "std": [0.002] * 3}}, **options))
    policy.save(tmp_path)
    restored = policy.config.build(STATE_ENV, generator=stream(7))
    restored.load(tmp_path)
    for key, item in policy.state_dict().items():
        assert torch.equal(item, restored.state_dict()[key]), key
    assert restored.config == policy.config
    assert restored.normalisation() == policy.normalisation()


def test_load_explains_what_does_not_fit(tmp_path):
    policy = make()
    with pytest.raises(CheckpointError, match=r"has no file 'config\.json'"):
        policy.load(tmp_path)
    policy.save(tmp_path)
    with pytest.raises(CheckpointError, match="dim_model is 16, expected 32"):
        make(dim_model=32).load(tmp_path)
    with pytest.raises(CheckpointError, match="differ in"):
        make(freeze_encoder=True).load(tmp_path)
    (tmp_path / "burnish_heads.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="Cannot read"):
        policy.load(tmp_path)
    (tmp_path / "burnish_policy.json").unlink()
    with pytest.raises(CheckpointError, match="was written by lerobot"):
        policy.load(tmp_path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"chunk_steps": 0}, "chunk_steps"),
        ({"dim_model": 10}, "multiple"),
        ({"init_std": 0.001}, "min_std"),
        ({"extra_scale": (1.0,)}, "extra_scale"),
        ({"path": "x", "freeze_encoder": True, "extra_state_keys": ("observation.wrench",)}, "freeze_encoder"),
        ({"observation_keys": ("observation.stat",)}, "Did you mean 'observation.state'"),
        ({"observation_keys": ("observation.state",)}, "a camera or"),
        ({"extra_state_keys": ("observation.images.top",)}, "only vectors"),
    ],
)
def test_bad_configurations_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        make(CAMERA_ENV, **bad)


def test_a_key_that_the_env_does_not_have_is_named():
    with pytest.raises(SpecError, match=r"'observation\.wrnch'.*Did you mean 'observation\.wrench'"):
        make(extra_state_keys=("observation.wrnch",))


def test_a_directory_that_is_no_lerobot_policy_is_explained(tmp_path):
    with pytest.raises(CheckpointError, match="lerobot policy directory"):
        make(path=str(tmp_path))
    (tmp_path / "config.json").write_text('{"type": "diffusion"}')
    with pytest.raises(CheckpointError, match="not 'act'"):
        make(path=str(tmp_path))
    (tmp_path / "config.json").write_text('{"type": "act"}')
    with pytest.raises(CheckpointError, match="migrate_policy_normalization"):
        make(path=str(tmp_path))
