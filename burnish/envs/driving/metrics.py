"""Scene Score, incidents, comfort and displacement: what AlpaSim's evaluation computes, as pure functions of arrays.

A row is one step of an episode. What AlpaSim calls modifiers is applied in its order: rows before the evaluation are
dropped; collision_at_fault = front or lateral; rows after the first offroad or collision of any kind are dropped; and
rows after the first with ``dist_to_gt_trajectory`` of 4 m are dropped, because a reconstruction is not valid further
away. Then each column is aggregated over time, and ::

    scene_score = 0                                               after offroad or a collision at fault
                = 1                                               where the log is shorter than 5 m
                = min(clip(progress, 0, 1) / 0.8, 1)              else

A rear hit is not at fault, but it ends the rows, and with them the progress.
"""

from dataclasses import dataclass

import numpy as np

from burnish.core.spec import Array

PROGRESS_FOR_FULL_SCORE = 0.8
SHORT_LOG = 5.0
"""A log shorter than this gives full progress [m]."""
CORRIDOR = 4.0
"""Distance to the logged path that ends the rows [m]."""

COMFORT_LIMITS = {
    "acceleration": 2.40,
    "braking": 4.05,
    "lateral_acceleration": 4.89,
    "jerk": 8.37,
    "yaw_rate": 0.95,
    "yaw_acceleration": 1.93,
}
"""Comfort bounds of nuPlan's and NAVSIM's metric: m/s^2, m/s^2, m/s^3, rad/s, rad/s^2."""


@dataclass(frozen=True)
class Rows:
    """The columns of W episodes over T steps, and which steps exist."""

    collision_front: Array
    """(W, T) bool."""
    collision_rear: Array
    """(W, T) bool."""
    collision_lateral: Array
    """(W, T) bool."""
    offroad: Array
    """(W, T) bool."""
    progress: Array
    """(W, T) place on the full logged path, 0 to 1."""
    dist_to_gt_trajectory: Array
    """(W, T) m."""
    dist_traveled_m: Array
    """(W, T) m, summed up."""
    gt_dist_traveled_m: Array
    """(W,) length of the full logged path [m]."""
    valid: Array
    """(W, T) bool, the steps that belong to the evaluation."""


@dataclass(frozen=True)
class Score:
    """What W episodes come to, each (W,)."""

    scene_score: Array
    """0 to 1."""
    progress: Array
    """0 to 1, at the last row that is left."""
    collision_at_fault: Array
    """bool."""
    collision_any: Array
    """bool."""
    offroad: Array
    """bool."""
    left_corridor: Array
    """bool, the rows were cut at the corridor."""
    dist_to_gt_trajectory: Array
    """Largest [m]."""
    dist_traveled_m: Array
    """m, at the last row that is left."""
    duration_frac_20s: Array
    """Time of the last row after the first, in units of 20 s."""


def until_first(event: Array, valid: Array) -> Array:
    """Return (W, T) the valid rows up to the first event (W, T), that one included."""
    event = event & valid
    before: Array = np.cumsum(event, 1) - event
    kept: Array = valid & (before == 0)
    return kept


def scene_score(rows: Rows, *, corridor: float = CORRIDOR, dt: float = 0.1) -> Score:
    """Apply the modifiers and score.

    Args:
        rows: W episodes.
        corridor: Distance to the logged path that ends the rows [m]; infinite for AlpaSim's default list.
        dt: Seconds between rows.
    """
    at_fault = rows.collision_front | rows.collision_lateral
    any_collision = at_fault | rows.collision_rear
    kept = until_first(any_collision | rows.offroad, rows.valid)
    outside = kept & (rows.dist_to_gt_trajectory >= corridor)
    kept = until_first(outside, kept)
    last = kept.shape[1] - 1 - kept[:, ::-1].argmax(1)
    episode = np.arange(len(kept))
    exists = kept.any(1)
    progress = np.where(exists, rows.progress[episode, last], 0.0)
    failed_fault, failed_road = _any(at_fault & kept), _any(rows.offroad & kept)
    return Score(
        scene_score=score_of(progress, rows.gt_dist_traveled_m, failed_fault | failed_road),
        progress=progress,
        collision_at_fault=failed_fault,
        collision_any=_any(any_collision & kept),
        offroad=failed_road,
        left_corridor=_any(outside),
        dist_to_gt_trajectory=np.where(kept, rows.dist_to_gt_trajectory, 0.0).max(1),
        dist_traveled_m=np.where(exists, rows.dist_traveled_m[episode, last], 0.0),
        duration_frac_20s=np.where(exists, dt * (last - kept.argmax(1)) / 20.0, 0.0),
    )


def _any(event: Array) -> Array:
    return np.asarray(event.any(1))


def score_of(progress: Array, log_length: Array, failed: Array) -> Array:
    """Return Scene Scores (...) of progress (...) on logs of a length (...) [m], 0 where failed (...)."""
    share = np.minimum(np.clip(progress, 0.0, 1.0) / PROGRESS_FOR_FULL_SCORE, 1.0)
    return np.where(failed, 0.0, np.where(log_length < SHORT_LOG, 1.0, share))


def km_per_incident(dist_traveled_m: Array, incident: Array) -> float:
    """Return kilometres of W episodes over their incidents (W,); infinite where there was none."""
    count = float(np.sum(incident))
    return float(np.sum(dist_traveled_m)) / 1000.0 / count if count else float("inf")


def comfort(speed: Array, yaw: Array, *, dt: float = 0.1) -> dict[str, Array]:
    """Return the largest magnitudes (W,) over an episode, and whether all are within ``COMFORT_LIMITS``.

    Args:
        speed: (W, T) m/s.
        yaw: (W, T) rad.
        dt: Seconds between steps.
    """
    along = np.gradient(speed, dt, axis=1)
    rate = np.gradient(np.unwrap(yaw, axis=1), dt, axis=1)
    lateral = speed * rate
    jerk = np.hypot(np.gradient(along, dt, axis=1), np.gradient(lateral, dt, axis=1))
    turn = np.gradient(rate, dt, axis=1)
    figures = {
        "acceleration": along.max(1),
        "braking": -along.min(1),
        "lateral_acceleration": np.abs(lateral).max(1),
        "jerk": jerk.max(1),
        "yaw_rate": np.abs(rate).max(1),
        "yaw_acceleration": np.abs(turn).max(1),
    }
    within = [figures[name] <= limit for name, limit in COMFORT_LIMITS.items()]
    return {**figures, "comfortable": np.all(within, axis=0)}


def displacement(plan: Array, driven: Array, valid: Array) -> dict[str, Array]:
    """Return open-loop errors (...) of plans (..., K, 2 or more) against what was driven (..., K, 2 or more) [m].

    Args:
        plan: Planned x, y.
        driven: Logged x, y at the same times, in the same frame.
        valid: (..., K) bool, times at which the log goes on; at least one.

    Returns:
        ``ade``, the mean distance, and ``fde``, the distance at the last valid time.
    """
    gap = np.hypot(*np.moveaxis(plan[..., :2] - driven[..., :2], -1, 0))
    last = valid.shape[-1] - 1 - valid[..., ::-1].argmax(-1)
    mean = np.where(valid, gap, 0.0).sum(-1) / np.maximum(valid.sum(-1), 1)
    return {"ade": mean, "fde": np.take_along_axis(gap, last[..., None], -1)[..., 0]}
