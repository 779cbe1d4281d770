"""Read scenarios in the JSON format of GPUDrive, Nocturne and PufferDrive (Waymo Open Motion and what imitates it).

Steps are 0.1 s apart. Lanes come as centre lines without width: they get AlpaSim's 3.7 m, and the road edges are those
of the file. Positions of -10000 mean "not there", whatever ``valid`` says. Waymo's data is not for commercial use.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array
from burnish.envs.driving.geometry import offset_path, simplified
from burnish.envs.driving.recording import LaneRecord, LightRecord, Recording, TrackRecord, check_time_step
from burnish.envs.driving.scene import STEP_SECONDS

MAX_FILE_BYTES = 128 << 20
ABSENT = -9000.0
"""Positions below this are the "not there" of the format [m]."""
LANE_WIDTH = 3.7
"""Width of a lane of which only the centre is known [m], as in AlpaSim's offroad scorer."""
LINK_DISTANCE, LINK_TURN = 0.6, 0.5
"""A lane follows another where it begins so near to its end [m], in nearly the same direction [rad]."""
TYPES = {"vehicle": "vehicle", "pedestrian": "pedestrian", "cyclist": "bicycle"}
LIGHTS = {"go": "green", "caution": "yellow", "stop": "red"}


def read(path: Path) -> Recording:
    """Read one scenario; the ego is the recording car where the file names it.

    Raises:
        DatasetError: If the file is missing, too large, no JSON, or lacks lanes, tracks or an entry of them.
    """
    data = _load(path)
    where = path.name
    objects, roads = data.get("objects"), data.get("roads")
    if not isinstance(objects, list) or not isinstance(roads, list) or not objects or not roads:
        raise DatasetError(f"{where}: a scenario has lists 'objects' and 'roads' that are not empty.")
    dropped: dict[str, int] = {}
    tracks, numbers = [], []
    for index, item in enumerate(objects):
        track = _track(item, index, f"{where}: object {index}")
        if track.valid.sum() < 2:
            dropped["track with fewer than 2 states"] = dropped.get("track with fewer than 2 states", 0) + 1
            continue
        tracks.append(track)
        numbers.append(index)
    lanes, edges = _roads(roads, where)
    recorder = (data.get("metadata") or {}).get("sdc_track_index")
    recording = Recording(
        id=str(data.get("scenario_id") or data.get("name") or path.stem),
        source=f"GPUDrive JSON {where}",
        lanes=lanes,
        tracks=tracks,
        lights=_lights(data.get("tl_states") or {}, where),
        edges=edges,
        ego_id=tracks[numbers.index(recorder)].id if recorder in numbers else None,
        dropped=dropped,
    )
    check_time_step(recording)
    return recording


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DatasetError(f"{path.name} is larger than {MAX_FILE_BYTES} bytes.")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is no readable JSON ({error}).") from error
    if not isinstance(data, dict):
        raise DatasetError(f"{path.name}: expected one object, found {type(data).__name__}.")
    return data


def _numbers(value: Any, what: str) -> Array:
    """Return a list of numbers, or of one-element lists, as (S,)."""
    try:
        return np.array(value, float).reshape(len(value))
    except (TypeError, ValueError) as error:
        raise DatasetError(f"{what} must be a list of numbers ({error}).") from error


def _points(value: Any, what: str) -> Array:
    """Return a list of {"x", "y"} as (S, 2)."""
    try:
        return np.array([(point["x"], point["y"]) for point in value], float).reshape(-1, 2)
    except (TypeError, KeyError, ValueError) as error:
        raise DatasetError(f"{what} must be a list of x and y ({error!r}).") from error


def _track(item: Any, index: int, what: str) -> TrackRecord:
    if not isinstance(item, dict):
        raise DatasetError(f"{what} must be an object, found {type(item).__name__}.")
    position = _points(item.get("position"), f"{what}: position")
    velocity = _points(item.get("velocity"), f"{what}: velocity")
    heading = _numbers(item.get("heading"), f"{what}: heading")
    valid = _numbers(item.get("valid"), f"{what}: valid") > 0.5
    sizes = {len(position), len(velocity), len(heading), len(valid)}
    if len(sizes) != 1:
        raise DatasetError(f"{what}: position, velocity, heading and valid have {sorted(sizes)} entries.")
    try:
        length, width = float(item["length"]), float(item["width"])
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{what} lacks its length or width ({error!r}).") from error
    states = np.column_stack((position, heading, np.hypot(*velocity.T)))
    valid &= np.isfinite(states).all(1) & (position > ABSENT).all(1)
    states[~valid] = 0.0
    name = item.get("id")
    return TrackRecord(
        id=name if isinstance(name, int) and not isinstance(name, bool) else index,
        type=TYPES.get(str(item.get("type")), "other"),
        length=length,
        width=width,
        times=STEP_SECONDS * np.arange(len(valid)),
        states=states,
        valid=valid,
    )


def _roads(roads: list[Any], where: str) -> tuple[list[LaneRecord], list[Array]]:
    centers, edges = [], []
    for index, item in enumerate(roads):
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in ("lane", "road_edge"):
            continue
        points = _points(item.get("geometry"), f"{where}: road {index}")
        if not np.isfinite(points).all():
            raise DatasetError(f"{where}: road {index} has a point that is not finite.")
        if len(points) < 2:
            continue
        if kind == "lane":
            name = item.get("id")
            centers.append((name if isinstance(name, int) else index, simplified(points, 0.05)))
        else:
            edges.append(simplified(points, 0.05))
    starts = np.array([line[0] for _, line in centers]).reshape(-1, 2)
    headings = np.array([_heading(line[1] - line[0]) for _, line in centers])
    lanes = []
    for name, line in centers:
        near = np.hypot(*(starts - line[-1]).T) <= LINK_DISTANCE
        near &= np.cos(headings - _heading(line[-1] - line[-2])) >= math.cos(LINK_TURN)
        following = tuple(centers[index][0] for index in np.flatnonzero(near).tolist() if centers[index][0] != name)
        left, right = offset_path(line, 0.5 * LANE_WIDTH), offset_path(line, -0.5 * LANE_WIDTH)
        lanes.append(LaneRecord(name, left, right, following))
    return lanes, edges


def _heading(step: Array) -> float:
    return math.atan2(step[1], step[0])


def _lights(states: Any, where: str) -> list[LightRecord]:
    lights = []
    for lane, item in states.items() if isinstance(states, dict) else ():
        names = [
            LIGHTS.get(str(state).lower().removeprefix("lane_state_"), "unknown") for state in item.get("state", ())
        ]
        if not names:
            continue
        what = f"{where}: light of lane {lane}"
        times = STEP_SECONDS * _numbers(item.get("time_index", range(len(names))), what)
        place = [float(_numbers(item.get(axis, [0.0]), what)[0]) for axis in ("x", "y")]
        if len(times) != len(names):
            raise DatasetError(f"{what} has {len(names)} states at {len(times)} times.")
        lights.append(LightRecord(int(lane) if str(lane).isdecimal() else None, np.array(place), times, tuple(names)))
    return lights
