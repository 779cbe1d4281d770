"""N environments over worker processes: one message per chunk, arrays in shared memory, lost workers replaced.

A worker that dies or does not answer in time is killed and replaced. The new one runs the Starts of its environments
again with the actions executed since, which restores their state exactly, because an environment depends on Start and
actions alone; so the interrupted chunk gives what it would have given. Where it fails a second time, the worker's
episodes end truncated at their last observation, and the run goes on.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.contracts import VecEnv
from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY, Array, EnvSpec, Observation
from burnish.core.step import Start, Step
from burnish.envs.single import check_chunk, check_where
from burnish.envs.worker import METRIC, OBSERVATION, ArrayBlock, Layout, LostWorkerError, WorkerProcess


@dataclass(frozen=True)
class Restart:
    """One worker that was replaced."""

    worker: int
    """Its index."""
    reason: str
    """What happened to it."""
    envs: tuple[int, ...]
    """Indices of its environments."""
    replayed_steps: int
    """Actions that were run again to restore them."""


class ProcessVecEnv:
    """A VecEnv whose environments live in spawned processes.

    Scripts that build one need the usual ``if __name__ == "__main__":`` guard, as everything that spawns does.
    """

    CLOSE_S = 2.0
    """Seconds that a worker has to close its environments, before it is killed."""

    def __init__(
        self,
        build: Callable[[int], VecEnv],
        num_envs: int,
        workers: int = 2,
        timeout_s: float = 60.0,
        *,
        start_timeout_s: float = 180.0,
        max_restarts: int = 20,
    ) -> None:
        """Start the workers and wait until all have built their environments.

        Args:
            build: Picklable function of a number of environments, for example ``Config(...).build``.
            num_envs: N.
            workers: Processes; at most N.
            timeout_s: Seconds in which a worker has to answer a chunk or a reset.
            start_timeout_s: Seconds in which it has to start and build.
            max_restarts: Replacements after which the run is given up.

        Raises:
            EnvError: If a worker cannot be started.
        """
        if num_envs < 1 or workers < 1:
            raise EnvError(f"ProcessVecEnv needs num_envs and workers of at least 1, found {num_envs} and {workers}.")
        workers = min(workers, num_envs)
        self.num_envs = num_envs
        self.restart_log: list[Restart] = []
        self.lost_episodes = 0
        """Episodes that were cut, because their worker failed again after its replacement."""
        self._timeout_s, self._start_timeout_s, self._max_restarts = timeout_s, start_timeout_s, max_restarts
        edges = [num_envs * w // workers for w in range(workers + 1)]
        self._state: ArrayBlock | None = None
        self._chunk: ArrayBlock | None = None
        self._resources: list[Any] = []
        self._finalizer = weakref.finalize(self, _release, self._resources)
        self._workers = [WorkerProcess(build, w, edges[w], edges[w + 1]) for w in range(workers)]
        self._resources.extend(self._workers)
        self._starts: list[Start | None] = [None] * num_envs
        self._history: list[list[Array]] = [[] for _ in range(num_envs)]
        self._ended: Array = np.ones(num_envs, bool)
        self._task = [""] * num_envs
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How many workers were replaced so far."""
        return len(self.restart_log)

    def reset(self, starts: Sequence[Start], where: Array | None = None) -> Observation:
        """Begin new episodes; see :class:`burnish.core.contracts.VecEnv`."""
        self._check_open()
        index = check_where(self.spec, self.num_envs, starts, where)
        for n, start in zip(index, starts, strict=True):
            self._starts[n] = start
            self._history[n] = []
        messages: dict[WorkerProcess, tuple[Any, ...]] = {}
        for worker in self._workers:
            mine = [n for n in index if worker.begin <= n < worker.end]
            if mine:
                messages[worker] = ("reset", [self._starts[n] for n in mine], [n - worker.begin for n in mine])
        self._ended[index] = True
        self._exchange(messages)
        self._ended[index] = False
        return self._copy_observation()

    def step(self, action_chunk: Array) -> Step:
        """Execute one chunk each; see :class:`burnish.core.contracts.VecEnv`."""
        self._check_open()
        check_chunk(self.spec, self.num_envs, action_chunk)
        length = action_chunk.shape[1]
        chunk = self._chunk_arrays(length, action_chunk.dtype)
        chunk["action"][:, :length] = action_chunk
        chunk["reward"][:] = 0.0
        arrays = self._arrays
        arrays["executed"][:] = 0
        self._exchange({w: ("step", length) for w in self._workers if not self._ended[w.begin : w.end].all()})
        executed = arrays["executed"].copy()
        terminated, truncated = arrays["terminated"].copy(), arrays["truncated"].copy()
        self._ended = terminated | truncated
        for n in np.flatnonzero(executed).tolist():
            self._history[n].append(action_chunk[n, : executed[n]].copy())
        return Step(
            observation=self._copy_observation(),
            reward=chunk["reward"][:, :length].copy(),
            executed=executed,
            terminated=terminated,
            truncated=truncated,
            metrics={name: arrays[METRIC + name].copy() for name in self.spec.metrics},
        )

    def render(self, index: int) -> Array:
        """Return a picture of one environment, (H, W, 3) uint8."""
        self._check_open()
        worker = next(w for w in self._workers if w.begin <= index < w.end)
        picture: Array = self._exchange({worker: ("render", index - worker.begin)})[worker]
        return picture

    def close(self) -> None:
        """End the workers and free the shared memory."""
        for worker in self._workers:
            worker.ask_to_close()
        for worker in self._workers:
            worker.join(self.CLOSE_S)
        self._finalizer()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise EnvError(f"{self.spec.id}: this ProcessVecEnv is closed; build a new one.")

    @property
    def _arrays(self) -> dict[str, Array]:
        assert self._state is not None
        return self._state.arrays

    def _launch(self) -> None:
        for worker in self._workers:
            worker.start()
        try:
            specs = [worker.receive(self._start_timeout_s) for worker in self._workers]
        except LostWorkerError as error:
            raise EnvError(
                f"A worker process could not be started: {error}. If its error output says so, guard your script with "
                "'if __name__ == \"__main__\":'; else run build(1) in this process to see the error."
            ) from error
        self.spec: EnvSpec = specs[0]
        layout: dict[str, tuple[tuple[int, ...], str]] = {
            OBSERVATION + key: ((self.num_envs, *item.shape), item.dtype) for key, item in self.spec.observation.items()
        }
        layout |= {METRIC + name: ((self.num_envs,), "float64") for name in self.spec.metrics}
        layout |= {"executed": ((self.num_envs,), "int64")}
        layout |= {name: ((self.num_envs,), "bool") for name in ("terminated", "truncated")}
        self._state = self._allocate(layout)
        self._state.arrays["truncated"][:] = True
        self._exchange({w: ("state", self._state.name, layout) for w in self._workers}, self._start_timeout_s)

    def _allocate(self, layout: Layout) -> ArrayBlock:
        block = ArrayBlock.create(layout)
        self._resources.append(block)
        return block

    def _chunk_arrays(self, length: int, dtype: Any) -> dict[str, Array]:
        """Return the shared arrays of a chunk, made anew where they are too short or of another dtype."""
        block = self._chunk
        if block is None or block.arrays["action"].shape[1] < length or block.arrays["action"].dtype != dtype:
            layout = {
                "action": ((self.num_envs, length, self.spec.action_dim), np.dtype(dtype).str),
                "reward": ((self.num_envs, length), "float32"),
            }
            self._chunk = self._allocate(layout)
            self._exchange({worker: ("chunk", self._chunk.name, layout) for worker in self._workers})
            if block is not None:
                self._resources.remove(block)
                block.close()
            block = self._chunk
        return block.arrays

    def _exchange(
        self, messages: dict[WorkerProcess, tuple[Any, ...]], timeout_s: float = 0.0
    ) -> dict[WorkerProcess, Any]:
        """Send one message to each worker and return the answers; lost workers are replaced on the way."""
        timeout_s = timeout_s or self._timeout_s
        for worker, message in messages.items():
            worker.send(message)
        deadline = time.monotonic() + timeout_s
        answers: dict[WorkerProcess, Any] = {}
        problem: EnvError | None = None
        for worker, message in messages.items():
            try:
                answers[worker] = worker.receive(deadline - time.monotonic())
            except LostWorkerError as error:
                answers[worker] = self._recover(worker, message, str(error))
                deadline = time.monotonic() + timeout_s
            except EnvError as error:
                problem = problem or error
        if problem is not None:
            self._forget(slice(0, self.num_envs))
            raise problem
        for worker, answer in answers.items():
            if isinstance(answer, list):
                self._task[worker.begin : worker.end] = answer
        return answers

    def _recover(self, worker: WorkerProcess, message: tuple[Any, ...], reason: str) -> Any:
        """Replace a worker, restore its episodes and ask again."""
        self._replace(worker, reason)
        try:
            self._replay(worker, without={worker.begin + n for n in message[2]} if message[0] == "reset" else set())
            worker.send(message)
            return worker.receive(self._timeout_s)
        except LostWorkerError as error:
            if message[0] != "step":
                raise EnvError(
                    f"{self.spec.id}: '{message[0]}' failed twice in worker {worker.index}: {reason}; then: {error}. "
                    f"Its arguments: {message[1:]}."
                ) from error
            self._replace(worker, f"{error}, again, after its episodes were restored")
        mine = slice(worker.begin, worker.end)
        running = ~self._ended[mine]
        self.lost_episodes += int(running.sum())
        self._arrays["executed"][mine] = 0
        self._arrays["truncated"][mine] |= running
        assert self._chunk is not None
        self._chunk.arrays["reward"][mine] = 0.0
        self._forget(mine)
        return None

    def _forget(self, mine: slice) -> None:
        """Let these environments wait for their next reset."""
        self._ended[mine] = True
        for n in range(self.num_envs)[mine]:
            self._starts[n] = None
            self._history[n] = []

    def _replace(self, worker: WorkerProcess, reason: str) -> None:
        assert self._state is not None
        envs = tuple(range(worker.begin, worker.end))
        steps = sum(len(chunk) for n in envs for chunk in self._history[n])
        self.restart_log.append(Restart(worker.index, reason, envs, steps))
        if self.restarts > self._max_restarts:
            reasons = "; ".join(f"worker {item.worker}: {item.reason}" for item in self.restart_log[-3:])
            raise EnvError(
                f"{self.spec.id}: workers were replaced more than max_restarts={self._max_restarts} times. "
                f"The last reasons: {reasons}."
            )
        worker.kill()
        worker.start()
        try:
            worker.receive(self._start_timeout_s)
            for kind, block in (("state", self._state), ("chunk", self._chunk)):
                if block is not None:
                    worker.send((kind, block.name, block.layout))
                    worker.receive(self._start_timeout_s)
        except LostWorkerError as error:
            raise EnvError(f"{self.spec.id}: worker {worker.index} could not be replaced: {error}.") from error

    def _replay(self, worker: WorkerProcess, without: set[int]) -> None:
        """Restore the episodes of a new worker's environments."""
        envs = [n for n in range(worker.begin, worker.end) if self._starts[n] is not None and n not in without]
        if not envs:
            return
        empty = np.zeros((0, self.spec.action_dim), np.float32)
        history = [np.concatenate(self._history[n]) if self._history[n] else empty for n in envs]
        calls = 1 + max(len(self._history[n]) for n in envs)
        worker.send(("replay", [n - worker.begin for n in envs], [self._starts[n] for n in envs], history))
        worker.receive(self._timeout_s * calls)

    def _copy_observation(self) -> Observation:
        observation: Observation = {key: self._arrays[OBSERVATION + key].copy() for key in self.spec.observation}
        observation[TASK_KEY] = list(self._task)
        return observation


def _release(resources: list[Any]) -> None:
    for resource in resources:
        resource.close()
    resources.clear()
