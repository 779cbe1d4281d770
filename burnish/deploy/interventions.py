"""What the safety chain changed, and in which words: shared by all that can stop or slow a robot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from burnish.core.spec import Array
from burnish.deploy.limits import Limits, Motion

type Kind = Literal[
    "not_finite",
    "limit",
    "workspace",
    "first_action",
    "rate",
    "acceleration",
    "braking",
    "force",
    "camera",
    "deadman",
    "robot",
    "runtime",
]


@dataclass(frozen=True)
class Intervention:
    """One thing that the chain did."""

    kind: Kind
    """Which check."""
    message: str
    """What was found, which limit it broke, and what was done."""
    entry: int = -1
    """Action entry that was farthest out; -1 for the whole action."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the tick log."""
        return {"kind": self.kind, "entry": self.entry, "message": self.message}


def cut(action: Array, low: Array, high: Array) -> tuple[Array, int]:
    """Return the action (A,) within limits, and the entry that was farthest outside; -1 for none."""
    inside: Array = np.minimum(np.maximum(action, low), high)
    if (inside == action).all():
        return action, -1
    return inside, int(np.argmax(np.abs(inside - action)))


def slowed(
    target: Array,
    reached: Array,
    motion: Motion,
    limits: Limits,
    target_speed: Array,
    control_dt: float,
    name: Callable[[int], str],
) -> Intervention:
    """Say which limit slowed the entry that was slowed down the most.

    Args:
        target: (A,) what was wanted.
        reached: (A,) what became of it.
        motion: Before.
        limits: What holds, per tick.
        target_speed: (A,) change of what was wanted.
        control_dt: Seconds per tick.
        name: Names an entry.
    """
    entry = int(np.abs(target - reached).argmax())
    before, speed, change = (float(item[entry]) for item in (motion.position, motion.speed, target_speed))
    rate, acceleration = float(limits.speed[entry]), float(limits.acceleration[entry])
    want = float(target[entry]) - before
    kind: Kind
    if abs(want) > rate:
        kind = "rate"
        text = f"changes by {want:.4g} within {control_dt:.4g} s; the limit is {rate / control_dt:.4g} per second"
    elif max(abs(want - speed), abs(want - change)) > acceleration:
        kind = "acceleration"
        text = (
            f"changes by {want:.4g} at {speed / control_dt:.4g} per second, which needs more than the limit of "
            f"{acceleration / control_dt**2:.4g} per second^2"
        )
    else:
        kind, text = "braking", "could not stop before its limit"
    return Intervention(kind, f"action entry {name(entry)} {text}; slowed down", entry)
