"""One scene of driving as arrays: lanes, road edges, tracks at 10 Hz, lights and a route; saved without pickle.

Frame: ``local``, an inertial frame of the scene with x and y in metres, z up, and angles from x towards y in radians.
Tracks are given by the centres of their boxes. Times are multiples of 0.1 s from the first step.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array
from burnish.envs.driving.geometry import path_lengths, simplified

FORMAT_VERSION = 1
STEP_SECONDS = 0.1
"""Seconds between two steps of a scene."""
TRACK_TYPES = ("vehicle", "truck", "bus", "motorcycle", "bicycle", "pedestrian", "other")
LIGHT_STATES = ("unknown", "green", "yellow", "red", "off")
ROUTE_AHEAD = 80.0
"""How far a route goes on beyond the end of the log [m]; AlpaSim's routes show as much ahead."""

MAX_BYTES = 256 << 20
"""Largest file that is read, unpacked."""
MAX_COORDINATE = 1e6
"""Largest coordinate [m]; beyond it single precision is worse than a decimetre."""
MAX_SPEED = 120.0
"""Largest speed of a track [m/s]."""


@dataclass(frozen=True)
class Scene:
    """A map, what drove on it, and which track is the ego. Ragged arrays are flat, with offsets that end in a total."""

    id: str
    """Name, unique among the scenes that are used together."""
    source: str
    """Where it comes from, with licence or attribution."""
    lane_ids: Array
    """(L,) int64, names of the lanes in the source."""
    lane_points: Array
    """(P, 2) centre lines [m], in driving direction."""
    lane_offsets: Array
    """(L + 1,) int64 into ``lane_points``."""
    lane_links: Array
    """(E, 2) int64, pairs (lane, its successor)."""
    lane_sides: Array
    """(L, 2) int64, lane to the left and to the right with the same direction, -1 for none."""
    lane_speed_limits: Array
    """(L,) m/s, NaN where unknown."""
    polygon_points: Array
    """(Q, 2) outlines of the lanes and other drivable areas [m]."""
    polygon_offsets: Array
    """(M + 1,) int64 into ``polygon_points``; M >= L, the first L are the lanes'."""
    edge_points: Array
    """(R, 2) edges of the road [m]."""
    edge_offsets: Array
    """(E + 1,) int64 into ``edge_points``."""
    track_ids: Array
    """(A,) int64, names in the source."""
    track_types: Array
    """(A,) uint8, index into ``TRACK_TYPES``."""
    track_sizes: Array
    """(A, 2) length and width [m]."""
    track_states: Array
    """(A, T, 4) x, y [m], yaw [rad], speed [m/s] of the box centre; zero where not valid."""
    track_valid: Array
    """(A, T) bool."""
    ego: int
    """Index of the track that is driven."""
    light_lanes: Array
    """(G,) int64, lane that a light is for, -1 for unknown."""
    light_positions: Array
    """(G, 2) [m]."""
    light_states: Array
    """(G, T) uint8, index into ``LIGHT_STATES``."""
    route: Array
    """(K, 2) where the ego shall go [m], K >= 2."""

    def __post_init__(self) -> None:
        """Freeze the arrays and refuse what does not fit together."""
        check(self)
        for name in ARRAYS:
            value = getattr(self, name)
            if value.flags.writeable:
                value = value.copy()
                value.flags.writeable = False
                object.__setattr__(self, name, value)

    @property
    def num_lanes(self) -> int:
        """L."""
        return len(self.lane_ids)

    @property
    def num_tracks(self) -> int:
        """A."""
        return len(self.track_ids)

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.track_valid.shape[1])

    @property
    def ego_log(self) -> Array:
        """(T, 4) x, y, yaw, speed of the ego's box centre."""
        log: Array = self.track_states[self.ego]
        return log

    @property
    def lane_predecessors(self) -> Array:
        """(E, 2) int64, pairs (lane, its predecessor)."""
        pairs: Array = self.lane_links[:, ::-1]
        return pairs

    def lane(self, index: int) -> Array:
        """Return the centre line (K, 2) of a lane."""
        return self.lane_points[self.lane_offsets[index] : self.lane_offsets[index + 1]]

    def polygon(self, index: int) -> Array:
        """Return the outline (V, 2) of a lane or drivable area."""
        return self.polygon_points[self.polygon_offsets[index] : self.polygon_offsets[index + 1]]

    def edges(self) -> list[Array]:
        """Return the road edges, each (K, 2)."""
        return [self.edge_points[a:b] for a, b in zip(self.edge_offsets[:-1], self.edge_offsets[1:], strict=True)]


ARRAYS: dict[str, tuple[str, int]] = {
    "lane_ids": ("int64", 1),
    "lane_points": ("float64", 2),
    "lane_offsets": ("int64", 1),
    "lane_links": ("int64", 2),
    "lane_sides": ("int64", 2),
    "lane_speed_limits": ("float64", 1),
    "polygon_points": ("float64", 2),
    "polygon_offsets": ("int64", 1),
    "edge_points": ("float64", 2),
    "edge_offsets": ("int64", 1),
    "track_ids": ("int64", 1),
    "track_types": ("uint8", 1),
    "track_sizes": ("float64", 2),
    "track_states": ("float64", 3),
    "track_valid": ("bool", 2),
    "light_lanes": ("int64", 1),
    "light_positions": ("float64", 2),
    "light_states": ("uint8", 2),
    "route": ("float64", 2),
}
"""Name of each array, its dtype and number of axes."""


def flat(pieces: Sequence[Array]) -> tuple[Array, Array]:
    """Return (points (P, 2), offsets (len + 1,)) of ragged pieces (K, 2)."""
    offsets = np.cumsum([0, *(len(piece) for piece in pieces)]).astype(np.int64)
    return (np.concatenate(pieces).astype(float) if pieces else np.zeros((0, 2))), offsets


def check(scene: Scene) -> None:
    """Refuse arrays of a wrong kind, indices out of range, values that are not finite, and tracks that cannot be.

    Raises:
        DatasetError: Names the scene, the array and what is wrong.
    """

    def expect(condition: bool, text: str) -> None:
        if not condition:
            raise DatasetError(f"Scene '{scene.id}': {text}.")

    for name, (dtype, axes) in ARRAYS.items():
        value = getattr(scene, name)
        found = f"{value.dtype} with {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
        good = isinstance(value, np.ndarray) and value.dtype == dtype and value.ndim == axes
        expect(good, f"{name} must be {dtype} with {axes} axes, found {found}")
        if dtype == "float64" and name != "lane_speed_limits":
            bad = np.argwhere(~(np.abs(value) <= MAX_COORDINATE))
            expect(not len(bad), f"{name} is not finite or beyond {MAX_COORDINATE:g} m at {bad[:1].tolist()}")
    lanes, tracks, steps = len(scene.lane_ids), len(scene.track_ids), scene.track_valid.shape[1]
    lights = len(scene.light_lanes)
    shapes = {
        "lane_sides": (lanes, 2),
        "lane_speed_limits": (lanes,),
        "track_types": (tracks,),
        "track_sizes": (tracks, 2),
        "track_states": (tracks, steps, 4),
        "track_valid": (tracks, steps),
        "light_positions": (lights, 2),
        "light_states": (lights, steps),
    }
    for name, shape in shapes.items():
        expect(getattr(scene, name).shape == shape, f"{name} has shape {getattr(scene, name).shape}, expected {shape}")
    for name in ("lane_points", "lane_links", "polygon_points", "edge_points", "route"):
        expect(getattr(scene, name).shape[1] == 2, f"{name} must have 2 columns, found {getattr(scene, name).shape[1]}")
    expect(lanes >= 1, "it has no lane")
    expect(steps >= 2, f"it has {steps} steps; at least 2 are needed")
    expect(len(scene.route) >= 2 and path_lengths(scene.route)[-1] > 0.0, "the route has no length")
    for name, points, least, count in (
        ("lane_offsets", scene.lane_points, 2, lanes),
        ("polygon_offsets", scene.polygon_points, 3, None),
        ("edge_offsets", scene.edge_points, 2, None),
    ):
        offsets = getattr(scene, name)
        expect(
            len(offsets) >= 1 and offsets[0] == 0 and offsets[-1] == len(points), f"{name} does not cover its points"
        )
        expect(bool((np.diff(offsets) >= least).all()), f"{name} has a piece with fewer than {least} points")
        expect(count is None or len(offsets) == count + 1, f"{name} has {len(offsets) - 1} pieces for {count} lanes")
    expect(len(scene.polygon_offsets) > lanes, "every lane needs a polygon")
    for name, values, low, high in (
        ("lane_links", scene.lane_links, 0, lanes),
        ("lane_sides", scene.lane_sides, -1, lanes),
        ("light_lanes", scene.light_lanes, -1, lanes),
        ("track_types", scene.track_types, 0, len(TRACK_TYPES)),
        ("light_states", scene.light_states, 0, len(LIGHT_STATES)),
    ):
        expect(not values.size or (values.min() >= low and values.max() < high), f"{name} leaves [{low}, {high})")
    _check_tracks(scene, expect)


def _check_tracks(scene: Scene, expect: Callable[[bool, str], None]) -> None:
    tracks = len(scene.track_ids)
    expect(0 <= scene.ego < tracks, f"the ego is track {scene.ego}, but there are {tracks}")
    expect(len(set(scene.track_ids.tolist())) == tracks, "two tracks have the same id")
    expect(bool(scene.track_valid[scene.ego].all()), f"the ego (track {scene.track_ids[scene.ego]}) has gaps")
    good = bool(((scene.track_sizes > 0.05) & (scene.track_sizes < 50.0)).all())
    expect(good, "a track is smaller than 0.05 m or larger than 50 m")
    speed = np.where(scene.track_valid, scene.track_states[..., 3], 0.0)
    expect(bool((np.abs(speed) <= MAX_SPEED).all()), f"a track is faster than {MAX_SPEED:g} m/s")


def save(scene: Scene, path: Path) -> None:
    """Write a scene as compressed .npz; replaces what is there only when all is written."""
    header = {"format": "burnish.scene", "version": FORMAT_VERSION, "id": scene.id, "source": scene.source}
    header |= {"ego": scene.ego, "step_seconds": STEP_SECONDS}
    arrays = {name: getattr(scene, name) for name in ARRAYS}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, header=np.array(json.dumps(header)), **arrays)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(path)


def load(path: Path) -> Scene:
    """Read a scene that :func:`save` wrote.

    Raises:
        DatasetError: If the file is missing, damaged, too large, of another version, or its arrays do not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(item.file_size for item in archive.infolist())
        if size > MAX_BYTES:
            raise DatasetError(f"{path}: unpacked it has {size} bytes; at most {MAX_BYTES} are read.")
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path} is no readable scene ({error}). Import it again.") from error
    missing = sorted({"header", *ARRAYS} - set(arrays))
    if missing:
        raise DatasetError(f"{path}: no array {', '.join(missing)}; a scene has header, {', '.join(ARRAYS)}.")
    try:
        header = json.loads(str(arrays["header"]))
        version, step = header["version"], header["step_seconds"]
        name, source, ego = str(header["id"]), str(header["source"]), int(header["ego"])
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: the header is not what a scene has ({error!r}).") from error
    if version != FORMAT_VERSION or step != STEP_SECONDS:
        raise DatasetError(
            f"{path} is format {version} with steps of {step} s; this burnish reads format {FORMAT_VERSION} with "
            f"steps of {STEP_SECONDS} s. Import the recording again."
        )
    return Scene(id=name, source=source, ego=ego, **{key: arrays[key] for key in ARRAYS})


def lane_following(scene: Scene, pose: Array, distance: float) -> Array:
    """Return a path (K, 2) from x, y, yaw (3,) on along the lanes that lead straightest on, up to ``distance`` [m]."""
    index, start = _lane_at(scene, pose)
    points = [pose[:2]]
    heading, left, seen = float(pose[2]), distance, set[int]()
    while index >= 0 and left > 0.0 and index not in seen:
        seen.add(index)
        line = scene.lane(index)[start:]
        for point in line:
            step = float(np.hypot(*(point - points[-1])))
            turn = np.arctan2(*(point - points[-1])[::-1])
            if step < 0.2 or np.cos(turn - heading) < 0.5:
                continue
            points.append(points[-1] + min(1.0, left / step) * (point - points[-1]))
            heading, left = float(turn), left - step
            if left <= 0.0:
                break
        index, start = _straightest(scene, index, heading), 0
    if len(points) == 1:
        points.append(pose[:2] + distance * np.array([np.cos(pose[2]), np.sin(pose[2])]))
    return np.array(points)


def _lane_at(scene: Scene, pose: Array) -> tuple[int, int]:
    """Return (lane, first point ahead) of the lane that fits a pose best, (-1, 0) for none within 3 m."""
    best, choice = 3.0, (-1, 0)
    for index in range(scene.num_lanes):
        line = scene.lane(index)
        gap = np.hypot(*(line - pose[:2]).T)
        if gap.min() > 60.0:
            continue
        step = np.diff(line, axis=0)
        share = np.clip(((pose[:2] - line[:-1]) * step).sum(-1) / np.maximum((step * step).sum(-1), 1e-9), 0.0, 1.0)
        away = np.hypot(*(line[:-1] + share[:, None] * step - pose[:2]).T)
        turn = np.cos(np.arctan2(step[:, 1], step[:, 0]) - pose[2])
        cost = away + 4.0 * (1.0 - turn)
        place = int(cost.argmin())
        if cost[place] < best:
            best, choice = float(cost[place]), (index, place + 1)
    return choice


def _straightest(scene: Scene, index: int, heading: float) -> int:
    following = scene.lane_links[scene.lane_links[:, 0] == index, 1]
    if not len(following):
        return -1
    turns = []
    for lane in following.tolist():
        line = scene.lane(lane)
        turns.append(np.cos(np.arctan2(*(line[-1] - line[0])[::-1]) - heading))
    return int(following[int(np.argmax(turns))])


def log_path(scene: Scene, track: int, ahead: float = ROUTE_AHEAD) -> Array:
    """Return where a track drove (K, 2), and from its end on along the lanes for ``ahead`` [m]."""
    driven = scene.track_states[track, scene.track_valid[track]]
    path = simplified(driven[:, :2], 0.5)
    if len(path) == 2 and np.hypot(*(path[1] - path[0])) < 0.1:
        path = driven[:1, :2]
    end = lane_following(scene, driven[-1, :3], ahead)
    return np.concatenate((path, end[1:] if np.hypot(*(end[0] - path[-1])) < 0.5 else end))


def nearest_tracks(scene: Scene, count: int) -> Scene:
    """Return the scene with the ego and those ``count - 1`` other tracks that come nearest to it at any time."""
    gap = np.hypot(*np.moveaxis(scene.track_states[..., :2] - scene.ego_log[:, :2], -1, 0))
    nearest = np.where(scene.track_valid, gap, np.inf).min(1)
    nearest[scene.ego] = -1.0
    kept = np.sort(np.argsort(nearest, kind="stable")[:count])
    return replace(
        scene,
        track_ids=scene.track_ids[kept],
        track_types=scene.track_types[kept],
        track_sizes=scene.track_sizes[kept],
        track_states=scene.track_states[kept],
        track_valid=scene.track_valid[kept],
        ego=int(np.flatnonzero(kept == scene.ego)[0]),
    )
