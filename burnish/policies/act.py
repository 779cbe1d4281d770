"""Action chunking transformer (lerobot's ACT) as a Gaussian policy with a critic, after PAC-ACT (arXiv 2607.09590)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ConfigError, SpecError, require, suggest
from burnish.core.spec import IMAGE_PREFIX, Array, EnvSpec, PolicySpec, check_fit
from burnish.nn.normalise import Statistics, affine, affine_of
from burnish.policies import act_checkpoint
from burnish.policies.act_checkpoint import ACTION, ENVIRONMENT, STATE, Stock
from burnish.policies.act_policy import GaussianACT

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""Channel statistics that lerobot uses for cameras by default."""


@dataclass(frozen=True)
class Config:
    """An ACT policy, from a lerobot checkpoint directory or from scratch.

    Log-probabilities, divergences and the log-std are in ACT's normalised action units (usually one standard
    deviation of the demonstrations). With ``path`` the sizes of the network and what it reads come from there.
    """

    path: str | None = None
    """Directory that ``lerobot-train`` or burnish wrote; None for new weights."""
    extra_state_keys: tuple[str, ...] = ()
    """Vectors appended to ``observation.state``: sensors that the checkpoint did not have, ignored at first."""
    extra_scale: tuple[float, ...] = ()
    """Factor of each extra vector on the usual size of its entries, which the env's spec gives; empty means 1.

    A smaller one lets a sensor weigh more, since its columns start at zero and grow from there.
    """
    observation_keys: tuple[str, ...] = ()
    """What is read without ``path``: state, environment state and cameras; empty means all of those that exist."""
    critic_keys: tuple[str, ...] = ()
    """Vectors that the critic reads beside the encoder's tokens; may be privileged."""
    chunk_steps: int = 8
    """Actions K per answer."""
    dim_model: int = 64
    """Width of a token."""
    n_heads: int = 4
    """Attention heads."""
    dim_feedforward: int = 256
    """Width between the two layers of a feed-forward block."""
    n_encoder_layers: int = 1
    """Encoder layers."""
    n_decoder_layers: int = 1
    """Decoder layers."""
    pre_norm: bool = False
    """Whether layers normalise their input instead of their output."""
    feedforward_activation: Literal["relu", "gelu"] = "relu"
    """Between the two layers of a feed-forward block."""
    latent_dim: int = 32
    """Width of the dropped latent; kept so that the directory stays lerobot's."""
    vision_backbone: str = "resnet18"
    """torchvision ResNet for cameras."""
    dilated_backbone: bool = False
    """Whether the backbone's last stride is replaced by a dilation."""
    critic_hidden: tuple[int, ...] = (128,)
    """Hidden widths of the critic's head."""
    init_std: float = 0.3
    """Initial standard deviation: normalised action units, or the usual scale of an action where the env gives one."""
    noise_correlation: float = 0.0
    """Correlation of the noise of successive actions of a chunk, in [0, 1); see :mod:`burnish.nn.correlated`."""
    min_std: float = 0.01
    """Floor of the standard deviation, normalised action units."""
    freeze_backbone: bool = False
    """Whether the backbone stays as it is; its maps can then be computed once per rollout."""
    freeze_encoder: bool = False
    """Whether the whole encoder stays as it is; its memory tokens can then be computed once per rollout."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.chunk_steps < 1 or self.dim_model % (2 * self.n_heads):
            raise ConfigError(
                f"act: chunk_steps ({self.chunk_steps}) must be at least 1, and dim_model ({self.dim_model}) a "
                f"multiple of 2 * n_heads ({self.n_heads})."
            )
        if not 0 < self.min_std <= self.init_std:
            raise ConfigError(f"act: need 0 < min_std <= init_std, found {self.min_std} and {self.init_std}.")
        if not 0.0 <= self.noise_correlation < 1.0:
            raise ConfigError(f"act: noise_correlation must be within [0, 1), found {self.noise_correlation}.")
        if self.extra_scale and (len(self.extra_scale) != len(self.extra_state_keys) or min(self.extra_scale) <= 0):
            raise ConfigError(
                f"act: extra_scale {self.extra_scale} needs one positive number for each of {self.extra_state_keys}."
            )
        if self.path and self.freeze_encoder and self.extra_state_keys:
            raise ConfigError(
                "act: freeze_encoder would freeze the new columns of extra_state_keys at zero, so the new sensors "
                "could never be used. Take one of the two out."
            )

    def build(
        self, env_spec: EnvSpec, *, generator: np.random.Generator, statistics: Statistics | None = None
    ) -> GaussianACT:
        """Make the policy for an environment.

        Args:
            env_spec: Where it will act.
            generator: Source of new weights.
            statistics: Recorded mean and std per key, for normalisation; those of ``path`` come first.

        Raises:
            ConfigError: If a key does not exist, or there is nothing ACT could read.
            SpecError: If the env does not give what the network reads, or a privileged key is asked for.
            CheckpointError: If ``path`` cannot be used.
        """
        stock = _find_stock(self, env_spec, statistics)
        spec = _make_spec(self, stock, env_spec)
        resolved = replace(self, path=None, extra_scale=(), **act_checkpoint.architecture(stock))
        return GaussianACT(resolved, spec, stock, generator=generator, statistics=statistics)


def _find_stock(config: Config, env_spec: EnvSpec, statistics: Statistics | None) -> Stock:
    """Return what the directory holds, widened; or the description of a new network, without weights."""
    require("lerobot", "lerobot", "the act policy")
    for key in (*config.extra_state_keys, *config.critic_keys):
        if len(_entry(env_spec, key).shape) != 1:
            raise ConfigError(f"act: '{key}' has shape {env_spec.observation[key].shape}; only vectors can be added.")
    if config.path is None:
        return _new_stock(config, env_spec, statistics)
    stock = act_checkpoint.read_stock(Path(config.path))
    factor = dict(zip(config.extra_state_keys, config.extra_scale, strict=False))
    extra = {
        key: affine(key, env_spec.observation[key], None)[1] * np.float32(factor.get(key, 1.0))
        for key in config.extra_state_keys
        if key not in stock.state_keys
    }
    return act_checkpoint.widen(stock, extra)


def _new_stock(config: Config, env_spec: EnvSpec, statistics: Statistics | None) -> Stock:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig

    readable = [
        key for key in env_spec.public_observation if key in (STATE, ENVIRONMENT) or key.startswith(IMAGE_PREFIX)
    ]
    keys = config.observation_keys or tuple(readable)
    for key in keys:
        if key not in readable:
            raise ConfigError(f"act: cannot read '{key}'.{suggest(key, readable)} Append vectors by extra_state_keys.")
    cameras = [key for key in keys if key.startswith(IMAGE_PREFIX)]
    if STATE not in keys or not (cameras or ENVIRONMENT in keys):
        raise ConfigError(
            f"act: the network reads '{STATE}' and a camera or '{ENVIRONMENT}'; environment '{env_spec.id}' offers "
            f"{', '.join(env_spec.public_observation)}, of which {keys or 'none'} were chosen. "
            "For other vectors use the policy 'mlp'."
        )
    state_keys = (STATE, *config.extra_state_keys)
    affines = {STATE: affine_of(state_keys, env_spec.observation, statistics)}
    affines[ACTION] = affine(ACTION, env_spec.action, statistics)
    inputs = {STATE: PolicyFeature(FeatureType.STATE, affines[STATE][0].shape)}
    if ENVIRONMENT in keys:
        affines[ENVIRONMENT] = affine(ENVIRONMENT, env_spec.observation[ENVIRONMENT], statistics)
        inputs[ENVIRONMENT] = PolicyFeature(FeatureType.ENV, env_spec.observation[ENVIRONMENT].shape)
    stats = {key: {"mean": mean, "std": scale} for key, (mean, scale) in affines.items()}
    for key in cameras:
        height, width, channels = env_spec.observation[key].shape
        inputs[key] = PolicyFeature(FeatureType.VISUAL, (channels, height, width))
        stats[key] = {name: _channels(statistics, key, name) for name in ("mean", "std")}
    lerobot_config = ACTConfig(
        **{name: getattr(config, ours) for ours, name in act_checkpoint.ARCHITECTURE.items()},
        n_action_steps=config.chunk_steps,
        input_features=inputs,
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, env_spec.action.shape)},
        pretrained_backbone_weights=None,
        use_vae=False,
        dropout=0.0,
        device="cpu",
    )
    return Stock(lerobot_config, None, stats, state_keys)


def _channels(statistics: Statistics | None, key: str, name: str) -> Array:
    recorded = (statistics or {}).get(key, IMAGENET)[name]
    return np.asarray(recorded, np.float32).reshape(3, 1, 1)


def _make_spec(config: Config, stock: Stock, env_spec: EnvSpec) -> PolicySpec:
    features = stock.config.input_features
    keys = [
        *stock.state_keys,
        *((ENVIRONMENT,) if stock.config.env_state_feature else ()),
        *stock.config.image_features,
    ]
    specs = {key: _entry(env_spec, key) for key in keys}
    shapes: dict[str, tuple[Any, Any]] = {
        STATE: (features[STATE].shape, (sum(specs[key].shape[0] for key in stock.state_keys),)),
        ACTION: (stock.config.action_feature.shape, env_spec.action.shape),
    }
    for key in keys[len(stock.state_keys) :]:
        shape = specs[key].shape
        shapes[key] = (tuple(features[key].shape), (shape[-1], *shape[:-1]) if len(shape) == 3 else shape)
    for key, (expected, found) in shapes.items():
        if tuple(expected) != tuple(found):
            raise SpecError(
                f"The ACT network takes '{key}' of shape {tuple(expected)}, but environment '{env_spec.id}' gives "
                f"{tuple(found)} (cameras as channels, height, width). Name new sensors in extra_state_keys."
            )
    spec = PolicySpec(
        id="act",
        observation=specs,
        action=env_spec.action,
        chunk_steps=stock.config.chunk_size,
        critic_observation={key: env_spec.observation[key] for key in config.critic_keys},
    )
    check_fit(spec, env_spec)
    return spec


def _entry(env_spec: EnvSpec, key: str) -> Any:
    if key not in env_spec.observation:
        raise SpecError(
            f"The act policy reads '{key}', which environment '{env_spec.id}' does not give."
            f"{suggest(key, env_spec.observation)}"
        )
    return env_spec.observation[key]
