"""From one chunk to the next without a jump: fades and curves over a few control ticks."""

import numpy as np

from burnish.core.spec import Array


def linear_seam(old: Array, new: Array, steps: int) -> Array:
    """Return the fade from an old plan to a new one: step j of S takes (j + 1) / (S + 1) of the new.

    Args:
        old: (R, A) what the old plan has for the ticks to come, R <= S.
        new: (R, A) what the new one has.
        steps: Length of the whole fade S.
    """
    share = (np.arange(1, len(new) + 1) / (steps + 1))[:, None]
    faded: Array = (1.0 - share) * old + share * new
    return faded


def bezier_seam(start: Array, start_speed: Array, end: Array, end_speed: Array, steps: int) -> Array:
    """Return a cubic curve (S, A) between two actions that are S + 1 ticks apart, without its ends.

    Control points are start, start + T/3 start_speed, end - T/3 end_speed and end with T = S + 1, so that the curve
    leaves and arrives with these speeds: position and velocity are continuous at both ends.

    Args:
        start: (A,) the last action that ran.
        start_speed: (A,) its change per tick.
        end: (A,) the action at which the new chunk takes over.
        end_speed: (A,) its change per tick.
        steps: Ticks in between S.
    """
    ticks = steps + 1
    u = (np.arange(1, ticks) / ticks)[:, None]
    first, second = start + start_speed * ticks / 3.0, end - end_speed * ticks / 3.0
    curve: Array = (1 - u) ** 3 * start + 3 * (1 - u) ** 2 * u * first + 3 * (1 - u) * u**2 * second + u**3 * end
    return curve


def slope(chunk: Array, row: int) -> Array:
    """Return the change per tick (A,) of a chunk (K, A) at a row: centred, one-sided at its ends, zero for K = 1."""
    before, after = max(row - 1, 0), min(row + 1, len(chunk) - 1)
    if before == after:
        return np.zeros(chunk.shape[1:])
    change: Array = (chunk[after].astype(float) - chunk[before]) / (after - before)
    return change
