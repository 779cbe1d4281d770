"""Episodes that a deployed policy lived through, frame by frame, so that it can be trained on them.

A :class:`RecordingRobot` stands between the runtime and a robot and writes down what was observed and what was then
sent: ``frames/<n>.npz`` per control tick, ``frames/spec.json`` when the run begins, ``frames/end.json`` when it ends.
Every file is whole or not there, so a killed run keeps all frames but those of its last moments.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError, DatasetError
from burnish.core.spec import TASK_KEY, Array, EnvSpec, env_spec_from_json, to_json
from burnish.core.step import Start
from burnish.data.episodes import Episode
from burnish.deploy.robot import Outcome, Robot, Sensed

FOLDER = "frames"
"""Folder of the frames in that of the tick log."""
MAX_WAITING = 128
"""Frames that may wait for a slow disk; what comes on top is left out and counted."""
_SPEC, _END = "spec.json", "end.json"
_ACTION, _REWARD, _HUMAN = "answer.action", "answer.reward", "answer.intervention"


class RecordingRobot:
    """A robot whose frames are kept; files are written by a thread, so that the control loop does not wait."""

    def __init__(self, robot: Robot, directory: Path, start: Start) -> None:
        """Begin an episode.

        Args:
            robot: What is driven.
            directory: Folder of the run's tick log.
            start: Where the episode begins; for a robot the task, and numbers of one's own.

        Raises:
            ConfigError: If the folder holds frames already.
        """
        self.spec: EnvSpec = robot.spec
        self.dropped = 0
        """Frames that were left out because the disk was too slow."""
        self._robot = robot
        self._folder = directory / FOLDER
        if (self._folder / _SPEC).exists():
            raise ConfigError(f"'{self._folder}' holds an episode already; choose another folder for the log.")
        self._folder.mkdir(parents=True, exist_ok=True)
        _write_json(self._folder / _SPEC, {"env_spec": to_json(robot.spec), "start": asdict(start)})
        self._keys = (*robot.spec.public_observation, TASK_KEY)
        self._sensed: Sensed | None = None
        self._outcome = Outcome()
        self._count = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="frames")
        self._waiting: list[Future[None]] = []

    def observe(self) -> Sensed:
        """Return the newest observation, and remember it."""
        self._sensed = self._robot.observe()
        return self._sensed

    def send(self, action: Array) -> Outcome:
        """Pass an action (A,) on, and keep it with the observation before it; braking sees nothing and is not kept."""
        sensed, self._sensed = self._sensed, None
        if sensed is None:
            self._outcome = self._robot.send(action)
            return self._outcome
        seen = sensed.observation
        arrays = {key: np.array(seen[key][0]) for key in self._keys if key in seen}
        self._outcome = self._robot.send(action)
        arrays[_HUMAN] = np.array(sensed.intervention)
        arrays[_ACTION] = np.array(action, np.float32)
        arrays[_REWARD] = np.array(self._outcome.reward, np.float32)
        self._waiting = [future for future in self._waiting if not _finished(future)]
        if len(self._waiting) < MAX_WAITING:
            path = self._folder / f"{self._count:06d}.npz"
            self._waiting.append(self._writer.submit(write_arrays, path, arrays, compress=True))
        else:
            self.dropped += 1
        self._count += 1
        return self._outcome

    def stop(self, action: Array) -> None:
        """Let the robot come to rest."""
        self._robot.stop(action)

    def close(self) -> None:
        """Write what is left.

        Raises:
            OSError: If a frame could not be written, for example because the disk is full.
        """
        self._writer.shutdown()
        for future in self._waiting:
            future.result()
        end = self._outcome
        _write_json(
            self._folder / _END,
            {
                "frames": self._count,
                "dropped": self.dropped,
                "terminated": end.terminated,
                "truncated": end.truncated,
                "metrics": dict(end.metrics),
            },
        )


def find_runs(directory: Path) -> list[Path]:
    """Return the folders below ``directory``, itself included, that hold a recorded episode, in order."""
    return sorted(path.parent.parent for path in directory.rglob(f"{FOLDER}/{_SPEC}"))


def read_spec(directory: Path) -> tuple[EnvSpec, Start]:
    """Return what was driven in a run, and where its episode began.

    Raises:
        DatasetError: If there is no recording, or it is damaged.
    """
    path = directory / FOLDER / _SPEC
    about = _read_json(path)
    try:
        return env_spec_from_json(about["env_spec"]), Start(**about["start"])
    except (KeyError, TypeError) as error:
        raise DatasetError(f"'{path}' is damaged: {error!r}.") from error


def read_episode(directory: Path) -> tuple[Episode | None, str]:
    """Return (episode or None where nothing was sent, what is missing or "").

    The frames after the first gap are left out: a dataset's frames follow each other at a fixed rate.

    Args:
        directory: Folder of a run.

    Raises:
        DatasetError: If there is no recording, or a file is damaged.
    """
    spec, start = read_spec(directory)
    folder = directory / FOLDER
    paths = sorted(folder.glob("[0-9]*.npz"))
    whole = next((n for n, path in enumerate(paths) if int(path.stem) != n), len(paths))
    end = _read_json(folder / _END) if (folder / _END).exists() else {}
    lost = int(end.get("frames", len(paths))) - whole
    problem = f"{lost} frames after number {whole} were left out: frames are missing there" if lost else ""
    if not whole:
        return None, problem or "nothing was sent"
    rows = [read_arrays(path) for path in paths[:whole]]
    return _episode(spec, start, rows, end if not lost else {}), problem


def _episode(spec: EnvSpec, start: Start, rows: list[dict[str, Array]], end: Mapping[str, Any]) -> Episode:
    keys = [key for key in rows[0] if key not in (_ACTION, _REWARD, _HUMAN, TASK_KEY)]
    return Episode(
        env_id=spec.id,
        start=start,
        task=str(rows[0].get(TASK_KEY, start.task)),
        action=np.stack([row[_ACTION] for row in rows]),
        reward=np.array([row[_REWARD] for row in rows], np.float32),
        decision=np.arange(len(rows)),
        observation={key: np.stack([row[key] for row in rows]) for key in keys},
        last_observation={},
        log_prob=None,
        terminated=bool(end.get("terminated")),
        truncated=bool(end.get("truncated")),
        metrics={name: float(figure) for name, figure in end.get("metrics", {}).items()},
        info={"intervention": [int(n) for n in np.flatnonzero([row[_HUMAN] for row in rows])]},
    )


def write_arrays(path: Path, arrays: Mapping[str, Any], *, compress: bool = False) -> None:
    """Write arrays as an npz file that appears whole; compressed ones as fast as zlib can."""
    partial = path.with_suffix(".partial")
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(partial, "w", kind, compresslevel=1) as archive:
        for name, item in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(item), allow_pickle=False)  # type: ignore[no-untyped-call]
    partial.rename(path)


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an npz file.

    Raises:
        DatasetError: If it is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetError(f"'{path}' is damaged: {error}.") from error


def _finished(future: "Future[None]") -> bool:
    """Return whether a file is written; raise what writing raised."""
    if future.done():
        future.result()
        return True
    return False


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1), encoding="utf-8")
    os.replace(partial, path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"Cannot read '{path}': {error}.") from error
    if not isinstance(value, dict):
        raise DatasetError(f"'{path}' holds {type(value).__name__}, expected an object.")
    return value
