"""Two evaluations of the same episodes, paired by Start: what changed, how surely, and what only looks better."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from rich.table import Table

from burnish.core.errors import CheckError
from burnish.core.seeding import stream
from burnish.core.spec import Array, MetricSpec
from burnish.evaluation import statistics
from burnish.evaluation.pairs import Pairs, improvement, pair_up
from burnish.evaluation.protocol import check_comparable
from burnish.evaluation.result import EvaluationResult, interval_text, number, reading_order
from burnish.evaluation.seeds import SeedSummary, seeds_table, summarise
from burnish.evaluation.statistics import Estimate, McNemar

SIGNIFICANT = 0.05
"""p-value below which a change is called one."""
LOSS, DOUBTFUL_LOSS = 0.05, 0.10
"""Relative loss of a figure that makes the one read beside it misleading: where significant, and where maybe chance."""

type Verdict = Literal["better", "worse", "changed", "no significant change", "misleading", "no readings"]


@dataclass(frozen=True)
class MetricComparison:
    """One figure before and after."""

    name: str
    """Of the metric."""
    spec: MetricSpec
    """What it means."""
    before: Estimate
    """With its own interval."""
    after: Estimate
    """With its own interval."""
    difference: Estimate
    """After minus before; interval over resampled pairs, and over seeds where there are several."""
    factor: Estimate | None
    """How many times better: after / before, or the inverse where lower is better; None where one is not positive."""
    p_value: float
    """Two-sided; NaN where nothing could be tested."""
    test: str
    """Name of the test."""
    verdict: Verdict
    """"better" only where it is significant and nothing that must be read beside it got worse."""


@dataclass(frozen=True)
class TaskComparison:
    """Success on one task."""

    task: str
    """Name."""
    before: Estimate
    """Success rate."""
    after: Estimate
    """Success rate."""
    mcnemar: McNemar
    """Paired test on the task's episodes."""


@dataclass(frozen=True)
class Comparison:
    """What two evaluations of one protocol say together."""

    protocol: Mapping[str, Any]
    """Of both."""
    pairs: int
    """Episodes of each side, over all seeds."""
    seeds: int
    """Training seeds of the after side."""
    mcnemar: McNemar
    """Successes gained and lost over all pairs; its p-value treats the pairs of several seeds as independent."""
    metrics: tuple[MetricComparison, ...]
    """In the order in which they should be read."""
    tasks: tuple[TaskComparison, ...]
    """Success by task."""
    warnings: tuple[str, ...]
    """What to mind, in words; shortcuts first."""
    over_seeds: tuple[SeedSummary, ...] = ()
    """Every figure that has a better direction, over seeds; empty where there is one."""
    seeds_before: int = 1
    """Training seeds of the before side; 1 where all seeds started from one policy."""

    def metric(self, name: str) -> MetricComparison:
        """Return one figure by name.

        Raises:
            KeyError: If it was not compared.
        """
        return {item.name: item for item in self.metrics}[name]

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "pairs": self.pairs,
            "seeds": self.seeds,
            "gained": self.mcnemar.gained,
            "lost": self.mcnemar.lost,
            "warnings": list(self.warnings),
            "metrics": {item.name: _metric_to_plain(item) for item in self.metrics},
            "over_seeds": {item.name: item.to_plain() for item in self.over_seeds},
            "tasks": {
                item.task: {
                    "before": item.before.to_plain(),
                    "after": item.after.to_plain(),
                    "p_value": item.mcnemar.p_value,
                }
                for item in self.tasks
            },
            "protocol": dict(self.protocol),
        }

    def tables(self) -> list[Table]:
        """Return the comparison for a terminal: figures over all pairs, and over seeds where there are several."""
        over_seeds = [seeds_table(self.over_seeds, self.seeds_before, self.seeds)] if self.over_seeds else []
        return [self.table(), *over_seeds]

    def table(self) -> Table:
        """Return the figures over all pairs for a terminal."""
        title = f"{self.protocol['env']}: {self.pairs} pairs, {self.mcnemar.gained} gained, {self.mcnemar.lost} lost"
        table = Table(title=title, title_justify="left")
        for label in ("metric", "unit", "before", "after", "difference", "95 % interval", "p", "verdict"):
            left = label in ("metric", "unit", "verdict")
            table.add_column(label, justify="left" if left else "right", no_wrap=label == "metric")
        for item in self.metrics:
            table.add_row(
                item.name,
                item.spec.unit,
                number(item.before.value),
                number(item.after.value),
                number(item.difference.value),
                interval_text(item.difference),
                p_text(item.p_value),
                item.verdict,
            )
        return table


def compare(before: EvaluationResult, after: EvaluationResult, *, seed: int = 0) -> Comparison:
    """Compare two evaluations of the same episodes.

    Args:
        before: For example of the pretrained policy.
        after: For example of the post-trained one.
        seed: Of the bootstrap and the permutations.

    Raises:
        CheckError: If their protocols differ; lists every difference.
    """
    return compare_seeds([before], [after], seed=seed)


def compare_seeds(
    before: Sequence[EvaluationResult], after: Sequence[EvaluationResult], *, seed: int = 0
) -> Comparison:
    """Compare several training seeds, each evaluated on the same episodes.

    Intervals then resample seeds and Starts; tests swap whole Starts, with all their seeds.

    Args:
        before: One result that all seeds started from, or one for each seed.
        after: One result for each seed.
        seed: Of the bootstrap and the permutations.

    Raises:
        CheckError: If a protocol differs, or the numbers of results do not fit.
    """
    if not after or len(before) not in (1, len(after)):
        raise CheckError(
            f"A comparison over seeds needs one result before, or one for each after; found {len(before)} before and "
            f"{len(after)} after."
        )
    for other in (*before[1:], *after):
        check_comparable(before[0].protocol, other.protocol)
    specs = {name: spec for name, spec in after[0].metric_specs.items() if name in after[0].metrics}
    order = reading_order(specs, after[0].metric_specs)
    first = [_sorted(item) for item in before]
    second = [_sorted(item) for item in after]
    items = tuple(_compare_metric(name, specs[name], first, second, stream(seed, "compare", name)) for name in order)
    items, warnings = _read_beside(items, first, second)
    warnings += [
        f"{side}: {alarm}"
        for side, results in (("before", before), ("after", after))
        for alarm in dict.fromkeys(alarm for item in results for alarm in item.alarms)
    ]
    flags = _success(first, len(after)), _success(second, len(after))
    tasks = np.array([row.start.task for row in first[0].episodes])
    return Comparison(
        protocol=before[0].protocol,
        pairs=flags[1].size,
        seeds=len(after),
        mcnemar=statistics.mcnemar(flags[0].ravel(), flags[1].ravel()),
        metrics=items,
        tasks=tuple(_compare_task(task, tasks == task, *flags) for task in dict.fromkeys(tasks.tolist())),
        warnings=tuple(warnings),
        over_seeds=tuple(
            summarise(name, specs[name], first, second, stream(seed, "compare over seeds", name))
            for name in order
            if specs[name].better and len(after) > 1
        ),
        seeds_before=len(before),
    )


def p_text(p_value: float) -> str:
    """Return a p-value as people write it."""
    if math.isnan(p_value):
        return ""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _sorted(result: EvaluationResult) -> EvaluationResult:
    return replace(result, episodes=tuple(sorted(result.episodes, key=lambda row: row.start)))


def _success(results: Sequence[EvaluationResult], seeds: int) -> Array:
    flags = np.array([[row.success for row in item.episodes] for item in results])
    return np.broadcast_to(flags, (seeds, flags.shape[1]))


def _compare_task(task: str, where: Array, before: Array, after: Array) -> TaskComparison:
    first, second = before[:, where].ravel(), after[:, where].ravel()
    return TaskComparison(
        task,
        statistics.wilson(int(first.sum()), first.size),
        statistics.wilson(int(second.sum()), second.size),
        statistics.mcnemar(first, second),
    )


def _compare_metric(
    name: str,
    spec: MetricSpec,
    before: Sequence[EvaluationResult],
    after: Sequence[EvaluationResult],
    generator: np.random.Generator,
) -> MetricComparison:
    pairs = pair_up(name, spec, before, after)
    seeds, starts = pairs.numerator_after.shape
    first, second = pairs.whole()
    count = int(((pairs.denominator_before > 0) | (pairs.denominator_after > 0)).sum())
    factor = float(improvement(np.array(first), np.array(second), spec))
    if spec.kind == "binary" and not spec.per and seeds == 1:
        kept = pairs.denominator_after[0] > 0
        p_value = statistics.mcnemar(
            pairs.numerator_before[0, kept] > 0.5, pairs.numerator_after[0, kept] > 0.5
        ).p_value
        test = "exact McNemar"
    else:
        above = np.concatenate([pairs.numerator_before.sum(0), pairs.numerator_after.sum(0)])
        below = np.concatenate([pairs.denominator_before.sum(0), pairs.denominator_after.sum(0)])
        measured = math.isfinite(first) and math.isfinite(second)
        p_value = (
            statistics.paired_permutation(lambda index: statistics.ratio(above, below, index), starts, generator)
            if measured
            else math.nan
        )
        test = "paired permutation" if seeds == 1 else "paired permutation of Starts"
    difference = Estimate(second - first, *pairs.interval(lambda a, b: b - a, generator), count)
    factors = pairs.interval(lambda a, b: improvement(a, b, spec), generator)
    return MetricComparison(
        name=name,
        spec=spec,
        before=_estimate(name, before, first, pairs, 0, generator),
        after=_estimate(name, after, second, pairs, 1, generator),
        difference=difference,
        factor=Estimate(factor, *factors, count) if math.isfinite(factor) else None,
        p_value=p_value,
        test=test,
        verdict=_verdict(spec, difference, p_value, several=seeds > 1),
    )


def _estimate(
    name: str,
    results: Sequence[EvaluationResult],
    value: float,
    pairs: Pairs,
    side: int,
    generator: np.random.Generator,
) -> Estimate:
    if len(results) == 1:
        return results[0].metrics[name]
    limits = pairs.interval(lambda *figures: figures[side], generator)
    return Estimate(value, *limits, pairs.numerator_after.size)


def _verdict(spec: MetricSpec, difference: Estimate, p_value: float, *, several: bool) -> Verdict:
    if math.isnan(difference.value):
        return "no readings"
    inside = several and difference.low <= 0 <= difference.high
    if not p_value < SIGNIFICANT or inside:
        return "no significant change"
    if not spec.better:
        return "changed"
    return "better" if (difference.value > 0) == (spec.better == "higher") else "worse"


def _gain(item: MetricComparison) -> float:
    """Return by how much a figure got better, 0 where neither direction is."""
    sign = {"higher": 1.0, "lower": -1.0, "": 0.0}[item.spec.better]
    return sign * item.difference.value


def _worse(item: MetricComparison) -> bool:
    bound = LOSS if item.verdict == "worse" else DOUBTFUL_LOSS
    return -_gain(item) > bound * abs(item.before.value) > 0


def _read_beside(
    items: tuple[MetricComparison, ...], before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]
) -> tuple[tuple[MetricComparison, ...], list[str]]:
    """Name gains that come from doing less of what is measured, and gains that may be chance."""
    by_name = {item.name: item for item in items}
    shortcuts: list[str] = []
    chance: list[str] = []
    judged: list[MetricComparison] = []
    for item in items:
        unread = math.isfinite(item.before.value) and not math.isfinite(item.after.value)
        gained = _gain(item) > 0
        lost = [by_name[name] for name in item.spec.beside if name in by_name and _worse(by_name[name])]
        reasons = [f"'{other.name}' went {_from_to(other)}" for other in lost]
        guarded = any(by_name[name].verdict == "better" for name in item.spec.beside if name in by_name)
        if item.spec.per and not guarded:
            first, second = (_per_step(side, item.spec.per) for side in (before, after))
            if second < 0.5 * first:
                reasons.append(
                    f"its readings ('{item.spec.per}') fell from {number(first)} to {number(second)} in each step"
                )
        if unread:
            shortcuts.append(f"'{item.name}' has no readings any more: the policy stopped doing what it measures.")
        elif gained and reasons:
            shortcuts.append(
                f"'{item.name}' improved {_from_to(item)}, but {' and '.join(reasons)}: it must be read beside "
                "that, and does not count as a gain; the policy may avoid what is measured."
            )
        elif gained and item.verdict == "no significant change":
            chance.append(
                f"'{item.name}' went {_from_to(item)}, which is not a significant gain on {item.difference.count} "
                f"pairs (p = {p_text(item.p_value)})."
            )
        misleading = unread or (gained and bool(reasons) and item.verdict == "better")
        judged.append(replace(item, verdict="misleading") if misleading else item)
    return tuple(judged), shortcuts + chance


def _per_step(results: Sequence[EvaluationResult], name: str) -> float:
    """Return readings per executed action, since an episode that succeeds sooner also has fewer."""
    readings = sum(float(np.nansum(item.column(name))) for item in results)
    return readings / max(1, sum(row.length for item in results for row in item.episodes))


def _from_to(item: MetricComparison) -> str:
    unit = f" {item.spec.unit}" if item.spec.unit else ""
    return f"from {number(item.before.value)} to {number(item.after.value)}{unit}"


def _metric_to_plain(item: MetricComparison) -> dict[str, Any]:
    return {
        "unit": item.spec.unit,
        "better": item.spec.better,
        "before": item.before.to_plain(),
        "after": item.after.to_plain(),
        "difference": item.difference.to_plain(),
        "factor": item.factor.to_plain() if item.factor else None,
        "p_value": None if math.isnan(item.p_value) else item.p_value,
        "test": item.test,
        "verdict": item.verdict,
        "description": item.spec.description,
        "beside": list(asdict(item.spec)["beside"]),
    }
