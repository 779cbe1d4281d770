"""Estimates with intervals and paired tests, as pure functions over arrays; scipy computes wherever it can.

References: Wilson (1927) for proportions; Efron (1987) for the BCa bootstrap; Agarwal et al. (2108.13264) for the
interquartile mean, the stratified bootstrap and the probability of improvement; McNemar (1947), exact form.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from burnish.core.errors import CheckError
from burnish.core.spec import Array

CONFIDENCE = 0.95
"""Level of every interval unless a caller says otherwise."""
RESAMPLES = 4000
"""Bootstrap resamples; the Monte Carlo error of a 95 % limit is then below 3 % of the interval's width."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float
    """The point estimate; NaN where there was no reading."""
    low: float
    """Lower limit; NaN where one reading or none gives no interval."""
    high: float
    """Upper limit; NaN where one reading or none gives no interval."""
    count: int
    """How many readings (episodes, pairs or seeds) it rests on."""

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values; what is not finite becomes None."""
        return {
            "value": _finite(self.value),
            "interval": [_finite(self.low), _finite(self.high)],
            "count": self.count,
        }

    @staticmethod
    def from_plain(value: dict[str, Any]) -> "Estimate":
        """Rebuild an estimate from :meth:`to_plain`."""
        low, high = (math.nan if item is None else float(item) for item in value["interval"])
        point = math.nan if value["value"] is None else float(value["value"])
        return Estimate(point, low, high, int(value["count"]))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return a proportion with Wilson's score interval.

    Raises:
        CheckError: If there are more successes than trials, or a negative number.
    """
    if not 0 <= successes <= trials:
        raise CheckError(f"A proportion needs 0 <= successes <= trials; found {successes} of {trials}.")
    if trials == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Estimate(successes / trials, float(interval.low), float(interval.high), trials)


def mean(sample: Array, generator: np.random.Generator, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of ``sample`` (n,) with a BCa bootstrap interval; readings that are NaN are left out."""
    kept = _readings(sample)
    if len(kept) < 2 or np.ptp(kept) == 0:
        return _without_spread(kept)
    interval = stats.bootstrap(
        (kept,), np.mean, n_resamples=RESAMPLES, batch=_batch(len(kept)), confidence_level=confidence, rng=generator
    ).confidence_interval
    return Estimate(float(kept.mean()), float(interval.low), float(interval.high), len(kept))


def interquartile_mean(sample: Array) -> float:
    """Return the mean of the middle half of all values, whatever the shape of ``sample``."""
    kept = _readings(np.ravel(sample))
    return float(stats.trim_mean(kept, 0.25)) if len(kept) else math.nan


def bootstrap(
    statistic: Callable[[Array], Array],
    count: int,
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of any figure of ``count`` independent records.

    Args:
        statistic: Maps record indices (R, n) int64 to figures (R,); a resample that defines none gives NaN and is left
            out.
        count: Number of records n.
        generator: Draws the resamples.
        confidence: Level.
    """
    if count < 2:
        return math.nan, math.nan

    def by_index(index: Array, axis: int = -1) -> Array:
        del axis  # scipy always passes -1 and keeps the records last
        return statistic(index.astype(np.int64))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # NaN resamples are left out below
        drawn = stats.bootstrap(
            (np.arange(count),),
            by_index,
            n_resamples=RESAMPLES,
            batch=_batch(count),
            confidence_level=confidence,
            method="percentile",
            rng=generator,
        ).bootstrap_distribution
    return _quantiles(drawn, confidence)


def ratio_of_sums(
    numerator: Array, denominator: Array, generator: np.random.Generator, confidence: float = CONFIDENCE
) -> Estimate:
    """Return sum(numerator) / sum(denominator), both (n,), with an interval from resampled episodes.

    A share of readings is such a ratio: episodes with more readings weigh more, and those without any do not count
    as good ones. NaN where the denominator sums to 0.
    """
    numerator, denominator = _complete(numerator, denominator)
    low, high = bootstrap(lambda index: ratio(numerator, denominator, index), len(numerator), generator, confidence)
    value = float(ratio(numerator, denominator, np.arange(len(numerator))[None])[0])
    return Estimate(value, low, high, len(numerator))


def ratio(numerator: Array, denominator: Array, index: Array) -> Array:
    """Return sums of ``numerator`` over sums of ``denominator`` of the records ``index`` (R, n), as (R,)."""
    return divide(numerator[index].sum(-1), denominator[index].sum(-1))


def divide(above: Array, below: Array) -> Array:
    """Return ``above / below``, NaN where ``below`` is not positive."""
    return np.where(below > 0, above / np.where(below > 0, below, 1), np.nan)


def stratified_bootstrap(
    strata: Sequence[Array], generator: np.random.Generator, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the interquartile mean over all strata together, resampling runs inside each stratum.

    Args:
        strata: For each task (S,) scores, one for each seed; what is resampled is the seed (2108.13264, section 4).
        generator: Draws the resamples.
        confidence: Level.
    """
    kept = [_readings(item) for item in strata]
    every = np.concatenate(kept) if kept else np.zeros(0)
    if len(every) == 0 or any(len(item) < 2 for item in kept) or all(np.ptp(item) == 0 for item in kept):
        value = interquartile_mean(every)
        spread = value if kept and all(len(item) > 1 for item in kept) else math.nan
        return Estimate(value, spread, spread, len(every))

    def pooled(*samples: Array, axis: int = -1) -> Any:
        return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    interval = stats.bootstrap(
        kept,
        pooled,
        n_resamples=RESAMPLES,
        batch=_batch(len(every)),
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=generator,
    ).confidence_interval
    return Estimate(interquartile_mean(every), float(interval.low), float(interval.high), len(every))


def crossed_bootstrap(
    statistic: Callable[[Array, Array], Array],
    seeds: int,
    starts: int,
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
) -> tuple[float, float]:
    """Return the interval of a figure over training seeds that were all evaluated on the same Starts.

    Seeds and Starts are both resampled, since both are a sample of what could have been; with one seed only the Starts
    are. scipy resamples along one axis only, hence the draws here.

    Args:
        statistic: Maps how often each seed (R, S) and each Start (R, E) was drawn to figures (R,).
        seeds: Number of seeds S.
        starts: Number of Starts E.
        generator: Draws the resamples.
        confidence: Level.
    """
    if starts < 2:
        return math.nan, math.nan
    drawn_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)
    drawn_starts = generator.multinomial(starts, np.full(starts, 1 / starts), RESAMPLES)
    return _quantiles(statistic(drawn_seeds.astype(float), drawn_starts.astype(float)), confidence)


@dataclass(frozen=True)
class McNemar:
    """Exact paired comparison of two success flags."""

    gained: int
    """Pairs that failed before and succeed after."""
    lost: int
    """Pairs that succeeded before and fail after."""
    p_value: float
    """Two-sided; 1 where no pair changed."""


def mcnemar(before: Array, after: Array) -> McNemar:
    """Return McNemar's exact test of paired flags (n,): a binomial test on the pairs that changed.

    Raises:
        CheckError: If the two have different lengths.
    """
    if np.shape(before) != np.shape(after):
        raise CheckError(
            f"A paired comparison needs one reading of each for every Start; found {np.shape(before)} before and "
            f"{np.shape(after)} after."
        )
    first, second = np.asarray(before, bool), np.asarray(after, bool)
    gained, lost = int((~first & second).sum()), int((first & ~second).sum())
    p_value = float(stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    return McNemar(gained, lost, p_value)


def paired_permutation(statistic: Callable[[Array], Array], count: int, generator: np.random.Generator) -> float:
    """Return the two-sided p-value of a change, by swapping before and after within pairs.

    Args:
        statistic: Maps record indices (..., n) to a figure (...,); records 0..n-1 are before, n..2n-1 after, in order.
        count: Number of pairs n.
        generator: Draws the swaps; with few pairs all of them are enumerated instead.
    """
    if count < 1:
        return math.nan
    if count == 1:
        return 1.0  # one pair can be swapped or not, and both changes are as large

    def change(first: Array, second: Array, axis: int = -1) -> Array:
        del axis
        return np.nan_to_num(statistic(second.astype(np.int64)) - statistic(first.astype(np.int64)))

    result = stats.permutation_test(
        (np.arange(count), np.arange(count) + count),
        change,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_batch(2 * count),
        rng=generator,
    )
    return float(min(result.pvalue, 1.0))


def probability_of_improvement(
    before: Sequence[Array], after: Sequence[Array], generator: np.random.Generator, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the probability that a run after scores more than one before, averaged over strata (2108.13264, eq. 1).

    Args:
        before: For each task (m,) scores, one for each seed; NaN is left out, and so is a task that then has none.
        after: For each of these tasks (n,) scores.
        generator: Draws the resamples, of both sides inside each stratum.
        confidence: Level.

    Returns:
        The share of pairs in which ``after`` is larger, ties counting half; without an interval where a side has one
        run. The count is that of runs on both sides.
    """
    strata = [(_readings(x), _readings(y)) for x, y in zip(before, after, strict=True)]
    strata = [(x, y) for x, y in strata if len(x) and len(y)]
    if not strata:
        return Estimate(math.nan, math.nan, math.nan, 0)
    wins = [np.sign(y[None] - x[:, None]) / 2 + 0.5 for x, y in strata]
    value = float(np.mean([item.mean() for item in wins]))
    count = max(len(x) for x, _ in strata) + max(len(y) for _, y in strata)
    if any(len(side) < 2 for pair in strata for side in pair):
        return Estimate(value, math.nan, math.nan, count)
    drawn = np.zeros(RESAMPLES)
    for item in wins:
        rows, columns = (generator.multinomial(n, np.full(n, 1 / n), RESAMPLES) / n for n in item.shape)
        drawn += ((rows @ item) * columns).sum(1) / len(wins)
    return Estimate(value, *_quantiles(drawn, confidence), count)


def _readings(sample: Array) -> Array:
    plain: Array = np.asarray(sample, np.float64)
    kept: Array = plain[~np.isnan(plain)]
    return kept


def _complete(*samples: Array) -> tuple[Array, ...]:
    plain = np.stack([np.asarray(item, np.float64) for item in samples])
    return tuple(plain[:, ~np.isnan(plain).any(0)])


def _without_spread(kept: Array) -> Estimate:
    value = float(kept.mean()) if len(kept) else math.nan
    limit = value if len(kept) > 1 else math.nan
    return Estimate(value, limit, limit, len(kept))


def _quantiles(drawn: Array, confidence: float) -> tuple[float, float]:
    usable = drawn[~np.isnan(drawn)]
    if len(usable) == 0:
        return math.nan, math.nan
    low, high = np.quantile(usable, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _batch(count: int) -> int:
    return max(1, 2_000_000 // count)
