"""The durable episode log: one zstd Parquet file per episode, whole or absent, and an index that can be rebuilt."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.core.contracts import EpisodeSummary
from burnish.core.errors import DatasetError
from burnish.core.spec import TASK_KEY
from burnish.core.step import Start
from burnish.data.columns import from_table, to_table
from burnish.data.durable import TEMPORARY_PREFIX, durable_file
from burnish.data.episodes import Episode

INDEX_NAME = "index.jsonl"
STALE_AFTER_S = 3600.0
"""Unfinished files of a killed process are deleted when they are older than this."""


class EpisodeLog:
    """A folder of finished episodes, in order of writing.

    An episode is on the disk before :meth:`write` returns, and a process killed at any moment leaves only whole
    episodes. One process writes at a time; any number may read. Files that cannot be read are listed in ``damaged``
    and left out of everything else.
    """

    def __init__(self, directory: Path) -> None:
        """Open a log; the folder is made at the first write.

        Args:
            directory: Its folder.

        Raises:
            DatasetError: If it is not a folder.
        """
        if directory.exists() and not directory.is_dir():
            raise DatasetError(f"An episode log is a folder, but {directory} is a file.")
        self.directory = directory
        self.damaged: dict[str, str] = {}
        """Name of each file that cannot be read, and why."""
        self._rows: list[dict[str, Any]] = []
        self._index_is_current = False
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is in the folder."""
        known = {row["file"]: row for row in _read_index(self.directory / INDEX_NAME)}
        self.damaged, self._rows = {}, []
        for path in sorted(self.directory.glob("episode-*.parquet")):
            row = known.get(path.name)
            if row is None or row["bytes"] != path.stat().st_size:
                try:
                    row = _row_of_file(path)
                except DatasetError as error:
                    self.damaged[path.name] = str(error)
                    continue
            self._rows.append(row)
        self._index_is_current = list(known.values()) == self._rows and _ends_whole(self.directory / INDEX_NAME)

    def __len__(self) -> int:
        """Return the number of readable episodes."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Episode]:
        """Read all episodes in order."""
        for i in range(len(self)):
            yield self.read(i)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the readable files, in order."""
        return tuple(row["file"] for row in self._rows)

    @property
    def starts(self) -> tuple[Start, ...]:
        """Start of each episode, in order; a recording that resumes skips them."""
        return tuple(Start(**row["start"]) for row in self._rows)

    @property
    def env_ids(self) -> tuple[str, ...]:
        """``EnvSpec.id`` of each episode, in order."""
        return tuple(row["env_id"] for row in self._rows)

    def summaries(self) -> list[EpisodeSummary]:
        """Return how each episode went, from the index alone."""
        return [
            EpisodeSummary(
                start=Start(**row["start"]),
                length=row["length"],
                return_=_number(row["return"]),
                success=row["success"],
                metrics={name: _number(figure) for name, figure in row["metrics"].items()},
            )
            for row in self._rows
        ]

    def read(self, index: int) -> Episode:
        """Read episode ``index``, which may be negative to count from the end.

        Raises:
            DatasetError: If there is no such episode, or its file is damaged.
        """
        if not -len(self) <= index < len(self):
            raise DatasetError(f"{self.directory} holds {len(self)} episodes; there is no episode {index}.")
        path = self.directory / self._rows[index]["file"]
        try:
            return from_table(pq.read_table(path, page_checksum_verification=True, partitioning=None))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, DatasetError) as error:
            raise DatasetError(
                f"{path} cannot be read: {error}. Delete it to go on with the other {len(self) - 1} episodes."
            ) from error

    def verify(self) -> dict[str, str]:
        """Read every episode completely and return the damaged files and why."""
        found = dict(self.damaged)
        for i, name in enumerate(self.files):
            try:
                self.read(i)
            except DatasetError as error:
                found[name] = str(error)
        return found

    def write(self, episode: Episode) -> Path:
        """Append an episode; when this returns it is on the disk.

        Returns:
            Its file.

        Raises:
            DatasetError: If the episode contradicts itself.
        """
        table = to_table(episode)
        if not self._index_is_current:
            self._begin_writing()
        path = self._next_path()
        with durable_file(path) as temporary:
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                use_dictionary=[TASK_KEY],
                write_statistics=False,
                write_page_checksum=True,
            )
        row = _row(path, episode)
        with (self.directory / INDEX_NAME).open("a", encoding="utf-8") as file:
            file.write(_line(row))
        self._rows.append(row)
        return path

    def rebuild_index(self) -> None:
        """Write the index anew from the episode files."""
        self._rows, self.damaged = [], {}
        for path in sorted(self.directory.glob("episode-*.parquet")):
            try:
                self._rows.append(_row_of_file(path))
            except DatasetError as error:
                self.damaged[path.name] = str(error)
        self._write_index()

    def _begin_writing(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.glob(f"{TEMPORARY_PREFIX}*"):
            if time.time() - path.stat().st_mtime > STALE_AFTER_S:
                path.unlink(missing_ok=True)
        self._write_index()

    def _write_index(self) -> None:
        with durable_file(self.directory / INDEX_NAME) as temporary:
            temporary.write_text("".join(map(_line, self._rows)), encoding="utf-8")
        self._index_is_current = True

    def _next_path(self) -> Path:
        names = [*self.files, *self.damaged]
        number = max((int(name.split("-")[1].split(".")[0]) for name in names), default=-1) + 1
        while (path := self.directory / f"episode-{number:08d}.parquet").exists():
            number += 1
        return path


def _row_of_file(path: Path) -> dict[str, Any]:
    """Read one file without its observations, and describe it."""
    try:
        columns = ["action", "next.reward"]
        table = pq.read_table(path, columns=columns, page_checksum_verification=True, partitioning=None)
        return _row(path, from_table(table, keep_observation=False))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DatasetError(f"it cannot be read: {error}") from error


def _row(path: Path, episode: Episode) -> dict[str, Any]:
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "env_id": episode.env_id,
        "start": asdict(episode.start),
        "length": episode.length,
        "decisions": len(episode.decision),
        "return": _plain(episode.return_),
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "metrics": {name: _plain(figure) for name, figure in episode.metrics.items()},
    }


def _plain(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


def _number(figure: float | None) -> float:
    return math.nan if figure is None else figure


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _read_index(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of an index; the files are the truth, so what is torn or odd is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            Start(**row["start"])
            rows.append({**row, "file": str(row["file"]), "bytes": int(row["bytes"])})
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def _ends_whole(path: Path) -> bool:
    return path.exists() and path.read_bytes()[-1:] in (b"\n", b"")
