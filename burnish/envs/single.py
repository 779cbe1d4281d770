"""From one environment and one action at a time to the batched, chunked contract; the only place that runs a chunk."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import numpy as np

from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY, Array, EnvSpec, Observation
from burnish.core.step import Start, Step


@runtime_checkable
class SingleEnv(Protocol):
    """One environment, one action at a time; what most task files implement."""

    spec: EnvSpec

    def reset(self, start: Start) -> None:
        """Begin an episode; nothing of the one before may be left."""
        ...

    def advance(self, action: Array) -> tuple[float, bool, bool]:
        """Execute one action (A,) and return (reward, terminated, truncated)."""
        ...

    def observe(self) -> dict[str, Any]:
        """Return the observation without batch axis, ``task`` as a str; called at chunk ends only.

        Must not change the state, and must give the same answer when called twice.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return the figures of the running episode so far."""
        ...

    def render(self) -> Array:
        """Return an (H, W, 3) uint8 picture."""
        ...

    def close(self) -> None:
        """Free what the env holds."""
        ...


def run_chunk(env: SingleEnv, action_chunk: Array) -> tuple[Array, int, bool, bool]:
    """Execute a chunk (K, A) until it is used up or the episode ends.

    Returns:
        (reward (K,) float32, executed, terminated, truncated)
    """
    reward = np.zeros(len(action_chunk), np.float32)
    for k, action in enumerate(action_chunk):
        reward[k], terminated, truncated = env.advance(action)
        if terminated or truncated:
            return reward, k + 1, terminated, truncated
    return reward, len(action_chunk), False, False


class VectorEnv:
    """N single environments in this process as one VecEnv; with threads > 1 chunks run in parallel.

    Threads pay off where an env spends its time outside the interpreter lock, as MuJoCo does.
    """

    def __init__(self, envs: Sequence[SingleEnv], *, threads: int = 1) -> None:
        """Take the environments over; all share one spec.

        Args:
            envs: N environments.
            threads: How many run at once.
        """
        if not envs:
            raise EnvError("A VectorEnv needs at least one environment; found none.")
        self.spec: EnvSpec = envs[0].spec
        self.num_envs = len(envs)
        self._envs = list(envs)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 and len(envs) > 1 else None
        self._observation: Observation = {
            key: np.zeros((self.num_envs, *item.shape), item.dtype) for key, item in self.spec.observation.items()
        }
        self._observation[TASK_KEY] = [""] * self.num_envs
        self._terminated = np.zeros(self.num_envs, bool)
        self._truncated = np.ones(self.num_envs, bool)
        self._metrics: dict[str, Array] = {name: np.zeros(self.num_envs) for name in self.spec.metrics}

    def reset(self, starts: Sequence[Start], where: Array | None = None) -> Observation:
        """Begin new episodes; see :class:`burnish.core.contracts.VecEnv`."""
        index = np.arange(self.num_envs) if where is None else np.asarray(where, np.int64)
        if len(index) != len(starts):
            raise EnvError(f"reset got {len(starts)} Starts for {len(index)} environments; it needs one each.")
        for start in starts:
            check_start(self.spec, start)

        def begin(item: tuple[int, Start]) -> None:
            n, start = item
            self._envs[n].reset(start)
            self._store(n)

        self._terminated[index] = False
        self._truncated[index] = False
        self._map(begin, list(zip(index.tolist(), starts, strict=True)))
        return self._copy_observation()

    def step(self, action_chunk: Array) -> Step:
        """Execute one chunk each; see :class:`burnish.core.contracts.VecEnv`."""
        check_chunk(self.spec, self.num_envs, action_chunk)
        reward = np.zeros(action_chunk.shape[:2], np.float32)
        executed = np.zeros(self.num_envs, np.int64)

        def run(n: int) -> None:
            reward[n], executed[n], self._terminated[n], self._truncated[n] = run_chunk(self._envs[n], action_chunk[n])
            self._store(n)

        self._map(run, np.flatnonzero(~(self._terminated | self._truncated)).tolist())
        return Step(
            observation=self._copy_observation(),
            reward=reward,
            executed=executed,
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            metrics={name: item.copy() for name, item in self._metrics.items()},
        )

    def render(self, index: int) -> Array:
        """Return a picture of one environment, (H, W, 3) uint8."""
        return self._envs[index].render()

    def close(self) -> None:
        """Close all environments and the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for env in self._envs:
            env.close()
        self._envs = []

    def _map(self, function: Any, items: list[Any]) -> None:
        if self._pool is None or len(items) < 2:
            for item in items:
                function(item)
        else:
            list(self._pool.map(function, items))

    def _store(self, n: int) -> None:
        for key, item in self._envs[n].observe().items():
            self._observation[key][n] = item
        for name, figure in self._envs[n].metrics().items():
            self._metrics[name][n] = figure

    def _copy_observation(self) -> Observation:
        return {key: item.copy() for key, item in self._observation.items()}


def check_start(spec: EnvSpec, start: Start) -> None:
    """Refuse a Start that the environment does not have.

    Raises:
        EnvError: If the task or the init does not exist.
    """
    if start.task not in spec.tasks:
        raise EnvError(f"{spec.id}: unknown task '{start.task}' in {start}. Tasks: {', '.join(spec.tasks)}.")
    if not 0 <= start.init < spec.num_inits:
        raise EnvError(f"{spec.id}: init {start.init} of {start} is outside [0, {spec.num_inits}).")


def check_chunk(spec: EnvSpec, num_envs: int, action_chunk: Array) -> None:
    """Refuse an action chunk of a wrong shape or with values that are not finite.

    Raises:
        EnvError: Says what was found and expected.
    """
    if action_chunk.ndim != 3 or action_chunk.shape[0] != num_envs or action_chunk.shape[2] != spec.action_dim:
        raise EnvError(
            f"{spec.id}: step needs an action chunk of shape (N={num_envs}, K, A={spec.action_dim}), "
            f"found {action_chunk.shape}."
        )
    if not np.isfinite(action_chunk).all():
        bad = np.argwhere(~np.isfinite(action_chunk))[0].tolist()
        raise EnvError(f"{spec.id}: the action chunk is not finite at (env, step, entry) = {tuple(bad)}.")
