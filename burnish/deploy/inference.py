"""Inference beside the control loop: in a thread of its own, or with a modelled latency in simulated time."""

import queue
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from burnish.core.contracts import InpaintingPolicy
from burnish.core.errors import SpecError
from burnish.core.inpainting import Prefix
from burnish.core.seeding import stream
from burnish.core.spec import Array, Observation
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.robot import Clock


@dataclass(frozen=True)
class Answer:
    """One finished inference."""

    number: int
    """Number of the decision."""
    observation: Observation
    """What it saw, N = 1."""
    chunk: Array
    """(K, A) float32."""
    seconds: float
    """How long the policy computed, measured [s]."""
    prefix: Prefix | None = None
    """What the chunk was asked to go on from."""


class Inference(Protocol):
    """At most one inference at a time."""

    def submit(self, number: int, observation: Observation, prefix: Prefix | None = None) -> None:
        """Begin."""
        ...

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer if it is there, waiting up to ``wait_s`` for it; raise what the policy raised."""
        ...

    def discard(self) -> None:
        """Want the answer that is being computed no more; the next one may be asked for at once."""
        ...

    def close(self) -> None:
        """Let go of it; a running inference is not waited for."""
        ...


def ask(
    policy: ActingPolicy,
    number: int,
    observation: Observation,
    seed: int,
    deterministic: bool,
    prefix: Prefix | None = None,
) -> Answer:
    """Ask a policy for decision ``number``; each has a random stream of its own, so a log can be replayed.

    Raises:
        SpecError: If there is a prefix and the policy has no ``act_with_prefix``.
    """
    begin = time.perf_counter()
    generator = stream(seed, "decision", number)
    if prefix is None:
        sample = policy.act(observation, generator=generator, deterministic=deterministic)
    elif isinstance(policy, InpaintingPolicy):
        sample = policy.act_with_prefix(observation, prefix, generator=generator, deterministic=deterministic)
    else:
        raise SpecError(f"Policy '{policy.spec.id}' has no act_with_prefix, so it cannot go on from a prefix.")
    chunk = np.asarray(sample.action_chunk, np.float32)
    return Answer(number, observation, chunk[0], time.perf_counter() - begin, prefix)


class ThreadInference:
    """In one thread, beside the control loop; the thread is a daemon, so a policy that never answers ends with us."""

    def __init__(self, policy: ActingPolicy, *, seed: int, deterministic: bool) -> None:
        """Start no thread yet."""
        self._policy = policy
        self._seed = seed
        self._deterministic = deterministic
        self._jobs: queue.SimpleQueue[tuple[int, Observation, Prefix | None] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, Answer | BaseException]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wanted: int | None = None

    def submit(self, number: int, observation: Observation, prefix: Prefix | None = None) -> None:
        """Begin, or wait for a discarded inference to end and then begin."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
            self._thread.start()
        self._wanted = number
        self._jobs.put((number, observation, prefix))

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer if it is there within ``wait_s``."""
        deadline = time.monotonic() + wait_s
        while self._wanted is not None:
            left = deadline - time.monotonic()
            try:
                number, answer = self._answers.get(timeout=left) if left > 0 else self._answers.get_nowait()
            except queue.Empty:
                return None
            if number != self._wanted:
                continue
            self._wanted = None
            if isinstance(answer, BaseException):
                raise answer
            return answer
        return None

    def discard(self) -> None:
        """Drop the answer when it comes."""
        self._wanted = None

    def close(self) -> None:
        """Let the thread end after what it computes now."""
        self._wanted = None
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, observation, prefix = job
            try:
                answer: Answer | BaseException = ask(
                    self._policy, number, observation, self._seed, self._deterministic, prefix
                )
            except BaseException as error:
                answer = error
            self._answers.put((number, answer))


class SimulatedInference:
    """Computed at once, handed out when the modelled latency has passed on the clock."""

    def __init__(
        self,
        policy: ActingPolicy,
        clock: Clock,
        *,
        seed: int,
        deterministic: bool,
        latency_s: float,
        jitter_s: float,
    ) -> None:
        """Prepare.

        Args:
            policy: What answers.
            clock: The runtime's clock.
            seed: Root seed.
            deterministic: Passed to the policy.
            latency_s: Mean latency [s].
            jitter_s: Half width of the uniform distribution around it [s].
        """
        self._policy = policy
        self._clock = clock
        self._seed = seed
        self._deterministic = deterministic
        self._latency_s = latency_s
        self._jitter_s = jitter_s
        self._pending: tuple[float, Answer] | None = None

    def submit(self, number: int, observation: Observation, prefix: Prefix | None = None) -> None:
        """Compute now."""
        latency = self._latency_s
        if self._jitter_s:
            latency += float(stream(self._seed, "latency", number).uniform(-self._jitter_s, self._jitter_s))
        answer = ask(self._policy, number, observation, self._seed, self._deterministic, prefix)
        self._pending = (self._clock.now() + max(latency, 0.0), answer)

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer once its time has come; ``wait_s`` does not apply."""
        if self._pending is None or self._clock.now() < self._pending[0] - 1e-9:
            return None
        answer = self._pending[1]
        self._pending = None
        return answer

    def discard(self) -> None:
        """Drop the answer."""
        self._pending = None

    def close(self) -> None:
        """Do nothing."""
