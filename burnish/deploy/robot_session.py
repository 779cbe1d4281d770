"""What a server of lerobot's protocol keeps of one robot: the newest observation, and what has been answered."""

import threading
import time

import numpy as np

from burnish.core.spec import Observation
from burnish.deploy.lerobot_wire import Seen
from burnish.deploy.observations import ObservationReader
from burnish.deploy.robot_keys import RobotKeys


class RobotSession:
    """From one ``Ready`` to the next; its methods may be called from several threads."""

    def __init__(self, reader: ObservationReader, generator: np.random.Generator) -> None:
        """Begin with nothing seen.

        Args:
            reader: Checks observations.
            generator: Random stream of sampled answers.
        """
        self.reader = reader
        self.generator = generator
        self.keys: RobotKeys | None = None
        """What the robot has; None until it has said so."""
        self.actions_per_chunk = 0
        """How many actions the robot takes at a time."""
        self._changed = threading.Condition()
        self._pending: tuple[Seen, Observation] | None = None
        self._newest = -1
        self._answered = -1
        self._over = False
        self._calls = 0
        self._lost = False
        self._ended = time.monotonic()

    def offer(self, seen: Seen, observation: Observation) -> bool:
        """Keep an observation for :meth:`take`, in place of one that has not been taken.

        Returns:
            False if it is older than one before, or its timestep has been answered and the robot has actions left.
        """
        with self._changed:
            if seen.timestep < self._newest or (seen.timestep <= self._answered and not seen.must_go):
                return False
            self._newest = seen.timestep
            self._pending = (seen, observation)
            self._changed.notify()
            return True

    def take(self, wait_s: float) -> tuple[Seen, Observation] | None:
        """Return the newest observation, waiting for it up to ``wait_s``; None when none came, or the session ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._over, wait_s)
            taken, self._pending = self._pending, None
            if taken is None:  # the robot may have missed an answer, so whatever it sends next is answered
                self._answered = -1
            return None if self._over else taken

    def answered(self, timestep: int) -> None:
        """Note that actions for a timestep were sent."""
        with self._changed:
            self._answered = max(self._answered, timestep)

    def end(self) -> None:
        """Let go whoever waits."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def begin_call(self) -> None:
        """Note that the robot calls."""
        with self._changed:
            self._calls += 1
            self._lost = False

    def end_call(self, *, broken: bool) -> None:
        """Note that a call ended, and whether its connection was gone by then."""
        with self._changed:
            self._calls -= 1
            self._lost = self._lost or broken
            self._ended = time.monotonic()

    def is_gone(self, quiet_s: float) -> bool:
        """Return whether the connection broke, or nothing was heard for ``quiet_s``; a robot asks all the time."""
        with self._changed:
            return self._lost or (self._calls == 0 and time.monotonic() - self._ended > quiet_s)
