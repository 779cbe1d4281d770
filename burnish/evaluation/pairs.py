"""Readings of two sides paired by Start, over one or several seeds: figures, resamples and their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.core.spec import Array, MetricSpec
from burnish.evaluation import statistics
from burnish.evaluation.result import EvaluationResult


@dataclass(frozen=True)
class Pairs:
    """A figure as a ratio of sums; a mean is one whose denominator counts readings. All arrays (S, E)."""

    numerator_before: Array
    denominator_before: Array
    numerator_after: Array
    denominator_after: Array

    def whole(self) -> tuple[float, float]:
        """Return the figure before and after, over all pairs."""
        once = [np.ones((1, count)) for count in self.numerator_after.shape]
        first, second = self.weighted(*once)
        return float(first[0]), float(second[0])

    def weighted(self, seeds: Array, starts: Array) -> tuple[Array, Array]:
        """Return figures before and after (R,) of resamples that drew seeds (R, S) and Starts (R, E) so many times."""

        def total(table: Array) -> Array:
            summed: Array = np.einsum("rs,se,re->r", seeds, table, starts, optimize=True)
            return summed

        return (
            statistics.divide(total(self.numerator_before), total(self.denominator_before)),
            statistics.divide(total(self.numerator_after), total(self.denominator_after)),
        )

    def interval(self, figure: Callable[[Array, Array], Array], generator: np.random.Generator) -> tuple[float, float]:
        """Return the interval of a function of the figures before and after."""
        seeds, starts = self.numerator_after.shape
        if seeds > 1:
            return statistics.crossed_bootstrap(lambda s, e: figure(*self.weighted(s, e)), seeds, starts, generator)

        def drawn(index: Array) -> Array:
            return figure(
                statistics.ratio(self.numerator_before[0], self.denominator_before[0], index),
                statistics.ratio(self.numerator_after[0], self.denominator_after[0], index),
            )

        return statistics.bootstrap(drawn, starts, generator)


def columns(name: str, spec: MetricSpec, results: Sequence[EvaluationResult]) -> tuple[Array, Array]:
    """Return the readings of a figure and what they are summed over, both (S, E), NaN where there is none."""
    above = np.stack([item.column(name) for item in results])
    below = np.stack([item.column(spec.per) for item in results]) if spec.per else np.ones(above.shape)
    return above, below


def pair_up(
    name: str, spec: MetricSpec, before: Sequence[EvaluationResult], after: Sequence[EvaluationResult]
) -> Pairs:
    """Return the readings of a figure, paired; a pair with a reading that is NaN on either side is left out of both.

    Args:
        name: Of the figure.
        spec: What it means.
        before: One result, or one for each seed; episodes sorted by Start.
        after: One result for each seed; episodes sorted by Start.
    """
    sides = [columns(name, spec, side) for side in (before, after)]
    above, below = (
        [np.broadcast_to(item, (len(after), item.shape[1])) for item in tables] for tables in zip(*sides, strict=True)
    )
    valid = ~np.isnan(np.stack([*above, *below])).any(0)
    return Pairs(
        *(np.where(valid, item, 0.0) for pair in zip(above, below, strict=True) for item in pair),
    )


def improvement(before: Array, after: Array, spec: MetricSpec) -> Array:
    """Return how many times better figures (R,) got: after / before, or the inverse; NaN where one is not positive."""
    above, below = (before, after) if spec.better == "lower" else (after, before)
    usable = (above > 0) & (below > 0)
    return np.where(usable, above / np.where(usable, below, 1), np.nan)
