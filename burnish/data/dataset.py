"""Demonstrations: LeRobotDataset v3 in, decoded once into memory maps, and out through LeRobot's own class."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import DatasetError, suggest
from burnish.core.spec import (
    IMAGE_PREFIX,
    TASK_KEY,
    Array,
    ArraySpec,
    EnvSpec,
    Observation,
    array_spec_from_json,
    env_spec_from_json,
    fingerprint,
)
from burnish.data.decode import DECODED, FORMAT_VERSION, TASK_INDEX, decode, file_name
from burnish.data.durable import durable_folder, is_temporary
from burnish.data.export import FPS_TOLERANCE, SIDE_CAR, fps_of, write_lerobot
from burnish.data.layout import read_layout
from burnish.data.statistics import Statistics

__all__ = ["DemonstrationDataset", "fps_of", "read_lerobot", "write_lerobot"]

OBSERVATION_PREFIX = "observation."


class DemonstrationDataset:
    """Frames of recorded episodes, mapped into memory; :func:`read_lerobot` makes one."""

    def __init__(self, directory: Path, env_spec: EnvSpec | None = None) -> None:
        """Open a decoded dataset.

        Args:
            directory: Folder of ``.npy`` files.
            env_spec: Where it was recorded, when known.

        Raises:
            DatasetError: If the folder is damaged.
        """
        try:
            plain = json.loads((directory / DECODED).read_text(encoding="utf-8"))
            self.features: Mapping[str, ArraySpec] = {
                key: array_spec_from_json(item) for key, item in plain["feature"].items()
            }
            self._column: dict[str, Array] = {
                key: np.load(directory / file_name(key), mmap_mode="r").view(np.ndarray)
                for key in (*self.features, TASK_INDEX)
            }
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DatasetError(
                f"The decoded dataset {directory} is damaged: {error}. Delete it and read again."
            ) from error
        self.fps: float = plain["fps"]
        """Frames per second."""
        self.env_spec = env_spec
        """The environment it was recorded in, None when it comes from elsewhere."""
        self.statistics: Statistics = plain["statistics"]
        """Per key mean, std, min, max, quantiles; flat lists, images per channel in [0, 1]."""
        self.episode_bounds: Array = np.array(plain["bound"], np.int64)
        """(E, 2) int64, first frame of each episode and the one after its last."""
        self.tasks: tuple[str, ...] = tuple(plain["task"])
        """Instructions."""
        self._end = np.repeat(self.episode_bounds[:, 1], np.diff(self.episode_bounds, axis=1)[:, 0])

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._end)

    @property
    def num_episodes(self) -> int:
        """Number of episodes E."""
        return len(self.episode_bounds)

    @property
    def control_dt(self) -> float:
        """Seconds between two actions: exact where burnish recorded, else 1 / fps."""
        return 1.0 / self.fps if self.env_spec is None else self.env_spec.control_dt

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Keys of the camera images."""
        return tuple(key for key in self.features if key.startswith(IMAGE_PREFIX))

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """Keys that :meth:`chunks` gives unless told otherwise."""
        return tuple(key for key in self.features if key.startswith(OBSERVATION_PREFIX))

    def column(self, key: str) -> Array:
        """Return all frames of a key (frames, ...), mapped read-only: ``action``, ``next.reward``, images, ...

        Raises:
            DatasetError: If there is no such key.
        """
        if key not in self._column:
            raise DatasetError(f"The dataset has no key '{key}'.{suggest(key, self.features)}")
        return self._column[key]

    def observation(self, index: Array, keys: Sequence[str] | None = None) -> Observation:
        """Return observations at frames.

        Args:
            index: (B,) int64 frames.
            keys: Which keys to read; None for all of ``observation_keys``.

        Returns:
            (B, ...) arrays, and ``task``, a list of B strings.
        """
        chosen = self.observation_keys if keys is None else keys
        found: Observation = {key: self.column(key)[index] for key in chosen}
        found[TASK_KEY] = [self.tasks[i] for i in self._column[TASK_INDEX][index]]
        return found

    def chunks(
        self, index: Array, chunk_steps: int, keys: Sequence[str] | None = None
    ) -> tuple[Observation, Array, Array]:
        """Return observations at frames and the action chunks that follow.

        Args:
            index: (B,) int64 frames.
            chunk_steps: K.
            keys: Which observation keys to read; None for all.

        Returns:
            (observation (B, ...), action chunk (B, K, A) float32, executed (B,) int64). Where an episode ends before K
            actions, its last action fills the chunk, and ``executed`` counts the real ones.
        """
        index = np.asarray(index, np.int64)
        end = self._end[index]
        frame = np.minimum(index[:, None] + np.arange(chunk_steps), end[:, None] - 1)
        return self.observation(index, keys), self.column("action")[frame], np.minimum(end - index, chunk_steps)

    def check_fit(self, observation: Mapping[str, ArraySpec], action: ArraySpec, control_dt: float) -> None:
        """Refuse a policy or environment that this dataset cannot teach.

        Args:
            observation: Keys that are needed, from a PolicySpec or EnvSpec.
            action: One action.
            control_dt: Seconds between two actions.

        Raises:
            DatasetError: Names the key, what was found and what was expected.
        """
        for key, wanted in {**observation, "action": action}.items():
            if key not in self.features:
                raise DatasetError(f"'{key}' is needed, but the dataset does not have it.{suggest(key, self.features)}")
            found = self.features[key]
            if found.shape != (wanted.shape or (1,)) or found.dtype != wanted.dtype:
                raise DatasetError(
                    f"'{key}' is {found.dtype} {found.shape} in the dataset, "
                    f"but {wanted.dtype} {wanted.shape} is needed."
                )
        if abs(self.control_dt / control_dt - 1) > FPS_TOLERANCE:
            raise DatasetError(
                f"The dataset acts every {self.control_dt:.6g} s ({self.fps:.6g} frames per second), but every "
                f"{control_dt:.6g} s is needed. Record at that rate, or change control_dt."
            )


def read_lerobot(directory: Path, cache: Path) -> DemonstrationDataset:
    """Read a LeRobotDataset v3; it is decoded the first time and mapped into memory from then on.

    Args:
        directory: The dataset.
        cache: Folder for decoded datasets; an entry is named by a fingerprint of the dataset's files, appears whole or
            not at all, and may be deleted at any time.

    Raises:
        DatasetError: If the dataset is missing, damaged, or of another version.
    """
    layout = read_layout(directory)
    entry = cache / fingerprint_of(directory)
    if not (entry / DECODED).exists():
        with durable_folder(entry) as temporary:
            decode(layout, temporary)
    return DemonstrationDataset(entry, _recorded_in(directory))


def fingerprint_of(directory: Path) -> str:
    """Return a short hash of the names, sizes and times of a dataset's files."""
    files: list[Any] = [FORMAT_VERSION]
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not is_temporary(path):
            stat = path.stat()
            files.append([path.relative_to(directory).as_posix(), stat.st_size, stat.st_mtime_ns])
    return fingerprint(files)


def _recorded_in(directory: Path) -> EnvSpec | None:
    path = directory / SIDE_CAR
    if not path.exists():
        return None
    try:
        return env_spec_from_json(json.loads(path.read_text(encoding="utf-8"))["env_spec"])
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path} is damaged: {error!r}. Delete it to read the dataset without it.") from error
