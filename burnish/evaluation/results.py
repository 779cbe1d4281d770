"""Results as files: ``docs/results/<name>.{md,json}`` and ``benchmarks/results/<name>.json``, never written by hand."""

import json
import math
import os
import platform
import statistics as plain_statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from burnish.core.errors import ConfigError
from burnish.core.packages import versions
from burnish.data.durable import durable_text
from burnish.evaluation.compare import Comparison
from burnish.evaluation.result import EvaluationResult, number

PACKAGES = ("burnish", "mujoco", "torch", "lerobot", "gymnasium", "numpy", "scipy")
"""Whose versions a result records."""


@dataclass(frozen=True)
class MetricResult:
    """One figure of a result, and what it was to be."""

    before: float | None
    """Of the policy before; None where there is none."""
    after: float | None
    """Of the policy after; None where there was no reading."""
    interval: tuple[float | None, float | None]
    """95 % interval of ``after``."""
    goal: float | None = None
    """What was aimed at; None where nothing was."""
    unit: str = ""
    """SI unit, "" for none."""
    better: Literal["higher", "lower"] = "higher"
    """Which side of the goal is good."""

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None where there is none or no reading."""
        if self.goal is None or self.after is None:
            return None
        return self.after >= self.goal if self.better == "higher" else self.after <= self.goal


@dataclass(frozen=True)
class Cost:
    """What a result cost."""

    env_steps: int
    """Executed actions, training and evaluation."""
    rendered_steps: int
    """Rendered observations."""
    cpu_hours: float
    """CPU time [h]."""


@dataclass(frozen=True)
class ResultFile:
    """Everything that a page of results says."""

    name: str
    """File name without suffix, for example ``pac_act``."""
    title: str
    """Heading of the page."""
    command: str
    """The one committed command that writes the page."""
    commit: str
    """Revision it ran at."""
    seeds: Sequence[int]
    """Training seeds."""
    protocol: Mapping[str, Any]
    """Of the evaluations; from :func:`burnish.evaluation.protocol.protocol_of`, or one for each task by name."""
    cost: Cost
    """Steps and hours."""
    metrics: Mapping[str, MetricResult]
    """Figures by name, for example ``success.contour``."""
    versions: Mapping[str, str] = field(default_factory=lambda: versions(PACKAGES))
    """Installed versions of what matters."""
    notes: Sequence[tuple[str, str]] = ()
    """Further sections as (heading, markdown text): ablations, what failed and why."""

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON values of ``docs/results/<name>.json``."""
        return {
            "command": self.command,
            "commit": self.commit,
            "versions": dict(self.versions),
            "seeds": list(self.seeds),
            "protocol": dict(self.protocol),
            "cost": {
                "env_steps": self.cost.env_steps,
                "rendered_steps": self.cost.rendered_steps,
                "cpu_hours": round(self.cost.cpu_hours, 4),
            },
            "metrics": {
                name: {
                    "before": item.before,
                    "after": item.after,
                    "interval": list(item.interval),
                    "goal": item.goal,
                    "unit": item.unit,
                }
                for name, item in self.metrics.items()
            },
        }

    def to_markdown(self) -> str:
        """Return the page; its first line names the command."""
        lines = [f"<!-- Written by: {self.command} -->", "", f"# {self.title}", ""]
        lines += ["| metric | before | after | 95 % interval | goal | reached |", "|---|---:|---:|---:|---:|---|"]
        lines += [_markdown_row(name, item) for name, item in self.metrics.items()]
        for heading, text in self.notes:
            lines += ["", f"## {heading}", "", text.strip()]
        seeds = ", ".join(str(seed) for seed in self.seeds) or "none"
        lines += [
            "",
            "## How this was measured",
            "",
            f"- Command: `{self.command}`",
            f"- Commit: `{self.commit}`",
            f"- Seeds: {seeds}",
            f"- Cost: {self.cost.env_steps:,} environment steps, {self.cost.rendered_steps:,} of them rendered; "
            f"{self.cost.cpu_hours:.2f} CPU hours",
            f"- Versions: {', '.join(f'{name} {version}' for name, version in self.versions.items())}",
            "",
            "Protocol:",
            "",
            "```json",
            json.dumps(dict(self.protocol), indent=2),
            "```",
            "",
        ]
        return "\n".join(lines)

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write ``<name>.md`` and ``<name>.json``; returns both.

        Raises:
            ConfigError: If a figure is NaN or infinite, which JSON cannot hold.
        """
        page, data = directory / f"{self.name}.md", directory / f"{self.name}.json"
        text = _json_text(self.to_plain(), self.name)
        durable_text(page, self.to_markdown())
        durable_text(data, text)
        return page, data


def metric_results(
    comparison: Comparison, suffix: str, goals: Mapping[str, float], names: Sequence[str] = ("success",)
) -> dict[str, MetricResult]:
    """Return figures of a comparison under the names that results use, ``<metric>.<suffix>``.

    A name ``<metric>_factor`` gives how many times better the metric became; its ``before`` is 1.

    Args:
        comparison: From :func:`burnish.evaluation.compare.compare_seeds`.
        suffix: Task, for example ``contour``.
        goals: Goal by name without suffix.
        names: Which figures.
    """
    found: dict[str, MetricResult] = {}
    for name in names:
        is_factor = name.endswith("_factor")
        item = comparison.metric(name.removesuffix("_factor"))
        estimate = item.factor if is_factor else item.after
        found[f"{name}.{suffix}"] = MetricResult(
            before=1.0 if is_factor else _finite(item.before.value),
            after=None if estimate is None else _finite(estimate.value),
            interval=(None, None) if estimate is None else (_finite(estimate.low), _finite(estimate.high)),
            goal=goals.get(name),
            unit="" if is_factor else item.spec.unit,
            better="lower" if item.spec.better == "lower" and not is_factor else "higher",
        )
    return found


def evaluation_cost(results: Sequence[EvaluationResult], training: Cost | None = None) -> Cost:
    """Return the cost of evaluations, added to that of training."""
    base = training or Cost(0, 0, 0.0)
    return Cost(
        env_steps=base.env_steps + sum(item.cost.env_steps for item in results),
        rendered_steps=base.rendered_steps + sum(item.cost.rendered_steps for item in results),
        cpu_hours=base.cpu_hours + sum(item.cost.cpu_seconds for item in results) / 3600,
    )


def machine() -> dict[str, Any]:
    """Return what a reader must know about this machine; nothing that identifies it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": cores,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class BenchmarkResult:
    """Medians of interleaved measurements of ours and of peers."""

    name: str
    """File name without suffix."""
    command: str
    """The command that writes the file."""
    ours: Sequence[float]
    """Our measurements."""
    peers: Mapping[str, Sequence[float]]
    """Measurements of others, by name, taken in turn with ours."""
    unit: str
    """Of the measurements, for example ``CPU s``."""
    goal: float
    """Ratio aimed at."""
    better: Literal["higher", "lower"] = "lower"
    """Whether small measurements (times) or large ones (rates) are good."""
    machine: Mapping[str, Any] = field(default_factory=machine)
    """Where it ran."""

    @property
    def ratio(self) -> float:
        """How many times better ours is than the best peer, from medians."""
        ours = plain_statistics.median(self.ours)
        peers = [plain_statistics.median(sample) for sample in self.peers.values()]
        return min(peers) / ours if self.better == "lower" else ours / max(peers)

    def to_plain(self) -> dict[str, Any]:
        """Return the JSON values of ``benchmarks/results/<name>.json``."""
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "ours": plain_statistics.median(self.ours),
            "peers": {name: plain_statistics.median(sample) for name, sample in self.peers.items()},
            "ratio": self.ratio,
            "goal": self.goal,
            "unit": self.unit,
            "rounds": len(self.ours),
        }

    def write(self, directory: Path) -> Path:
        """Write ``<name>.json``; returns the file.

        Raises:
            ConfigError: If there is no measurement, or one is not finite.
        """
        if not self.ours or not self.peers or not all(self.peers.values()):
            raise ConfigError(f"Benchmark '{self.name}' needs measurements of ours and of at least one peer.")
        file = directory / f"{self.name}.json"
        durable_text(file, _json_text(self.to_plain(), self.name))
        return file


def git_commit(directory: Path) -> str:
    """Return the revision of the work tree at ``directory``, with ``-dirty`` where tracked files differ; "" if none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _json_text(plain: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(plain, indent=2, allow_nan=False) + "\n"
    except ValueError as error:
        raise ConfigError(
            f"Result '{name}' holds a figure that is NaN or infinite: {error}. Use None instead."
        ) from error


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _text(value: float | None) -> str:
    return "" if value is None else number(value)


def _markdown_row(name: str, item: MetricResult) -> str:
    low, high = item.interval
    interval = "" if low is None or high is None else f"{number(low)} to {number(high)}"
    reached = {True: "yes", False: "no", None: ""}[item.reached]
    sign = {"higher": "&ge;", "lower": "&le;"}[item.better]
    goal = "" if item.goal is None else f"{sign} {number(item.goal)}"
    label = f"`{name}`" + (f" [{item.unit}]" if item.unit else "")
    return f"| {label} | {_text(item.before)} | {_text(item.after)} | {interval} | {goal} | {reached} |"
