"""A LeRobotDataset v3 decoded once into plain ``.npy`` files that are mapped into memory."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from burnish.core.errors import DatasetError
from burnish.core.spec import Array, to_json
from burnish.data.layout import READ_ERRORS, Layout, Video, damaged, read_stats
from burnish.data.statistics import array_statistics, image_statistics

DECODED = "decoded.json"
FORMAT_VERSION = 1
TASK_INDEX = "task_index"
PNG_SIGNATURE = b"\x89PNG"
BATCH_ROWS = 256


def decode(layout: Layout, out: Path) -> None:
    """Write every array of a dataset into an empty folder.

    Floats become float32, images (frames, H, W, 3) uint8. Statistics are those of ``meta/stats.json`` where it has
    them, since stock LeRobot normalises with them, and computed elsewhere.

    Args:
        layout: The dataset.
        out: The folder.

    Raises:
        DatasetError: If a file is missing or damaged, or values are not finite.
    """
    column = {
        key: _new_map(out / file_name(key), spec.dtype, (layout.frames, *spec.shape))
        for key, spec in layout.feature.items()
    }
    task_index = np.zeros(layout.frames, np.int64)
    _decode_tables(layout, {**column, TASK_INDEX: task_index})
    if ((task_index < 0) | (task_index >= len(layout.task))).any():
        raise DatasetError(
            f"{layout.directory}: a frame has task_index {int(task_index.max())}, meta/tasks.parquet has "
            f"{len(layout.task)} tasks."
        )
    np.save(out / file_name(TASK_INDEX), task_index)
    for key, videos in layout.video.items():
        _decode_videos(layout, key, videos, column[key])
    statistics = read_stats(layout.directory, layout.feature)
    for key, array in column.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            frame = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DatasetError(f"{layout.directory}: '{key}' is not finite at frame {frame}: {array[frame].tolist()}.")
        if key not in statistics and array.dtype != bool:
            statistics[key] = image_statistics(array) if layout.feature[key].is_image else array_statistics(array)
        array.flush()
    description = {
        "format_version": FORMAT_VERSION,
        "fps": layout.fps,
        "feature": {key: to_json(spec) for key, spec in layout.feature.items()},
        "bound": layout.bound.tolist(),
        "task": layout.task,
        "statistics": statistics,
    }
    (out / DECODED).write_text(json.dumps(description), encoding="utf-8")


def file_name(key: str) -> str:
    """Return the file that holds a key."""
    return key.replace("/", "_") + ".npy"


def _new_map(path: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)  # type: ignore[no-untyped-call]


def _decode_tables(layout: Layout, column: dict[str, Array]) -> None:
    keys = [key for key in column if layout.kind.get(key) != "video"]
    row = 0
    for path, batch in _batches(layout.directory, keys):
        count = batch.num_rows
        if row + count > layout.frames:
            raise DatasetError(f"{layout.directory}: data holds more than the {layout.frames} frames of meta/episodes.")
        index = batch.column("index").to_numpy()
        if not np.array_equal(index, np.arange(row, row + count)):
            raise DatasetError(f"{path}: frames are out of order; expected index {row} to {row + count - 1} in turn.")
        for key in keys:
            target = column[key]
            try:
                if layout.kind.get(key) == "image":
                    _images(batch.column(key), target[row : row + count])
                else:
                    target[row : row + count] = _values(batch.column(key), count).reshape(count, *target.shape[1:])
            except (*READ_ERRORS, av.error.FFmpegError) as error:
                raise DatasetError(
                    f"{path}: '{key}' at frames {row} to {row + count - 1} does not fit {target.shape[1:]}: {error}."
                ) from error
        row += count
    if row != layout.frames:
        raise DatasetError(f"{layout.directory}: data holds {row} frames, meta/episodes lists {layout.frames}.")


def _batches(directory: Path, keys: list[str]) -> Iterator[tuple[Path, pa.RecordBatch]]:
    paths = sorted((directory / "data").glob("*/*.parquet"))
    if not paths:
        raise DatasetError(f"{directory}: data holds no Parquet file.")
    for path in paths:
        try:
            file = pq.ParquetFile(path)
        except READ_ERRORS as error:
            raise damaged(path, error) from error
        with file:
            present = file.schema_arrow.names
            missing = [key for key in keys if key not in present]
            if missing:
                raise DatasetError(
                    f"{path}: there is no column {', '.join(missing)}, which meta/info.json declares. "
                    f"Columns: {', '.join(present)}."
                )
            batches = file.iter_batches(BATCH_ROWS, columns=[*keys, "index"])
            while True:
                try:
                    batch = next(batches, None)
                except READ_ERRORS as error:
                    raise damaged(path, error) from error
                if batch is None:
                    break
                yield path, batch


def _values(array: pa.Array, count: int) -> Array:
    """Return a (nested list) column as a flat array."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        raise ValueError(f"{array.null_count} of {count} entries are null")
    while hasattr(array, "flatten") and pa.types.is_nested(array.type):
        array = array.flatten()
        while isinstance(array, pa.ExtensionArray):
            array = array.storage
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _images(array: pa.StructArray, target: Array) -> None:
    for i, data in enumerate(array.field("bytes")):
        if not data.is_valid:
            raise ValueError("the image is not embedded in the file")
        target[i] = _checked(decode_image(data.as_buffer().to_pybytes()), target)


def decode_image(data: bytes) -> Array:
    """Return a PNG or JPEG as an (H, W, 3) uint8 array."""
    # A context of its own for each image: one that is used again may answer with the image before.
    context: Any = av.CodecContext.create("png" if data[:4] == PNG_SIGNATURE else "mjpeg", "r")
    context.thread_count = 1
    frames = [*context.decode(av.Packet(data)), *context.decode(None)]
    if not frames:
        raise ValueError("no image could be decoded")
    image: Array = frames[0].to_ndarray(format="rgb24")
    return image


def _checked(image: Array, target: Array) -> Array:
    if image.shape != target.shape[1:]:
        raise ValueError(f"the image is {image.shape}")
    return image


def _decode_videos(layout: Layout, key: str, videos: list[Video], target: Array) -> None:
    """Decode each file from its beginning to its end, once, and take the frame nearest to each wanted time."""
    order = sorted(range(len(videos)), key=lambda i: (str(videos[i].path), videos[i].begin))
    for path, episodes in groupby(order, key=lambda i: videos[i].path):
        wanted = [
            (videos[i].begin + (frame - layout.bound[i, 0]) / layout.fps, frame)
            for i in episodes
            for frame in range(*layout.bound[i])
        ]
        try:
            _decode_video(path, wanted, 0.5 / layout.fps, target)
        except (OSError, ValueError, av.error.FFmpegError) as error:
            raise DatasetError(f"{path}: cannot decode '{key}': {error}.") from error


def _decode_video(path: Path, wanted: list[tuple[float, int]], tolerance: float, target: Array) -> None:
    position = 0
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            if position == len(wanted):
                break
            if frame.pts is None or frame.time_base is None:
                continue
            time = float(frame.pts * frame.time_base)
            if time < wanted[position][0] - tolerance:
                continue
            if time > wanted[position][0] + tolerance:
                raise ValueError(f"there is no frame near {wanted[position][0]:.4f} s; the next is at {time:.4f} s")
            target[wanted[position][1]] = _checked(frame.to_ndarray(format="rgb24"), target)
            position += 1
    if position != len(wanted):
        raise ValueError(f"it ends before {wanted[position][0]:.4f} s, {len(wanted) - position} frames are missing")
