"""What the ``meta`` folder of a LeRobotDataset v3 says, checked."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from burnish.core.errors import DatasetError
from burnish.core.spec import Array, ArraySpec
from burnish.data.statistics import Statistics, statistics_from_json

INFO = "meta/info.json"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that LeRobot adds to every dataset."""
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, pa.ArrowException)
UPGRADE = "Convert it with: python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=..."


@dataclass(frozen=True)
class Video:
    """A stretch of a video file that holds one episode of one camera."""

    path: Path
    begin: float
    """Seconds into the file at which the episode begins."""


@dataclass(frozen=True)
class Layout:
    """A LeRobotDataset's description."""

    directory: Path
    fps: float
    feature: dict[str, ArraySpec]
    """Arrays without bookkeeping; images are (H, W, 3) uint8."""
    kind: dict[str, str]
    """"image", "video" or "array", by key."""
    bound: Array
    """(E, 2) int64, first frame of each episode and the one after its last."""
    video: dict[str, list[Video]]
    """By camera, one entry per episode."""
    task: tuple[str, ...]
    """Instruction by task index."""

    @property
    def frames(self) -> int:
        """Number of frames of all episodes."""
        return int(self.bound[-1, 1])


def read_layout(directory: Path) -> Layout:
    """Read and check the description of a dataset.

    Raises:
        DatasetError: If it is missing, of another version, or contradicts itself.
    """
    info = _read_info(directory)
    kind, feature = _features(info, directory)
    rows = _episode_rows(directory, [key for key in kind if kind[key] == "video"])
    begin, end = rows["dataset_from_index"], rows["dataset_to_index"]
    bound = np.stack([begin, end], axis=1).astype(np.int64)
    follows = np.concatenate([[0], bound[:-1, 1]])
    if (bound[:, 0] != follows).any() or (bound[:, 1] <= bound[:, 0]).any():
        bad = int(np.flatnonzero((bound[:, 0] != follows) | (bound[:, 1] <= bound[:, 0]))[0])
        raise DatasetError(
            f"{directory}: episode {bad} covers frames {bound[bad].tolist()}, but must begin at {follows[bad]} and "
            "have at least one frame. meta/episodes is damaged or episodes were removed by hand."
        )
    for name, found in (("total_frames", int(bound[-1, 1])), ("total_episodes", len(bound))):
        if info.get(name) != found:
            raise DatasetError(f"{directory}: meta/episodes holds {name} = {found}, {INFO} says {info.get(name)}.")
    return Layout(
        directory=directory,
        fps=float(info["fps"]),
        feature=feature,
        kind=kind,
        bound=bound,
        video={key: _videos(info, directory, rows, key) for key in kind if kind[key] == "video"},
        task=_tasks(directory),
    )


def read_stats(directory: Path, feature: dict[str, ArraySpec]) -> Statistics:
    """Return what ``meta/stats.json`` says about the keys of ``feature``; nothing where there is no such file.

    Raises:
        DatasetError: If an entry is damaged, or does not fit its key.
    """
    path = directory / "meta/stats.json"
    if not path.exists():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{path} is not JSON: {error}.") from error
    known = {key: plain[key] for key in feature if key in plain and feature[key].dtype != "bool"}
    statistics = statistics_from_json(known, str(path))
    for key, entry in statistics.items():
        spec = feature[key]
        size = spec.shape[-1] if spec.is_image else int(np.prod(spec.shape))
        if len(entry["mean"]) != size:
            raise DatasetError(f"{path}: 'mean' of '{key}' has {len(entry['mean'])} entries, '{key}' has {size}.")
    return statistics


def _read_info(directory: Path) -> dict[str, Any]:
    path = directory / INFO
    if not path.exists():
        found = ", ".join(sorted(item.name for item in directory.iterdir())) if directory.is_dir() else "no folder"
        raise DatasetError(
            f"{directory} is not a LeRobotDataset: there is no {INFO}. Found: {found or 'an empty folder'}."
        )
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        version, fps, features = str(info["codebase_version"]), info["fps"], info["features"]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    if not version.startswith("v3."):
        raise DatasetError(f"{directory} is a LeRobotDataset {version}; burnish reads v3. {UPGRADE}")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not fps > 0:
        raise DatasetError(f"{path}: fps must be a positive number of frames per second, found {fps!r}.")
    if not isinstance(features, dict) or "action" not in features:
        raise DatasetError(f"{path}: there is no feature 'action'. Features: {', '.join(features)}.")
    return dict(info)


def _features(info: dict[str, Any], directory: Path) -> tuple[dict[str, str], dict[str, ArraySpec]]:
    kind: dict[str, str] = {}
    feature: dict[str, ArraySpec] = {}
    for key, entry in info["features"].items():
        try:
            dtype, shape, names = entry["dtype"], tuple(entry["shape"]), entry.get("names")
            if key in BOOKKEEPING or dtype in ("string", "language") or (entry.get("info") or {}).get("is_depth_map"):
                continue
            if dtype in ("image", "video"):
                kind[key], feature[key] = dtype, ArraySpec(_image_shape(shape, names), "uint8")
            else:
                np.dtype(dtype)
                kind[key] = "array"
                feature[key] = ArraySpec(
                    shape, "float32" if dtype in ("float16", "float64") else dtype, names=_names(shape, names)
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{directory / INFO}: feature '{key}' is damaged: {error!r}, found {entry!r}."
            ) from error
    return kind, feature


def _image_shape(shape: tuple[int, ...], names: Any) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"an image has three axes, found {shape}")
    channel_first = str(names[0]).startswith("channel") if names else shape[0] == 3 and shape[2] != 3
    height, width, channel = (shape[1], shape[2], shape[0]) if channel_first else shape
    if channel != 3:
        raise ValueError(f"an image has 3 channels, found {shape} with names {names}")
    return height, width, channel


def _names(shape: tuple[int, ...], names: Any) -> tuple[str, ...]:
    flat = next(iter(names.values())) if isinstance(names, dict) and len(names) == 1 else names
    fits = isinstance(flat, list) and (len(flat),) == shape and all(isinstance(name, str) for name in flat)
    return tuple(flat) if fits else ()


def _episode_rows(directory: Path, cameras: list[str]) -> dict[str, Array]:
    names = ["episode_index", "dataset_from_index", "dataset_to_index"]
    names += [f"videos/{key}/{name}" for key in cameras for name in ("chunk_index", "file_index", "from_timestamp")]
    paths = sorted((directory / "meta/episodes").glob("*/*.parquet"))
    if not paths:
        raise DatasetError(
            f"{directory}: meta/episodes holds no Parquet file. The recording was stopped before its first episode was "
            "saved, or the folder was copied in part."
        )
    table = pa.concat_tables([_read(path, names) for path in paths])
    if not table.num_rows:
        raise DatasetError(f"{directory}: meta/episodes lists no episode.")
    rows = {name: table.column(name).to_numpy() for name in names}
    order = np.argsort(rows["episode_index"], kind="stable")
    return {name: row[order] for name, row in rows.items()}


def _tasks(directory: Path) -> tuple[str, ...]:
    path = directory / "meta/tasks.parquet"
    if not path.exists():
        raise DatasetError(f"{directory}: meta/tasks.parquet is missing; it holds the instructions.")
    table = _read(path, None)
    try:
        text = table.column("task" if "task" in table.column_names else "__index_level_0__").to_pylist()
        index = table.column("task_index").to_pylist()
        return tuple(text[index.index(i)] for i in range(len(index)))
    except (KeyError, ValueError) as error:
        raise DatasetError(f"{path} is damaged: {error}. Columns: {', '.join(table.column_names)}.") from error


def _videos(info: dict[str, Any], directory: Path, rows: dict[str, Array], key: str) -> list[Video]:
    found: list[Video] = []
    for i in range(len(rows["episode_index"])):
        relative = info["video_path"].format(
            video_key=key,
            chunk_index=int(rows[f"videos/{key}/chunk_index"][i]),
            file_index=int(rows[f"videos/{key}/file_index"][i]),
        )
        if not (directory / relative).exists():
            raise DatasetError(f"{directory}: {relative}, which holds '{key}' of episode {i}, is missing.")
        found.append(Video(directory / relative, float(rows[f"videos/{key}/from_timestamp"][i])))
    return found


def _read(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        return (
            pq.read_table(path, columns=columns, partitioning=None).select(columns) if columns else pq.read_table(path)
        )
    except READ_ERRORS as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DatasetError:
    """Return the error that says what to do about a Parquet file that cannot be read."""
    return DatasetError(
        f"{path} cannot be read: {str(error).splitlines()[0]}. A recorder that is killed before it finalizes leaves "
        "such files; record again, or export again from the episode log."
    )
