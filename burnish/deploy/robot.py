"""What the runtime drives: a robot, or an environment that stands in for one; and the clock it is driven by."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from burnish.core.contracts import VecEnv
from burnish.core.errors import EnvError
from burnish.core.spec import Array, EnvSpec, Observation
from burnish.core.step import Start


class Clock(Protocol):
    """Time in seconds from an arbitrary origin, never going back."""

    simulated: bool

    def now(self) -> float:
        """Return the time [s]."""
        ...

    def sleep_until(self, moment: float) -> None:
        """Return at ``moment`` [s] or, if it has passed, at once."""
        ...


class RealClock:
    """Monotonic wall time."""

    simulated = False

    def now(self) -> float:
        """Return the time [s]."""
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        """Sleep until ``moment`` [s]."""
        left = moment - time.monotonic()
        if left > 0:
            time.sleep(left)


class SimulatedClock:
    """Time that passes only when it is slept, so that a run is as fast as its parts and repeatable."""

    simulated = True

    def __init__(self) -> None:
        """Start at zero."""
        self._now = 0.0

    def now(self) -> float:
        """Return the time [s]."""
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Let time pass until ``moment`` [s]."""
        self._now = max(self._now, moment)


@dataclass(frozen=True)
class Sensed:
    """What a robot saw."""

    observation: Observation
    """N = 1."""
    time: float
    """When it was captured, on the runtime's clock [s]; of several sensors, the oldest."""
    camera_time: Mapping[str, float] = field(default_factory=dict)
    """When single pictures were taken, by observation key, on the runtime's clock [s]; may be left out."""
    action: Array | None = None
    """(A,) what somebody else than the runtime does now: a human or another controller; None for nobody."""
    intervention: bool = False
    """Whether a human has taken over: ``action`` is what he wants, and is sent in place of the policy's."""


@dataclass(frozen=True)
class Outcome:
    """What came of an action."""

    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the run up to now."""


type Operator = Callable[[Sensed], Array | None]
"""A human beside the robot: returns (A,) what he wants it to do now, or None where the policy may go on."""


class Robot(Protocol):
    """A sink of actions with sensors; ``spec`` names its observation, action limits and control rate.

    No call should wait for the hardware. One that hangs in real time is answered with ``stop`` from another thread.
    """

    spec: EnvSpec

    def observe(self) -> Sensed:
        """Return the newest observation; must not wait for a new one."""
        ...

    def send(self, action: Array) -> Outcome:
        """Begin to execute one action (A,)."""
        ...

    def stop(self, action: Array) -> None:
        """Come to rest: the run is over; ``action`` (A,) is what the safety chain holds for safe.

        Where nothing was sent, and nothing tells where the robot is, it is zeros: a position-controlled robot then
        better stays where it is. May be called while another call hangs.
        """
        ...


class EnvRobot:
    """One environment as a robot: an action is a step of ``control_dt``, and nothing moves between two actions."""

    def __init__(self, env: VecEnv, start: Start, clock: Clock) -> None:
        """Begin an episode.

        Args:
            env: A VecEnv of one environment.
            start: Where the episode begins.
            clock: The runtime's clock.

        Raises:
            EnvError: If ``env`` holds several environments.
        """
        if env.num_envs != 1:
            raise EnvError(f"The runtime drives one environment, found {env.num_envs}; build it with num_envs=1.")
        self.spec = env.spec
        self._env = env
        self._clock = clock
        self._observation = env.reset([start])

    def observe(self) -> Sensed:
        """Return the observation, which is always of now."""
        return Sensed(self._observation, self._clock.now())

    def send(self, action: Array) -> Outcome:
        """Execute one action (A,)."""
        step = self._env.step(np.asarray(action, np.float32)[None, None])
        self._observation = step.observation
        return Outcome(
            float(step.reward[0].sum()),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            {name: float(figure[0]) for name, figure in step.metrics.items()},
        )

    def stop(self, action: Array) -> None:
        """Do nothing: an environment that is not stepped does not move."""
