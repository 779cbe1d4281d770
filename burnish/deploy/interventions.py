"""What the safety chain changed, and in which words: shared by all that can stop or slow a robot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from burnish.core.spec import Array
from burnish.deploy.limits import Limits, Motion, stopping_speed

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
    changed: Array,
    control_dt: float,
    name: Callable[[int], str],
) -> list[Intervention]:
    """Say which limit slowed which entry the most, at most once per limit.

    Args:
        target: (A,) what was wanted.
        reached: (A,) what became of it.
        motion: Before.
        limits: What holds, per tick.
        changed: (A,) bool, entries that differ.
        control_dt: Seconds per tick.
        name: Names an entry.
    """
    want = target - motion.position
    fast = changed & (np.abs(want) > limits.speed)
    left = np.where(want > 0, limits.high - motion.position, motion.position - limits.low)
    braking = changed & ~fast & (np.abs(want) > stopping_speed(left, limits.acceleration))
    found = []
    kinds: tuple[tuple[Kind, Array], ...] = (
        ("rate", fast),
        ("acceleration", changed & ~fast & ~braking),
        ("braking", braking),
    )
    for kind, where in kinds:
        if not where.any():
            continue
        entry = int(np.argmax(np.where(where, np.abs(target - reached), -1.0)))
        text = {
            "rate": f"changes by {want[entry]:.4g} within {control_dt:.4g} s; the limit is "
            f"{limits.speed[entry] / control_dt:.4g} per second",
            "acceleration": f"changes by {want[entry]:.4g} at {motion.speed[entry] / control_dt:.4g} per second, which "
            f"needs more than the limit of {limits.acceleration[entry] / control_dt**2:.4g} per second^2",
            "braking": "could not stop before its limit",
        }[kind]
        found.append(Intervention(kind, f"action entry {name(entry)} {text}; slowed down", entry))
    return found
