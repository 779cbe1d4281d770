"""What several training seeds say together: interquartile means and the probability of improvement (2108.13264)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from burnish.core.spec import Array, MetricSpec
from burnish.evaluation import statistics
from burnish.evaluation.pairs import columns
from burnish.evaluation.result import EvaluationResult, interval_text, number
from burnish.evaluation.statistics import Estimate


@dataclass(frozen=True)
class SeedSummary:
    """One figure over training seeds; what is averaged is a seed's figure on a task, not an episode's."""

    name: str
    """Of the metric."""
    spec: MetricSpec
    """What it means."""
    before: Estimate
    """Interquartile mean over seeds and tasks; without an interval where there is one seed."""
    after: Estimate
    """Interquartile mean over seeds and tasks."""
    improvement: Estimate
    """Probability that a seed after is better than one before, averaged over tasks; ties count half."""

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "interquartile_mean": {"before": self.before.to_plain(), "after": self.after.to_plain()},
            "probability_of_improvement": self.improvement.to_plain(),
        }


def summarise(
    name: str,
    spec: MetricSpec,
    before: Sequence[EvaluationResult],
    after: Sequence[EvaluationResult],
    generator: np.random.Generator,
) -> SeedSummary:
    """Return one figure over seeds.

    Args:
        name: Of a metric that has a better direction.
        spec: What it means.
        before: One result for each seed, episodes in the same order in all of them.
        after: Likewise.
        generator: Draws the resamples.
    """
    first, second = scores(name, spec, before), scores(name, spec, after)
    sign = -1.0 if spec.better == "lower" else 1.0
    return SeedSummary(
        name,
        spec,
        statistics.stratified_bootstrap(first, generator),
        statistics.stratified_bootstrap(second, generator),
        statistics.probability_of_improvement(
            [sign * item for item in first], [sign * item for item in second], generator
        ),
    )


def scores(name: str, spec: MetricSpec, results: Sequence[EvaluationResult]) -> list[Array]:
    """Return for each task the figure (S,) of each seed on it, NaN where a seed has no reading."""
    above, below = columns(name, spec, results)
    valid = ~(np.isnan(above) | np.isnan(below))
    above, below = np.where(valid, above, 0.0), np.where(valid, below, 0.0)
    tasks = np.array([row.start.task for row in results[0].episodes])
    return [
        statistics.divide(above[:, tasks == task].sum(1), below[:, tasks == task].sum(1))
        for task in dict.fromkeys(tasks.tolist())
    ]


def seeds_table(summaries: Sequence[SeedSummary], before: int, after: int) -> Table:
    """Return summaries for a terminal.

    Args:
        summaries: One for each figure.
        before: Number of seeds before.
        after: Number of seeds after.
    """
    title = f"interquartile mean over {before} {'seed' if before == 1 else 'seeds'} before and {after} after, by task"
    table = Table(title=title, title_justify="left")
    for label in ("metric", "unit", "before", "95 % interval", "after", "95 % interval", "P(better)", "95 % interval"):
        left = label in ("metric", "unit")
        table.add_column(label, justify="left" if left else "right", no_wrap=label == "metric")
    for item in summaries:
        figures = (item.before, item.after, item.improvement)
        cells = [text for figure in figures for text in (number(figure.value), interval_text(figure))]
        table.add_row(item.name, item.spec.unit, *cells)
    return table
