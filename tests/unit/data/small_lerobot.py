"""A tiny LeRobotDataset v3 on disk, written file by file, so that reading is tested without importing lerobot."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTHS = (5, 3, 4)
TOP = "observation.images.top"
SIDE = "observation.images.side"
IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def arrays() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    frames = sum(LENGTHS)
    return {
        TOP: generator.integers(0, 256, (frames, 8, 12, 3), dtype=np.uint8),
        SIDE: np.repeat(generator.integers(0, 256, (frames, 1, 1, 3), dtype=np.uint8), 64, 1).repeat(64, 2),
        "observation.state": generator.normal(size=(frames, 2)),
        "observation.grid": generator.normal(size=(frames, 2, 3)).astype(np.float32),
        "action": generator.normal(size=(frames, 1)).astype(np.float32),
        "next.done": np.isin(np.arange(frames), np.cumsum(LENGTHS) - 1),
    }


def png(image: Any) -> bytes:
    context: Any = av.CodecContext.create("png", "w")
    context.width, context.height, context.pix_fmt = image.shape[1], image.shape[0], "rgb24"
    context.time_base = Fraction(1, 10)
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def write_video(path: Path, images: Any, fps: int) -> None:
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = images.shape[2], images.shape[1], "yuv420p"
        stream.codec_context.options = {"qscale": "1"}
        stream.bit_rate = 20_000_000
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def write_small(directory: Path, *, info: dict[str, Any] | None = None, drop: str = "", video: bool = False) -> Any:
    """Write the dataset; ``info`` overrides entries of info.json, ``drop`` leaves a data column out."""
    data = arrays()
    if not video:
        del data[SIDE]
    bounds = np.concatenate([[0], np.cumsum(LENGTHS)])
    frames = int(bounds[-1])
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    images = pa.array([{"bytes": png(image), "path": None} for image in data[TOP]], IMAGE_TYPE)
    columns = {
        TOP: images,
        "observation.state": pa.FixedSizeListArray.from_arrays(data["observation.state"].reshape(-1), 2),
        "observation.grid": pa.array(data["observation.grid"].tolist(), pa.list_(pa.list_(pa.float32()))),
        "action": pa.array(data["action"][:, 0]),
        "next.done": pa.array(data["next.done"]),
        "timestamp": pa.array(((np.arange(frames) - bounds[episode]) / 10).astype(np.float32)),
        "frame_index": pa.array(np.arange(frames) - bounds[episode]),
        "episode_index": pa.array(episode),
        "index": pa.array(np.arange(frames)),
        "task_index": pa.array(episode % 2),
    }
    columns.pop(drop, None)
    table = pa.table(columns)
    (directory / "data/chunk-000").mkdir(parents=True)
    (directory / "meta/episodes/chunk-000").mkdir(parents=True)
    split = int(bounds[2])
    pq.write_table(table.slice(0, split), directory / "data/chunk-000/file-000.parquet", row_group_size=4)
    pq.write_table(table.slice(split), directory / "data/chunk-000/file-001.parquet")
    rows = {
        "episode_index": np.arange(len(LENGTHS)),
        "dataset_from_index": bounds[:-1],
        "dataset_to_index": bounds[1:],
    }
    if video:
        write_video(directory / "videos" / SIDE / "chunk-000/file-000.mp4", data[SIDE][:split], 10)
        write_video(directory / "videos" / SIDE / "chunk-001/file-000.mp4", data[SIDE][split:], 10)
        rows |= {
            f"videos/{SIDE}/chunk_index": np.array([0, 0, 1]),
            f"videos/{SIDE}/file_index": np.zeros(3, np.int64),
            f"videos/{SIDE}/from_timestamp": np.array([0.0, LENGTHS[0] / 10, 0.0]),
        }
    pq.write_table(pa.table(rows), directory / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0, 1], "task": ["open", "close"]}), directory / "meta/tasks.parquet")
    number = {"dtype": "int64", "shape": [1], "names": None}
    features: dict[str, Any] = {
        TOP: {"dtype": "image", "shape": [8, 12, 3], "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float64", "shape": [2], "names": ["x", "y"]},
        "observation.grid": {"dtype": "float32", "shape": [2, 3], "names": None},
        "action": {"dtype": "float32", "shape": [1], "names": {"motors": ["x"]}},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        **{name: number for name in ("frame_index", "episode_index", "index", "task_index")},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    }
    if video:
        features[SIDE] = {"dtype": "video", "shape": [3, 64, 64], "names": ["channels", "height", "width"]}
    plain = {
        "codebase_version": "v3.0",
        "fps": 10,
        "features": features,
        "total_frames": frames,
        "total_episodes": len(LENGTHS),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (directory / "meta/info.json").write_text(json.dumps({**plain, **(info or {})}), encoding="utf-8")
    return data
