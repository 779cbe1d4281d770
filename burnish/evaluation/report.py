"""One HTML file that shows what an evaluation found: it needs no network, no script and no other file."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from burnish.core.errors import ConfigError
from burnish.core.packages import versions
from burnish.core.spec import Array, MetricSpec, fingerprint
from burnish.data.durable import durable_text
from burnish.evaluation import figures
from burnish.evaluation.compare import Comparison, MetricComparison, compare_seeds, p_text
from burnish.evaluation.curves import learning_curves
from burnish.evaluation.result import OWN_METRICS, EvaluationResult, number, reading_order
from burnish.evaluation.statistics import Estimate
from burnish.evaluation.videos import Video

TEMPLATE = "templates/report.html.j2"
"""Package data."""
PACKAGES = ("burnish", "mujoco", "torch", "lerobot", "numpy", "scipy", "gymnasium")
"""Whose versions the report prints."""
MOST_TILES = 4
"""Figures at the head of the page."""
MOST_HISTOGRAMS = 4
"""Histograms on the page."""


@dataclass(frozen=True)
class Films:
    """Videos of one side."""

    before: Sequence[Video] = ()
    """Of the policy before."""
    after: Sequence[Video] = ()
    """Of the policy after, or of the only one."""


def write_report(
    file: Path,
    after: Sequence[EvaluationResult],
    *,
    before: Sequence[EvaluationResult] = (),
    runs: Sequence[Path] = (),
    films: Films | None = None,
    commands: Sequence[str] = (),
    title: str = "",
) -> Path:
    """Write a report about one evaluation, or about two that are compared.

    Args:
        file: The HTML file; an older one is replaced at once or not at all.
        after: One result, or one for each training seed.
        before: What to compare with: none, one, or one for each seed.
        runs: Run folders whose learning curves are shown; several give a band.
        films: Videos, which are embedded.
        commands: What reproduces the numbers, one command each.
        title: Heading; made from the environment when empty.

    Returns:
        The file.

    Raises:
        CheckError: If the protocols differ.
        ConfigError: If there is no result.
    """
    durable_text(file, render(after, before=before, runs=runs, films=films, commands=commands, title=title))
    return file


def render(
    after: Sequence[EvaluationResult],
    *,
    before: Sequence[EvaluationResult] = (),
    runs: Sequence[Path] = (),
    films: Films | None = None,
    commands: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return the report as HTML text; see :func:`write_report`."""
    if not after:
        raise ConfigError("A report needs at least one evaluation, found none.")
    comparison = compare_seeds(before, after) if before else None
    result = after[0]
    films = films or Films()
    text = (files("burnish.evaluation") / TEMPLATE).read_text(encoding="utf-8")
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(text)
    return template.render(
        title=title or f"Evaluation of {result.protocol['env']}",
        result=result,
        episodes=len(result.episodes),
        seeds=len(after),
        comparison=comparison,
        tiles=_tiles(after, comparison),
        rows=_comparison_rows(comparison) if comparison else _rows(result),
        seed_rows=_seed_rows(comparison) if comparison else [],
        warnings=comparison.warnings if comparison else list(dict.fromkeys(a for item in after for a in item.alarms)),
        tasks_figure=Markup(figures.tasks_figure(comparison.tasks)) if comparison and len(comparison.tasks) > 1 else "",
        curves=_curves(runs, result),
        histograms=_histograms(before, after),
        films=[
            (label, [_film(video, result) for video in side])
            for label, side in (("before", films.before), ("after" if before else "", films.after))
            if side
        ],
        cost=_cost(before, after),
        protocol=_flat(result.protocol),
        fingerprint=fingerprint(result.protocol),
        policies=[("before", before[0].policy), ("after", result.policy)] if before else [("policy", result.policy)],
        versions={**result.protocol.get("versions", {}), **versions(PACKAGES)},
        commands=commands,
    )


def figure_text(value: float, spec: MetricSpec) -> str:
    """Return a figure with its unit: a flag in percent, everything else as it is."""
    if not math.isfinite(value):
        return "none"
    if spec.kind == "binary" and not spec.per:
        return f"{100 * value:.1f} %"
    return _minus(f"{number(value)} {spec.unit}".strip())


def _interval(estimate: Estimate, spec: MetricSpec) -> str:
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    if spec.kind == "binary" and not spec.per:
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f}"
    return _minus(f"{number(estimate.low)} to {number(estimate.high)}")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _difference(item: MetricComparison) -> tuple[str, str]:
    value, spec = item.difference, item.spec
    flag = spec.kind == "binary" and not spec.per
    if not math.isfinite(value.value):
        return "", ""
    scale, unit = (100.0, "points") if flag else (1.0, spec.unit)
    sign = "+" if value.value > 0 else "\N{MINUS SIGN}" if value.value < 0 else ""
    size = f"{abs(scale * value.value):.1f}" if flag else number(abs(value.value))
    ends = [
        f"{scale * end:+.1f}" if flag else f"{'+' if end > 0 else ''}{number(end)}" for end in (value.low, value.high)
    ]
    return f"{sign}{size} {unit}".strip(), _minus(" to ".join(ends))


def _comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for item in comparison.metrics:
        change, change_interval = _difference(item)
        rows.append(
            {
                "name": item.name,
                "description": item.spec.description,
                "beside": item.spec.beside,
                "before": figure_text(item.before.value, item.spec),
                "before_interval": _interval(item.before, item.spec),
                "after": figure_text(item.after.value, item.spec),
                "after_interval": _interval(item.after, item.spec),
                "difference": change,
                "difference_interval": change_interval,
                "p": p_text(item.p_value),
                "test": item.test,
                "verdict": item.verdict,
            }
        )
    return rows


def _seed_rows(comparison: Comparison) -> list[dict[str, Any]]:
    share = MetricSpec("binary")
    return [
        {
            "name": item.name,
            "figures": [
                (figure_text(figure.value, spec), _interval(figure, spec))
                for figure, spec in ((item.before, item.spec), (item.after, item.spec), (item.improvement, share))
            ],
        }
        for item in comparison.over_seeds
    ]


def _rows(result: EvaluationResult) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": result.metric_specs[name].description,
            "beside": result.metric_specs[name].beside,
            "after": figure_text(result.metrics[name].value, result.metric_specs[name]),
            "after_interval": _interval(result.metrics[name], result.metric_specs[name]),
            "count": result.metrics[name].count,
        }
        for name in reading_order(result.metrics, result.metric_specs)
    ]


def _tiles(after: Sequence[EvaluationResult], comparison: Comparison | None) -> list[dict[str, str]]:
    specs = after[0].metric_specs
    names = _headline([name for name, estimate in after[0].metrics.items() if math.isfinite(estimate.value)], specs)
    tiles = []
    for name in names:
        if comparison is None:
            estimate = after[0].metrics[name]
            tile = {"before": "", "factor": "", "verdict": ""}
        else:
            item = comparison.metric(name)
            estimate, factor = item.after, item.factor
            times = factor is not None and factor.value >= 1.995 and item.verdict == "better"
            tile = {
                "before": figure_text(item.before.value, item.spec),
                "factor": f"{factor.value:.1f}\N{MULTIPLICATION SIGN} better" if times and factor else "",
                "verdict": item.verdict,
            }
        tiles.append(
            {
                "name": name.replace("_", " "),
                "after": figure_text(estimate.value, specs[name]),
                "interval": _interval(estimate, specs[name]),
                **tile,
            }
        )
    return tiles


def _headline(names: Sequence[str], specs: Mapping[str, MetricSpec]) -> list[str]:
    """Return the figures that say most: success, what others are read beside, then those; one share per denominator."""
    beside = {other for spec in specs.values() for other in spec.beside}
    shares: dict[str, str] = {}
    for name in names:
        if specs[name].per:
            shares.setdefault(specs[name].per, name)
    kept = [
        name
        for name in names
        if name not in OWN_METRICS and specs[name].better and shares.get(specs[name].per, name) == name
    ]
    kept.sort(key=lambda name: (name != "success", name not in beside, -len(specs[name].beside), not specs[name].per))
    return kept[:MOST_TILES]


def _curves(runs: Sequence[Path], result: EvaluationResult) -> dict[str, Any]:
    curves = learning_curves(runs, {*result.metric_specs, "return", "success"})[:6] if runs else []
    if not curves:
        return {}
    return {"svg": Markup(figures.curves_figure(curves)), "band": "; ".join(dict.fromkeys(c.band for c in curves))}


def _histograms(before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]) -> Any:
    def readings(side: Sequence[EvaluationResult], name: str) -> Array:
        sample = np.concatenate([item.column(name) for item in side])
        kept: Array = sample[np.isfinite(sample)]
        return kept

    rows: list[tuple[str, str, Array | None, Array]] = []
    specs = after[0].metric_specs
    names = [name for name, spec in specs.items() if spec.kind == "mean" and not spec.per]
    for name in sorted(names, key=lambda name: (name in OWN_METRICS, -len(specs[name].beside), not specs[name].unit)):
        second = readings(after, name)
        first = readings(before, name) if before else None
        if (
            second.size
            and (first is None or first.size)
            and np.ptp(np.concatenate([second, second[:1] if first is None else first]))
        ):
            rows.append((name, specs[name].unit, first, second))
    return Markup(figures.histograms_figure(rows[:MOST_HISTOGRAMS])) if rows else ""


def _film(video: Video, result: EvaluationResult) -> dict[str, Any]:
    shown = [
        f"{name.replace('_', ' ')} {figure_text(video.metrics[name], spec)}"
        for name, spec in result.metric_specs.items()
        if name in video.metrics and name != "success" and spec.kind == "mean" and not spec.per
    ]
    return {
        "data": base64.b64encode(video.file.read_bytes()).decode(),
        "type": video.media_type,
        "success": video.success,
        "task": video.start.task,
        "start": f"init {video.start.init}, seed {video.start.seed}",
        "seconds": f"{video.length * result.protocol['control_dt']:.1f} s",
        "figures": shown[:3],
    }


def _cost(before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]) -> list[dict[str, Any]]:
    rows = []
    for label, side in (("before", before), ("after", after)):
        if not side:
            continue
        rows.append(
            {
                "label": label if before else "this evaluation",
                "env_steps": f"{sum(item.cost.env_steps for item in side):,}",
                "rendered_steps": f"{sum(item.cost.rendered_steps for item in side):,}",
                "cpu": f"{sum(item.cost.cpu_seconds for item in side):,.1f} s",
                "wall": f"{sum(item.cost.wall_seconds for item in side):,.1f} s",
                "p50": f"{np.mean([item.latency.p50_ms for item in side]):.2f} ms",
                "p99": f"{np.mean([item.latency.p99_ms for item in side]):.2f} ms",
                "num_envs": side[0].latency.num_envs,
            }
        )
    return rows


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Return nested JSON values as (dotted path, text)."""
    if isinstance(value, dict) and value:
        return [row for key, item in value.items() for row in _flat(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, (list, tuple)):
        return [(path, ", ".join(str(item) for item in value))]
    return [(path, "" if value == {} else str(value))]
