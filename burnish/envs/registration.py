"""Every burnish environment as a Gymnasium environment and vector environment, for everybody else's code.

``burnish.registry.register_envs()`` calls :func:`register` with what it finds; then ``contact/contour`` is
``gymnasium.make("burnish/contact-contour-v0")`` and ``gymnasium.make_vec(..., num_envs=8)``. Keyword arguments are the
fields of the environment's ``Config``. One call is one action: the chunk axis stays inside.

Observations have the names that lerobot knows from Gymnasium: ``observation.state`` is ``agent_pos``,
``observation.images.front`` is ``pixels`` / ``front``, and ``observation.wrench`` is ``wrench``. Privileged entries are
left out unless ``privileged=True``. ``info`` has ``is_success``, ``metrics`` and the Start of the episode, which is
drawn from the environment's generator, or given: ``reset(options={"start": Start(...)})``, ``{"task": "up"}``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils.seeding import np_random as seeded
from gymnasium.vector import AutoresetMode

from burnish.core.config import from_plain
from burnish.core.contracts import Renderable, VecEnv
from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.spec import IMAGE_PREFIX, PRIVILEGED_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, Observation
from burnish.core.step import TRAINING_SEED_START, Start, Step
from burnish.envs.processes import ProcessVecEnv

NAMESPACE, VERSION = "burnish", 0
STATE_NAME, IMAGES_NAME = "agent_pos", "pixels"


def gymnasium_id(name: str) -> str:
    """Return the Gymnasium id of a burnish id: ``contact/contour`` is ``burnish/contact-contour-v0``."""
    return f"{NAMESPACE}/{name.replace('/', '-')}-v{VERSION}"


def register(modules: Mapping[str, str]) -> list[str]:
    """Register environments with Gymnasium; none is imported before it is made.

    Args:
        modules: burnish id to the module that holds its ``Config``.

    Returns:
        Gymnasium ids, in order; those that were registered before are left as they are.
    """
    ids = []
    for name, module in modules.items():
        ids.append(gymnasium_id(name))
        if ids[-1] not in gymnasium.registry:
            gymnasium.register(
                id=ids[-1],
                entry_point=f"{__name__}:TaskEnv",
                vector_entry_point=f"{__name__}:TaskVectorEnv",
                kwargs={"component": f"{module}:Config"},
            )
    return ids


class TaskEnv(gymnasium.Env[dict[str, Any], Array]):
    """One burnish environment, one action at a time, as Gymnasium wants it."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        component: str,
        *,
        render_mode: str | None = None,
        split: str = "",
        privileged: bool = False,
        **config: Any,
    ) -> None:
        """Build the environment.

        Args:
            component: ``"module:Config"``.
            render_mode: None or "rgb_array".
            split: Split of tasks from which Starts are drawn; "" for all tasks.
            privileged: Whether the observation has the privileged entries.
            config: Fields of the Config.
        """
        self._env: VecEnv = _load(component, config).build(1)
        self._names = _names(self._env.spec, privileged)
        self._tasks = _tasks(self._env.spec, split)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": max(1, round(1.0 / self._env.spec.control_dt))}
        self.observation_space = _observation_space(self._env.spec, self._names)
        self.action_space = _box(self._env.spec.action)
        self._start = Start(self._tasks[0], 0, 0)
        self.task = self.task_description = ""
        self._max_episode_steps = self._env.spec.max_episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._start = _draw_start(self._env.spec, self._tasks, self.np_random, options or {})
        observation = self._env.reset([self._start])
        self.task = self.task_description = observation[TASK_KEY][0]
        return _nested(observation, self._names, 0), {"is_success": False, **self._about()}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute one action (A,)."""
        step = self._env.step(np.asarray(action, self._env.spec.action.dtype)[None, None])
        metrics = {name: float(figure[0]) for name, figure in step.metrics.items()}
        info = {"is_success": bool(step.metrics["success"][0]), **self._about(), "metrics": metrics}
        return (
            _nested(step.observation, self._names, 0),
            float(step.reward[0, 0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            info,
        )

    def render(self) -> Any:
        """Return an (H, W, 3) uint8 picture if the render mode asks for one."""
        return _render(self._env, 0) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _about(self) -> dict[str, Any]:
        return {"task": self._start.task, "init": self._start.init, "seed": self._start.seed}


class TaskVectorEnv(gymnasium.vector.VectorEnv[dict[str, Any], Array, Array]):
    """N burnish environments as a Gymnasium vector environment; what comes out is as from ``SyncVectorEnv``."""

    def __init__(
        self,
        num_envs: int,
        component: str,
        *,
        render_mode: str | None = None,
        split: str = "",
        privileged: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        workers: int = 0,
        **config: Any,
    ) -> None:
        """Build the environments; see :class:`TaskEnv` for the other arguments.

        Args:
            num_envs: N.
            component: ``"module:Config"``.
            render_mode: None or "rgb_array".
            split: Split of tasks from which Starts are drawn; "" for all tasks.
            privileged: Whether the observation has the privileged entries.
            autoreset_mode: What happens to an ended environment: reset in the next step (its action is then ignored),
                in the same step (the last observation is ``final_obs`` of the infos), or not at all.
            workers: Worker processes; 0 for none.
            config: Fields of the Config.
        """
        build = _load(component, config).build
        self._env: VecEnv = ProcessVecEnv(build, num_envs, workers) if workers else build(num_envs)
        spec = self._env.spec
        self._names = _names(spec, privileged)
        self._tasks = _tasks(spec, split)
        self._mode = AutoresetMode(autoreset_mode)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {
            **TaskEnv.metadata,
            "render_fps": max(1, round(1.0 / spec.control_dt)),
            "autoreset_mode": self._mode,
        }
        self.single_observation_space = _observation_space(spec, self._names)
        self.single_action_space = _box(spec.action)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._generators = [seeded()[0] for _ in range(num_envs)]
        self._starts = [Start(self._tasks[0], 0, 0)] * num_envs
        self._ended = np.zeros(num_envs, bool)
        self._instructions = [""] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin episodes in all environments, or where ``options["reset_mask"]`` (N,) is true."""
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise EnvError(f"reset_mask must be bool of shape ({self.num_envs},) with one true entry, found {mask}.")
        seeds = [seed + n for n in range(self.num_envs)] if isinstance(seed, int) else seed
        for n, item in enumerate(seeds or ()):
            if item is not None and mask[n]:
                self._generators[n] = seeded(item)[0]
        observation = self._begin(np.flatnonzero(mask), options)
        return _nested(observation, self._names), self._about(mask)

    def step(self, actions: Array) -> tuple[dict[str, Any], Array, Array, Array, dict[str, Any]]:
        """Execute one action each, (N, A)."""
        waiting = self._ended
        if self._mode is AutoresetMode.DISABLED and waiting.any():
            raise EnvError(
                f"Environments {np.flatnonzero(waiting).tolist()} have ended, and autoreset is disabled; reset them "
                'with reset(options={"reset_mask": mask}).'
            )
        step = self._env.step(np.asarray(actions, self._env.spec.action.dtype)[:, None])
        observation, terminated, truncated = step.observation, step.terminated & ~waiting, step.truncated & ~waiting
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            infos = self._final(step, ended)
            stepped = ~ended
            observation = self._begin(np.flatnonzero(ended), {})
        else:
            stepped = ~waiting
            if waiting.any():
                observation = self._begin(np.flatnonzero(waiting), {})
        infos |= self._about(np.ones(self.num_envs, bool), step.metrics["success"].astype(bool) & stepped)
        if stepped.any():
            infos |= self._metrics(step, stepped)
        self._ended = np.zeros(self.num_envs, bool) if self._mode is AutoresetMode.SAME_STEP else ended
        reward = step.reward[:, 0].astype(np.float64)
        return _nested(observation, self._names), reward, terminated, truncated, infos

    def render(self) -> Any:
        """Return a picture of each environment if the render mode asks for it."""
        if self.render_mode != "rgb_array":
            return None
        return tuple(_render(self._env, n) for n in range(self.num_envs))

    def call(self, name: str, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Return an attribute of each environment: ``task``, ``task_description``, ``render``, ``_max_episode_steps``.

        Raises:
            AttributeError: For any other name.
        """
        if name in ("task", "task_description"):
            return tuple(self._instructions)
        if name == "_max_episode_steps":
            return (self._env.spec.max_episode_steps,) * self.num_envs
        if name == "render":
            return tuple(_render(self._env, n) for n in range(self.num_envs))
        raise AttributeError(f"{self} has no '{name}' for each environment.")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment; see :meth:`call`."""
        return self.call(name)

    def close_extras(self, **_: Any) -> None:
        """Close the environments."""
        self._env.close()

    def _begin(self, index: Array, options: Mapping[str, Any]) -> Observation:
        for n in index.tolist():
            self._starts[n] = _draw_start(self._env.spec, self._tasks, self._generators[n], options)
        observation = self._env.reset([self._starts[n] for n in index.tolist()], index)
        self._ended[index] = False
        self._instructions = list(observation[TASK_KEY])
        return observation

    def _about(self, mask: Array, success: Array | None = None) -> dict[str, Any]:
        """Return what every info has, with Gymnasium's masks."""
        task = np.full(self.num_envs, None, object)
        init, seed = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
        for n in np.flatnonzero(mask).tolist():
            task[n], init[n], seed[n] = self._starts[n].task, self._starts[n].init, self._starts[n].seed
        success = np.zeros(self.num_envs, bool) if success is None else success
        return _masked({"is_success": success, "task": task, "init": init, "seed": seed}, mask)

    def _metrics(self, step: Step, mask: Array) -> dict[str, Any]:
        return _masked({"metrics": _masked(step.metrics, mask)}, mask)

    def _final(self, step: Step, ended: Array) -> dict[str, Any]:
        """Return last observation and last info of the environments that ended."""
        last = np.full(self.num_envs, None, object)
        for n in np.flatnonzero(ended).tolist():
            last[n] = _nested(step.observation, self._names, n)
        success = step.metrics["success"].astype(bool) & ended
        return _masked(
            {"final_obs": last, "final_info": self._about(ended, success) | self._metrics(step, ended)}, ended
        )


def _masked(entries: Mapping[str, Any], mask: Array) -> dict[str, Any]:
    """Return entries, zero where the mask is false, each with its mask under ``_name``."""
    masked: dict[str, Any] = {}
    for name, item in entries.items():
        masked[name] = np.where(mask, item, np.zeros_like(item)) if _is_number(item) else item
        masked[f"_{name}"] = mask.copy()
    return masked


def _is_number(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype != object


def _load(component: str, config: Mapping[str, Any]) -> Any:
    loaded: Any = load_env_creator(component)
    return from_plain(loaded, config, component.partition(":")[0])


def _tasks(spec: EnvSpec, split: str) -> tuple[str, ...]:
    if split and split not in spec.splits:
        raise ConfigError(f"Environment '{spec.id}' has no split '{split}'.{suggest(split, spec.splits)}")
    return spec.splits[split] if split else spec.tasks


def _draw_start(
    spec: EnvSpec, tasks: Sequence[str], generator: np.random.Generator, options: Mapping[str, Any]
) -> Start:
    """Return the Start that is given, or one of the training range."""
    given = options.get("start")
    if given is not None:
        return given if isinstance(given, Start) else from_plain(Start, given, "reset options: start")
    task = options.get("task", tasks[int(generator.integers(len(tasks)))])
    init = int(generator.integers(spec.num_inits))
    return Start(str(task), init, TRAINING_SEED_START + int(generator.integers(1 << 31)))


def _names(spec: EnvSpec, privileged: bool) -> dict[str, tuple[str, ...]]:
    """Return burnish key to path in the Gymnasium observation."""
    names: dict[str, tuple[str, ...]] = {}
    for key in spec.observation:
        if key.startswith(PRIVILEGED_PREFIX):
            if privileged:
                names[key] = (key.replace(".", "_"),)
        elif key.startswith(IMAGE_PREFIX):
            names[key] = (IMAGES_NAME, key.removeprefix(IMAGE_PREFIX))
        else:
            name = key.removeprefix("observation.").replace(".", "_")
            names[key] = (STATE_NAME if name == "state" else name,)
    return names


def _nested(observation: Observation, names: Mapping[str, tuple[str, ...]], index: int | None = None) -> dict[str, Any]:
    """Return the observation under Gymnasium's names, of one environment (a copy) or of all."""
    nested: dict[str, Any] = {}
    for key, path in names.items():
        place = nested
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = observation[key] if index is None else observation[key][index].copy()
    return nested


def _observation_space(spec: EnvSpec, names: Mapping[str, tuple[str, ...]]) -> "gymnasium.spaces.Dict":
    def space(tree: Mapping[str, Any]) -> "gymnasium.spaces.Dict":
        return gymnasium.spaces.Dict(
            {name: space(item) if isinstance(item, dict) else _box(item[0]) for name, item in tree.items()}
        )

    return space(_nested({key: [item] for key, item in spec.observation.items()}, names))


def _box(spec: ArraySpec) -> "gymnasium.spaces.Box":
    dtype = np.dtype(spec.dtype)
    low, high = spec.bounds()
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
    return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), spec.shape, dtype.type)


def _render(env: VecEnv, index: int) -> Array:
    if not isinstance(env, Renderable):
        raise EnvError(f"Environment '{env.spec.id}' cannot render; make it with render_mode=None.")
    return env.render(index)
