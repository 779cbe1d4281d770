"""Inference beside the control loop: in a thread of its own, or with a modelled latency in simulated time."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Protocol

import numpy as np

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


class Inference(Protocol):
    """At most one inference at a time."""

    def submit(self, number: int, observation: Observation) -> None:
        """Begin."""
        ...

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer if it is there, waiting up to ``wait_s`` for it; raise what the policy raised."""
        ...

    def close(self) -> None:
        """Let go of it; a running inference is not waited for."""
        ...


def ask(policy: ActingPolicy, number: int, observation: Observation, seed: int, deterministic: bool) -> Answer:
    """Ask a policy for decision ``number``; each has a random stream of its own, so a log can be replayed."""
    begin = time.perf_counter()
    generator = stream(seed, "decision", number)
    sample = policy.act(observation, generator=generator, deterministic=deterministic)
    chunk = np.asarray(sample.action_chunk, np.float32)
    return Answer(number, observation, chunk[0], time.perf_counter() - begin)


class ThreadInference:
    """In one thread, beside the control loop."""

    def __init__(self, policy: ActingPolicy, *, seed: int, deterministic: bool) -> None:
        """Start no thread yet."""
        self._policy = policy
        self._seed = seed
        self._deterministic = deterministic
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._future: Future[Answer] | None = None

    def submit(self, number: int, observation: Observation) -> None:
        """Begin."""
        self._future = self._executor.submit(ask, self._policy, number, observation, self._seed, self._deterministic)

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer if it is there within ``wait_s``."""
        if self._future is None:
            return None
        try:
            answer = self._future.result(timeout=max(wait_s, 0.0))
        except FutureTimeoutError:
            if self._future.done():  # the policy itself raised a TimeoutError
                raise
            return None
        self._future = None
        return answer

    def close(self) -> None:
        """Let go of the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


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

    def submit(self, number: int, observation: Observation) -> None:
        """Compute now."""
        latency = self._latency_s
        if self._jitter_s:
            latency += float(stream(self._seed, "latency", number).uniform(-self._jitter_s, self._jitter_s))
        answer = ask(self._policy, number, observation, self._seed, self._deterministic)
        self._pending = (self._clock.now() + max(latency, 0.0), answer)

    def poll(self, wait_s: float) -> Answer | None:
        """Return the answer once its time has come; ``wait_s`` does not apply."""
        if self._pending is None or self._clock.now() < self._pending[0] - 1e-9:
            return None
        answer = self._pending[1]
        self._pending = None
        return answer

    def close(self) -> None:
        """Do nothing."""
