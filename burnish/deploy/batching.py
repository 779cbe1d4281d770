"""Inference for several clients: one call of the policy at a time, shared by requests that come close together.

Requests are collected until a deadline after the first, or until every client that could ask has asked. One call then
answers all of them, row by row the same as alone: that is measured before it is relied on. Sampled answers never share
a call, since each client has a random stream of its own, and what it gets must not depend on who else asks.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ProtocolError
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.deploy.observations import ActingPolicy

_LOG = logging.getLogger(__name__)
_ROW_TOLERANCE = 1e-5
"""Difference between a row of a batch and the same row alone, over the largest action, that rounding explains."""
_CLOSE_TIMEOUT_S = 5.0
_STOPPING = "The server is stopping."


@dataclass(frozen=True)
class Inferred:
    """One answer."""

    chunk: Array
    """(K, A) float32."""
    milliseconds: float
    """How long the policy computed [ms]."""
    rows: int
    """How many observations shared the call."""


@dataclass(frozen=True)
class _Request:
    observation: Observation
    generator: np.random.Generator
    arrived: float
    answer: Future[Inferred]


class Batcher:
    """Owns the thread in which a policy computes."""

    def __init__(
        self,
        policy: ActingPolicy,
        *,
        deterministic: bool,
        max_batch: int = 1,
        wait_s: float = 0.0,
        clients: Callable[[], int] | None = None,
    ) -> None:
        """Start no thread yet.

        Args:
            policy: What answers.
            deterministic: Ask for the most likely chunk; only then calls are shared.
            max_batch: Observations in one call.
            wait_s: How long a request waits for others, from its arrival [s].
            clients: Says how many clients could ask now; when all have, nobody waits.
        """
        self.inferences = 0
        """Answers given, warm-up apart."""
        self.calls = 0
        """Calls of the policy, warm-up apart."""
        self._policy = policy
        self._deterministic = deterministic
        self._max_batch = max_batch if deterministic else 1
        self._wait_s = wait_s
        self._clients = clients or (lambda: max_batch)
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._acting = threading.Lock()  # warm-up runs in another thread
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, observation: Observation, generator: np.random.Generator) -> Future[Inferred]:
        """Ask for a chunk.

        Args:
            observation: N = 1.
            generator: The client's own random stream.

        Raises:
            ProtocolError: If the server is stopping.
        """
        request = _Request(observation, generator, time.monotonic(), Future())
        with self._lock:
            if self._closed:
                raise ProtocolError(_STOPPING)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
                self._thread.start()
            self._queue.put(request)
        return request.answer

    def warm_up(self, count: int) -> None:
        """Infer on an empty observation, then see whether rows of a batch are what they are alone.

        Args:
            count: How many times; 0 does nothing, and trusts the policy.

        Raises:
            Exception: What the policy raises.
        """
        for _ in range(count):
            self._ask([empty_observation(self._policy)], stream(0, "warm_up"))
        if count and self._max_batch > 1:
            problem = self._rows_differ()
            if problem:
                _LOG.warning("clients do not share calls of policy '%s': %s", self._policy.spec.id, problem)
                self._max_batch = 1

    def close(self) -> None:
        """Stop; requests that wait are refused, and a policy that hangs is left behind."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._queue.put(None)
        if thread is not None:
            thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            requests = [each for each in self._collect(first) if each.answer.set_running_or_notify_cancel()]
            if self._closed:
                for each in requests:
                    each.answer.set_exception(ProtocolError(_STOPPING))
            elif requests:
                self._answer(requests)

    def _collect(self, first: _Request) -> list[_Request]:
        requests = [first]
        deadline = first.arrived + self._wait_s
        while len(requests) < self._max_batch:
            all_asked = len(requests) >= self._clients()
            left = 0.0 if all_asked else deadline - time.monotonic()
            try:
                request = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if request is None:  # closing: answer these first
                self._queue.put(None)
                break
            requests.append(request)
        return requests

    def _answer(self, requests: Sequence[_Request]) -> None:
        try:
            chunks, elapsed_ms = self._ask([each.observation for each in requests], requests[0].generator)
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer.set_exception(error)
            else:  # one client's observation must not fail the others
                for each in requests:
                    self._answer([each])
            return
        self.calls += 1
        for each, chunk in zip(requests, chunks, strict=True):
            self.inferences += 1
            each.answer.set_result(Inferred(chunk, elapsed_ms, len(requests)))

    def _ask(self, observations: Sequence[Observation], generator: np.random.Generator) -> tuple[Array, float]:
        with self._acting:
            begin = time.monotonic()
            sample = self._policy.act(stack(observations), generator=generator, deterministic=self._deterministic)
            elapsed_ms = (time.monotonic() - begin) * 1e3
        chunks = np.asarray(sample.action_chunk, np.float32)
        spec = self._policy.spec
        expected = (len(observations), spec.chunk_steps, *spec.action.shape)
        if chunks.shape != expected:
            raise ProtocolError(f"Policy '{spec.id}' answered with shape {chunks.shape}, expected {expected}.")
        if not np.isfinite(chunks).all():
            raise ProtocolError(f"Policy '{spec.id}' answered with values that are not finite; nothing was sent.")
        return chunks, elapsed_ms

    def _rows_differ(self) -> str:
        """Return "" where a batch of two answers as each row alone, else what happened."""
        rows = [empty_observation(self._policy), _made_up_observation(self._policy)]
        try:
            alone = np.concatenate([self._ask([row], stream(0, "alone"))[0] for row in rows])
            together, _ = self._ask(rows, stream(0, "together"))
        except Exception as error:
            return f"a batch of two failed with {type(error).__name__}: {error}"
        difference = float(np.abs(together - alone).max(initial=0.0))
        if difference <= _ROW_TOLERANCE * max(1.0, float(np.abs(alone).max(initial=0.0))):
            return ""
        return f"a row of a batch of two differs by {difference:.3g} from the same row alone"


def stack(observations: Sequence[Observation]) -> Observation:
    """Return one observation (N, ...) of several with leading axis 1."""
    if len(observations) == 1:
        return observations[0]
    keys = [key for key in observations[0] if key != TASK_KEY]
    together: Observation = {key: np.concatenate([each[key] for each in observations]) for key in keys}
    together[TASK_KEY] = [task for each in observations for task in each[TASK_KEY]]
    return together


def empty_observation(policy: ActingPolicy) -> Observation:
    """Return an observation (N = 1) of zeros, for warm-up."""
    observation: Observation = {
        key: np.zeros((1, *item.shape), item.dtype) for key, item in policy.spec.observation.items()
    }
    observation[TASK_KEY] = [""]
    return observation


def _made_up_observation(policy: ActingPolicy) -> Observation:
    """Return an observation (N = 1) unlike the empty one: small numbers, grey noise."""
    generator = stream(0, "made_up")
    observation = empty_observation(policy)
    for key, item in policy.spec.observation.items():
        drawn = generator.random((1, *item.shape))
        observation[key] = (drawn * (255 if item.is_image else 1)).astype(item.dtype)
    return observation
