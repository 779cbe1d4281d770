"""Rotations and rigid motions as pure functions over arrays with any leading axes.

Quaternions are (..., 4) float, order (w, x, y, z), of unit length, right-handed and active: ``rotate(q, v)`` turns v,
and ``q = world_from_body`` takes body coordinates to world coordinates. A rotation vector (..., 3) is axis times angle
[rad]. A pose is a pair (quaternion, position); ``compose(a_from_b, b_from_c)`` is ``a_from_c``. Perturbations act on
the right: ``boxplus(q, d) = q exp(d)``, with d in the body frame.
"""

from typing import NamedTuple

import numpy as np

from burnish.core.errors import SpecError
from burnish.core.spec import Array

_SMALL = 1e-8


class Pose(NamedTuple):
    """Rigid motion between two frames, named ``target_from_source`` by whoever holds it."""

    rotation: Array
    """(..., 4) quaternion (w, x, y, z)."""
    position: Array
    """(..., 3) origin of the source frame in the target frame [m]."""


def identity() -> Array:
    """Return the quaternion (4,) that turns nothing."""
    return np.array((1.0, 0.0, 0.0, 0.0))


def normalised(q: Array) -> Array:
    """Return q (..., 4) with unit length and w >= 0, which is the same rotation.

    Raises:
        SpecError: If an entry is not finite, or a quaternion is zero.
    """
    q = np.asarray(q, float)
    if q.shape[-1:] != (4,):
        raise SpecError(f"A quaternion has 4 entries (w, x, y, z); found an array of shape {q.shape}.")
    length = np.linalg.norm(q, axis=-1, keepdims=True)
    if not np.isfinite(length).all() or (length < _SMALL).any():
        raise SpecError(f"A quaternion must be finite and not zero; found {q.tolist()}.")
    unit: Array = np.where(q[..., :1] < 0.0, -q, q) / length
    return unit


def multiply(p: Array, q: Array) -> Array:
    """Return the rotation (..., 4) that applies q first, then p."""
    pw, px, py, pz = np.moveaxis(np.asarray(p, float), -1, 0)
    qw, qx, qy, qz = np.moveaxis(np.asarray(q, float), -1, 0)
    return np.stack(
        (
            pw * qw - px * qx - py * qy - pz * qz,
            pw * qx + px * qw + py * qz - pz * qy,
            pw * qy - px * qz + py * qw + pz * qx,
            pw * qz + px * qy - py * qx + pz * qw,
        ),
        -1,
    )


def conjugate(q: Array) -> Array:
    """Return the inverse rotation of a unit quaternion (..., 4)."""
    inverse: Array = np.asarray(q, float) * (1.0, -1.0, -1.0, -1.0)
    return inverse


def rotate(q: Array, v: Array) -> Array:
    """Turn vectors v (..., 3) by unit quaternions q (..., 4)."""
    q, v = np.asarray(q, float), np.asarray(v, float)
    axis = q[..., 1:]
    twice = 2.0 * np.cross(axis, v)
    turned: Array = v + q[..., :1] * twice + np.cross(axis, twice)
    return turned


def exp(rotation_vector: Array) -> Array:
    """Return the quaternion (..., 4) of a rotation vector (..., 3) [rad]."""
    v = np.asarray(rotation_vector, float)
    half = 0.5 * np.linalg.norm(v, axis=-1, keepdims=True)
    # sin(half) / (2 half), which numpy's sinc gives at 0 too
    return np.concatenate((np.cos(half), 0.5 * np.sinc(half / np.pi) * v), -1)


def log(q: Array) -> Array:
    """Return the rotation vector (..., 3) [rad] of a unit quaternion (..., 4), at most pi long."""
    q = np.asarray(q, float)
    q = np.where(q[..., :1] < 0.0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, q[..., :1])
    factor = np.where(sine < _SMALL, 2.0, angle / np.maximum(sine, _SMALL))
    vector: Array = factor * q[..., 1:]
    return vector


def boxplus(q: Array, delta_b: Array) -> Array:
    """Return q exp(delta) (..., 4), with delta (..., 3) [rad] in the body frame."""
    return multiply(q, exp(delta_b))


def boxminus(p: Array, q: Array) -> Array:
    """Return delta (..., 3) [rad] with ``boxplus(q, delta)`` equal to p."""
    return log(multiply(conjugate(q), p))


def angle_between(p: Array, q: Array) -> Array:
    """Return the angle (...) [rad] of the rotation between two orientations (..., 4), in [0, pi]."""
    angle: Array = np.linalg.norm(boxminus(p, q), axis=-1)
    return angle


def slerp(p: Array, q: Array, share: float | Array) -> Array:
    """Return the orientation (..., 4) at ``share`` of the shortest way from p to q."""
    return boxplus(p, np.asarray(share, float)[..., None] * boxminus(q, p))


def to_matrix(q: Array) -> Array:
    """Return the rotation matrix (..., 3, 3) of a unit quaternion (..., 4)."""
    return np.stack([rotate(q, axis) for axis in np.eye(3)], -1)


def from_matrix(matrix: Array) -> Array:
    """Return the quaternion (..., 4), w >= 0, of a rotation matrix (..., 3, 3).

    Of the four formulas the one with the largest divisor is taken (Shepperd 1978).

    Raises:
        SpecError: If a matrix is no rotation.
    """
    m = np.asarray(matrix, float)
    error = np.abs(m @ np.swapaxes(m, -1, -2) - np.eye(3)).max(initial=0.0)
    if not error < 1e-4 or not (np.linalg.det(m) > 0.0).all():
        raise SpecError(f"Not a rotation matrix: R R^T differs from 1 by {error:.3g}, or its determinant is not 1.")
    diagonal = np.diagonal(m, axis1=-2, axis2=-1)
    trace = diagonal.sum(-1, keepdims=True)
    squares = np.concatenate((1.0 + trace, 1.0 - trace + 2.0 * diagonal), -1)  # four times (w, x, y, z) squared
    xy, yx, xz, zx, yz, zy = (m[..., i, j] for i, j in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)))
    w, x, y, z = np.moveaxis(squares, -1, 0)
    rows = np.stack(
        (
            np.stack((w, zy - yz, xz - zx, yx - xy), -1),
            np.stack((zy - yz, x, xy + yx, xz + zx), -1),
            np.stack((xz - zx, xy + yx, y, yz + zy), -1),
            np.stack((yx - xy, xz + zx, yz + zy, z), -1),
        ),
        -2,
    )  # row i is (w, x, y, z) times four times its entry i
    best = squares.argmax(-1)
    return normalised(np.take_along_axis(rows, best[..., None, None], -2)[..., 0, :])


def yaw_of(q: Array) -> Array:
    """Return the angle (...) [rad] about the z axis that the turned x axis has, in (-pi, pi]."""
    w, x, y, z = np.moveaxis(np.asarray(q, float), -1, 0)
    yaw: Array = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    return yaw


def from_yaw(yaw: float | Array) -> Array:
    """Return the rotation (..., 4) by ``yaw`` (...) [rad] about the z axis."""
    yaw = np.asarray(yaw, float)
    return exp(np.stack((np.zeros_like(yaw), np.zeros_like(yaw), yaw), -1))


def wrap(angle: float | Array) -> Array:
    """Return angles (...) [rad] in [-pi, pi)."""
    wrapped: Array = (np.asarray(angle, float) + np.pi) % (2.0 * np.pi) - np.pi
    return wrapped


def compose(a_from_b: Pose, b_from_c: Pose) -> Pose:
    """Return ``a_from_c``."""
    return Pose(
        multiply(a_from_b.rotation, b_from_c.rotation),
        rotate(a_from_b.rotation, b_from_c.position) + a_from_b.position,
    )


def inverse(a_from_b: Pose) -> Pose:
    """Return ``b_from_a``."""
    back = conjugate(a_from_b.rotation)
    return Pose(back, -rotate(back, a_from_b.position))


def transform(a_from_b: Pose, point_b: Array) -> Array:
    """Return points (..., 3) of frame b in frame a."""
    moved: Array = rotate(a_from_b.rotation, point_b) + a_from_b.position
    return moved


def pose_to_matrix(pose: Pose) -> Array:
    """Return the homogeneous matrix (..., 4, 4) of a pose."""
    rotation = to_matrix(pose.rotation)
    matrix = np.zeros((*rotation.shape[:-2], 4, 4))
    matrix[..., :3, :3] = rotation
    matrix[..., :3, 3] = pose.position
    matrix[..., 3, 3] = 1.0
    return matrix


def pose_from_matrix(matrix: Array) -> Pose:
    """Return the pose of a homogeneous matrix (..., 4, 4)."""
    matrix = np.asarray(matrix, float)
    return Pose(from_matrix(matrix[..., :3, :3]), matrix[..., :3, 3])


def xyzw(q: Array) -> Array:
    """Return a quaternion in the order (x, y, z, w) of ROS and scipy."""
    return np.roll(np.asarray(q), -1, -1)


def wxyz(q: Array) -> Array:
    """Return a quaternion that came in the order (x, y, z, w) in ours."""
    return np.roll(np.asarray(q), 1, -1)


NED_FROM_ENU = np.array((0.0, np.sqrt(0.5), np.sqrt(0.5), 0.0))
"""World axes east-north-up to north-east-down; its own inverse."""
FRD_FROM_FLU = np.array((0.0, 1.0, 0.0, 0.0))
"""Body axes forward-left-up to forward-right-down; its own inverse."""


def ned_from_enu(v: Array) -> Array:
    """Return vectors (..., 3) given in east-north-up in north-east-down; the same function goes back."""
    v = np.asarray(v, float)
    swapped: Array = v[..., [1, 0, 2]] * (1.0, 1.0, -1.0)
    return swapped


def frd_from_flu(v: Array) -> Array:
    """Return vectors (..., 3) given in forward-left-up in forward-right-down; the same function goes back."""
    flipped: Array = np.asarray(v, float) * (1.0, -1.0, -1.0)
    return flipped


def ned_frd_from_enu_flu(world_from_body: Array) -> Array:
    """Return an orientation (..., 4) of FLU body in ENU world as one of FRD body in NED world; goes back too."""
    return normalised(multiply(multiply(NED_FROM_ENU, world_from_body), conjugate(FRD_FROM_FLU)))
