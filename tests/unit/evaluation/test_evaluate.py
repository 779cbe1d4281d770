import json
from dataclasses import replace

import numpy as np
import pytest

from burnish.core.errors import ConfigError, DatasetError, SpecError
from burnish.core.spec import MetricSpec
from burnish.core.step import Start
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.result import EpisodeRow, EvaluationResult, aggregate, column, reading_order
from tests.unit.evaluation.press_env import SPEC, PressPolicy, press_env, starts


def run(force=40.0, count=12, num_envs=3, **changes):
    settings = {"replan_steps": 5, "env_config": {"id": "test/press", "config": {}}}
    return evaluate(PressPolicy(force), press_env(num_envs), starts(count), **{**settings, **changes})


def test_rows_follow_the_starts_and_figures_follow_the_rows():
    result = run()
    assert [row.start for row in result.episodes] == starts(12)
    succeeded = np.mean([row.success for row in result.episodes])
    assert result.metrics["success"].value == succeeded
    assert result.metrics["return"].value == pytest.approx(np.mean([row.return_ for row in result.episodes]))
    above, contact = result.column("share_above").sum(), result.column("contact_steps").sum()
    assert result.metrics["share_above"].value == pytest.approx(above / contact)
    assert "contact_steps" not in result.metrics
    assert result.metrics["length_steps"].value == 10


def test_cost_and_latency_are_counted():
    result = run()
    assert result.cost.env_steps == 12 * 10
    assert result.cost.rendered_steps == 12 * 3
    assert result.cost.cpu_seconds >= 0
    assert result.latency.num_envs == 3
    assert result.latency.decisions == 4 * 2
    assert 0 < result.latency.p50_ms <= result.latency.p99_ms


def test_the_number_of_environments_changes_nothing():
    assert run(num_envs=1).episodes == run(num_envs=5).episodes
    assert run(num_envs=1).fingerprint == run(num_envs=5).fingerprint


def test_the_seed_repeats_sampled_decoding():
    assert run(deterministic=False, seed=1).episodes == run(deterministic=False, seed=1).episodes
    assert run(deterministic=False, seed=1).episodes != run(deterministic=False, seed=2).episodes


def test_progress_is_reported():
    seen = []
    run(count=3, progress=lambda done, total, successes: seen.append((done, total, successes)))
    assert [entry[:2] for entry in seen] == [(1, 3), (2, 3), (3, 3)]


def test_a_result_survives_its_file(tmp_path):
    result = run(force=-100.0)
    assert result.save(tmp_path) == tmp_path / "evaluation.json"
    again = EvaluationResult.load(tmp_path)
    assert repr(again) == repr(result)
    assert again.to_plain() == result.to_plain()
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "metric_specs": {"a": {}}}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(DatasetError, match="not a complete evaluation"):
        EvaluationResult.load(tmp_path)


def test_a_missing_file_and_another_format_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="no evaluation"):
        EvaluationResult.load(tmp_path / "nothing")
    plain = {**run().to_plain(), "format": 99}
    (tmp_path / "evaluation.json").write_text(json.dumps(plain))
    with pytest.raises(DatasetError, match="format 99"):
        EvaluationResult.load(tmp_path)


def test_nothing_to_run_and_a_policy_that_does_not_fit_are_refused():
    with pytest.raises(ConfigError, match="at least one Start"):
        evaluate(PressPolicy(1.0), press_env(), [], replan_steps=5)
    narrow = press_env(spec=replace(SPEC, action=replace(SPEC.action, shape=(3,))))
    with pytest.raises(SpecError, match="action"):
        evaluate(PressPolicy(1.0), narrow, starts(2), replan_steps=5)


def test_an_unknown_column_lists_what_exists():
    with pytest.raises(DatasetError, match="'coverage'"):
        run().column("coverag")


def test_readings_that_are_nan_are_left_out():
    rows = [
        EpisodeRow(Start("soft", i, i), True, 1.0, 5, True, {"m": figure}) for i, figure in enumerate((1, np.nan, 3))
    ]
    estimate = aggregate(rows, {"m": MetricSpec("mean")})["m"]
    assert (estimate.value, estimate.count) == (2, 2)
    np.testing.assert_array_equal(column(rows, "m"), [1, np.nan, 3])


def test_figures_are_read_beside_others():
    order = reading_order(run().metrics, run().metric_specs)
    assert order[0] == "success"
    assert order.index("coverage") < order.index("peak_force")
    table = run().table()
    assert table.row_count == len(order)
