"""An Episode as a Parquet table, one row per action, and back, without loss.

Columns have LeRobot's names where one exists. ``observation.*`` and ``privileged.*`` are null in rows at which no
decision was taken; ``next.observation.*`` holds the last observation, in the last row only. Images are raw bytes;
shapes and dtypes are in the schema's metadata under ``burnish``.
"""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from burnish.core.errors import DatasetError
from burnish.core.spec import TASK_KEY, Array
from burnish.core.step import Start
from burnish.data.episodes import Episode

FORMAT_VERSION = 1
METADATA_KEY = b"burnish"
LAST_PREFIX = "next."
BYTES_FROM_NDIM = 3
"""Entries with as many axes or more are stored as bytes, for speed."""


def to_table(episode: Episode) -> pa.Table:
    """Return an episode of T actions as a table of T rows.

    Raises:
        DatasetError: If the episode contradicts itself (lengths, order of decisions).
    """
    check(episode)
    length, decision = episode.length, episode.decision
    chunk = np.searchsorted(decision, np.arange(length), side="right") - 1
    ended = np.arange(length) == length - 1
    columns: dict[str, pa.Array] = {
        "chunk_index": pa.array(chunk),
        "step_in_chunk": pa.array(np.arange(length) - decision[chunk]),
        TASK_KEY: pa.array([episode.task] * length),
        "action": _pack(episode.action, np.arange(length), length),
        "next.reward": pa.array(episode.reward),
        "next.terminated": pa.array(ended & episode.terminated),
        "next.truncated": pa.array(ended & episode.truncated),
        "next.done": pa.array(ended),
        "next.success": pa.array(ended & episode.success),
    }
    arrays = {"action": episode.action, **episode.observation}
    if episode.log_prob is not None:
        arrays["policy.log_prob"] = episode.log_prob
        columns["policy.log_prob"] = _pack(episode.log_prob, decision, length)
    for key, array in episode.observation.items():
        columns[key] = _pack(array, decision, length)
    for key, array in episode.last_observation.items():
        arrays[LAST_PREFIX + key] = array[None]
        columns[LAST_PREFIX + key] = _pack(array[None], np.array([length - 1]), length)
    header = {
        "format_version": FORMAT_VERSION,
        "env_id": episode.env_id,
        "start": asdict(episode.start),
        "task": episode.task,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "metrics": episode.metrics,
        "info": episode.info,
        "decision": decision.tolist(),
        "array": {key: {"dtype": str(item.dtype), "shape": item.shape[1:]} for key, item in arrays.items()},
        "observation": list(episode.observation),
        "last_observation": list(episode.last_observation),
    }
    try:
        text = json.dumps(header)
    except TypeError as error:
        raise DatasetError(f"Episode.info must hold JSON values: {error}. Found {episode.info!r}.") from error
    return pa.table(columns).replace_schema_metadata({METADATA_KEY: text.encode()})


def header_of(schema: pa.Schema) -> dict[str, Any]:
    """Return what the schema's metadata says about an episode.

    Raises:
        DatasetError: If the metadata is absent, or of a newer format.
    """
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise DatasetError("it carries no episode header, so burnish did not write it")
    header: dict[str, Any] = json.loads(raw)
    if header["format_version"] > FORMAT_VERSION:
        raise DatasetError(
            f"its format version is {header['format_version']}, this burnish reads up to {FORMAT_VERSION}; upgrade"
        )
    return header


def from_table(table: pa.Table, *, keep_observation: bool = True) -> Episode:
    """Return the episode that :func:`to_table` wrote.

    Args:
        table: The table; without ``keep_observation`` its action and reward columns are enough.
        keep_observation: Whether to read observations and log-probs too.

    Raises:
        DatasetError: If the table is not one of an episode.
    """
    header = header_of(table.schema)

    def read(key: str) -> Array:
        return _unpack(table.column(key), **header["array"][key])

    header |= {} if keep_observation else {"observation": [], "last_observation": []}
    with_log_prob = keep_observation and "policy.log_prob" in header["array"]
    return Episode(
        env_id=header["env_id"],
        start=Start(**header["start"]),
        task=header["task"],
        action=read("action"),
        reward=table.column("next.reward").to_numpy().astype(np.float32),
        decision=np.array(header["decision"], np.int64),
        observation={key: read(key) for key in header["observation"]},
        last_observation={key: read(LAST_PREFIX + key)[0] for key in header["last_observation"]},
        log_prob=read("policy.log_prob") if with_log_prob else None,
        terminated=header["terminated"],
        truncated=header["truncated"],
        metrics=header["metrics"],
        info=header["info"],
    )


def check(episode: Episode) -> None:
    """Refuse an episode whose parts do not fit together.

    Raises:
        DatasetError: Says which.
    """
    length, decision = episode.length, episode.decision
    where = f"Episode of {episode.start}"
    if length < 1 or episode.action.ndim != 2 or episode.reward.shape != (length,):
        raise DatasetError(
            f"{where}: needs actions (T, A) and rewards (T,) with T >= 1, found {episode.action.shape} and "
            f"{episode.reward.shape}."
        )
    if len(decision) < 1 or decision[0] != 0 or (np.diff(decision) < 1).any() or decision[-1] >= length:
        raise DatasetError(
            f"{where}: decisions must start at 0, grow, and stay below T={length}; found {decision.tolist()}."
        )
    rows = {**episode.observation, **({} if episode.log_prob is None else {"policy.log_prob": episode.log_prob})}
    for key, array in rows.items():
        if len(array) != len(decision):
            raise DatasetError(f"{where}: '{key}' has {len(array)} entries for {len(decision)} decisions.")


def _pack(array: Array, row: Array, length: int) -> pa.Array:
    """Return a column of ``length`` rows that holds ``array[i]`` in row ``row[i]`` and null elsewhere."""
    present = np.zeros(length, bool)
    present[row] = True
    array = np.ascontiguousarray(array)
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    if array.ndim - 1 >= BYTES_FROM_NDIM:
        size *= array.itemsize
    offset = np.concatenate([[0], np.cumsum(present) * size])
    if array.ndim - 1 >= BYTES_FROM_NDIM:
        valid = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
        buffers = [valid, pa.py_buffer(offset.astype(np.int64)), pa.py_buffer(array)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), length, buffers)
    values = pa.array(array.reshape(-1))
    return pa.LargeListArray.from_arrays(pa.array(offset, pa.int64()), values, mask=pa.array(~present))


def _unpack(column: pa.ChunkedArray, dtype: str, shape: list[int]) -> Array:
    """Return the entries that are not null, (n, *shape), in a fresh array."""
    found = [chunk.drop_null() for chunk in column.chunks]
    if pa.types.is_large_binary(column.type):
        parts = [_bytes(chunk).view(dtype) for chunk in found]
    else:
        parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in found]
    flat = np.concatenate(parts) if len(parts) != 1 else parts[0]
    return np.array(flat.reshape(-1, *shape), dtype)


def _bytes(chunk: pa.LargeBinaryArray) -> Array:
    _, offset, data = chunk.buffers()
    offsets = np.frombuffer(offset, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
