"""A run on disk as it happens, and its replay: one JSON line per control tick, one file per decision.

``ticks.jsonl`` begins with a header and grows by one flushed line per tick, so a killed run keeps all but its last.
``decisions/<n>.npz`` holds what the policy saw and answered; :func:`replay` asks a policy again and compares.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError, DatasetError
from burnish.core.inpainting import Prefix
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.deploy.frames import read_arrays, write_arrays
from burnish.deploy.inference import ask
from burnish.deploy.observations import ActingPolicy

_FORMAT = "burnish ticks 1"
_CHUNK = "answer.action_chunk"


class TickLog:
    """Writes a run into an empty folder; decisions are written by a thread, since images take milliseconds."""

    def __init__(self, directory: Path, header: Mapping[str, Any]) -> None:
        """Create the folder and write the header.

        Raises:
            ConfigError: If the folder holds a run already.
        """
        if (directory / "ticks.jsonl").exists():
            raise ConfigError(f"'{directory}' holds a run already; choose another folder for the log.")
        (directory / "decisions").mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file = (directory / "ticks.jsonl").open("w", encoding="utf-8")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tick log")
        self._pending: list[Future[None]] = []
        self.tick({"format": _FORMAT, **header})

    def tick(self, row: Mapping[str, Any]) -> None:
        """Append one line and flush it."""
        self._file.write(json.dumps(row, default=_plain) + "\n")
        self._file.flush()

    def decision(self, number: int, observation: Observation, chunk: Array) -> None:
        """Store what the policy saw (N = 1) and answered (K, A)."""
        arrays = {key: np.array(item) for key, item in observation.items()}
        arrays[_CHUNK] = np.array(chunk)
        self._collect(wait=False)
        self._pending.append(
            self._writer.submit(write_arrays, self._directory / "decisions" / f"{number:06d}.npz", arrays)
        )

    def close(self) -> None:
        """Finish writing.

        Raises:
            OSError: If a decision could not be written, for example because the disk is full.
        """
        self._file.close()
        self._writer.shutdown()
        self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        """Raise what writing raised."""
        for future in [future for future in self._pending if wait or future.done()]:
            self._pending.remove(future)
            future.result()


def read_ticks(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (header, one row per tick); a last line that was cut off by a crash is left out.

    Raises:
        DatasetError: If there is no log, or a line before the last is damaged.
    """
    path = directory / "ticks.jsonl"
    if not path.is_file():
        raise DatasetError(f"'{directory}' holds no run: there is no ticks.jsonl.")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1]):  # what follows the last newline is empty, or cut off
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DatasetError(f"'{path}' line {number + 1} is damaged: {error}.") from error
    if not rows or rows[0].get("format") != _FORMAT:
        raise DatasetError(f"'{path}' does not begin with a header of format '{_FORMAT}'.")
    return rows[0], rows[1:]


@dataclass(frozen=True)
class ReplayReport:
    """How a policy's answers differ from the logged ones."""

    decisions: int
    """How many were compared."""
    different: int
    """How many differ in any number by more than the tolerance."""
    max_difference: float
    """Largest absolute difference, in action units."""
    first: int
    """Number of the first decision that differs; -1 for none."""
    tolerance: float = 0.0
    """Largest absolute difference that counts as none, in action units; 0 wants every bit equal."""

    @property
    def same(self) -> bool:
        """Whether every answer is equal, bit for bit or within the tolerance."""
        return self.different == 0

    def text(self) -> str:
        """Return one line for a terminal."""
        if self.same and not self.tolerance:
            return f"replay: {self.decisions} decisions, all equal to the log"
        if self.same:
            return (
                f"replay: {self.decisions} decisions, all within {self.tolerance:.3g} of the log, largest difference "
                f"{self.max_difference:.3g}"
            )
        return (
            f"replay: {self.different} of {self.decisions} decisions differ from the log, first number {self.first}, "
            f"by up to {self.max_difference:.3g}" + (f", allowed {self.tolerance:.3g}" if self.tolerance else "")
        )


def replay(policy: ActingPolicy, directory: Path, *, tolerance: float = 0.0) -> ReplayReport:
    """Ask a policy again for every logged decision and compare its chunks with the log.

    Args:
        policy: The one that was logged, or one that should answer the same, for example exported or behind a server.
        directory: Folder of the run.
        tolerance: Largest absolute difference that counts as none, in action units.

    Raises:
        DatasetError: If the log is damaged, holds no decision, or holds chunks of another shape.
    """
    header, rows = read_ticks(directory)
    prefixes = _prefixes(header, rows)
    different, worst, first, count = 0, 0.0, -1, 0
    for number, observation, chunk in read_decisions(directory):
        answer = ask(policy, number, observation, header["seed"], header["deterministic"], prefixes.get(number)).chunk
        if answer.shape != chunk.shape:
            raise DatasetError(f"The log holds chunks of shape {chunk.shape}, the policy answers {answer.shape}.")
        count += 1
        if np.array_equal(answer, chunk, equal_nan=True):
            continue
        difference = float(np.nan_to_num(np.abs(answer.astype(float) - chunk), nan=np.inf).max())
        worst = max(worst, difference)
        if not difference <= tolerance or not tolerance:
            first = number if first < 0 else first
            different += 1
    if not count:
        raise DatasetError(f"'{directory}' holds no decision to replay.")
    return ReplayReport(count, different, worst, first, tolerance)


def _prefixes(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[int, Prefix]:
    """Return what each in-painted decision went on from, by its number."""
    inpaint = header.get("config", {}).get("inpaint", {})
    return {
        row["decision"]: Prefix(
            np.array(row["prefix"], np.float32), row["frozen_steps"], inpaint["schedule"], inpaint["max_guidance"]
        )
        for row in rows
        if "prefix" in row
    }


def read_decisions(directory: Path) -> Iterator[tuple[int, Observation, Array]]:
    """Yield (number, observation with N = 1, chunk (K, A)) of each logged decision, in order.

    Raises:
        DatasetError: If a file is damaged.
    """
    for path in sorted((directory / "decisions").glob("*.npz")):
        arrays = read_arrays(path)
        try:
            chunk = arrays.pop(_CHUNK)
            observation: Observation = {**arrays, TASK_KEY: [str(text) for text in arrays[TASK_KEY]]}
        except KeyError as error:
            raise DatasetError(f"'{path}' is damaged: it has no {error}.") from error
        yield int(path.stem), observation, chunk


def _plain(value: Any) -> Any:
    """Return vectors and scalars as JSON values; JSON has no nan and inf, so they become text."""
    if isinstance(value, np.ndarray):
        return [number if np.isfinite(number) else str(number) for number in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Cannot write a {type(value).__name__} to the tick log.")
