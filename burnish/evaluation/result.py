"""What an evaluation found: one row for each episode, figures with intervals, cost; written and read as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from burnish.core.errors import DatasetError, suggest
from burnish.core.seeding import stream
from burnish.core.spec import Array, MetricSpec, fingerprint
from burnish.core.step import Start
from burnish.data.durable import durable_text
from burnish.evaluation import statistics
from burnish.evaluation.statistics import Estimate

FORMAT = 1
"""Version of the file that :meth:`EvaluationResult.save` writes."""
FILE_NAME = "evaluation.json"
"""What the file is called where a folder is given."""
OWN_METRICS = {
    "return": MetricSpec("mean", better="", description="Sum of rewards of an episode, undiscounted."),
    "length_steps": MetricSpec("mean", unit="steps", description="Executed actions of an episode."),
}
"""Figures that every evaluation has, whatever the environment reports."""


@dataclass(frozen=True)
class EpisodeRow:
    """One finished episode."""

    start: Start
    """Where it began."""
    success: bool
    """Whether it succeeded."""
    return_: float
    """Undiscounted sum of rewards."""
    length: int
    """Executed actions."""
    terminated: bool
    """Whether it ended by its own rules, not by the step limit."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Final figures of the environment; NaN where an episode had no reading."""


@dataclass(frozen=True)
class Cost:
    """What an evaluation cost."""

    env_steps: int
    """Executed actions."""
    rendered_steps: int
    """Observations with camera images that were made for the policy; 0 where it sees none."""
    cpu_seconds: float
    """CPU time of this process and of worker processes that have ended."""
    wall_seconds: float
    """Time that passed."""


@dataclass(frozen=True)
class Latency:
    """How long the policy took to answer for all N environments at once."""

    p50_ms: float
    """Median [ms]."""
    p99_ms: float
    """99th percentile [ms]."""
    decisions: int
    """How many answers were timed."""
    num_envs: int
    """N, observations in each answer."""


@dataclass(frozen=True)
class EvaluationResult:
    """Everything that a comparison, a report and a results file need."""

    protocol: Mapping[str, Any]
    """From :func:`burnish.evaluation.protocol.protocol_of`."""
    metric_specs: Mapping[str, MetricSpec]
    """What each figure means."""
    episodes: tuple[EpisodeRow, ...]
    """One row for each Start, in the order of the Starts."""
    metrics: Mapping[str, Estimate]
    """Figures over all episodes, as their spec says; counts are left out."""
    cost: Cost
    """Steps and seconds."""
    latency: Latency
    """Of the policy."""
    alarms: tuple[str, ...] = ()
    """What looks wrong, in words."""
    seed: int = 0
    """Of the policy's sampling and of the bootstrap."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that name the policy; no part of the protocol."""

    @property
    def fingerprint(self) -> str:
        """Hash of the protocol; numbers are comparable where it is equal."""
        return fingerprint(self.protocol)

    def column(self, name: str) -> Array:
        """Return one reading for each episode, (E,) float64, NaN where there is none.

        Raises:
            DatasetError: If no episode has such a figure.
        """
        return column(self.episodes, name)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "policy": dict(self.policy),
            "seed": self.seed,
            "metrics": {name: item.to_plain() for name, item in self.metrics.items()},
            "alarms": list(self.alarms),
            "cost": asdict(self.cost),
            "latency": asdict(self.latency),
            "protocol": dict(self.protocol),
            "metric_specs": {name: asdict(item) for name, item in self.metric_specs.items()},
            "episodes": [_row_to_plain(row) for row in self.episodes],
        }

    def save(self, path: Path) -> Path:
        """Write the result at once or not at all; a folder gets ``evaluation.json``. Returns the file."""
        file = path / FILE_NAME if path.suffix != ".json" else path
        durable_text(file, json.dumps(self.to_plain(), indent=1, allow_nan=False))
        return file

    @staticmethod
    def load(path: Path) -> "EvaluationResult":
        """Read what :meth:`save` wrote, from the file or its folder.

        Raises:
            DatasetError: If there is no such file, or it is damaged or of another format.
        """
        file = path / FILE_NAME if path.is_dir() else path
        if not file.is_file():
            raise DatasetError(f"There is no evaluation at '{path}'. `burnish eval` writes one as '{FILE_NAME}'.")
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise DatasetError(
                    f"'{file}' has format {plain['format']!r}, and this version of burnish reads {FORMAT}. "
                    "Evaluate again, or use the version that wrote it."
                )
            return _from_plain(plain)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"'{file}' is not a complete evaluation: {type(error).__name__}: {error}. Evaluate again."
            ) from error

    def table(self) -> Table:
        """Return the figures for a terminal, each next to those that it must be read beside."""
        title = f"{self.protocol['env']}: {len(self.episodes)} episodes, {self.protocol['decoding']}"
        table = Table(title=title, title_justify="left")
        for label in ("metric", "value", "95 % interval", "unit"):
            table.add_column(label, justify="left" if label in ("metric", "unit") else "right")
        for name in reading_order(self.metrics, self.metric_specs):
            estimate, spec = self.metrics[name], self.metric_specs[name]
            table.add_row(name, number(estimate.value), interval_text(estimate), spec.unit)
        return table


def aggregate(episodes: Sequence[EpisodeRow], specs: Mapping[str, MetricSpec], seed: int = 0) -> dict[str, Estimate]:
    """Return every figure with its interval, as its spec says.

    "binary" gets Wilson's interval, "mean" a bootstrap over episodes, and a figure ``per`` another one is a ratio of
    sums with a bootstrap over episodes. Readings that are NaN are left out.
    """
    found: dict[str, Estimate] = {}
    for name, spec in specs.items():
        reading = column(episodes, name)
        generator = stream(seed, "interval", name)
        if spec.per:
            found[name] = statistics.ratio_of_sums(reading, column(episodes, spec.per), generator)
        elif spec.kind == "binary":
            kept = reading[~np.isnan(reading)]
            found[name] = statistics.wilson(int((kept > 0.5).sum()), len(kept))
        elif spec.kind == "mean":
            found[name] = statistics.mean(reading, generator)
    return found


def column(episodes: Sequence[EpisodeRow], name: str) -> Array:
    """Return one reading for each episode, (E,) float64, NaN where there is none.

    Raises:
        DatasetError: If no episode has such a figure.
    """
    if any(name in row.metrics for row in episodes):
        return np.array([row.metrics.get(name, math.nan) for row in episodes], np.float64)
    own = {"return": "return_", "length_steps": "length", "success": "success"}
    if name in own:
        return np.array([getattr(row, own[name]) for row in episodes], np.float64)
    known = {key for row in episodes for key in row.metrics} | own.keys()
    raise DatasetError(f"No episode has a figure '{name}'.{suggest(name, known)}")


def reading_order(names: Mapping[str, Any], specs: Mapping[str, MetricSpec]) -> list[str]:
    """Return names so that success comes first and every figure follows those it must be read beside."""
    order: list[str] = []

    def place(name: str) -> None:
        if name not in names or name in order:
            return
        for other in specs[name].beside:
            if name not in specs[other].beside:
                place(other)
        if name not in order:
            order.append(name)

    for name in sorted(names, key=lambda item: (item != "success", item in OWN_METRICS)):
        place(name)
    return order


def number(value: float) -> str:
    """Return a figure with as many digits as it deserves."""
    if not math.isfinite(value):
        return "none"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:.0f}"
    if 1e-6 <= magnitude < 0.01:
        return f"{value:.2g}"  # a share of 0.0004 is not 0.000
    return f"{value:.1f}" if magnitude >= 100 else f"{value:.2f}" if magnitude >= 10 else f"{value:.3f}"


def interval_text(estimate: Estimate) -> str:
    """Return "[low, high]", or "" where there is no interval."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def _row_to_plain(row: EpisodeRow) -> dict[str, Any]:
    return {
        "task": row.start.task,
        "init": row.start.init,
        "seed": row.start.seed,
        "success": row.success,
        "return": _json_number(row.return_),
        "length": row.length,
        "terminated": row.terminated,
        "metrics": {name: _json_number(figure) for name, figure in row.metrics.items()},
    }


def _json_number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _from_json_number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _from_plain(plain: Mapping[str, Any]) -> EvaluationResult:
    specs = {
        name: MetricSpec(**{**item, "beside": tuple(item["beside"])}) for name, item in plain["metric_specs"].items()
    }
    rows = tuple(
        EpisodeRow(
            start=Start(item["task"], item["init"], item["seed"]),
            success=item["success"],
            return_=_from_json_number(item["return"]),
            length=item["length"],
            terminated=item["terminated"],
            metrics={name: _from_json_number(figure) for name, figure in item["metrics"].items()},
        )
        for item in plain["episodes"]
    )
    return EvaluationResult(
        protocol=plain["protocol"],
        metric_specs=specs,
        episodes=rows,
        metrics={name: Estimate.from_plain(item) for name, item in plain["metrics"].items()},
        cost=Cost(**plain["cost"]),
        latency=Latency(**plain["latency"]),
        alarms=tuple(plain["alarms"]),
        seed=plain["seed"],
        policy=plain["policy"],
    )
