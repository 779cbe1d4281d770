"""A worker process of :mod:`burnish.envs.processes`: its handle, what runs in it, and the arrays that both see."""

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from pickle import PicklingError
from typing import Any

import numpy as np

from burnish.core.contracts import Renderable, VecEnv
from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.core.step import Start

type Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Name to (shape, dtype name)."""

OBSERVATION, METRIC = "observation/", "metric/"
"""Prefixes of names in the shared block of state."""
ALIGNMENT = 64
"""Bytes; every array begins at a multiple."""


class ArrayBlock:
    """Named arrays in one block of shared memory, zero at first."""

    def __init__(self, memory: SharedMemory, layout: Layout, *, owner: bool) -> None:
        """Lay arrays over ``memory``; the owner removes it on close."""
        self.name = memory.name
        self.layout = dict(layout)
        self.arrays: dict[str, Array] = {}
        self._memory, self._owner = memory, owner
        offset = 0
        for name, (shape, dtype) in layout.items():
            self.arrays[name] = np.ndarray(shape, dtype, buffer=memory.buf, offset=offset)
            offset += _size(shape, dtype)

    @classmethod
    def create(cls, layout: Layout) -> "ArrayBlock":
        """Make a new block."""
        size = sum(_size(shape, dtype) for shape, dtype in layout.values())
        return cls(SharedMemory(create=True, size=max(size, 1)), layout, owner=True)

    @classmethod
    def attach(cls, name: str, layout: Layout) -> "ArrayBlock":
        """Open a block that another process made."""
        return cls(SharedMemory(name), layout, owner=False)

    def close(self) -> None:
        """Unmap the arrays, and remove the memory if this is its owner; may be called twice."""
        self.arrays = {}
        self._memory.close()
        if self._owner:
            self._owner = False
            self._memory.unlink()


def _size(shape: Sequence[int], dtype: str) -> int:
    used = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-used // ALIGNMENT) * ALIGNMENT


class LostWorkerError(Exception):
    """A worker died or did not answer in time."""


class WorkerProcess:
    """A spawned process that holds the environments [begin, end)."""

    def __init__(self, build: Callable[[int], VecEnv], index: int, begin: int, end: int) -> None:
        """Describe the process; :meth:`start` spawns it."""
        self.index, self.begin, self.end = index, begin, end
        self._build = build
        self._connection: Any = None
        self._number = 0
        self._process: Any = None

    def start(self) -> None:
        """Spawn the process; it answers with the spec of its environments."""
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._number = 0
        self._process = context.Process(
            target=serve,
            args=(theirs, self._build, self.begin, self.end),
            name=f"burnish-env-{self.index}",
            daemon=True,
        )
        try:
            self._process.start()
        except (AttributeError, TypeError, PicklingError) as error:
            self._process = None
            raise EnvError(
                f"{self._build} cannot be sent to a worker process: {error}. Pass something that pickle can find by "
                "its name, for example the build method of a Config."
            ) from error
        finally:
            theirs.close()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message; that the process is gone shows when its answer is awaited."""
        self._number += 1
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send((self._number, message))

    def receive(self, timeout_s: float) -> Any:
        """Return the answer to the last message; answers to earlier ones, that nobody waited for, are dropped.

        Raises:
            LostWorkerError: If the process died, or did not answer in time.
            EnvError: If the environment raised.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ready = wait([self._connection, self._process.sentinel], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise LostWorkerError(f"no answer within {timeout_s:.1f} s")
            try:
                if self._connection not in ready:
                    raise EOFError
                number, kind, answer = self._connection.recv()
            except (EOFError, ConnectionResetError):
                self._process.join(1.0)
                raise LostWorkerError(f"its process ended with exit code {self._process.exitcode}") from None
            if number != self._number:
                continue
            if kind == "error":
                raise EnvError(f"An environment of worker {self.index} failed:\n{answer}")
            return answer

    def ask_to_close(self) -> None:
        """Let the process close its environments and end."""
        if self._process is not None:
            self.send(("close",))

    def join(self, timeout_s: float) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._process.join(timeout_s)

    def kill(self) -> None:
        """End the process for certain."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Free everything."""
        self.kill()


class Worker:
    """Answers the messages of a :class:`burnish.envs.processes.ProcessVecEnv` for environments [begin, end)."""

    def __init__(self, env: VecEnv, begin: int, end: int) -> None:
        """Take the environments over."""
        self._env = env
        self._begin = begin
        self._mine = slice(begin, end)
        self._state: ArrayBlock | None = None
        self._chunk: ArrayBlock | None = None

    def answer(self, kind: str, *arguments: Any) -> Any:
        """Do what a message asks; reset, step and replay return the N instructions, render the picture."""
        if kind in ("state", "chunk"):
            attribute = f"_{kind}"
            old: ArrayBlock | None = getattr(self, attribute)
            setattr(self, attribute, ArrayBlock.attach(*arguments))
            if old is not None:
                old.close()
            return None
        answers: dict[str, Callable[..., Any]] = {
            "reset": self._reset,
            "step": self._step,
            "replay": self._replay,
            "render": self._render,
        }
        return answers[kind](*arguments)

    def close(self) -> None:
        """Close the environments and unmap the shared memory."""
        self._env.close()
        for block in (self._state, self._chunk):
            if block is not None:
                block.close()

    def _reset(self, starts: list[Start], where: list[int]) -> list[str]:
        observation = self._env.reset(starts, np.array(where, np.int64))
        self._write(observation, where)
        arrays = self._arrays
        for name in ("terminated", "truncated"):
            arrays[name][self._mine][where] = False
        return list(observation[TASK_KEY])

    def _step(self, length: int) -> list[str]:
        assert self._chunk is not None
        chunk = self._chunk.arrays
        step = self._env.step(chunk["action"][self._mine, :length].copy())
        ran = np.flatnonzero(step.executed).tolist()
        self._write(step.observation, ran)
        chunk["reward"][self._mine, :length] = step.reward
        self._write_flags(step.executed, step.terminated, step.truncated, step.metrics)
        return list(step.observation[TASK_KEY])

    def _replay(self, where: list[int], starts: list[Start], history: list[Array]) -> list[str]:
        """Run Starts and the actions executed since again, longest first, so that all end together.

        A step is for all environments; one whose turn has not come executes actions of no meaning, and is reset then.
        """
        total = max(len(actions) for actions in history)
        begin = [total - len(actions) for actions in history]
        edges = sorted({*begin, total})
        observation: Observation = {}
        for edge, following in zip(edges, [*edges[1:], total], strict=True):
            due = [i for i, step in enumerate(begin) if step == edge]
            if due:
                observation = self._env.reset([starts[i] for i in due], np.array([where[i] for i in due], np.int64))
            if following == edge:
                continue
            action = np.zeros((self._env.num_envs, following - edge, self._env.spec.action_dim), history[0].dtype)
            for i, actions in enumerate(history):
                if begin[i] <= edge:
                    action[where[i]] = actions[edge - begin[i] : following - begin[i]]
            step = self._env.step(action)
            observation = step.observation
        self._write(observation, where)
        return list(observation[TASK_KEY])

    def _render(self, index: int) -> Array:
        if not isinstance(self._env, Renderable):
            raise TypeError(f"{type(self._env).__name__} of '{self._env.spec.id}' cannot render.")
        return self._env.render(index)

    @property
    def _arrays(self) -> dict[str, Array]:
        assert self._state is not None
        return self._state.arrays

    def _write(self, observation: Observation, where: list[int]) -> None:
        for key in self._env.spec.observation:
            rows = self._arrays[OBSERVATION + key][self._mine]
            if len(where) == len(rows):
                rows[:] = observation[key]
            else:
                rows[where] = observation[key][where]

    def _write_flags(self, executed: Array, terminated: Array, truncated: Array, metrics: Mapping[str, Array]) -> None:
        arrays = self._arrays
        arrays["executed"][self._mine] = executed
        arrays["terminated"][self._mine] = terminated
        arrays["truncated"][self._mine] = truncated
        for name, figure in metrics.items():
            arrays[METRIC + name][self._mine] = figure


def serve(connection: Connection, build: Callable[[int], VecEnv], begin: int, end: int) -> None:
    """Run a worker process until it is told to close or its parent is gone.

    Messages are (number, (kind, *arguments)); answers are (number, "answer" or "error", value).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    number = 0
    try:
        worker = Worker(build(end - begin), begin, end)
        connection.send((number, "answer", worker._env.spec))
    except Exception:
        connection.send((number, "error", traceback.format_exc()))
        return
    while True:
        try:
            number, message = connection.recv()
        except EOFError:
            return
        if message[0] == "close":
            worker.close()
            return
        try:
            answer = (number, "answer", worker.answer(*message))
        except Exception:
            answer = (number, "error", traceback.format_exc())
        connection.send(answer)


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
