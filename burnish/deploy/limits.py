"""Speed and acceleration limits of a commanded action that hold together with its position limits.

Everything is per control tick: positions p in action units, speeds v = p - p_before, changes of speed a. A point that
moves at v stops soonest by v - a, v - 2a, ..., so it can stay within D of here only if

    v + (v - a) + (v - 2a) + ... <= D,   positive terms only.

The left side grows with v; :func:`stopping_speed` inverts it. A point that keeps to this can always go on keeping to
it: one tick of braking leads from (v, D) to (v - a, D - v), where the same inequality holds. So position, speed and
acceleration limits never contradict each other, whatever is wanted, as long as the first position is inside.
"""

from dataclasses import dataclass, field

import numpy as np

from burnish.core.spec import Array

_ENDLESS = 1e15
"""Stands for no limit where infinity would make nan."""
_ROUNDING = 2.5e-7
"""Relative size of what rounding actions to float32 may add to a speed or an acceleration."""


def stopping_speed(distance: Array | float, deceleration: Array | float) -> Array:
    """Return the largest speed (...) per tick from which one can stop within a distance.

    With n = floor((sqrt(1 + 8 D / a) - 1) / 2) further ticks of braking it is D / (n + 1) + a n / 2.

    Args:
        distance: D >= 0, what may still be covered, the next tick included.
        deceleration: a > 0, change of speed per tick.
    """
    far: Array = np.minimum(distance, _ENDLESS)
    step = np.minimum(deceleration, _ENDLESS)
    ticks = np.floor((np.sqrt(far * (8.0 / step) + 1.0) - 1.0) * 0.5)
    speed: Array = far / (ticks + 1.0) + step * (0.5 * ticks)
    return speed


@dataclass(frozen=True)
class Limits:
    """Limits of A entries, per control tick."""

    low: Array
    """(A,) lowest position."""
    high: Array
    """(A,) highest position."""
    speed: Array
    """(A,) largest change of position; infinite for none."""
    acceleration: Array
    """(A,) largest change of that change; infinite for none."""
    inner_low: Array = field(init=False)
    """(A,) from here up, even the largest speed stops before ``low``."""
    inner_high: Array = field(init=False)
    """(A,) from here down, even the largest speed stops before ``high``."""

    def __post_init__(self) -> None:
        """Compute the inner limits."""
        step, speed = np.minimum(self.acceleration, _ENDLESS), np.minimum(self.speed, _ENDLESS)
        ticks = np.floor(speed / step)
        way = ticks * speed - step * ticks * (ticks + 1.0) / 2.0  # after the tick at that speed
        object.__setattr__(self, "inner_low", self.low + way)
        object.__setattr__(self, "inner_high", self.high - way)


@dataclass(frozen=True)
class Motion:
    """Where the command is and how it moves."""

    position: Array
    """(A,) float64 within the limits."""
    speed: Array
    """(A,) float64, what the last tick changed."""


def speed_range(motion: Motion, limits: Limits) -> tuple[Array, Array]:
    """Return the lowest and highest speed (A,) of the next tick from which all limits can be kept for ever."""
    down, up, _ = _speeds(motion, limits, np.zeros_like(motion.position))
    return down, up


def _speeds(motion: Motion, limits: Limits, distance: Array) -> tuple[Array, Array, Array]:
    """Return :func:`speed_range` and the largest speed that stops within a further distance (A,)."""
    ways = np.array((limits.high - motion.position, motion.position - limits.low, distance))
    above, below, ahead = stopping_speed(ways, limits.acceleration)
    up = np.minimum(np.minimum(limits.speed, motion.speed + limits.acceleration), above)
    down = np.maximum(np.maximum(-limits.speed, motion.speed - limits.acceleration), -below)
    return down, up, ahead


def approach(target: Array, motion: Motion, limits: Limits, target_speed: Array | float) -> tuple[Array, Array]:
    """Return where to go in one tick (A,) float64, and which entries had to be changed (A,) bool.

    A target that can be reached, at a speed from which its own can be taken up in one tick, is reached. Else the entry
    catches up as fast as its limits let it, and slows down so that it arrives with the speed of the target: one that
    stands still is not passed by who comes from rest.

    Args:
        target: (A,) finite, within the position limits.
        motion: Before.
        limits: What holds.
        target_speed: (A,) change of the target in this tick, to which the motion is led; 0 for one that stands still.
    """
    want = target - motion.position
    ahead = want - target_speed
    if _is_free(target, want, ahead, motion, limits):
        return target, np.zeros(target.shape, bool)
    behind = np.abs(ahead)
    down, up, catching_up = _speeds(motion, limits, behind)
    slack = _ROUNDING * np.abs(target)
    changed = (want < down - slack) | (want > up + slack) | (behind > limits.acceleration + slack)
    if not changed.any():
        return target, changed
    careful = target_speed + np.copysign(catching_up, ahead)
    careful = np.minimum(np.maximum(careful, down), up)
    reached = np.minimum(np.maximum(motion.position + careful, limits.low), limits.high)
    return np.where(changed, reached, target), changed


def _is_free(target: Array, want: Array, ahead: Array, motion: Motion, limits: Limits) -> bool:
    """Return whether a target is far enough from all limits to need no closer look: the usual case, and a cheap one."""
    near = np.maximum(np.abs(ahead), np.abs(want - motion.speed)) > limits.acceleration
    near |= np.abs(want) > limits.speed
    near |= (target < limits.inner_low) | (target > limits.inner_high)
    return not near.any()


def coast(motion: Motion, limits: Limits) -> Motion:
    """Return the motion after one tick of braking as hard as the acceleration limit allows."""
    speed = np.sign(motion.speed) * np.maximum(np.abs(motion.speed) - limits.acceleration, 0.0)
    position = np.minimum(np.maximum(motion.position + speed, limits.low), limits.high)
    return Motion(position, position - motion.position)
