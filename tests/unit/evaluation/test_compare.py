import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from burnish.core.errors import CheckError
from burnish.evaluation.compare import compare, compare_seeds, p_text
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.result import EvaluationResult, aggregate
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts


@cache
def run(force, count=40, **changes):
    return evaluate(PressPolicy(force), press_env(4), starts(count), **{"replan_steps": 5, **changes})


@cache
def compared(before, after):
    return compare(run(before), run(after))


def with_rows(result: EvaluationResult, change) -> EvaluationResult:
    rows = tuple(change(i, row) for i, row in enumerate(result.episodes))
    return replace(result, episodes=rows, metrics=aggregate(rows, result.metric_specs))


def set_success(result: EvaluationResult, flags) -> EvaluationResult:
    return with_rows(
        result,
        lambda i, row: replace(row, success=bool(flags[i]), metrics={**row.metrics, "success": float(flags[i])}),
    )


def test_a_real_gain_is_called_better():
    comparison = compared(22.0, 40.0)
    success = comparison.metric("success")
    assert success.verdict == "better"
    assert success.test == "exact McNemar"
    assert success.difference.low > 0
    assert success.before.value + success.difference.value == pytest.approx(success.after.value)
    assert comparison.pairs == 40
    assert comparison.mcnemar.gained > comparison.mcnemar.lost


def test_the_same_evaluation_shows_no_change():
    comparison = compared(40.0, 40.0)
    assert {item.verdict for item in comparison.metrics} == {"no significant change"}
    assert comparison.metric("peak_force").p_value == 1
    assert comparison.metric("peak_force").difference.value == 0
    assert comparison.warnings == ()


def test_success_by_hand():
    base = run(40.0, count=20)
    before = set_success(base, [0] * 8 + [1] * 12)
    after = set_success(base, [1] * 7 + [0] + [1] * 11 + [0])
    comparison = compare(before, after)
    assert (comparison.mcnemar.gained, comparison.mcnemar.lost) == (7, 1)
    assert comparison.metric("success").p_value == pytest.approx(2 * (1 + 8) / 2**8)
    assert comparison.metric("success").difference.value == pytest.approx(6 / 20)
    assert comparison.metric("success").verdict == "no significant change"
    assert any("not a significant gain on 20 pairs (p = 0.070)" in line for line in comparison.warnings)


def test_pairs_are_found_whatever_the_order():
    shuffled = replace(run(40.0), episodes=run(40.0).episodes[::-1])
    assert compare(run(22.0), shuffled).to_plain() == compared(22.0, 40.0).to_plain()


def test_a_share_is_a_ratio_of_sums_and_has_a_factor():
    comparison = compared(55.0, 40.0)
    share = comparison.metric("share_above")
    assert share.verdict == "better"
    assert share.factor is not None
    assert share.factor.value == pytest.approx(share.before.value / share.after.value)
    assert 1 < share.factor.low < share.factor.value < share.factor.high


def test_a_shortcut_is_named():
    comparison = compared(55.0, 12.0)
    assert comparison.metric("share_above").verdict == "misleading"
    assert comparison.metric("peak_force").verdict == "misleading"
    assert comparison.metric("success").verdict == "worse"
    line = next(line for line in comparison.warnings if line.startswith("'share_above' improved"))
    assert "'coverage' went from" in line
    assert "'success' went from" in line


def test_a_policy_that_never_touches_has_no_readings():
    comparison = compared(50.0, -150.0)
    assert comparison.metric("share_above").verdict == "misleading"
    assert any("'share_above' has no readings any more" in line for line in comparison.warnings)
    assert any(line.startswith("after: 'share_above' has no readings") for line in comparison.warnings)
    assert math.isnan(comparison.metric("share_above").p_value)


def test_readings_that_vanish_are_named_without_beside():
    before, after = run(55.0), run(0.0)
    specs = {**before.metric_specs, "share_above": replace(before.metric_specs["share_above"], beside=())}
    comparison = compare(replace(before, metric_specs=specs), replace(after, metric_specs=specs))
    assert any("its readings ('contact_steps') fell from" in line for line in comparison.warnings)


def test_other_protocols_are_refused():
    with pytest.raises(CheckError, match="replan_steps: 5 against 1"):
        compare(run(40.0), run(40.0, replan_steps=1))
    with pytest.raises(CheckError, match=r"starts\.episodes: 40 against 20"):
        compare(run(40.0), run(40.0, count=20))


def test_nan_readings_are_dropped_in_pairs():
    base = run(40.0, count=10)
    before = with_rows(base, lambda i, row: replace(row, metrics={**row.metrics, "coverage": float(i)}))
    after = with_rows(
        base, lambda i, row: replace(row, metrics={**row.metrics, "coverage": float("nan") if i < 5 else i + 2.0})
    )
    difference = compare(before, after).metric("coverage").difference
    assert (difference.value, difference.count) == (2, 5)


def test_success_by_task():
    comparison = compared(22.0, 40.0)
    assert [item.task for item in comparison.tasks] == ["hard", "soft"]
    assert sum(item.after.count for item in comparison.tasks) == 40


def test_seeds_widen_the_interval():
    base = run(40.0)
    base = replace(base, metric_specs={"success": base.metric_specs["success"]})
    generator = np.random.default_rng(0)
    before = set_success(base, [0] * 40)
    equal = [set_success(base, generator.random(40) < 0.6) for _ in range(4)]
    mixed = [set_success(base, generator.random(40) < rate) for rate in (0.1, 0.95, 0.4, 0.95)]
    narrow = compare_seeds([before], equal).metric("success")
    wide = compare_seeds([before], mixed).metric("success")
    assert narrow.verdict == "better"
    assert narrow.test == "paired permutation of Starts"
    assert wide.after.high - wide.after.low > 1.5 * (narrow.after.high - narrow.after.low)
    assert compare_seeds([before] * 4, equal).metric("success").difference.value == narrow.difference.value


def test_figures_over_seeds_by_hand():
    base = run(40.0, count=20)
    tasks = np.array([row.start.task for row in base.episodes])

    def seed(hard, soft):
        """Return a result with so many successes on each task's ten episodes."""
        flags = np.zeros(20)
        for task, count in (("hard", hard), ("soft", soft)):
            flags[np.flatnonzero(tasks == task)[:count]] = 1
        return set_success(base, flags)

    after = [seed(4, 10), seed(0, 8), seed(6, 6)]
    comparison = compare_seeds([seed(4, 6)], after)
    success = {item.name: item for item in comparison.over_seeds}["success"]
    assert success.before.value == pytest.approx(0.5)
    assert math.isnan(success.before.low)
    assert success.after.value == pytest.approx((0.4 + 0.6 + 0.6 + 0.8) / 4)
    assert 0.3 < success.after.low < success.after.value < success.after.high <= 0.9
    assert success.improvement.value == pytest.approx(((0.5 + 0 + 1) / 3 + (1 + 1 + 0.5) / 3) / 2)
    both = compare_seeds(after[::-1], after)
    assert {item.improvement.value for item in both.over_seeds} == {0.5}
    assert {item.name for item in both.over_seeds} == {item.name for item in both.metrics if item.spec.better}
    plain = json.loads(json.dumps(both.to_plain(), allow_nan=False))["over_seeds"]["success"]
    assert plain["probability_of_improvement"]["value"] == 0.5
    assert plain["interquartile_mean"]["after"]["interval"][0] == success.after.low
    assert [table.row_count for table in both.tables()] == [len(both.metrics), len(both.over_seeds)]
    assert len(compared(22.0, 40.0).tables()) == 1


def test_lower_is_better_over_seeds_where_the_figure_says_so():
    comparison = compare_seeds([run(55.0), run(50.0)], [run(40.0), run(35.0)])
    over_seeds = {item.name: item for item in comparison.over_seeds}
    assert over_seeds["peak_force"].improvement.value == 1
    assert over_seeds["share_above"].improvement.value == 1
    shares = []
    for result in (run(40.0), run(35.0)):
        for task in ("soft", "hard"):
            rows = [row.metrics for row in result.episodes if row.start.task == task]
            shares.append(sum(row["share_above"] for row in rows) / sum(row["contact_steps"] for row in rows))
    assert over_seeds["share_above"].after.value == pytest.approx(sum(sorted(shares)[1:3]) / 2)


def test_one_seed_of_many_is_one_comparison():
    assert compare_seeds([run(22.0)], [run(40.0)]).to_plain() == compared(22.0, 40.0).to_plain()


@pytest.mark.parametrize("counts", [(2, 3), (0, 1), (1, 0)])
def test_numbers_of_seeds_that_do_not_fit_are_refused(counts):
    base = run(40.0, count=4)
    with pytest.raises(CheckError, match=f"found {counts[0]} before and {counts[1]} after"):
        compare_seeds([base] * counts[0], [base] * counts[1])


def test_a_comparison_is_json_and_a_table():
    comparison = compared(50.0, -150.0)
    plain = json.loads(json.dumps(comparison.to_plain(), allow_nan=False))
    assert plain["metrics"]["share_above"]["after"]["value"] is None
    assert plain["metrics"]["share_above"]["beside"] == ["coverage", "success"]
    assert comparison.table().row_count == len(comparison.metrics)


def test_p_values_are_short():
    assert [p_text(value) for value in (0.0001, 0.04, math.nan)] == ["< 0.001", "0.040", ""]


def test_fewer_readings_of_shorter_episodes_are_no_shortcut():
    before = run(55.0)

    def sooner(i, row):
        metrics = {**row.metrics, "contact_steps": 3.0, "share_above": 0.0}
        return replace(row, length=3, metrics=metrics)

    comparison = compare(before, with_rows(before, sooner))
    assert comparison.metric("share_above").verdict == "better"
    assert comparison.warnings == ()
