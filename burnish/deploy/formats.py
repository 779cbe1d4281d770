"""A run's log for viewers: rerun's ``.rrd`` and MCAP (Foxglove and others), written after the run from the tick log.

The control loop pays nothing for them, and a log of any age can be turned into one.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError, require, suggest
from burnish.core.spec import IMAGE_PREFIX, Array
from burnish.deploy.frames import FOLDER, read_arrays
from burnish.deploy.ticklog import read_decisions, read_ticks

_SCALARS = ("age_s", "infer_ms", "delay", "reward", "late_s")
"""Entries of a tick that are drawn as curves."""
_RAW_IMAGE = {
    "title": "foxglove.RawImage",
    "type": "object",
    "properties": {
        "timestamp": {"type": "object", "properties": {"sec": {"type": "integer"}, "nsec": {"type": "integer"}}},
        "frame_id": {"type": "string"},
        "width": {"type": "integer"},
        "height": {"type": "integer"},
        "encoding": {"type": "string"},
        "step": {"type": "integer"},
        "data": {"type": "string", "contentEncoding": "base64"},
    },
}


@dataclass(frozen=True)
class Moment:
    """One control tick, as viewers want it."""

    time_s: float
    """Since the first tick [s]."""
    row: dict[str, Any]
    """The line of ``ticks.jsonl``."""
    observation: dict[str, Array]
    """Without batch axis; of every tick where frames were recorded, else of those at which the policy was asked."""


def moments(directory: Path) -> Iterator[Moment]:
    """Yield the ticks of a run in order, with what was seen.

    Raises:
        DatasetError: If there is no log, or it is damaged.
    """
    _, rows = read_ticks(directory)
    frames = directory / FOLDER
    seen: dict[int, dict[str, Array]] = {}
    if not frames.is_dir():
        seen = {number: _plain_observation(observation) for number, observation, _ in read_decisions(directory)}
    sent = 0
    for row in rows:
        if "tick" not in row:
            continue
        observation = seen.get(row.get("decision", -1), {})
        path = frames / f"{sent:06d}.npz"
        if "reward" in row:  # something was sent, and so there is a frame
            sent += 1
            if path.exists():
                observation = _vectors_and_images(read_arrays(path))
        yield Moment(float(row["time_s"]), row, observation)


def write_rrd(directory: Path, path: Path) -> None:
    """Write a run as a rerun recording: actions, observations and timings as curves, cameras as pictures.

    Raises:
        MissingExtraError: If rerun is not installed.
        DatasetError: If the log is damaged.
    """
    require("rerun", "viz", "writing rerun recordings")
    import rerun

    header, rows = read_ticks(directory)
    with _whole(path) as partial:
        recording = rerun.RecordingStream("burnish deploy", recording_id=directory.name)
        recording.save(str(partial))
        recording.log("run", rerun.TextDocument(json.dumps(header, indent=1)), static=True)
        for moment in moments(directory):
            recording.set_time("tick", sequence=int(moment.row["tick"]))
            recording.set_time("time", duration=moment.time_s)
            for name, values in _curves(moment):
                recording.log(name, rerun.Scalars(values))
            for key, picture in _pictures(moment):
                recording.log(f"camera/{key}", rerun.Image(picture))
            for text in _events(moment.row):
                recording.log("events", rerun.TextLog(text))
        for row in rows:
            if "stop" in row and "tick" not in row:
                recording.log("events", rerun.TextLog(f"stopped: {row['stop']}"))
        recording.flush()
        recording.disconnect()


def write_mcap(directory: Path, path: Path) -> None:
    """Write a run as MCAP with JSON messages: topics ``/tick``, ``/observation`` and one of raw images per camera.

    Raises:
        MissingExtraError: If mcap is not installed.
        DatasetError: If the log is damaged.
    """
    require("mcap", "viz", "writing MCAP files")
    from mcap.writer import Writer

    header, _ = read_ticks(directory)
    with _whole(path) as partial, partial.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="", library="burnish")
        writer.add_metadata("run", {name: json.dumps(item) for name, item in header.items()})
        plain = writer.register_schema("burnish.Tick", "jsonschema", json.dumps({"type": "object"}).encode())
        image = writer.register_schema("foxglove.RawImage", "jsonschema", json.dumps(_RAW_IMAGE).encode())
        channels: dict[str, int] = {}

        def add(topic: str, schema: int, moment: Moment, message: dict[str, Any]) -> None:
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, "json", schema)
            stamp = round(moment.time_s * 1e9)
            writer.add_message(channels[topic], stamp, json.dumps(message).encode(), stamp)

        for moment in moments(directory):
            add("/tick", plain, moment, moment.row)
            vectors = {key: item.tolist() for key, item in moment.observation.items() if item.dtype.kind == "f"}
            if vectors:
                add("/observation", plain, moment, vectors)
            for key, picture in _pictures(moment):
                add(f"/camera/{key}", image, moment, _raw_image(key, picture, moment.time_s))
        writer.finish()  # type: ignore[no-untyped-call]


WRITERS: dict[str, Callable[[Path, Path], None]] = {"rrd": write_rrd, "mcap": write_mcap}
"""Name of a format, which is also the file's suffix, to what writes it."""


def check_formats(formats: tuple[str, ...]) -> None:
    """Refuse what cannot be written, before anything is driven.

    Raises:
        ConfigError: If there is no such format.
        MissingExtraError: If its package is not installed.
    """
    for name in formats:
        if name not in WRITERS:
            raise ConfigError(f"There is no log format '{name}'.{suggest(name, WRITERS)}")
        require({"rrd": "rerun", "mcap": "mcap"}[name], "viz", f"the log format '{name}'")


def _plain_observation(observation: dict[str, Any]) -> dict[str, Array]:
    arrays = {key: item[0] for key, item in observation.items() if isinstance(item, np.ndarray)}
    return _vectors_and_images(arrays)


def _vectors_and_images(arrays: dict[str, Array]) -> dict[str, Array]:
    return {key: item for key, item in arrays.items() if key.startswith("observation.")}


def _curves(moment: Moment) -> Iterator[tuple[str, list[float]]]:
    for name in ("action", "sent"):
        if name in moment.row:
            yield name, [float(value) for value in moment.row[name]]
    for name in _SCALARS:
        if isinstance(moment.row.get(name), (int, float)):
            yield f"tick/{name}", [float(moment.row[name])]
    for key, item in moment.observation.items():
        if item.dtype.kind == "f" and item.ndim == 1:
            yield key, item.tolist()


def _pictures(moment: Moment) -> Iterator[tuple[str, Array]]:
    for key, item in moment.observation.items():
        if key.startswith(IMAGE_PREFIX) and item.dtype == np.uint8 and item.ndim == 3:
            yield key.removeprefix(IMAGE_PREFIX), item


def _events(row: dict[str, Any]) -> Iterator[str]:
    for item in row.get("interventions", ()):
        yield json.dumps(item)


def _raw_image(key: str, picture: Array, time_s: float) -> dict[str, Any]:
    seconds, rest = divmod(round(time_s * 1e9), 10**9)
    height, width = picture.shape[:2]
    return {
        "timestamp": {"sec": seconds, "nsec": rest},
        "frame_id": key,
        "width": width,
        "height": height,
        "encoding": "rgb8",
        "step": 3 * width,
        "data": base64.b64encode(np.ascontiguousarray(picture).tobytes()).decode(),
    }


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give a name to write to that becomes ``path`` on success."""
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
