"""From one environment and one action at a time to the batched, chunked contract; the only place that runs a chunk."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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

    Threads pay off where an env spends its time outside the interpreter lock, as MuJoCo does, and cost where a chunk is
    short. So sequential and threaded calls are timed now and then, and the faster is used; results are the same. An env
    that shows images is always run by the same thread, because a rendering context belongs to one.
    """

    def __init__(self, envs: Sequence[SingleEnv], *, threads: int = 1) -> None:
        """Take the environments over; all share one spec.

        Args:
            envs: N environments.
            threads: How many run at once at most.
        """
        if not envs:
            raise EnvError("A VectorEnv needs at least one environment; found none.")
        self.spec: EnvSpec = envs[0].spec
        self.num_envs = len(envs)
        self._envs = list(envs)
        self._threads = _Threads(min(threads, len(envs)), pinned=bool(self.spec.image_keys))
        self._observation: Observation = {
            key: np.zeros((self.num_envs, *item.shape), item.dtype) for key, item in self.spec.observation.items()
        }
        self._observation[TASK_KEY] = [""] * self.num_envs
        self._terminated = np.zeros(self.num_envs, bool)
        self._truncated = np.ones(self.num_envs, bool)
        self._metrics: dict[str, Array] = {name: np.zeros(self.num_envs) for name in self.spec.metrics}

    def reset(self, starts: Sequence[Start], where: Array | None = None) -> Observation:
        """Begin new episodes; see :class:`burnish.core.contracts.VecEnv`."""
        begins = dict(zip(check_where(self.spec, self.num_envs, starts, where), starts, strict=True))

        def begin(n: int) -> None:
            self._envs[n].reset(begins[n])
            self._store(n)

        index = list(begins)
        self._truncated[index] = True
        self._threads.map(begin, index)
        self._terminated[index] = False
        self._truncated[index] = False
        return self._copy_observation()

    def step(self, action_chunk: Array) -> Step:
        """Execute one chunk each; see :class:`burnish.core.contracts.VecEnv`."""
        check_chunk(self.spec, self.num_envs, action_chunk)
        reward = np.zeros(action_chunk.shape[:2], np.float32)
        executed = np.zeros(self.num_envs, np.int64)

        def run(n: int) -> None:
            reward[n], executed[n], self._terminated[n], self._truncated[n] = run_chunk(self._envs[n], action_chunk[n])
            self._store(n)

        self._threads.map(run, np.flatnonzero(~(self._terminated | self._truncated)).tolist())
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
        return self._threads.call(index, self._envs[index].render)

    def close(self) -> None:
        """Close all environments and the threads."""
        for n, env in enumerate(self._envs):
            self._threads.call(n, env.close)
        self._envs = []
        self._threads.close()

    def _store(self, n: int) -> None:
        for key, item in self._envs[n].observe().items():
            self._observation[key][n] = item
        figures = self._envs[n].metrics()
        if figures.keys() != self._metrics.keys():
            raise EnvError(
                f"{self.spec.id}: metrics() gives {', '.join(sorted(figures)) or 'nothing'}, the spec declares "
                f"{', '.join(sorted(self._metrics)) or 'nothing'}; every declared figure is given, and no other."
            )
        for name, figure in figures.items():
            self._metrics[name][n] = figure

    def _copy_observation(self) -> Observation:
        return {key: item.copy() for key, item in self._observation.items()}


class _Threads:
    """Runs a function over env indices, sequentially or on threads, whichever was faster lately."""

    RETRY_CALLS = 200
    """After so many calls both ways are timed again."""
    SHORT_CALL_S = 5e-4
    """Below this, waking threads costs more than it saves, and they are not tried."""

    def __init__(self, count: int, *, pinned: bool) -> None:
        """Start ``count`` threads if more than one; ``pinned`` gives each env its own thread for good."""
        self._pools = [ThreadPoolExecutor(1) for _ in range(count)] if count > 1 else []
        self._pinned = pinned
        self._calls = 0
        self._seconds = {False: 0.0, True: 0.0}  # per env, sequential and threaded

    def map(self, function: Callable[[int], None], index: list[int]) -> None:
        """Call ``function`` for each env index; the first error is raised after all have ended."""
        threaded = bool(self._pools) and (self._pinned or (len(index) > 1 and self._choose(len(index))))
        begin = time.perf_counter()
        if threaded:
            self._run_threaded(function, index)
        else:
            for n in index:
                function(n)
        if len(index) > 1:
            self._seconds[threaded] = (time.perf_counter() - begin) / len(index)

    def call[T](self, n: int, function: Callable[[], T]) -> T:
        """Call ``function`` where env ``n`` lives."""
        if self._pools and self._pinned:
            return self._pools[n % len(self._pools)].submit(function).result()
        return function()

    def close(self) -> None:
        """End the threads."""
        for pool in self._pools:
            pool.shutdown()
        self._pools = []

    def _choose(self, count: int) -> bool:
        self._calls += 1
        phase = self._calls % self.RETRY_CALLS
        if phase == 1 or self._seconds[False] * count < self.SHORT_CALL_S:
            return False
        return phase == 2 or self._seconds[True] < self._seconds[False]

    def _run_threaded(self, function: Callable[[int], None], index: list[int]) -> None:
        count = len(self._pools)
        shared = iter(index)

        def work(source: Iterator[int]) -> None:
            for n in source:
                function(n)

        futures = [
            pool.submit(work, iter([n for n in index if n % count == p]) if self._pinned else shared)
            for p, pool in enumerate(self._pools)
        ]
        wait(futures)
        for future in futures:
            future.result()


def check_where(spec: EnvSpec, num_envs: int, starts: Sequence[Start], where: Array | None) -> list[int]:
    """Return the indices of the environments to be reset, one for each Start.

    Raises:
        EnvError: If counts differ, an index does not exist or comes twice, or the environment has no such Start.
    """
    index = list(range(num_envs)) if where is None else np.asarray(where, np.int64).tolist()
    if len(index) != len(starts):
        raise EnvError(f"{spec.id}: reset got {len(starts)} Starts for {len(index)} environments; it needs one each.")
    if len(set(index)) != len(index) or any(not 0 <= n < num_envs for n in index):
        raise EnvError(f"{spec.id}: reset needs distinct environment indices in [0, {num_envs}), found {index}.")
    for start in starts:
        check_start(spec, start)
    return index


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
