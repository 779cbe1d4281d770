"""What an importer reads, before a track of it is made the ego: lanes, tracks with their own times, lights.

One recording gives as many scenes as it has vehicles that can be driven. Everything is brought to 10 Hz here, by time
and not by index, because recordings come with 0.04 s, 0.1 s, 0.2 s and with jitter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array
from burnish.envs.driving.geometry import path_lengths, resample, road_edges, simplified
from burnish.envs.driving.scene import LIGHT_STATES, STEP_SECONDS, TRACK_TYPES, Scene, flat, log_path

DRIVEN_TYPES = ("vehicle", "truck", "bus")
"""Types of tracks that can be the ego."""
LONGEST_GAP = 0.55
"""Between samples further apart than this a track is not valid [s]."""
MAX_STEPS = 10_000
"""Longest recording, in steps of 0.1 s."""
SPEED_RATIO = 1.6
"""Recorded speed over speed of the positions, or its inverse, from which on the time step must be wrong."""


@dataclass(frozen=True)
class LaneRecord:
    """One lane as an importer found it."""

    id: int
    """Name in the source."""
    left: Array
    """(K, 2) left boundary [m], in driving direction."""
    right: Array
    """(K, 2) right boundary [m]."""
    successors: tuple[int, ...] = ()
    """Ids of lanes that follow."""
    left_lane: int | None = None
    """Id of the lane to the left with the same direction."""
    right_lane: int | None = None
    """Id of the lane to the right with the same direction."""
    speed_limit: float = float("nan")
    """m/s."""

    @property
    def center(self) -> Array:
        """(K, 2) centre line [m]."""
        left, right = _paired(self.left, self.right)
        return 0.5 * (left + right)

    @property
    def polygon(self) -> Array:
        """(V, 2) outline [m]."""
        return np.concatenate((self.left, self.right[::-1]))


@dataclass(frozen=True)
class TrackRecord:
    """One road user as an importer found it."""

    id: int
    """Name in the source."""
    type: str
    """One of ``TRACK_TYPES``."""
    length: float
    """m."""
    width: float
    """m."""
    times: Array
    """(S,) ascending [s]."""
    states: Array
    """(S, 4) x, y [m], yaw [rad], speed [m/s] of the box centre."""
    valid: Array
    """(S,) bool."""


@dataclass(frozen=True)
class LightRecord:
    """One traffic light for one lane."""

    lane: int | None
    """Id of the lane, None for unknown."""
    position: Array
    """(2,) [m]."""
    times: Array
    """(S,) when a state begins [s]."""
    states: tuple[str, ...]
    """Names from ``LIGHT_STATES``, one for each time."""


@dataclass(frozen=True)
class Recording:
    """Everything an importer found."""

    id: str
    source: str
    lanes: Sequence[LaneRecord]
    tracks: Sequence[TrackRecord]
    lights: Sequence[LightRecord] = ()
    edges: Sequence[Array] | None = None
    """Road edges (K, 2); None to derive them from the lanes."""
    areas: Sequence[Array] = ()
    """Further drivable polygons (V, 2)."""
    ego_id: int | None = None
    """The track that recorded, where the source says so."""
    dropped: dict[str, int] = field(default_factory=dict)
    """What was left out while reading, by reason."""


def time_grid(recording: Recording) -> Array:
    """Return the times of the 10 Hz steps [s] from the first to the last sample.

    Raises:
        DatasetError: If there is no sample, or the recording is absurdly long.
    """
    times = [track.times[track.valid] for track in recording.tracks if track.valid.any()]
    if not times:
        raise DatasetError(f"Recording '{recording.id}' has no track with a valid state.")
    first, last = min(float(item[0]) for item in times), max(float(item[-1]) for item in times)
    steps = int(np.floor((last - first) / STEP_SECONDS + 1e-6)) + 1
    if not 2 <= steps <= MAX_STEPS:
        raise DatasetError(
            f"Recording '{recording.id}' spans {last - first:.3g} s, that is {steps} steps of {STEP_SECONDS} s; "
            f"between 2 and {MAX_STEPS} are read. Check its time step."
        )
    return first + STEP_SECONDS * np.arange(steps)


def check_time_step(recording: Recording) -> None:
    """Refuse a recording whose positions move at another speed than its states say: its time step is wrong.

    Raises:
        DatasetError: Says both speeds.
    """
    ratios = []
    for track in recording.tracks:
        times, states = track.times[track.valid], track.states[track.valid]
        if len(times) < 3:
            continue
        moved = np.hypot(*np.diff(states[:, :2], axis=0).T)
        speed = 0.5 * np.abs(states[1:, 3] + states[:-1, 3])
        fast = speed > 2.0
        if fast.sum() >= 2:
            ratios.append(float((moved[fast] / np.diff(times)[fast]).mean() / speed[fast].mean()))
    if ratios and not 1.0 / SPEED_RATIO < float(np.median(ratios)) < SPEED_RATIO:
        raise DatasetError(
            f"Recording '{recording.id}': positions move {np.median(ratios):.2f} times as fast as the recorded speeds "
            "say. Its time step does not fit its states; correct the time step in the file."
        )


def candidates(recording: Recording, *, least_steps: int = 20, least_distance: float = 5.0) -> list[int]:
    """Return ids of tracks that can be the ego: the recorder alone if there is one, else the longest drives first.

    Args:
        recording: What was read.
        least_steps: Steps that an ego must be there without a gap.
        least_distance: Metres that it must drive; shorter logs get full progress for nothing.
    """
    if recording.ego_id is not None:
        return [recording.ego_id]
    grid = time_grid(recording)
    found = []
    for track in recording.tracks:
        if track.type not in DRIVEN_TYPES:
            continue
        states, valid = resample(track.times, track.states, track.valid, grid, longest_gap=LONGEST_GAP)
        steps = np.flatnonzero(valid)
        if len(steps) < least_steps or steps[-1] - steps[0] + 1 != len(steps):
            continue
        driven = float(path_lengths(states[steps, :2])[-1])
        if driven >= least_distance:
            found.append((-driven, track.id))
    return [track for _, track in sorted(found)]


def build_scenes(recording: Recording, ego_ids: Sequence[int]) -> Iterator[Scene]:
    """Yield the scenes in which each of some tracks is the ego, cut to the steps where that one is valid.

    Args:
        recording: What was read.
        ego_ids: Ids of the tracks to be driven.

    Raises:
        DatasetError: If there is no such track, it has gaps or fewer than 2 steps, or the map does not hold together.
    """
    grid = time_grid(recording)
    sampled = [
        resample(item.times, item.states, item.valid, grid, longest_gap=LONGEST_GAP) for item in recording.tracks
    ]
    states, valid = np.stack([item[0] for item in sampled]), np.stack([item[1] for item in sampled])
    map_arrays = _map_arrays(recording)
    lights = _light_arrays(recording, grid)
    ids = [track.id for track in recording.tracks]
    for ego_id in ego_ids:
        if ego_id not in ids:
            known = ", ".join(map(str, ids))
            raise DatasetError(f"Recording '{recording.id}' has no track {ego_id}; it has {known}.")
        ego = ids.index(ego_id)
        steps = np.flatnonzero(valid[ego])
        if len(steps) < 2 or steps[-1] - steps[0] + 1 != len(steps):
            raise DatasetError(
                f"Recording '{recording.id}': track {ego_id} has gaps, or fewer than 2 steps ({len(steps)})."
            )
        window = slice(int(steps[0]), int(steps[-1]) + 1)
        kept = np.flatnonzero(valid[:, window].any(1))
        tracks = [recording.tracks[index] for index in kept.tolist()]
        scene = Scene(
            id=f"{recording.id}.{ego_id}",
            source=recording.source,
            **map_arrays,
            track_ids=np.array([item.id for item in tracks], np.int64),
            track_types=np.array([TRACK_TYPES.index(item.type) for item in tracks], np.uint8),
            track_sizes=np.array([(item.length, item.width) for item in tracks], float),
            track_states=states[kept][:, window],
            track_valid=valid[kept][:, window],
            ego=int(np.flatnonzero(kept == ego)[0]),
            **{**lights, "light_states": lights["light_states"][:, window]},
            route=states[ego, window.start, :2] + np.array([[0.0, 0.0], [1.0, 0.0]]),
        )
        yield replace(scene, route=simplified(log_path(scene, scene.ego), 0.2))


def _map_arrays(recording: Recording) -> dict[str, Array]:
    lanes = recording.lanes
    if not lanes:
        raise DatasetError(f"Recording '{recording.id}' has no lanes; a scene needs a map.")
    ids = [lane.id for lane in lanes]
    if len(set(ids)) != len(ids):
        raise DatasetError(f"Recording '{recording.id}': two lanes have the same id.")
    number = {lane: index for index, lane in enumerate(ids)}
    links = [(number[lane.id], number[to]) for lane in lanes for to in lane.successors if to in number]
    sides = [
        [number.get(side, -1) if side is not None else -1 for side in (lane.left_lane, lane.right_lane)]
        for lane in lanes
    ]
    polygons = [*(lane.polygon for lane in lanes), *recording.areas]
    edges = recording.edges
    if edges is None:
        edges = road_edges(polygons, [side for lane in lanes for side in (lane.left, lane.right)])
    centers = [simplified(lane.center, 0.01) for lane in lanes]
    arrays: dict[str, Array] = {
        "lane_ids": np.array(ids, np.int64),
        "lane_links": np.array(links, np.int64).reshape(-1, 2),
        "lane_sides": np.array(sides, np.int64).reshape(-1, 2),
        "lane_speed_limits": np.array([lane.speed_limit for lane in lanes], float),
    }
    for name, pieces in (("lane", centers), ("polygon", polygons), ("edge", list(edges))):
        arrays[f"{name}_points"], arrays[f"{name}_offsets"] = flat(pieces)
    return arrays


def _light_arrays(recording: Recording, grid: Array) -> dict[str, Array]:
    number = {lane.id: index for index, lane in enumerate(recording.lanes)}
    states = np.zeros((len(recording.lights), len(grid)), np.uint8)
    for row, light in zip(states, recording.lights, strict=True):
        codes = np.array([LIGHT_STATES.index(state) for state in light.states], np.uint8)
        begun = np.searchsorted(light.times, grid + 1e-6, side="right") - 1
        row[:] = np.where(begun >= 0, codes[np.maximum(begun, 0)], 0)
    lanes = [-1 if light.lane is None else number.get(light.lane, -1) for light in recording.lights]
    positions = np.array([light.position for light in recording.lights], float).reshape(-1, 2)
    return {"light_lanes": np.array(lanes, np.int64), "light_positions": positions, "light_states": states}


def _paired(left: Array, right: Array) -> tuple[Array, Array]:
    """Return both boundaries with the same number of points, spread evenly where they had not."""
    if len(left) == len(right):
        return left, right
    count = max(len(left), len(right))
    pair = []
    for side in (left, right):
        total = path_lengths(side)
        wanted = np.linspace(0.0, total[-1], count)
        pair.append(np.stack([np.interp(wanted, total, side[:, axis]) for axis in (0, 1)], -1))
    return pair[0], pair[1]
