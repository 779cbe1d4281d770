"""What a wrist force-torque sensor reports, and the figures an episode is judged by; pure functions of readings."""

from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array, MetricSpec


class LowPass:
    """First-order low-pass filter over blocks of readings: y[t] = a y[t-1] + (1 - a) x[t], a = exp(-2 pi f dt)."""

    def __init__(self, cutoff_hz: float, dt: float, block: int) -> None:
        """Prepare a filter.

        Args:
            cutoff_hz: Cut-off frequency f [Hz].
            dt: Time between readings [s].
            block: Readings per call T.
        """
        a = float(np.exp(-2.0 * np.pi * cutoff_hz * dt))
        lag = np.arange(block)[:, None] - np.arange(block)[None, :]
        self._kernel = np.where(lag >= 0, (1.0 - a) * a ** np.maximum(lag, 0), 0.0)
        self._memory = a ** (np.arange(block)[:, None] + 1.0)

    def __call__(self, reading: Array, last: Array) -> Array:
        """Filter readings (T, D) after the last filtered value (D,); returns (T, D)."""
        filtered: Array = self._kernel @ reading + self._memory * last
        return filtered


@dataclass(frozen=True)
class Readings:
    """What one control step saw, T readings at the physics rate; forces are tared and free of sensor noise."""

    tcp: Array
    """(T, 4) tool centre point x, y, z [m] and yaw [rad] in the true fixture frame."""
    raw: Array
    """(T,) force magnitude [N]."""
    filtered: Array
    """(T,) force magnitude behind the low-pass filter [N]."""
    contact: Array
    """(T,) bool, tool and fixture touch."""

    def in_band(self, low: float, high: float) -> Array:
        """(T,) bool, in contact with a filtered force inside [low, high] [N]."""
        inside: Array = self.contact & (self.filtered >= low) & (self.filtered <= high)
        return inside


def check_force_band(env: str, low: float, high: float, limit: float) -> None:
    """Refuse a force band that cannot be: low and high are its ends, limit is what must never be reached, all [N].

    Raises:
        ConfigError: Names the environment and what was found.
    """
    if not 0.0 < low < high < limit:
        raise ConfigError(f"{env} needs 0 < force_low < force_high < force_limit, found {low}, {high}, {limit}.")


@dataclass
class ForceRecord:
    """Running force figures of one episode."""

    dt: float
    """Time between readings [s]."""
    peak: float = 0.0
    """Largest raw force [N]."""
    peak_filtered: float = 0.0
    """Largest filtered force [N]."""
    contact: int = 0
    """Readings in contact."""
    above_60: int = 0
    """Readings in contact whose filtered force exceeds 60 N."""
    above_30: int = 0
    """Readings in contact whose filtered force exceeds 30 N."""
    impulse: float = 0.0
    """Integral of the raw contact force over time [N s]."""

    def add(self, readings: Readings) -> None:
        """Account for one control step."""
        contact = readings.contact
        self.peak = max(self.peak, float(readings.raw.max()))
        self.peak_filtered = max(self.peak_filtered, float(readings.filtered.max()))
        if contact.any():
            filtered = readings.filtered[contact]
            self.contact += len(filtered)
            self.above_60 += int(np.count_nonzero(filtered > 60.0))
            self.above_30 += int(np.count_nonzero(filtered > 30.0))
            self.impulse += float(readings.raw[contact].sum()) * self.dt

    def metrics(self) -> dict[str, float]:
        """Return the figures under their names in :data:`FORCE_METRICS`."""
        return {
            "peak_force": self.peak,
            "peak_force_filtered": self.peak_filtered,
            "share_above_60N": float(self.above_60),
            "share_above_30N": float(self.above_30),
            "contact_readings": float(self.contact),
            "impulse": self.impulse,
        }


_BESIDE = ("coverage", "success")

FORCE_METRICS: dict[str, MetricSpec] = {
    "peak_force": MetricSpec("mean", "N", "lower", beside=_BESIDE, description="Largest raw force of the episode."),
    "peak_force_filtered": MetricSpec(
        "mean", "N", "lower", beside=_BESIDE, description="Largest low-passed force of the episode."
    ),
    "share_above_60N": MetricSpec(
        "count",
        "",
        "lower",
        per="contact_readings",
        beside=_BESIDE,
        description="Share of in-contact readings with a low-passed force above 60 N.",
    ),
    "share_above_30N": MetricSpec(
        "count",
        "",
        "lower",
        per="contact_readings",
        beside=_BESIDE,
        description="Share of in-contact readings with a low-passed force above 30 N.",
    ),
    "contact_readings": MetricSpec("count", "", "", description="Force readings while tool and fixture touch."),
    "impulse": MetricSpec("mean", "N s", "", beside=_BESIDE, description="Time integral of the contact force."),
}
"""Force figures never stand alone: a tool that does not touch has none, so coverage and success go beside them."""


def force_penalty(filtered: Array, threshold: float) -> float:
    """Return the mean over readings (T,) of max(0, F - threshold) / threshold, each at most 2."""
    return float(np.minimum(np.maximum(filtered - threshold, 0.0) / threshold, 2.0).mean())
