"""Registers ``--env.type=burnish`` with LeRobot, which imports this module because of its distribution's name."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

from burnish import registry
from burnish.core.config import from_plain
from burnish.core.errors import ConfigError
from burnish.core.spec import IMAGE_PREFIX, EnvSpec
from burnish.envs.registration import gymnasium_id

STATE, ENVIRONMENT_STATE = "observation.state", "observation.environment_state"
AGENT_POS, PIXELS, ENVIRONMENT = "agent_pos", "pixels", "environment_state"


@EnvConfig.register_subclass("burnish")
@dataclass
class BurnishEnv(EnvConfig):
    """Any environment that ``burnish list env`` shows."""

    task: str | None = "contact/contour"
    """burnish id."""
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of the environment's Config."""
    split: str = ""
    """Split of tasks; "" for all."""
    state_keys: list[str] = field(default_factory=lambda: [STATE])
    """Keys that are joined, in order, to what LeRobot calls ``observation.state``."""
    render_mode: str = "rgb_array"
    """As for gymnasium.make."""

    def __post_init__(self) -> None:
        """Describe observation and action, from the environment's own spec."""
        spec = describe(str(self.task), json.dumps(self.config))
        self.fps = max(1, round(1.0 / spec.control_dt))
        wrong = [key for key in self.state_keys if key not in spec.public_observation]
        if wrong or not self.state_keys:
            raise ConfigError(
                f"state_keys: '{spec.id}' has no {', '.join(wrong) or 'empty state'}. It has: "
                f"{', '.join(spec.public_observation)}."
            )
        size = sum(spec.observation[key].shape[0] for key in self.state_keys)
        self.features = {
            "action": PolicyFeature(FeatureType.ACTION, spec.action.shape),
            AGENT_POS: PolicyFeature(FeatureType.STATE, (size,)),
        }
        self.features_map = {"action": "action", AGENT_POS: STATE}
        if ENVIRONMENT_STATE in spec.public_observation:
            self.features[ENVIRONMENT] = PolicyFeature(FeatureType.ENV, spec.observation[ENVIRONMENT_STATE].shape)
            self.features_map[ENVIRONMENT] = ENVIRONMENT_STATE
        for key in spec.image_keys:
            name = f"{PIXELS}/{key.removeprefix(IMAGE_PREFIX)}"
            self.features[name] = PolicyFeature(FeatureType.VISUAL, spec.observation[key].shape)
            self.features_map[name] = key

    @property
    def package_name(self) -> str:
        """Return the package that registers the environments."""
        return "burnish"

    @property
    def gym_id(self) -> str:
        """Return the Gymnasium id."""
        return gymnasium_id(str(self.task))

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Return what ``gymnasium.make`` is given."""
        return {"render_mode": self.render_mode, "split": self.split, **self.config}

    def create_envs(
        self, n_envs: int, use_async_envs: bool = False
    ) -> dict[str, dict[int, "gymnasium.vector.VectorEnv[Any, Any, Any]"]]:
        """Return {"burnish": {0: vector environment}}."""
        task, split, config, keys = str(self.task), self.split, dict(self.config), tuple(self.state_keys)

        def make() -> "gymnasium.Env[Any, Any]":
            registry.register_envs()  # here, because it also runs in spawned workers
            env = gymnasium.make(
                gymnasium_id(task), disable_env_checker=True, render_mode=self.render_mode, split=split, **config
            )
            return JoinedState(env, keys)

        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        makers = [make] * n_envs
        vector: gymnasium.vector.VectorEnv[Any, Any, Any] = (
            gymnasium.vector.AsyncVectorEnv(makers, autoreset_mode=mode, context="forkserver")
            if use_async_envs and n_envs > 1
            else gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        )
        return {"burnish": {0: vector}}


class JoinedState(gymnasium.ObservationWrapper[dict[str, Any], Any, dict[str, Any]]):
    """Leaves LeRobot with the entries that it knows; all others are joined to the state, or left out."""

    def __init__(self, env: "gymnasium.Env[dict[str, Any], Any]", keys: tuple[str, ...]) -> None:
        """Wrap ``env``; ``keys`` are burnish's."""
        super().__init__(env)
        self._names = [
            AGENT_POS if key == STATE else key.removeprefix("observation.").replace(".", "_") for key in keys
        ]
        spaces = env.observation_space
        assert isinstance(spaces, gymnasium.spaces.Dict)
        low = np.concatenate([spaces[name].low for name in self._names])
        high = np.concatenate([spaces[name].high for name in self._names])
        kept = {AGENT_POS: gymnasium.spaces.Box(low, high, dtype=np.float32)}
        self._kept = [name for name in (PIXELS, ENVIRONMENT) if name in spaces.spaces]
        kept |= {name: spaces[name] for name in self._kept}
        self.observation_space = gymnasium.spaces.Dict(kept)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the entries that LeRobot knows."""
        joined = {AGENT_POS: np.concatenate([observation[name] for name in self._names])}
        return joined | {name: observation[name] for name in self._kept}


@lru_cache(maxsize=8)
def describe(task: str, config: str) -> EnvSpec:
    """Return the spec of an environment by building one."""
    cls = registry.load("env", task)
    env = from_plain(cls, json.loads(config), f"env '{task}'").build(1)
    try:
        spec: EnvSpec = env.spec
        return spec
    finally:
        env.close()
