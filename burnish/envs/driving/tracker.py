"""From a planned trajectory to (front-wheel angle, acceleration): pure pursuit and a speed loop, as pure functions.

A plan is 8 x (x, y, yaw), 0.5 s apart, in the rig frame at the moment of planning; the car stands at its origin. It is
made smooth by cubic Hermite pieces whose tangents are the planned yaws, and then followed for as long as no newer plan
comes. A plan that ends is followed straight on, and its last place is where the car stops, as in AlpaSim's controller.
"""

import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.geometry import to_local
from burnish.envs.driving.vehicle import Vehicle

PLAN_STEPS = 8
PLAN_DT = 0.5
"""Seconds between two planned poses."""
PIECES = 5
"""Straight pieces in each interval of a plan."""
PATH_POINTS = PLAN_STEPS * PIECES + 1

POSITION_GAIN = 1.0
"""Speed asked for, per metre behind the plan [1/s]."""
SPEED_TIME = 0.3
"""In how many seconds a wrong speed is to be mended [s]."""
PREVIEW = 0.2
"""How far ahead of now the planned speed is read, to make up for the lag of the actuators [s]."""
BRAKING, HORIZON = 5.0, (0.4, 0.8, 1.2, 1.6, 2.0)
"""Braking with which slower parts of the plan are to be met [m/s^2], and how far ahead they are looked for [s]."""
LOOKAHEAD_TIME, LEAST_LOOKAHEAD = 0.5, 3.0
"""How far ahead on the path the car steers: so many seconds of its speed, at least so many metres."""


def smooth(plan: Array) -> Array:
    """Return (..., 41, 2) points of a plan (..., 8, 3), the origin first, five pieces in each interval."""
    start = np.zeros((*plan.shape[:-2], 1, 3))
    poses = np.concatenate((start, np.asarray(plan, float)), -2)
    points = poses[..., :2]
    chord = np.hypot(*np.moveaxis(np.diff(points, axis=-2), -1, 0))[..., None]
    heading = np.stack((np.cos(poses[..., 2]), np.sin(poses[..., 2])), -1)
    share = (np.arange(1, PIECES + 1) / PIECES)[:, None]
    one, two = points[..., :-1, None, :], points[..., 1:, None, :]
    leave, arrive = (chord * heading[..., :-1, :])[..., None, :], (chord * heading[..., 1:, :])[..., None, :]
    square, cube = share**2, share**3
    between = (
        (2 * cube - 3 * square + 1) * one
        + (cube - 2 * square + share) * leave
        + (3 * square - 2 * cube) * two
        + (cube - square) * arrive
    )
    return np.concatenate((points[..., :1, :], between.reshape(*plan.shape[:-2], -1, 2)), -2)


def lengths(path: Array) -> Array:
    """Return (..., P) arc lengths of paths (..., P, 2) [m]."""
    steps = np.hypot(*np.moveaxis(np.diff(path, axis=-2), -1, 0))
    return np.concatenate((np.zeros((*steps.shape[:-1], 1)), np.cumsum(steps, -1)), -1)


def track(state: Array, path: Array, origin: Array, elapsed: Array, vehicle: Vehicle) -> Array:
    """Return commands (W, 2), front-wheel angle [rad] and acceleration [m/s^2], that follow plans.

    Args:
        state: (W, 6) of :mod:`burnish.envs.driving.vehicle`.
        path: (W, 41, 2) of :func:`smooth`.
        origin: (W, 3) pose of the rear axle when the plan was made.
        elapsed: (W,) seconds since then.
        vehicle: Limits and wheelbase.
    """
    total = lengths(path)
    here = to_local(state[:, :2], origin)
    yaw, speed = state[:, 2] - origin[:, 2], state[:, 3]
    done = _project(here, path, total)
    wanted = _at_time(total, elapsed)
    target = np.maximum(_planned_speed(total, elapsed + PREVIEW) + POSITION_GAIN * (wanted - done), 0.0)
    for later in HORIZON:
        room = np.maximum(_at_time(total, elapsed + later) - done, 0.0)
        target = np.minimum(target, np.sqrt(_planned_speed(total, elapsed + later) ** 2 + 2.0 * BRAKING * room))
    acceleration = (target - speed) / SPEED_TIME
    ahead = done + np.maximum(LOOKAHEAD_TIME * speed, LEAST_LOOKAHEAD)
    goal = to_local(_at_length(path, total, ahead), np.concatenate((here, yaw[:, None]), -1))
    square = np.maximum((goal * goal).sum(-1), 1e-6)
    steering = np.arctan(vehicle.wheelbase * 2.0 * goal[:, 1] / square)
    short = total[:, -1] < 0.05
    return np.stack((np.where(short, 0.0, steering), acceleration), -1)


def _at_time(total: Array, time: Array) -> Array:
    """Return the planned arc lengths (W,) at times (W,) since planning; the last one for ever after."""
    place = np.clip(time * (PIECES / PLAN_DT), 0.0, total.shape[-1] - 1.0)
    index = np.minimum(place.astype(int), total.shape[-1] - 2)
    row = np.arange(len(total))
    one, two = total[row, index], total[row, index + 1]
    length: Array = one + (place - index) * (two - one)
    return length


def _planned_speed(total: Array, time: Array) -> Array:
    """Return planned speeds (W,) at times (W,) since planning [m/s]."""
    return (_at_time(total, time + 0.1) - _at_time(total, time)) / 0.1


def _at_length(path: Array, total: Array, length: Array) -> Array:
    """Return points (W, 2) at arc lengths (W,), straight on beyond the end."""
    index = np.clip((total < length[:, None]).sum(-1) - 1, 0, total.shape[-1] - 2)
    row = np.arange(len(path))
    last = _last_moving(total)
    index = np.minimum(index, last)
    one, two = path[row, index], path[row, index + 1]
    size = np.maximum(total[row, index + 1] - total[row, index], 1e-9)
    share = (length - total[row, index]) / size
    point: Array = one + np.where(size > 1e-6, share, 0.0)[:, None] * (two - one)
    return point


def _last_moving(total: Array) -> Array:
    """Return (W,) the last piece of each path that has a length."""
    moving = np.diff(total, axis=-1) > 1e-3
    last: Array = moving.shape[-1] - 1 - moving[:, ::-1].argmax(-1)
    return np.where(moving.any(-1), last, 0)


def _project(point: Array, path: Array, total: Array) -> Array:
    """Return (W,) arc length of the nearest place of each path (W, P, 2) to a point (W, 2), negative before it."""
    one = path[:, :-1]
    step = path[:, 1:] - one
    size = np.maximum((step * step).sum(-1), 1e-12)
    share = np.clip(((point[:, None] - one) * step).sum(-1) / size, 0.0, 1.0)
    gap = point[:, None] - (one + share[..., None] * step)
    best = (gap * gap).sum(-1).argmin(-1)
    row = np.arange(len(path))
    length: Array = total[row, best] + share[row, best] * np.sqrt(size[row, best])
    return length
