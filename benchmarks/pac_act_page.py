"""Turn the evaluations and logs of benchmarks/pac_act.py into docs/results/pac_act.md and pac_act.json."""

from collections.abc import Mapping
from pathlib import Path

from result_pages import Group, cell, cost_of, figure_table, latency, read_group, seeds_missing, success_by_seed

from burnish.evaluation.compare import Comparison
from burnish.evaluation.result import number
from burnish.evaluation.results import MetricResult, ResultFile, git_commit, metric_results

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


def write_page(
    folder: Path, docs: Path, ablations: Mapping[str, tuple[str, str]], command: str, wanted: int
) -> tuple[Path, Path]:
    """Write the page and its JSON from what is in the experiment's folder.

    Args:
        folder: Of the experiment.
        docs: docs/results.
        ablations: Name of an ablation on contour to what it is, and to the base's evaluation under the same protocol.
        command: What makes the page again.
        wanted: Seeds of each task that the experiment is to have; fewer are said on the page.
    """
    groups = [group for task in GOALS if (group := read_group(folder / task, task)) is not None]
    metrics: dict[str, MetricResult] = {}
    notes = seeds_missing(groups, wanted)
    for group in groups:
        comparison = group.comparison
        metrics |= metric_results(comparison, group.name, GOALS[group.name], NAMES[group.name])
        notes.append((f"{group.name}: {comparison.seeds} seeds, {comparison.pairs} pairs", _figures(group, comparison)))
    others = {
        name: read_group(folder / "contour", "contour", f"{name}-seed", before)
        for name, (_, before) in ablations.items()
    }
    found = {name: group for name, group in others.items() if group is not None}
    if groups and found:
        notes.append(("Ablations on contour", _ablations(groups[0], found, ablations)))
    notes.append(("Latency", latency(groups)))
    everything = [*groups, *found.values()]
    page = ResultFile(
        name="pac_act",
        title="PAC-ACT on industrial contact",
        command=command,
        commit=git_commit(docs),
        seeds=list(range(max(len(group.after) for group in groups))),
        protocol={group.name: dict(group.before.protocol) for group in groups},
        cost=cost_of(everything, folder / "logs"),
        metrics=metrics,
        notes=notes,
    )
    return page.write(docs)


def _figures(group: Group, comparison: Comparison) -> str:
    warnings = [f"- {text}" for text in comparison.warnings]
    return "\n".join([figure_table(comparison, FIGURES), "", success_by_seed(group), "", *warnings])


def _ablations(main: Group, found: Mapping[str, Group], ablations: Mapping[str, tuple[str, str]]) -> str:
    lines = [
        "| run | seeds | success before | success | coverage | peak force [N] | share above 60 N | what to mind |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    rows = [("the recipe", "dense reward, behaviour prior, all its iterations", main)]
    rows += [(name, ablations[name][0], group) for name, group in found.items()]
    for name, text, group in rows:
        comparison = group.comparison
        cells = [
            cell(comparison.metric(figure).after) for figure in ("success", "coverage", "peak_force", "share_above_60N")
        ]
        before = number(comparison.metric("success").before.value)
        shortcut = "; ".join(item.name for item in comparison.metrics if item.verdict == "misleading")
        minded = f"misleading: {shortcut}" if shortcut else ""
        lines.append(f"| {name}: {text} | {len(group.after)} | {before} | {' | '.join(cells)} | {minded} |")
    return "\n".join(lines)
