"""Plane geometry of the driving tasks as pure functions of arrays: boxes, segments, polygons, paths, resampling.

A box is (x, y, yaw, length, width) of a rectangle's centre, in metres and radians. AlpaSim measures contact between
*rounded* boxes: shrunk by 2 %, with corners of a radius of half the shorter half side. A rounded box is an inner box
and a radius, and two touch where the distance of the inner boxes is at most the sum of the radii.
"""

import itertools

import numpy as np

from burnish.core.frames import wrap
from burnish.core.spec import Array

SHRINK = 0.02
"""Share by which boxes are made smaller before they are tested for contact (AlpaSim's vehicle_shrink_factor)."""
ROUNDNESS = 0.5
"""Corner radius as a share of half the shorter side (AlpaSim's vehicle_corner_roundness)."""
TOUCH = 1e-3
"""Distance to a road edge that counts as touching it [m] (AlpaSim's offroad scorer)."""


def rounded(box: Array) -> tuple[Array, Array]:
    """Return (inner box (..., 5), radius (...)) of boxes (..., 5)."""
    size = (1.0 - SHRINK) * box[..., 3:5]
    radius = 0.5 * ROUNDNESS * size.min(-1)
    return np.concatenate((box[..., :3], size - 2.0 * radius[..., None]), -1), radius


def box_corners(box: Array) -> Array:
    """Return (..., 4, 2) corners of boxes (..., 5): front left, rear left, rear right, front right."""
    cos, sin = np.cos(box[..., 2, None]), np.sin(box[..., 2, None])
    x = 0.5 * box[..., 3, None] * np.array([1.0, -1.0, -1.0, 1.0])
    y = 0.5 * box[..., 4, None] * np.array([1.0, 1.0, -1.0, -1.0])
    return np.stack((box[..., 0, None] + cos * x - sin * y, box[..., 1, None] + sin * x + cos * y), -1)


def to_local(points: Array, pose: Array) -> Array:
    """Return points (..., 2) in the frame of poses (..., 3) of x, y, yaw."""
    offset = points - pose[..., :2]
    cos, sin = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    return np.stack((cos * offset[..., 0] + sin * offset[..., 1], cos * offset[..., 1] - sin * offset[..., 0]), -1)


def from_local(points: Array, pose: Array) -> Array:
    """Return points (..., 2) given in the frame of poses (..., 3) in the frame of those poses."""
    cos, sin = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    return np.stack(
        (
            pose[..., 0] + cos * points[..., 0] - sin * points[..., 1],
            pose[..., 1] + sin * points[..., 0] + cos * points[..., 1],
        ),
        -1,
    )


def point_segment_distance(point: Array, start: Array, end: Array) -> Array:
    """Return distances (...) of points (..., 2) to segments from start (..., 2) to end (..., 2)."""
    along = end - start
    share = ((point - start) * along).sum(-1) / np.maximum((along * along).sum(-1), 1e-18)
    nearest = start + np.clip(share, 0.0, 1.0)[..., None] * along
    distance: Array = np.hypot(*np.moveaxis(point - nearest, -1, 0))
    return distance


def segment_box_distance(start: Array, end: Array, box: Array) -> Array:
    """Return distances (...) of segments (..., 2) - (..., 2) to filled boxes (..., 5); 0 where they meet."""
    a, b = to_local(start, box), to_local(end, box)
    half = 0.5 * box[..., 3:5]
    step = b - a
    safe = np.where(np.abs(step) < 1e-12, 1e-12, step)
    one, two = (-half - a) / safe, (half - a) / safe
    enter = np.maximum(np.minimum(one, two).max(-1), 0.0)
    leave = np.minimum(np.maximum(one, two).min(-1), 1.0)
    ends = [np.hypot(*np.moveaxis(np.maximum(np.abs(p) - half, 0.0), -1, 0)) for p in (a, b)]
    signs = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    corners = half[..., None, :] * signs
    others = point_segment_distance(corners, a[..., None, :], b[..., None, :]).min(-1)
    apart = np.minimum(np.minimum(*ends), others)
    return np.where(enter <= leave, 0.0, apart)


def box_distance(one: Array, two: Array) -> Array:
    """Return distances (...) between filled boxes (..., 5); 0 where they overlap."""
    corners = box_corners(one)
    sides = segment_box_distance(corners, np.roll(corners, -1, -2), two[..., None, :]).min(-1)
    inside = (np.abs(to_local(two[..., :2], one)) <= 0.5 * one[..., 3:5]).all(-1)
    return np.where(inside, 0.0, sides)


def bumper_strip(box: Array, radius: Array, *, front: bool) -> Array:
    """Return (..., 6, 2), the outline of the front or rear end of rounded boxes, as deep as the corner radius.

    AlpaSim's bumper is the box's end line widened by the corner radius, cut with the rounded box; the two arcs are
    drawn with one point between their ends.

    Args:
        box: Inner boxes (..., 5).
        radius: Corner radii (...).
        front: Whether the front end is asked for.
    """
    half = 0.5 * box[..., 3:5]
    root = np.sqrt(0.5)
    sign = 1.0 if front else -1.0
    x = [half[..., 0], half[..., 0] + root * radius, half[..., 0] + radius]
    y = [half[..., 1] + radius, half[..., 1] + root * radius, half[..., 1]]
    local = np.stack(
        [
            np.stack((sign * x[i], side * y[i]), -1)
            for side, order in ((-1.0, (0, 1, 2)), (1.0, (2, 1, 0)))
            for i in order
        ],
        -2,
    )
    return from_local(local, box[..., None, :3])


def in_polygon(points: Array, polygon: Array) -> Array:
    """Return whether points (..., 2) lie inside a polygon (V, 2), by crossing number."""
    x, y = points[..., 0, None], points[..., 1, None]
    one, two = polygon, np.roll(polygon, -1, 0)
    spans = (one[:, 1] > y) != (two[:, 1] > y)
    height = two[:, 1] - one[:, 1]
    cut = one[:, 0] + (y - one[:, 1]) * (two[:, 0] - one[:, 0]) / np.where(height == 0.0, 1.0, height)
    inside: Array = (spans & (x < cut)).sum(-1) % 2 == 1
    return inside


def path_lengths(points: Array) -> Array:
    """Return (K,) arc length at each point of a path (K, 2) [m], 0 at the first."""
    steps = np.hypot(*np.diff(points, axis=0).T)
    return np.concatenate(([0.0], np.cumsum(steps)))


def along_path(points: Array, length: Array) -> Array:
    """Return poses (..., 3) of x, y, heading at arc lengths (...) of a path (K, 2), straight on beyond its ends."""
    total = path_lengths(points)
    index = np.clip(np.searchsorted(total, length, side="right") - 1, 0, len(points) - 2)
    step = points[index + 1] - points[index]
    size = np.maximum(total[index + 1] - total[index], 1e-9)
    share = (length - total[index]) / size
    xy = points[index] + share[..., None] * step
    return np.concatenate((xy, np.arctan2(step[..., 1], step[..., 0])[..., None]), -1)


def project(points: Array, path: Array) -> tuple[Array, Array]:
    """Return (arc length (...), distance (...)) of the nearest place of a path (K, 2) to points (..., 2)."""
    one, two = path[:-1], path[1:]
    step = two - one
    size = np.maximum((step * step).sum(-1), 1e-18)
    share = np.clip(((points[..., None, :] - one) * step).sum(-1) / size, 0.0, 1.0)
    gap = points[..., None, :] - (one + share[..., None] * step)
    squares = (gap * gap).sum(-1)
    best = squares.argmin(-1)
    length = path_lengths(path)[best] + np.take_along_axis(share, best[..., None], -1)[..., 0] * np.sqrt(size)[best]
    return length, np.sqrt(np.take_along_axis(squares, best[..., None], -1)[..., 0])


def simplified(points: Array, least: float = 1e-3) -> Array:
    """Return a path (K, 2) without points that are nearer than ``least`` [m] to the one kept before; 2 at least."""
    keep = [0]
    for index in range(1, len(points)):
        if np.hypot(*(points[index] - points[keep[-1]])) >= least:
            keep.append(index)
    if len(keep) == 1:
        return np.stack((points[0], points[0] + (least, 0.0)))
    return points[keep]


def subdivided(points: Array, spacing: float) -> Array:
    """Return a path (K, 2) with extra points, so that none is more than ``spacing`` [m] from the next."""
    pieces = [points[:1]]
    for one, two in itertools.pairwise(points):
        count = max(1, int(np.ceil(np.hypot(*(two - one)) / spacing)))
        pieces.append(one + (two - one) * (np.arange(1, count + 1) / count)[:, None])
    return np.concatenate(pieces)


def offset_path(points: Array, distance: float) -> Array:
    """Return a path (K, 2) moved to its left by ``distance`` [m] along its normals."""
    tangent = np.gradient(points, axis=0)
    tangent /= np.maximum(np.hypot(*tangent.T), 1e-9)[:, None]
    return points + distance * np.stack((-tangent[:, 1], tangent[:, 0]), -1)


def resample(times: Array, states: Array, valid: Array, wanted: Array, *, longest_gap: float) -> tuple[Array, Array]:
    """Return (states (T, 4), valid (T,)) of a track at other times, linear between its samples.

    Args:
        times: (S,) ascending times of the samples [s].
        states: (S, 4) x, y, yaw, speed.
        valid: (S,) which samples count.
        wanted: (T,) times asked for [s].
        longest_gap: Between valid samples further apart than this [s] the track is not valid.
    """
    out, good = np.zeros((len(wanted), 4)), np.zeros(len(wanted), bool)
    times, states = times[valid], states[valid]
    if not len(times):
        return out, good
    after = np.clip(np.searchsorted(times, wanted - 1e-9), 0, len(times) - 1)
    before = np.maximum(np.where(np.abs(times[after] - wanted) <= 1e-6, after, after - 1), 0)
    good = (wanted >= times[0] - 1e-6) & (wanted <= times[-1] + 1e-6) & (times[after] - times[before] <= longest_gap)
    yaw = np.unwrap(states[:, 2])
    for column, values in enumerate((states[:, 0], states[:, 1], yaw, states[:, 3])):
        out[:, column] = np.interp(wanted, times, values)
    out[:, 2] = wrap(out[:, 2])
    out[~good] = 0.0
    return out, good


def road_edges(polygons: list[Array], sides: list[Array], *, seam: float = 0.4, piece: float = 2.0) -> list[Array]:
    """Return the parts of lane sides beyond which no other lane lies, as paths (K, 2).

    Lanes of recorded maps overlap, and leave slits of some centimetres. A piece of a side is an edge of the road
    where no other polygon has it, nor the place ``seam`` beyond it.

    Args:
        polygons: One (V, 2) for each lane.
        sides: Boundaries (K, 2), the left and the right one of each lane in turn.
        seam: Widest slit between lanes [m].
        piece: Length of the pieces that are judged [m].
    """
    low = np.array([polygon.min(0) for polygon in polygons]) - seam
    high = np.array([polygon.max(0) for polygon in polygons]) + seam
    edges = []
    for number, side in enumerate(sides):
        path = subdivided(simplified(side), piece)
        outward = 1.0 if number % 2 == 0 else -1.0
        middle = 0.5 * (path[:-1] + path[1:])
        step = path[1:] - path[:-1]
        normal = outward * np.stack((-step[:, 1], step[:, 0]), -1) / np.hypot(*step.T)[:, None]
        free = np.ones(len(middle), bool)
        for probe in (middle + 0.02 * normal, middle + 0.5 * seam * normal, middle + seam * normal):
            near = ((probe[None] > low[:, None]) & (probe[None] < high[:, None])).all(-1)
            near[number // 2] = False
            for other in np.flatnonzero(near.any(1)):
                ask = near[other] & free
                free[ask] &= ~in_polygon(probe[ask], polygons[other])
        edges += _runs(path, free)
    return edges


def _runs(path: Array, chosen: Array) -> list[Array]:
    """Return the connected pieces of a path (K, 2) whose segments are chosen (K - 1,)."""
    change = np.flatnonzero(np.diff(np.concatenate(([0], chosen.astype(int), [0]))))
    return [path[begin : end + 1] for begin, end in zip(change[::2], change[1::2], strict=True)]
