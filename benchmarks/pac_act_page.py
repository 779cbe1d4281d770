"""Turn the evaluations and logs of benchmarks/pac_act.py into docs/results/pac_act.md and pac_act.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.evaluation.compare import Comparison, compare_seeds, p_text
from burnish.evaluation.result import EvaluationResult, number
from burnish.evaluation.results import Cost, MetricResult, ResultFile, evaluation_cost, git_commit, metric_results
from burnish.evaluation.statistics import Estimate

FIGURES = ("success", "coverage", "peak_force", "share_above_60N", "share_above_30N", "impulse", "cycle_time")
GOALS = {
    "contour": {"success": 0.95, "share_above_60N_factor": 46.0, "coverage": 0.95},
    "touch": {"success": 0.95},
    "peg_insert": {"success": 0.95},
}
NAMES = {
    "contour": ("success", "coverage", "share_above_60N", "share_above_60N_factor", "peak_force"),
    "touch": ("success", "coverage", "share_above_60N", "peak_force"),
    "peg_insert": ("success", "coverage", "share_above_60N", "peak_force"),
}


@dataclass(frozen=True)
class Group:
    """One base policy and what training made of it over several seeds."""

    name: str
    """Task, or task and ablation."""
    before: EvaluationResult
    after: tuple[EvaluationResult, ...]
    runs: tuple[Path, ...]
    """Run folders of the seeds."""

    @property
    def comparison(self) -> Comparison:
        """Paired by Start, intervals over seeds and Starts."""
        return compare_seeds([self.before], list(self.after))


def read_group(folder: Path, task: str, prefix: str) -> Group | None:
    """Return the finished seeds ``<prefix><n>`` of a task, or None where there is none."""
    base = folder / task / "base/evaluations/default/evaluation.json"
    runs = [path for path in sorted((folder / task).glob(f"{prefix}[0-9]*")) if _evaluation(path).is_file()]
    if not base.is_file() or not runs:
        return None
    after = tuple(EvaluationResult.load(_evaluation(path)) for path in runs)
    return Group(task, EvaluationResult.load(base), after, tuple(runs))


def write_page(folder: Path, docs: Path, ablations: Mapping[str, str], command: str, wanted: int) -> tuple[Path, Path]:
    """Write the page and its JSON from what is in the experiment's folder.

    Args:
        folder: Of the experiment.
        docs: docs/results.
        ablations: Name of an ablation on contour to what it is.
        command: What makes the page again.
        wanted: Seeds of each task that the experiment is to have; fewer are said on the page.
    """
    groups = [group for task in GOALS if (group := read_group(folder, task, "seed")) is not None]
    metrics: dict[str, MetricResult] = {}
    short = [f"{group.name} {len(group.after)}" for group in groups if len(group.after) < wanted]
    notes: list[tuple[str, str]] = []
    if short:
        text = f"Of {wanted} training seeds there are so far: {', '.join(short)}. The command goes on with the rest."
        notes.append(("Not finished", text))
    for group in groups:
        comparison = group.comparison
        metrics |= metric_results(comparison, group.name, GOALS[group.name], NAMES[group.name])
        notes.append((f"{group.name}: {comparison.seeds} seeds, {comparison.pairs} pairs", _table(group, comparison)))
    others = {name: read_group(folder, "contour", f"{name}-seed") for name in ablations}
    found = {name: group for name, group in others.items() if group is not None}
    if groups and found:
        notes.append(("Ablations on contour", _ablations(groups[0], found, ablations)))
    notes.append(("Latency", _latency(groups)))
    everything = [*groups, *found.values()]
    page = ResultFile(
        name="pac_act",
        title="PAC-ACT on industrial contact",
        command=command,
        commit=git_commit(docs),
        seeds=list(range(max(len(group.after) for group in groups))),
        protocol={group.name: dict(group.before.protocol) for group in groups},
        cost=evaluation_cost([item for group in everything for item in group.after], _training_cost(everything)),
        metrics=metrics,
        notes=notes,
    )
    return page.write(docs)


def _evaluation(run: Path) -> Path:
    return run / "evaluations/default/evaluation.json"


def _cell(estimate: Estimate) -> str:
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def _table(group: Group, comparison: Comparison) -> str:
    lines = ["| figure | unit | before | after | difference | p | verdict |", "|---|---|---:|---:|---:|---:|---|"]
    for name in FIGURES:
        item = comparison.metric(name)
        lines.append(
            f"| {name} | {item.spec.unit} | {_cell(item.before)} | {_cell(item.after)} | {_cell(item.difference)} "
            f"| {p_text(item.p_value)} | {item.verdict} |"
        )
    seeds = ", ".join(f"{run.name} {result.metrics['success'].value:.2f}" for run, result in _pairs(group))
    return "\n".join([*lines, "", f"Success by seed: {seeds}.", "", *(f"- {text}" for text in comparison.warnings)])


def _pairs(group: Group) -> list[tuple[Path, EvaluationResult]]:
    return list(zip(group.runs, group.after, strict=True))


def _ablations(main: Group, found: Mapping[str, Group], ablations: Mapping[str, str]) -> str:
    lines = [
        "| run | seeds | success | coverage | peak force [N] | share above 60 N | what to mind |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    rows = [
        ("before", "the base policy", [main.before]),
        ("the recipe", "dense reward, behaviour prior", list(main.after)),
    ]
    rows += [(name, ablations[name], list(group.after)) for name, group in found.items()]
    for name, text, results in rows:
        comparison = compare_seeds([main.before], results) if name != "before" else None
        cells = [
            _cell(comparison.metric(figure).after if comparison else main.before.metrics[figure])
            for figure in ("success", "coverage", "peak_force", "share_above_60N")
        ]
        shortcut = (
            "; ".join(item.name for item in comparison.metrics if item.verdict == "misleading") if comparison else ""
        )
        minded = f"misleading: {shortcut}" if shortcut else ""
        lines.append(f"| {name}: {text} | {len(results)} | {' | '.join(cells)} | {minded} |")
    return "\n".join(lines)


def _latency(groups: Sequence[Group]) -> str:
    lines = ["| task | before p50 [ms] | after p50 [ms] | change |", "|---|--:|--:|--:|"]
    for group in groups:
        before = group.before.latency.p50_ms
        after = sorted(item.latency.p50_ms for item in group.after)[len(group.after) // 2]
        lines.append(f"| {group.name} | {before:.2f} | {after:.2f} | {100 * (after / before - 1):+.1f} % |")
    text = (
        "Median time of one answer for 16 environments at once, from the evaluations; the median seed stands for after."
    )
    return "\n".join([text, "", *lines])


def _training_cost(groups: Sequence[Group]) -> Cost:
    steps, seconds = 0, 0.0
    for run in (run for group in groups for run in group.runs):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps += int(rows[-1]["env_steps"])
        seconds += sum(row["time/collect"] + row["time/label"] + row["time/update"] for row in rows)
    return Cost(env_steps=steps, rendered_steps=0, cpu_hours=seconds / 3600)
