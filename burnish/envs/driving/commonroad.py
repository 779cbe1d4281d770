"""Read CommonRoad scenarios (XML, 2018b and 2020a) with the standard library: no entities, no DTD, size limits.

A scenario's planning problem names a vehicle that was taken out of the tracks, so nothing says how it drove. Therefore
recorded vehicles become egos, one scene each; see ``docs/decisions/driving-simulator.md``.
"""

import math
import xml.etree.ElementTree as ET
from pathlib import Path
from xml.parsers import expat

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array
from burnish.envs.driving.recording import LaneRecord, LightRecord, Recording, TrackRecord, check_time_step

VERSIONS = ("2018b", "2020a")
MAX_FILE_BYTES = 64 << 20
MAX_ELEMENTS = 4_000_000
MAX_DEPTH = 64
NO_ROAD = ("sidewalk", "crosswalk", "bicycleLane")
"""Types of lanelets on which no car drives."""
SPEED_SIGNS = ("274", "R2-1")
"""Signs that give a speed limit (Germany, USA)."""
TYPES = {
    "car": "vehicle",
    "parkedVehicle": "vehicle",
    "taxi": "vehicle",
    "priorityVehicle": "vehicle",
    "truck": "truck",
    "bus": "bus",
    "motorcycle": "motorcycle",
    "bicycle": "bicycle",
    "pedestrian": "pedestrian",
}
LIGHTS = {"green": "green", "yellow": "yellow", "red": "red", "redYellow": "red", "inactive": "off"}


def read(path: Path) -> Recording:
    """Read one scenario.

    Raises:
        DatasetError: If the file is missing, too large, no well-formed XML, has entities, is of another format or
            version, lacks a lane boundary, has an unreadable number, or its time step does not fit its states.
    """
    root = parse(path)
    where = path.name
    if root.tag != "commonRoad" or root.get("commonRoadVersion") not in VERSIONS:
        raise DatasetError(
            f"{where}: expected <commonRoad> of version {' or '.join(VERSIONS)}, found <{root.tag}> of version "
            f"{root.get('commonRoadVersion')!r}."
        )
    dt = _number(root.get("timeStepSize"), f"{where}: timeStepSize")
    if not 0.001 <= dt <= 1.0:
        raise DatasetError(f"{where}: timeStepSize is {dt:g} s; between 0.001 s and 1 s are read.")
    limits = _speed_limits(root)
    dropped: dict[str, int] = {}
    lanes = []
    for item in root.iterfind("lanelet"):
        if any(kind.text in NO_ROAD for kind in item.iterfind("laneletType")):
            dropped["lanelet without road"] = dropped.get("lanelet without road", 0) + 1
        else:
            lanes.append(_lane(item, limits, where))
    tracks = _tracks(root, dt, where, dropped)
    recording = Recording(
        id=root.get("benchmarkID") or path.stem,
        source=f"CommonRoad {root.get('benchmarkID')}, {root.get('source') or 'source not given'}",
        lanes=lanes,
        tracks=tracks,
        lights=_lights(root, dt, tracks, where),
        dropped=dropped,
    )
    check_time_step(recording)
    return recording


def parse(path: Path) -> ET.Element:
    """Parse XML that nobody vouches for: a document type, an entity, or too much of anything is refused.

    Raises:
        DatasetError: Says what was found.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DatasetError(f"{path.name} has {size} bytes; at most {MAX_FILE_BYTES} are read.")
        text = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"Cannot read {path}: {error}.") from error
    builder, depth, count = ET.TreeBuilder(), 0, 0
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > MAX_DEPTH or count > MAX_ELEMENTS:
            raise DatasetError(f"{path.name}: more than {MAX_ELEMENTS} elements, or deeper than {MAX_DEPTH}.")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: object) -> None:
        raise DatasetError(f"{path.name} declares a document type or an entity; such files are not read.")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse  # type: ignore[assignment]
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise DatasetError(f"{path.name} is no well-formed XML: {error}.") from error
    return builder.close()


def _number(text: str | None, what: str) -> float:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DatasetError(f"{what} must be a finite number, found {text!r}.")
    return value


def _value(item: ET.Element | None, what: str) -> float | None:
    """Return an exact value or the middle of an interval, None where the element is absent."""
    if item is None:
        return None
    if item.find("exact") is not None:
        return _number(item.findtext("exact"), what)
    low, high = (_number(item.findtext(name), what) for name in ("intervalStart", "intervalEnd"))
    return 0.5 * (low + high)


def _point(item: ET.Element, what: str) -> tuple[float, float]:
    return _number(item.findtext("x"), f"{what}: x"), _number(item.findtext("y"), f"{what}: y")


def _lane(item: ET.Element, limits: dict[str, float], where: str) -> LaneRecord:
    name = f"{where}: lanelet {item.get('id')}"
    bounds = []
    for side in ("leftBound", "rightBound"):
        points = np.array([_point(point, f"{name} {side}") for point in item.iterfind(f"{side}/point")])
        if len(points) < 2:
            raise DatasetError(f"{name} has {len(points)} points in its {side}; a boundary needs 2.")
        bounds.append(points)
    beside = []
    for tag in ("adjacentLeft", "adjacentRight"):
        other = item.find(tag)
        same = other is not None and other.get("drivingDir") == "same"
        beside.append(_id(other, "ref", f"{name} {tag}") if other is not None and same else None)
    limit = math.nan
    if item.find("speedLimit") is not None:
        limit = _number(item.findtext("speedLimit"), f"{name}: speedLimit")
    for sign in item.iterfind("trafficSignRef"):
        limit = limits.get(sign.get("ref", ""), limit)
    return LaneRecord(
        id=_id(item, "id", name),
        left=bounds[0],
        right=bounds[1],
        successors=tuple(_id(to, "ref", f"{name} successor") for to in item.iterfind("successor")),
        left_lane=beside[0],
        right_lane=beside[1],
        speed_limit=limit,
    )


def _id(item: ET.Element, attribute: str, what: str) -> int:
    text = item.get(attribute, "")
    if not text.lstrip("-").isdecimal() or len(text) > 18:
        raise DatasetError(f"{what}: the {attribute} must be a whole number, found {text!r}.")
    return int(text)


def _speed_limits(root: ET.Element) -> dict[str, float]:
    limits = {}
    for sign in root.iterfind("trafficSign"):
        for part in sign.iterfind("trafficSignElement"):
            if part.findtext("trafficSignID") in SPEED_SIGNS and part.find("additionalValue") is not None:
                limits[sign.get("id", "")] = _number(part.findtext("additionalValue"), "a speed sign's value")
    return limits


def _tracks(root: ET.Element, dt: float, where: str, dropped: dict[str, int]) -> list[TrackRecord]:
    moving, standing = [], []
    for item in root:
        role = item.findtext("role")
        if item.tag == "dynamicObstacle" or (item.tag == "obstacle" and role == "dynamic"):
            moving.append(item)
        elif item.tag == "staticObstacle" or (item.tag == "obstacle" and role == "static"):
            standing.append(item)
        elif item.tag in ("obstacle", "environmentObstacle", "phantomObstacle"):
            dropped[item.tag] = dropped.get(item.tag, 0) + 1
    tracks = [_track(item, dt, where) for item in moving]
    if not tracks:
        raise DatasetError(f"{where} has no moving obstacle; there is nothing to replay.")
    first, last = min(item.times[0] for item in tracks), max(item.times[-1] for item in tracks)
    for item in standing:
        track = _track(item, dt, where)
        times = np.arange(first, last + 0.5 * dt, min(dt, 0.5))
        states = np.repeat(track.states[:1], len(times), 0)
        tracks.append(
            TrackRecord(track.id, track.type, track.length, track.width, times, states, np.ones(len(times), bool))
        )
    return tracks


def _track(item: ET.Element, dt: float, where: str) -> TrackRecord:
    name = f"{where}: obstacle {item.get('id')}"
    begin = item.find("initialState")
    if begin is None:
        raise DatasetError(f"{name} has no initialState.")
    rows = [_state(state, name) for state in (begin, *item.iterfind("trajectory/state"))]
    times = dt * np.array([row[0] for row in rows])
    if (np.diff(times) <= 0.0).any():
        raise DatasetError(f"{name}: its time steps do not rise.")
    states = np.array([[math.nan if value is None else value for value in row[1:]] for row in rows])
    length, width = _size(item, name)
    return TrackRecord(
        id=_id(item, "id", name),
        type=TYPES.get(item.findtext("type") or "", "other"),
        length=length,
        width=width,
        times=times,
        states=_completed(times, states),
        valid=np.ones(len(times), bool),
    )


def _state(item: ET.Element, name: str) -> tuple[float | None, ...]:
    time = _value(item.find("time"), f"{name}: time")
    point = item.find("position/point")
    if point is None:
        point = item.find("position/*/center")
    if time is None or point is None:
        raise DatasetError(f"{name}: a state lacks its time or position.")
    x, y = _point(point, name)
    yaw, speed = (_value(item.find(tag), f"{name}: {tag}") for tag in ("orientation", "velocity"))
    return time, x, y, yaw, speed


def _completed(times: Array, states: Array) -> Array:
    """Fill yaw and speed that a source leaves out from the motion."""
    if len(times) > 1 and np.isnan(states[:, 2:]).any():
        velocity = np.gradient(states[:, :2], times, axis=0)
        motion = np.stack((np.arctan2(velocity[:, 1], velocity[:, 0]), np.hypot(*velocity.T)), -1)
        states[:, 2:] = np.where(np.isnan(states[:, 2:]), motion, states[:, 2:])
    return np.nan_to_num(states)


def _size(item: ET.Element, name: str) -> tuple[float, float]:
    rectangle, radius = item.find("shape/rectangle"), item.findtext("shape/circle/radius")
    if rectangle is not None:
        length, width = (_number(rectangle.findtext(tag), f"{name}: {tag}") for tag in ("length", "width"))
        return length, width
    if radius is not None:
        return (2.0 * _number(radius, f"{name}: radius"),) * 2
    points = np.array([_point(point, name) for point in item.iterfind("shape/polygon/point")])
    if len(points) < 3:
        raise DatasetError(f"{name} has neither rectangle, circle nor polygon as its shape.")
    length, width = (points.max(0) - points.min(0)).tolist()
    return length, width


def _lights(root: ET.Element, dt: float, tracks: list[TrackRecord], where: str) -> list[LightRecord]:
    """Return one record for each pair of lanelet and light; a cycle is written out over the time of the tracks."""
    last = max(float(track.times[-1]) for track in tracks)
    cycles = {item.get("id"): item for item in root.iterfind("trafficLight")}
    lights = []
    for lane in root.iterfind("lanelet"):
        for reference in lane.iterfind("trafficLightRef"):
            item = cycles.get(reference.get("ref"))
            if item is None:
                raise DatasetError(f"{where}: lanelet {lane.get('id')} refers to a traffic light that does not exist.")
            ends = lane.findall("leftBound/point")[-1:] + lane.findall("rightBound/point")[-1:]
            stop = np.mean([_point(point, where) for point in ends], axis=0)
            point = item.find("position/point")
            times, states = _cycle(item, dt, last, f"{where}: traffic light {item.get('id')}")
            position = stop if point is None else np.array(_point(point, where))
            lights.append(LightRecord(_id(lane, "id", where), position, times, states))
    return lights


def _cycle(item: ET.Element, dt: float, last: float, name: str) -> tuple[Array, tuple[str, ...]]:
    parts = item.findall("cycle/cycleElement")
    durations = [_number(part.findtext("duration"), f"{name}: duration") for part in parts]
    colours = [part.findtext("color") or "" for part in parts]
    unknown = [colour for colour in colours if colour not in LIGHTS]
    if unknown or any(duration <= 0 for duration in durations):
        raise DatasetError(f"{name}: its cycle has colours {colours} and durations {durations}.")
    if item.findtext("active") == "false" or not parts:
        return np.zeros(1), ("off",)
    offset = _number(item.findtext("cycle/timeOffset") or "0", f"{name}: timeOffset")
    begins = np.cumsum([0.0, *durations])
    steps = np.arange(int(np.ceil(last / dt)) + 1)
    phase = np.searchsorted(begins, (steps - offset) % begins[-1], side="right") - 1
    change = np.flatnonzero(np.diff(phase, prepend=-1))
    return dt * change, tuple(LIGHTS[colours[index]] for index in phase[change].tolist())
