"""The route as AlpaSim shows it to a driver: 20 points in the rig frame, 80 m ahead, and the command that follows."""

import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.bank import Tables
from burnish.envs.driving.geometry import project, to_local

POINTS, AHEAD = 20, 80.0
SPACING = AHEAD / (POINTS - 1)
"""Distance of route points [m]."""
COMMANDS = ("left", "straight", "right", "unknown")
"""In the order of AlpaSim's enum."""
COMMAND_DISTANCE, COMMAND_SIDE = 20.0, 3.0
"""The first route point so far away [m] gives the command, by whether it lies further than this to a side [m]."""


def route_ahead(tables: Tables, scene: int, pose: Array) -> tuple[Array, Array]:
    """Return (points (20, 2) in the rig frame [m], valid (20,)); points beyond the end are zero and not valid.

    Args:
        tables: Of the bank.
        scene: Number of the scene.
        pose: (3,) x, y, yaw of the rear axle.
    """
    start, count = tables.routes[scene]
    path = tables.route_points[start : start + count]
    begin, _ = project(pose[:2], path[:, :2])
    wanted = begin + SPACING * np.arange(POINTS)
    valid = wanted <= path[-1, 2] + 1e-9
    points = np.stack([np.interp(wanted, path[:, 2], path[:, axis]) for axis in (0, 1)], -1)
    return np.where(valid[:, None], to_local(points, pose), 0.0), valid


def command_of(points: Array, valid: Array) -> int:
    """Return the index into ``COMMANDS`` that a route (20, 2) with its mask (20,) means."""
    far = np.flatnonzero(valid & (np.hypot(*points.T) >= COMMAND_DISTANCE))
    if not len(far):
        return 3
    side = points[far[0], 1]
    return 0 if side > COMMAND_SIDE else 2 if side < -COMMAND_SIDE else 1
