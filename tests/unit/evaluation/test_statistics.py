import math

import numpy as np
import pytest

from burnish.core.errors import CheckError
from burnish.evaluation import statistics
from burnish.evaluation.statistics import Estimate


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def test_wilson_equals_the_formula():
    estimate = statistics.wilson(8, 10)
    z = 1.959963984540054
    centre = (0.8 + z**2 / 20) / (1 + z**2 / 10)
    half = z * math.sqrt(0.8 * 0.2 / 10 + z**2 / 400) / (1 + z**2 / 10)
    assert estimate.value == 0.8
    assert estimate.low == pytest.approx(centre - half)
    assert estimate.high == pytest.approx(centre + half)
    assert estimate.count == 10


def test_wilson_stays_inside_the_unit_interval():
    assert statistics.wilson(0, 20).low == 0
    assert statistics.wilson(20, 20).high == 1
    assert statistics.wilson(20, 20).low == pytest.approx(20 / (20 + 1.959963984540054**2))


def test_wilson_of_nothing_is_unknown():
    assert math.isnan(statistics.wilson(0, 0).value)


def test_wilson_refuses_more_successes_than_trials():
    with pytest.raises(CheckError, match="5 of 4"):
        statistics.wilson(5, 4)


def test_mean_covers_like_the_normal_interval(generator):
    sample = generator.normal(3.0, 2.0, 400)
    estimate = statistics.mean(sample, generator)
    half = 1.96 * sample.std(ddof=1) / 20
    assert estimate.value == pytest.approx(sample.mean())
    assert estimate.low == pytest.approx(sample.mean() - half, abs=0.03)
    assert estimate.high == pytest.approx(sample.mean() + half, abs=0.03)


def test_mean_leaves_nan_out(generator):
    assert statistics.mean(np.array([1.0, np.nan, 3.0]), generator).value == 2.0
    assert statistics.mean(np.array([1.0, np.nan, 3.0]), generator).count == 2


@pytest.mark.parametrize(("sample", "limit"), [([2.0, 2.0, 2.0], 2.0), ([2.0], math.nan), ([], math.nan)])
def test_mean_without_spread(sample, limit, generator):
    estimate = statistics.mean(np.array(sample), generator)
    np.testing.assert_equal((estimate.low, estimate.high), (limit, limit))


def test_interquartile_mean_is_the_mean_of_the_middle_half():
    assert statistics.interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -50])) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert math.isnan(statistics.interquartile_mean(np.zeros(0)))


def test_ratio_of_sums_weighs_by_readings(generator):
    estimate = statistics.ratio_of_sums(np.array([1.0, 90.0, 0.0]), np.array([10.0, 100.0, 0.0]), generator)
    assert estimate.value == pytest.approx(91 / 110)
    assert estimate.low == pytest.approx(0.1)
    assert estimate.high == pytest.approx(0.9)


def test_ratio_without_readings_is_unknown(generator):
    estimate = statistics.ratio_of_sums(np.zeros(3), np.zeros(3), generator)
    assert math.isnan(estimate.value)
    assert math.isnan(estimate.low)


def test_bootstrap_resamples_records_together(generator):
    x = generator.normal(size=200)
    low, high = statistics.bootstrap(lambda index: x[index].mean(-1), 200, generator)
    half = 1.96 * x.std() / math.sqrt(200)
    assert (low, high) == (pytest.approx(x.mean() - half, abs=0.02), pytest.approx(x.mean() + half, abs=0.02))


def test_stratified_bootstrap_keeps_differences_between_tasks_out(generator):
    tasks = [level + 0.01 * generator.normal(size=10) for level in (0.1, 0.4, 0.6, 0.9)]
    estimate = statistics.stratified_bootstrap(tasks, generator)
    assert estimate.value == pytest.approx(np.mean(tasks[1:3]))
    assert estimate.high - estimate.low < 0.02
    assert statistics.mean(np.concatenate(tasks), generator).high - estimate.value > 0.05


def test_stratified_interquartile_mean(generator):
    strata = [np.array([0.0, 1.0]), np.array([2.0, 3.0])]
    estimate = statistics.stratified_bootstrap(strata, generator)
    assert estimate.value == pytest.approx(1.5)
    assert estimate.low == 1.0
    assert estimate.high == 2.0


def test_stratified_bootstrap_of_one_seed_has_no_interval(generator):
    estimate = statistics.stratified_bootstrap([np.array([0.5]), np.array([0.7])], generator)
    assert estimate.value == pytest.approx(0.6)
    assert math.isnan(estimate.low)


def test_crossed_bootstrap_is_wider_when_seeds_differ(generator):
    seed_effect, noise = np.array([0.0, 1.0, 2.0, 3.0]), 0.01 * generator.normal(size=(4, 50))
    values = seed_effect[:, None] + noise

    def figure(seeds, starts):
        return np.einsum("rs,se,re->r", seeds, values, starts) / (4 * 50)

    low, high = statistics.crossed_bootstrap(figure, 4, 50, generator)
    assert low < 0.8
    assert high > 2.2
    one = statistics.crossed_bootstrap(lambda _, starts: starts @ values[0] / 50, 1, 50, generator)
    assert one[1] - one[0] < 0.02


@pytest.mark.parametrize(
    ("gained", "lost", "p_value"),
    [(0, 0, 1.0), (5, 0, 2 * 0.5**5), (8, 1, 2 * (9 + 1) / 2**9), (3, 3, 1.0)],
)
def test_mcnemar_by_hand(gained, lost, p_value):
    before = np.array([False] * gained + [True] * lost + [True] * 4 + [False] * 2)
    after = np.array([True] * gained + [False] * lost + [True] * 4 + [False] * 2)
    result = statistics.mcnemar(before, after)
    assert (result.gained, result.lost) == (gained, lost)
    assert result.p_value == pytest.approx(p_value)


def test_mcnemar_agrees_with_the_published_case():
    # lerobot#4614: 42/50 -> 32/50; 13 lost and 3 gained gives p = .021 in the exact two-sided test.
    before = np.array([True] * 13 + [False] * 3 + [True] * 29 + [False] * 5)
    after = np.array([False] * 13 + [True] * 3 + [True] * 29 + [False] * 5)
    tail = sum(math.comb(16, k) for k in range(4)) / 2**16
    assert statistics.mcnemar(before, after).p_value == pytest.approx(2 * tail)


def test_pairs_of_other_lengths_are_refused():
    with pytest.raises(CheckError, match="paired"):
        statistics.mcnemar(np.zeros(3, bool), np.zeros(4, bool))


def test_paired_permutation_enumerates_few_pairs(generator):
    values = np.array([0.0, 0, 0, 0, 1, 1, 1, 1])
    p_value = statistics.paired_permutation(lambda index: values[index].mean(-1), 4, generator)
    assert p_value == pytest.approx(2 / 2**4)


def test_paired_permutation_of_equal_pairs_is_one(generator):
    values = np.ones(20)
    assert statistics.paired_permutation(lambda index: values[index].mean(-1), 10, generator) == 1.0


def test_probability_of_improvement_counts_pairs(generator):
    before, after = [np.array([1.0, 2.0, 3.0])], [np.array([2.0, 4.0, np.nan])]
    estimate = statistics.probability_of_improvement(before, after, generator)
    assert estimate.value == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    assert estimate.low < estimate.value < estimate.high
    assert estimate.count == 5
    always = statistics.probability_of_improvement([np.zeros(5)], [np.ones(5)], generator)
    assert (always.value, always.low, always.high) == (1, 1, 1)


def test_probability_of_improvement_is_a_mean_over_tasks(generator):
    worse, better = np.array([0.0, 0.1]), np.array([0.8, 0.9])
    estimate = statistics.probability_of_improvement([worse, better, better], [better, better, worse], generator)
    assert estimate.value == pytest.approx((1 + 0.5 + 0) / 3)
    assert 1 / 3 <= estimate.low <= estimate.value <= estimate.high <= 2 / 3


def test_probability_of_improvement_over_one_run_has_no_interval(generator):
    estimate = statistics.probability_of_improvement([np.array([0.5])], [np.array([0.4, 0.6, 0.7, 0.5])], generator)
    assert estimate.value == pytest.approx(2.5 / 4)
    assert math.isnan(estimate.low)
    assert math.isnan(statistics.probability_of_improvement([np.zeros(0)], [np.ones(2)], generator).value)


def test_the_interval_of_the_probability_of_improvement_is_that_of_resampled_runs(generator):
    # Two runs of each side: each side is drawn as (first, both or second) with probabilities 1/4, 1/2 and 1/4.
    estimate = statistics.probability_of_improvement([np.array([0.0, 2.0])], [np.array([1.0, 3.0])], generator)
    assert estimate.value == 0.75
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_estimates_survive_json():
    for estimate in (Estimate(0.5, 0.25, 0.75, 4), Estimate(math.nan, math.nan, math.nan, 0)):
        np.testing.assert_equal(Estimate.from_plain(estimate.to_plain()), estimate)
    assert Estimate(math.nan, 0.0, math.inf, 1).to_plain() == {"value": None, "interval": [0.0, None], "count": 1}


def test_the_same_generator_gives_the_same_interval():
    sample = np.random.default_rng(3).normal(size=30)
    first = statistics.mean(sample, np.random.default_rng(1))
    assert first == statistics.mean(sample, np.random.default_rng(1))


def test_one_pair_says_nothing() -> None:
    assert statistics.paired_permutation(lambda index: index.mean(-1), 1, np.random.default_rng(0)) == 1.0
