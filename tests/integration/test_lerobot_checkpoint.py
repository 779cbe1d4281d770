"""Directories go both ways between stock lerobot and burnish, with the same actions."""

import json

import numpy as np
import pytest
import torch

from burnish.core.errors import CheckpointError, ConfigError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.policies.act import Config

STATE, ENVIRONMENT, WRENCH = "observation.state", "observation.environment_state", "observation.wrench"
CAMERAS = ("observation.images.top", "observation.images.wrist")
ENV = EnvSpec(
    id="test",
    observation={
        STATE: ArraySpec((5,)),
        ENVIRONMENT: ArraySpec((2,)),
        WRENCH: ArraySpec((3,), low=-20.0, high=20.0),
        "privileged.pose": ArraySpec((4,)),
        **{key: ArraySpec((64, 64, 3), "uint8") for key in CAMERAS},
    },
    action=ArraySpec((3,), low=-0.01, high=0.01),
    control_dt=0.1,
    max_episode_steps=10,
    tasks=("t",),
)
INPUTS = {"state": (STATE, ENVIRONMENT), "cameras": (STATE, *CAMERAS), "all": (STATE, ENVIRONMENT, *CAMERAS)}


def observe(batch=3, seed=0):
    draw = np.random.default_rng(seed)
    return {
        key: draw.integers(0, 256, (batch, *spec.shape)).astype(np.uint8)
        if spec.is_image
        else draw.normal(0.5, 2, (batch, *spec.shape)).astype(np.float32)
        for key, spec in ENV.observation.items()
    } | {"task": ["t"] * batch}


def statistics(keys, draw):
    stats = {}
    for key in keys:
        shape = (3, 1, 1) if "images" in key else (ENV.action if key == "action" else ENV.observation[key]).shape
        low, high = -1 - draw.random(shape), 1 + draw.random(shape)
        figures = {"mean": draw.normal(0.3, 0.1, shape), "std": 0.2 + draw.random(shape), "min": low, "max": high}
        stats[key] = {name: torch.tensor(item, dtype=torch.float32) for name, item in figures.items()}
        stats[key]["count"] = torch.tensor([100.0])
    return stats


def write_stock_directory(directory, keys, mode="MEAN_STD", seed=0, **changes):
    """Write what ``lerobot-train`` writes: policy and processors through lerobot's own functions."""
    from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    def feature(key):
        shape = ENV.observation[key].shape
        if "images" in key:
            return PolicyFeature(FeatureType.VISUAL, (shape[2], *shape[:2]))
        return PolicyFeature(FeatureType.ENV if key == ENVIRONMENT else FeatureType.STATE, shape)

    config = ACTConfig(
        chunk_size=6,
        n_action_steps=4,
        dim_model=16,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=2,
        n_vae_encoder_layers=1,
        input_features={key: feature(key) for key in keys},
        output_features={"action": PolicyFeature(FeatureType.ACTION, ENV.action.shape)},
        normalization_mapping={
            "VISUAL": NormalizationMode.MEAN_STD,
            "STATE": NormalizationMode(mode),
            "ENV": NormalizationMode(mode),
            "ACTION": NormalizationMode(mode),
        },
        pretrained_backbone_weights=None,
        device="cpu",
        **changes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = ACTPolicy(config)
    policy.save_pretrained(directory)
    stats = statistics((*keys, "action"), np.random.default_rng(seed))
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(directory)
    return directory


def stock_actions(directory, observation, keys, extra=()):
    """Run stock lerobot from a directory on raw observations, as its evaluation does."""
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    policy = ACTPolicy.from_pretrained(directory)
    before, after = make_pre_post_processors(policy.config, pretrained_path=str(directory))
    batch = {
        key: torch.from_numpy(observation[key]).permute(0, 3, 1, 2).float() / 255
        if "images" in key
        else torch.from_numpy(observation[key])
        for key in keys
    }
    batch[STATE] = torch.from_numpy(np.concatenate([observation[key] for key in (STATE, *extra)], -1))
    return after(policy.predict_action_chunk(before(batch))).numpy()


def actions(policy, observation):
    return policy.act(observation, generator=stream(0), deterministic=True).action_chunk


def train_a_little(policy):
    with torch.no_grad():
        for i, parameter in enumerate(policy.parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
                parameter.add_(0.02 * noise)
    return policy


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_a_stock_checkpoint_acts_the_same_here_and_back_there(tmp_path, inputs, mode):
    keys = INPUTS[inputs]
    directory = write_stock_directory(tmp_path / "stock", keys, mode)
    policy = Config(path=str(directory), critic_keys=("privileged.pose",)).build(ENV, generator=stream(0))
    assert set(policy.spec.observation) == set(keys)
    observation = observe()
    np.testing.assert_allclose(actions(policy, observation), stock_actions(directory, observation, keys), atol=1e-5)

    trained = train_a_little(policy)
    trained.save(tmp_path / "trained")
    found = actions(trained, observation)
    assert np.abs(found - stock_actions(directory, observation, keys)).max() > 1e-3
    np.testing.assert_allclose(found, stock_actions(tmp_path / "trained", observation, keys), atol=1e-5)

    restored = trained.config.build(ENV, generator=stream(5))
    restored.load(tmp_path / "trained")
    np.testing.assert_array_equal(actions(restored, observation), found)
    np.testing.assert_array_equal(restored.value(observation).detach(), trained.value(observation).detach())


def test_the_variational_encoder_is_dropped(tmp_path):
    directory = write_stock_directory(tmp_path / "stock", INPUTS["state"])
    policy = Config(path=str(directory)).build(ENV, generator=stream(0))
    assert not any("vae" in name for name in policy.state_dict())
    policy.save(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["use_vae"] is False


def test_a_new_sensor_changes_nothing_until_it_is_trained(tmp_path):
    keys, observation = INPUTS["state"], observe()
    directory = write_stock_directory(tmp_path / "stock", keys)
    base = Config(path=str(directory)).build(ENV, generator=stream(0))
    config = Config(path=str(directory), extra_state_keys=(WRENCH,), extra_scale=(0.5,))
    widened = config.build(ENV, generator=stream(0))
    assert tuple(widened.spec.observation) == (STATE, WRENCH, ENVIRONMENT)
    assert widened.normalisation()["state"]["scale"][5:] == [10.0] * 3
    np.testing.assert_allclose(actions(widened, observation), actions(base, observation), atol=1e-6)

    other = {**observation, WRENCH: observation[WRENCH] + 15}
    np.testing.assert_array_equal(actions(widened, other), actions(widened, observation))
    loss = widened.imitation_loss(other, actions(widened, other) + 0.01, np.full(3, 6)).mean()
    loss.backward()
    assert widened.stock.model.encoder_robot_state_input_proj.weight.grad[:, 5:].abs().sum() > 0
    train_a_little(widened)
    assert np.abs(actions(widened, other) - actions(widened, observation)).max() > 1e-4

    widened.save(tmp_path / "wide")
    stock = stock_actions(tmp_path / "wide", other, keys, extra=(WRENCH,))
    np.testing.assert_allclose(actions(widened, other), stock, atol=1e-5)
    again = Config(path=str(tmp_path / "wide")).build(ENV, generator=stream(3))
    np.testing.assert_array_equal(actions(again, other), actions(widened, other))


def test_a_new_sensor_takes_its_limits_as_scale(tmp_path):
    directory = write_stock_directory(tmp_path / "stock", INPUTS["state"], "MIN_MAX")
    policy = Config(path=str(directory), extra_state_keys=(WRENCH,)).build(ENV, generator=stream(0))
    wide = policy.normalisers["state"](torch.tensor([0.0] * 5 + [-20.0, 0.0, 20.0]))
    np.testing.assert_allclose(wide[5:], [-1, 0, 1])


def test_an_env_with_another_state_is_refused(tmp_path):
    directory = write_stock_directory(tmp_path / "stock", INPUTS["state"])
    narrow = EnvSpec(
        id="narrow",
        observation={**ENV.observation, STATE: ArraySpec((4,))},
        action=ENV.action,
        control_dt=0.1,
        max_episode_steps=10,
        tasks=("t",),
    )
    with pytest.raises(SpecError, match=r"of shape \(5,\).*gives \(4,\)"):
        Config(path=str(directory)).build(narrow, generator=stream(0))


def test_damaged_and_unsuited_directories_are_explained(tmp_path):
    directory = write_stock_directory(tmp_path / "stock", INPUTS["state"])
    policy = Config(path=str(directory)).build(ENV, generator=stream(0))
    with pytest.raises(CheckpointError, match="without log-std and critic"):
        policy.load(directory)
    file = directory / "policy_preprocessor.json"
    pipeline = json.loads(file.read_text())
    pipeline["steps"][0]["config"]["rename_map"] = {"a": "b"}
    file.write_text(json.dumps(pipeline))
    with pytest.raises(ConfigError, match="renames observations"):
        Config(path=str(directory)).build(ENV, generator=stream(0))
    (directory / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="Cannot read the ACT policy"):
        Config(path=str(directory)).build(ENV, generator=stream(0))
