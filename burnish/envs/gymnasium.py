"""Any Gymnasium environment with continuous actions, by its id; nothing of it is known here.

``"module:id"`` imports the module first, so that packages which register on import work, for example
``Config(env_id="metaworld:Meta-World/MT1", kwargs=(("env_name", "peg-insert-side-v3"), ("seed", 0)))``. A Start's seed
is what the environment is reset with; ``Start.init`` is always 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.packages import versions
from burnish.core.spec import IMAGE_PREFIX, PRIVILEGED_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.single import VectorEnv

STATE_KEY = "observation.state"
SUCCESS_KEYS = ("success", "is_success")
"""Names under which environments report success in their info, looked at where the configuration names none."""


@dataclass(frozen=True)
class Config:
    """A Gymnasium environment as a task."""

    env_id: str = "MountainCarContinuous-v0"
    """Gymnasium id, as for ``gymnasium.make``; ``"module:id"`` imports a module first."""
    kwargs: tuple[tuple[str, bool | int | float | str | None], ...] = ()
    """Arguments for ``gymnasium.make``, as (name, value) pairs."""
    task: str = ""
    """Instruction and name of the only task; "" for the id."""
    max_episode_steps: int = 0
    """Actions after which an episode is truncated; 0 for the registered limit."""
    control_dt: float = 0.0
    """Seconds between two actions; 0 for what the environment says (``dt``, or ``render_fps`` of its metadata)."""
    success_key: str = ""
    """Entry of ``info`` that tells success; "" for ``success`` or ``is_success``, whichever there is."""
    success_return: float | None = None
    """Where ``info`` tells no success: sum of rewards that counts as one; None for the registered threshold."""
    end_on_success: bool = False
    """Whether success terminates an episode that the environment would go on with."""
    keys: tuple[tuple[str, str], ...] = ()
    """(entry of the observation, burnish key) pairs; entries of nested dicts are joined with "/", the entry of a plain
    array is "". Vectors under one key are joined. () gives all vectors as ``observation.state`` and every picture as
    ``observation.images.<entry>``."""
    camera: str = ""
    """Name under which what ``render()`` shows is observed as an image; "" for not at all."""
    render_mode: str = "rgb_array"
    """Argument of ``gymnasium.make``; "" for environments that have none."""

    def __post_init__(self) -> None:
        """Refuse keys that burnish does not have."""
        if self.max_episode_steps < 0 or self.control_dt < 0:
            raise ConfigError(
                "gymnasium: max_episode_steps and control_dt must not be negative, "
                f"found {self.max_episode_steps} and {self.control_dt}."
            )
        if self.camera and self.render_mode != "rgb_array":
            raise ConfigError(f"gymnasium: a camera needs render_mode 'rgb_array', found '{self.render_mode}'.")
        for entry, key in self.keys:
            if not key.startswith(("observation.", PRIVILEGED_PREFIX)):
                raise ConfigError(
                    f"gymnasium: '{entry}' is mapped to '{key}'; keys begin with 'observation.' or "
                    f"'{PRIVILEGED_PREFIX}', for example '{STATE_KEY}'."
                )

    def make(self) -> "gymnasium.Env[Any, Any]":
        """Return the Gymnasium environment, without the checking and time-limit wrappers that ``make`` can add.

        Raises:
            ConfigError: If there is no such id, or it does not take the arguments.
        """
        kwargs: dict[str, Any] = dict(self.kwargs)
        if self.render_mode:
            kwargs.setdefault("render_mode", self.render_mode)
        try:
            return gymnasium.make(self.env_id, max_episode_steps=-1, disable_env_checker=True, **kwargs)
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
            raise ConfigError(
                f"gymnasium.make('{self.env_id}') with arguments {kwargs} failed: {str(error).rstrip('.')}. "
                "If a package registers the id when it is imported, write 'package:id'; if the environment takes no "
                "render_mode, set render_mode to ''."
            ) from error

    def build(self, num_envs: int = 1) -> VectorEnv:
        """Return ``num_envs`` of them; in one thread, since most hold Python's interpreter lock."""
        first = self.make()
        plan = _Plan(self, first)
        spec = _describe(self, first, plan)
        made = [first, *(self.make() for _ in range(num_envs - 1))]
        return VectorEnv([GymnasiumEnv(self, env, spec, plan) for env in made])


class GymnasiumEnv:
    """One Gymnasium environment as a :class:`burnish.envs.single.SingleEnv`."""

    def __init__(self, config: Config, env: "gymnasium.Env[Any, Any]", spec: EnvSpec, plan: "_Plan") -> None:
        """Take ``env`` over."""
        self.spec = spec
        self._config = config
        self._plan = plan
        self._env = env
        self._step = (env.env if isinstance(env, gymnasium.wrappers.OrderEnforcing) else env).step  # ours resets first
        box = env.action_space
        assert isinstance(box, gymnasium.spaces.Box)
        self._low, self._high = box.low, box.high
        self._command = np.empty(box.shape, box.dtype)
        self._limit = spec.max_episode_steps
        self._success_keys = (config.success_key,) if config.success_key else SUCCESS_KEYS
        self._threshold = _success_return(config)
        self._raw: Any = None
        self._steps = 0
        self._return = 0.0
        self._success = False

    def reset(self, start: Start) -> None:
        """Reset with ``start.seed``, which also seeds whatever draws before the environment's own reset does."""
        self._env.unwrapped.np_random = gymnasium.utils.seeding.np_random(start.seed)[0]
        self._raw, _ = self._env.reset(seed=start.seed)
        self._steps = 0
        self._return = 0.0
        self._success = False

    def advance(self, action: Array) -> tuple[float, bool, bool]:
        """Execute one action, clipped to the limits of the space."""
        np.maximum(action, self._low, out=self._command)
        command = np.minimum(self._command, self._high)
        self._raw, reward, terminated, truncated, info = self._step(command)
        reward = float(reward)
        self._steps += 1
        self._return += reward
        ended = bool(terminated)
        if self._succeeded(info):
            self._success = True
            ended = ended or self._config.end_on_success
        return reward, ended, not ended and (bool(truncated) or self._steps >= self._limit)

    def observe(self) -> dict[str, Any]:
        """Return the observation under burnish's keys."""
        observation = self._plan.read(self._raw)
        if self._config.camera:
            observation[IMAGE_PREFIX + self._config.camera] = self.render()
        observation[TASK_KEY] = self.spec.tasks[0]
        return observation

    def metrics(self) -> dict[str, float]:
        """Return whether success was told at any step, and the sum of rewards."""
        return {"success": float(self._success), "return": self._return}

    def render(self) -> Array:
        """Return what the environment's ``render`` shows."""
        return _picture(self._env)

    def close(self) -> None:
        """Close the Gymnasium environment."""
        self._env.close()

    def _succeeded(self, info: Mapping[str, Any]) -> bool:
        for key in self._success_keys:
            if key in info:
                return bool(info[key])
        if self._config.success_key:
            raise EnvError(
                f"'{self._config.env_id}' gave no '{self._config.success_key}' in info; set success_key to one of: "
                f"{', '.join(sorted(info)) or '(info is empty)'}; or leave it and set success_return."
            )
        if self._threshold is None:
            raise EnvError(
                f"'{self._config.env_id}' does not tell success: info has {', '.join(sorted(info)) or 'nothing'}, and "
                "no reward threshold is registered. Set success_key, or success_return."
            )
        return self._return >= self._threshold


class _Plan:
    """Which entries of the Gymnasium observation go where."""

    def __init__(self, config: Config, env: "gymnasium.Env[Any, Any]") -> None:
        leaves = dict(_leaves(env.observation_space))
        default = (
            (entry, IMAGE_PREFIX + (entry.rsplit("/", 1)[-1] or "camera") if _is_image(space) else STATE_KEY)
            for entry, space in leaves.items()
        )
        self._entries: dict[str, list[str]] = {}
        for entry, key in config.keys or default:
            if entry not in leaves:
                raise ConfigError(f"'{config.env_id}' observes no '{entry}'.{suggest(entry, leaves)}")
            if not isinstance(leaves[entry], gymnasium.spaces.Box):
                raise ConfigError(
                    f"'{config.env_id}': entry '{entry}' of the observation is {leaves[entry]}; only Box can be "
                    "observed. Leave it out by setting keys to the entries you want."
                )
            self._entries.setdefault(key, []).append(entry)
        self.spec: dict[str, ArraySpec] = {}
        for key, entries in self._entries.items():
            if key.startswith(IMAGE_PREFIX):
                if len(entries) > 1 or not _is_image(leaves[entries[0]]):
                    raise ConfigError(f"'{config.env_id}': '{key}' needs one (H, W, 3) uint8 entry, found {entries}.")
                self.spec[key] = ArraySpec(leaves[entries[0]].shape or (), dtype="uint8")
            else:
                self.spec[key] = ArraySpec((sum(int(np.prod(leaves[entry].shape or ())) for entry in entries),))

    def read(self, raw: Any) -> dict[str, Any]:
        """Return new arrays under burnish's keys."""
        observation: dict[str, Any] = {}
        for key, entries in self._entries.items():
            parts = [_entry(raw, entry) for entry in entries]
            if key.startswith(IMAGE_PREFIX):
                observation[key] = parts[0]
            else:
                vectors = [np.array(part, np.float32).reshape(-1) for part in parts]
                observation[key] = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        return observation


def _describe(config: Config, env: "gymnasium.Env[Any, Any]", plan: _Plan) -> EnvSpec:
    observation = dict(plan.spec)
    if config.camera:
        env.reset(seed=0)
        observation[IMAGE_PREFIX + config.camera] = ArraySpec(_picture(env).shape, dtype="uint8")
    return EnvSpec(
        id="gymnasium",
        observation=observation,
        action=_action_spec(config, env.action_space),
        control_dt=config.control_dt or _control_dt(config, env),
        max_episode_steps=config.max_episode_steps or _registered_limit(config),
        tasks=(config.task or config.env_id,),
        num_inits=1,
        metrics={
            "success": MetricSpec("binary", better="higher", description="Success was told at any step."),
            "return": MetricSpec("mean", better="higher", description="Sum of rewards."),
        },
        protocol={
            "env_id": config.env_id,
            "kwargs": dict(config.kwargs),
            "end_on_success": config.end_on_success,
            "success": config.success_key or "info, else return",
            "success_return": config.success_return,
            "versions": versions(("gymnasium", type(env.unwrapped).__module__.partition(".")[0])),
        },
    )


def _action_spec(config: Config, space: "gymnasium.Space[Any]") -> ArraySpec:
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"'{config.env_id}' acts in {space}; burnish's policies are continuous and need a Box of shape (A,). "
            "Choose a continuous version of the environment, or wrap it in one that is."
        )
    low = tuple(space.low.tolist()) if np.isfinite(space.low).all() else None
    high = tuple(space.high.tolist()) if np.isfinite(space.high).all() else None
    return ArraySpec(space.shape, low=low, high=high)


def _control_dt(config: Config, env: "gymnasium.Env[Any, Any]") -> float:
    seconds = getattr(env.unwrapped, "dt", None)
    if isinstance(seconds, (int, float)) and seconds > 0:
        return float(seconds)
    rate = env.metadata.get("render_fps")
    if rate:
        return 1.0 / float(rate)
    raise ConfigError(f"'{config.env_id}' says neither dt nor render_fps; set control_dt to the seconds of one action.")


def _registered(config: Config) -> "gymnasium.envs.registration.EnvSpec":
    return gymnasium.spec(config.env_id.rpartition(":")[2])


def _registered_limit(config: Config) -> int:
    limit = _registered(config).max_episode_steps
    if not limit:
        raise ConfigError(f"'{config.env_id}' is registered without a time limit; set max_episode_steps.")
    return limit


def _success_return(config: Config) -> float | None:
    if config.success_return is not None:
        return config.success_return
    return _registered(config).reward_threshold


def _leaves(space: "gymnasium.Space[Any]", path: str = "") -> Iterator[tuple[str, "gymnasium.Space[Any]"]]:
    if not isinstance(space, gymnasium.spaces.Dict):
        yield path, space
        return
    for name, item in space.spaces.items():
        yield from _leaves(item, f"{path}/{name}" if path else name)


def _entry(raw: Any, path: str) -> Any:
    for name in path.split("/") if path else ():
        raw = raw[name]
    return raw


def _is_image(space: "gymnasium.Space[Any]") -> bool:
    shape = space.shape or ()
    return isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3


def _picture(env: "gymnasium.Env[Any, Any]") -> Array:
    picture: Any = env.render()
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        raise EnvError(
            f"{env} rendered {type(picture).__name__} {getattr(picture, 'shape', '')}, not an (H, W, 3) picture; "
            "render_mode must be 'rgb_array'."
        )
    return picture.astype(np.uint8, copy=False)
