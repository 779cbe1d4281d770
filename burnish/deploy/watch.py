"""A robot that is silent: observations that are old or unusable, and calls that hang."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from burnish.core.spec import PolicySpec
from burnish.deploy.robot import Sensed


def observation_problem(sensed: Sensed, policy: PolicySpec, now: float, max_age_s: float) -> str:
    """Return why a policy must not act on an observation, or "".

    Args:
        sensed: What the robot gave.
        policy: What is read of it.
        now: Time on the clock that stamped it [s].
        max_age_s: How old it may be [s].
    """
    age = now - sensed.time
    if not age <= max_age_s:  # an age that is not a number is too old
        return f"the observation is {age:.3g} s old; the limit is {max_age_s:.3g} s"
    for key in policy.observation:
        value = sensed.observation.get(key)
        if value is None:
            return f"the observation has no '{key}'; it has {', '.join(sorted(sensed.observation))}"
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return f"the observation '{key}' is not finite"
    return ""


class StallWatch:
    """Calls back, from a thread of its own, when one call takes longer than allowed. Real time only.

    The control loop cannot notice that itself: it is inside the call.
    """

    def __init__(self, limit_s: float, on_stall: Callable[[str, float], None]) -> None:
        """Start watching.

        Args:
            limit_s: How long a call may take [s].
            on_stall: Called once per call that hangs, with its name and how long it has been going on [s].
        """
        self._limit_s, self._on_stall = limit_s, on_stall
        self._call: tuple[str, float] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Watch one call."""
        self._call = (name, time.monotonic())
        try:
            yield
        finally:
            self._call = None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._limit_s)

    def _run(self) -> None:
        told: tuple[str, float] | None = None
        while not self._closed.wait(self._limit_s / 4):
            call = self._call
            if call is None or call is told:
                continue
            took = time.monotonic() - call[1]
            if took > self._limit_s:
                told = call
                self._on_stall(call[0], took)
