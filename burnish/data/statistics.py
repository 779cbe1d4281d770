"""Statistics per key, as normalisation needs them and as ``meta/stats.json`` of a LeRobotDataset holds them.

Every entry is a flat list with one float per feature, or per colour channel of an image, whose values are scaled to
[0, 1] as LeRobot scales them. ``std`` is that of the population (divided by B, not B - 1).
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.core.errors import DatasetError
from burnish.core.spec import Array
from burnish.data.durable import durable_file

type KeyStatistics = dict[str, list[float]]
type Statistics = dict[str, KeyStatistics]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""Names and levels of the quantiles, LeRobot's."""
NEEDED = ("mean", "std", "min", "max")
"""Entries that every key has."""
IMAGE_SAMPLES = 512
"""At most so many images, evenly spaced, are looked at."""


def array_statistics(array: Array) -> KeyStatistics:
    """Return statistics over the first axis of an array (B, ...), flattened to (B, D).

    Raises:
        DatasetError: If the array is empty.
    """
    flat = np.asarray(array).reshape(len(array), -1).astype(np.float64) if len(array) else np.empty((0, 0))
    if not flat.size:
        raise DatasetError(f"Statistics need at least one sample, found an array of shape {np.shape(array)}.")
    quantile = np.quantile(flat, list(QUANTILES.values()), axis=0)
    return {
        "mean": flat.mean(axis=0).tolist(),
        "std": flat.std(axis=0).tolist(),
        "min": flat.min(axis=0).tolist(),
        "max": flat.max(axis=0).tolist(),
        "count": [float(len(flat))],
        **{name: row.tolist() for name, row in zip(QUANTILES, quantile, strict=True)},
    }


def image_statistics(image: Array, *, samples: int = IMAGE_SAMPLES) -> KeyStatistics:
    """Return statistics per colour channel, scaled to [0, 1], of uint8 images (B, H, W, C).

    Args:
        image: The images.
        samples: At most so many of them, evenly spaced, are looked at.

    Raises:
        DatasetError: If there is no image.
    """
    if not len(image):
        raise DatasetError(f"Statistics need at least one image, found an array of shape {image.shape}.")
    index = np.unique(np.linspace(0, len(image) - 1, min(samples, len(image))).round().astype(np.int64))
    channel = np.asarray(image[index]).reshape(-1, image.shape[-1])
    level = np.arange(256) / 255.0
    columns: dict[str, list[float]] = {name: [] for name in (*NEEDED, *QUANTILES)}
    for c in range(channel.shape[1]):
        count = np.bincount(channel[:, c], minlength=256)
        share = count / count.sum()
        mean = float(share @ level)
        columns["mean"].append(mean)
        columns["std"].append(math.sqrt(float(share @ (level - mean) ** 2)))
        present = np.flatnonzero(count)
        columns["min"].append(float(level[present[0]]))
        columns["max"].append(float(level[present[-1]]))
        cumulative = np.cumsum(count)
        for name, q in QUANTILES.items():
            columns[name].append(float(level[np.searchsorted(cumulative, q * cumulative[-1])]))
    return {**columns, "count": [float(len(index))]}


def dataset_statistics(column: Mapping[str, Array]) -> Statistics:
    """Return statistics of every key of a dataset; uint8 (B, H, W, C) entries count as images."""
    return {
        key: image_statistics(array) if array.dtype == np.uint8 and array.ndim == 4 else array_statistics(array)
        for key, array in column.items()
    }


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of several datasets together; quantiles, which do not add up, are left out.

    With counts n_i, means m_i and deviations s_i: m = sum n_i m_i / n, s^2 = sum n_i (s_i^2 + (m_i - m)^2) / n.

    Raises:
        DatasetError: If the parts have other keys or sizes, or no count.
    """
    if not parts:
        raise DatasetError("Nothing to merge: no statistics were given.")
    merged: Statistics = {}
    for key in parts[0]:
        for part in parts:
            if key not in part or "count" not in part[key] or len(part[key]["mean"]) != len(parts[0][key]["mean"]):
                raise DatasetError(
                    f"Statistics of '{key}' cannot be merged: every part needs a 'count' and "
                    f"{len(parts[0][key]['mean'])} entries. Keys of a part: {', '.join(part)}."
                )
        count = np.array([part[key]["count"][0] for part in parts])
        weight = (count / count.sum())[:, None]
        mean, std = (np.array([part[key][name] for part in parts]) for name in ("mean", "std"))
        center = (weight * mean).sum(axis=0)
        merged[key] = {
            "mean": center.tolist(),
            "std": np.sqrt((weight * (std**2 + (mean - center) ** 2)).sum(axis=0)).tolist(),
            "min": np.min([part[key]["min"] for part in parts], axis=0).tolist(),
            "max": np.max([part[key]["max"] for part in parts], axis=0).tolist(),
            "count": [float(count.sum())],
        }
    return merged


def write_statistics(path: Path, statistics: Statistics) -> None:
    """Write statistics as JSON; floats come back exactly."""
    with durable_file(path) as temporary:
        temporary.write_text(json.dumps(statistics, indent=1, allow_nan=False), encoding="utf-8")


def read_statistics(path: Path) -> Statistics:
    """Read :func:`write_statistics`, or the ``meta/stats.json`` of a LeRobotDataset.

    Raises:
        DatasetError: If the file is missing, not JSON, or an entry is missing or of another size.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DatasetError(f"There is no statistics file {path}.") from error
    except ValueError as error:
        raise DatasetError(f"{path} is not JSON: {error}.") from error
    return statistics_from_json(plain, str(path))


def statistics_from_json(plain: Any, where: str) -> Statistics:
    """Check JSON values and flatten their entries.

    Args:
        plain: Key to name of a figure to a (nested) list of numbers.
        where: Where they come from, for messages.

    Raises:
        DatasetError: If an entry is missing, not a number, not finite, or of another size.
    """
    if not isinstance(plain, Mapping):
        raise DatasetError(f"{where}: expected a JSON object of keys, found {type(plain).__name__}.")
    checked: Statistics = {}
    for key, entry in plain.items():
        missing = [name for name in NEEDED if not isinstance(entry, Mapping) or name not in entry]
        if missing:
            raise DatasetError(f"{where}: the statistics of '{key}' lack {', '.join(missing)}.")
        try:
            flat = {name: np.asarray(value, np.float64).reshape(-1) for name, value in entry.items()}
        except (TypeError, ValueError) as error:
            raise DatasetError(f"{where}: the statistics of '{key}' are not all numbers: {error}.") from error
        for name, value in flat.items():
            if not np.isfinite(value).all():
                raise DatasetError(f"{where}: '{name}' of '{key}' is not finite: {value.tolist()}.")
            if name != "count" and value.shape != flat["mean"].shape:
                raise DatasetError(
                    f"{where}: '{name}' of '{key}' has {value.size} entries, 'mean' has {flat['mean'].size}."
                )
        checked[key] = {name: value.tolist() for name, value in flat.items()}
    return checked
