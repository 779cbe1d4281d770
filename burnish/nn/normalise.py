"""Affine normalisation of vectors: normalised = (raw - mean) / scale, from statistics or from limits."""

from collections.abc import Iterable, Mapping

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array, ArraySpec

MIN_SCALE = 1e-6
"""A recorded standard deviation below this means a constant entry: its limits, or 1, give the scale instead."""

type Statistics = Mapping[str, Mapping[str, list[float]]]
"""Per key: "mean", "std", "min" and "max", as in ``meta/stats.json`` of a LeRobotDataset."""


def affine(key: str, spec: ArraySpec, statistics: Statistics | None) -> tuple[Array, Array]:
    """Return (mean, scale) of one vector, float32 (D,) each.

    Recorded mean and standard deviation come first; without them the spec's scale is used, or finite limits are mapped
    to [-1, 1]; entries without any stay as they are.

    Args:
        key: Name of the vector in ``statistics``.
        spec: Its shape (D,) and limits.
        statistics: Recorded statistics, or None.

    Raises:
        ConfigError: If the statistics have another size or are not finite.
    """
    low, high = spec.bounds()
    limited = np.isfinite(low) & np.isfinite(high) & (high > low)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(limited, (low + high) / 2, 0.0)
        scale = np.where(limited, (high - low) / 2, 1.0)
    if spec.scale is not None:
        scale = np.broadcast_to(np.asarray(spec.scale, float), spec.shape)
    if statistics is not None and key in statistics:
        recorded_mean, recorded_std = (_vector(key, name, spec, statistics) for name in ("mean", "std"))
        varies = recorded_std > MIN_SCALE
        scale = np.where(varies, recorded_std, scale)
        mean = recorded_mean
    return mean.astype(np.float32), scale.astype(np.float32)


def affine_of(
    keys: Iterable[str], specs: Mapping[str, ArraySpec], statistics: Statistics | None
) -> tuple[Array, Array]:
    """Return (mean, scale) of several vectors one after the other, float32 (sum of D,) each."""
    parts = [affine(key, specs[key], statistics) for key in keys]
    if not parts:
        return np.zeros(0, np.float32), np.ones(0, np.float32)
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([scale for _, scale in parts])


def _vector(key: str, name: str, spec: ArraySpec, statistics: Statistics) -> Array:
    found = statistics[key].get(name)
    vector = np.asarray(found if found is not None else [], np.float64).reshape(-1)
    if vector.shape != spec.shape or not np.isfinite(vector).all():
        raise ConfigError(
            f"Statistics of '{key}': '{name}' must be {spec.shape[0]} finite numbers, found {found!r}. "
            "Take them from a dataset with the same features, or leave them out to normalise by the limits."
        )
    return vector


class RunningMoments:
    """Mean and variance of all vectors seen so far, merged batch by batch in float64 (Chan et al., 1983)."""

    def __init__(self, size: int) -> None:
        """Begin with no vectors of ``size`` entries."""
        self.count = 0
        self.mean: Array = np.zeros(size)
        self.variance: Array = np.zeros(size)

    def update(self, batch: Array) -> None:
        """Take in a batch (B, D)."""
        rows = np.asarray(batch, np.float64)
        if not len(rows):
            return
        total = self.count + len(rows)
        delta = rows.mean(0) - self.mean
        weight = len(rows) / total
        self.variance = (
            self.variance * (1 - weight) + rows.var(0) * weight + delta * delta * weight * (self.count / total)
        )
        self.mean = self.mean + delta * weight
        self.count = total
