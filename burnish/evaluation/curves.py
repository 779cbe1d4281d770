"""Learning curves from the ``metrics.jsonl`` of one or several runs: what to draw, without drawing it."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array

FILE_NAME = "metrics.jsonl"
"""What a run writes, one JSON object for each iteration."""
PROGRESS = ("env_steps", "steps", "iteration")
"""Entries that say how far a run is, the preferred one first; a prefix such as ``collect/`` is allowed."""


@dataclass(frozen=True)
class Curve:
    """One figure over the course of training."""

    name: str
    """Entry of the log."""
    progress: str
    """What ``x`` counts."""
    x: Array
    """(P,) increasing."""
    middle: Array
    """(P,) mean over runs, or running mean of one."""
    low: Array
    """(P,) lower edge of the band."""
    high: Array
    """(P,) upper edge of the band."""
    band: str
    """What the band is, in words."""


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's log; a last line that was cut off in writing is left out.

    Args:
        run: Run folder, or the file.

    Raises:
        DatasetError: If there is no log, or a line before the last is damaged.
    """
    file = run / FILE_NAME if run.is_dir() else run
    if not file.is_file():
        raise DatasetError(f"There is no training log at '{file}'. A run folder of `burnish train` has one.")
    rows: list[dict[str, Any]] = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for i, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if i == len(lines) - 1:
                break
            raise DatasetError(f"'{file}' line {i + 1} is not JSON: {error}.") from error
    return rows


def learning_curves(runs: Sequence[Path], names: Collection[str]) -> list[Curve]:
    """Return one curve for each named figure that the runs logged.

    Several runs give their mean and the range from the worst to the best run; one run gives a running mean and its
    standard error band.

    Args:
        runs: Run folders that differ in their seed only.
        names: Figures; one matches an entry whose path ends in it, such as ``collect/success``.
    """
    logs = [read_log(run) for run in runs]
    if not logs or not all(logs):
        return []
    keys = list(dict.fromkeys(key for log in logs for row in log for key in row))
    progress = _progress(keys)
    chosen = [key for key in keys if _last(key) in names and _numeric(key, logs)]
    curves = (_curve(key, progress, logs) for key in chosen if progress)
    return [curve for curve in curves if curve is not None]


def _last(key: str) -> str:
    return key.rsplit("/", 1)[-1]


def _progress(keys: Sequence[str]) -> str:
    return next((key for name in PROGRESS for key in keys if _last(key) == name), "")


def _numeric(key: str, logs: Sequence[Sequence[dict[str, Any]]]) -> bool:
    return any(isinstance(row.get(key), (int, float)) for log in logs for row in log)


def _curve(key: str, progress: str, logs: Sequence[Sequence[dict[str, Any]]]) -> Curve | None:
    tracks = [track for log in logs if len(track := _track(key, progress, log)) > 1]
    if not tracks:
        return None
    if len(tracks) == 1:
        x, y = tracks[0].T
        middle, spread = running_mean(y, max(1, len(y) // 20))
        return Curve(key, progress, x, middle, middle - spread, middle + spread, "running mean and its standard error")
    first = max(track[0, 0] for track in tracks)
    last = min(track[-1, 0] for track in tracks)
    x = np.unique(np.concatenate([track[:, 0] for track in tracks]))
    x = x[(x >= first) & (x <= last)]
    if len(x) < 2:
        return None
    table = np.stack([np.interp(x, *track.T) for track in tracks])
    band = f"mean and range of {len(tracks)} runs"
    return Curve(key, progress, x, table.mean(0), table.min(0), table.max(0), band)


def _track(key: str, progress: str, log: Sequence[dict[str, Any]]) -> Array:
    points = {
        float(row[progress]): float(row[key])
        for row in log
        if isinstance(row.get(key), (int, float)) and progress in row and math.isfinite(row[key])
    }
    return np.array(sorted(points.items())).reshape(-1, 2)


def running_mean(sample: Array, half_width: int) -> tuple[Array, Array]:
    """Return the mean of each point's neighbours (P,), up to ``half_width`` away, and its standard error (P,)."""
    middle, error = np.zeros(len(sample)), np.zeros(len(sample))
    for i in range(len(sample)):
        near = sample[max(0, i - half_width) : i + half_width + 1]
        middle[i] = near.mean()
        error[i] = near.std(ddof=1) / math.sqrt(len(near)) if len(near) > 1 else 0.0
    return middle, error
