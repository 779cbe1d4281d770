import json
from functools import cache
from pathlib import Path

import pytest

from burnish.core.errors import ConfigError
from burnish.evaluation.compare import compare
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.results import (
    BenchmarkResult,
    Cost,
    MetricResult,
    ResultFile,
    evaluation_cost,
    git_commit,
    machine,
    metric_results,
)
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts

RESULT = ResultFile(
    name="pac_act",
    title="PAC-ACT",
    command="uv run burnish results pac_act",
    commit="abc",
    seeds=(0, 1),
    protocol={"env": "test/press"},
    cost=Cost(1200, 300, 0.5),
    metrics={
        "success.contour": MetricResult(0.6, 0.97, (0.95, 0.99), 0.95),
        "peak_force.contour": MetricResult(80.0, 61.0, (55.0, 66.0), 60.0, "N", "lower"),
        "coverage.contour": MetricResult(None, None, (None, None)),
    },
    versions={"burnish": "0.1.0"},
    notes=[("Ablations", "Without the prior it does not press.")],
)


@cache
def run(force):
    return evaluate(PressPolicy(force), press_env(4), starts(30), replan_steps=5)


def test_the_json_has_the_agreed_form(tmp_path):
    page, data = RESULT.write(tmp_path / "docs")
    assert (page.name, data.name) == ("pac_act.md", "pac_act.json")
    assert json.loads(data.read_text()) == {
        "command": "uv run burnish results pac_act",
        "commit": "abc",
        "versions": {"burnish": "0.1.0"},
        "seeds": [0, 1],
        "protocol": {"env": "test/press"},
        "cost": {"env_steps": 1200, "rendered_steps": 300, "cpu_hours": 0.5},
        "metrics": {
            "success.contour": {"before": 0.6, "after": 0.97, "interval": [0.95, 0.99], "goal": 0.95, "unit": ""},
            "peak_force.contour": {"before": 80.0, "after": 61.0, "interval": [55.0, 66.0], "goal": 60.0, "unit": "N"},
            "coverage.contour": {"before": None, "after": None, "interval": [None, None], "goal": None, "unit": ""},
        },
    }


def test_the_page_names_its_command_first_and_says_what_was_missed():
    lines = RESULT.to_markdown().splitlines()
    assert "uv run burnish results pac_act" in lines[0]
    assert "| `success.contour` | 0.600 | 0.970 | 0.950 to 0.990 | &ge; 0.950 | yes |" in lines
    assert "| `peak_force.contour` [N] | 80.00 | 61.00 | 55.00 to 66.00 | &le; 60.00 | no |" in lines
    assert "| `coverage.contour` |  |  |  |  |  |" in lines
    assert "## Ablations" in lines
    assert "- Cost: 1,200 environment steps, 300 of them rendered; 0.50 CPU hours" in lines


def test_figures_that_json_cannot_hold_are_refused(tmp_path):
    bad = ResultFile(**{**RESULT.__dict__, "metrics": {"m": MetricResult(0.0, float("nan"), (0.0, 1.0))}})
    with pytest.raises(ConfigError, match="NaN"):
        bad.write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figures_come_from_a_comparison():
    comparison = compare(run(55.0), run(40.0))
    found = metric_results(comparison, "press", {"success": 0.95}, ("success", "peak_force", "share_above_factor"))
    assert list(found) == ["success.press", "peak_force.press", "share_above_factor.press"]
    assert found["success.press"].after == comparison.metric("success").after.value
    assert found["success.press"].goal == 0.95
    assert found["peak_force.press"].unit == "N"
    factor = comparison.metric("share_above").factor
    assert factor is not None
    assert found["share_above_factor.press"].after == factor.value
    assert found["share_above_factor.press"].better == "higher"


def test_a_factor_without_readings_is_none():
    found = metric_results(
        compare(run(50.0), run(-150.0)), "press", {"share_above_factor": 46.0}, ("share_above_factor",)
    )
    item = found["share_above_factor.press"]
    assert (item.after, item.interval, item.reached) == (None, (None, None), None)


def test_costs_add_up():
    cost = evaluation_cost([run(40.0), run(40.0)], Cost(1000, 10, 1.0))
    assert (cost.env_steps, cost.rendered_steps) == (1600, 10 + 2 * 30 * 3)
    assert cost.cpu_hours >= 1.0


@pytest.mark.parametrize(("better", "ratio"), [("lower", 2.0), ("higher", 0.25)])
def test_a_benchmark_compares_medians_with_the_best_peer(tmp_path, better, ratio):
    result = BenchmarkResult(
        "step", "make bench", [1.0, 9.0, 2.0], {"a": [4.0, 4.0, 40.0], "b": [8.0, 8.0, 8.0]}, "CPU s", 2.0, better
    )
    plain = json.loads(result.write(tmp_path).read_text())
    assert plain["ratio"] == ratio
    assert plain["ours"] == 2.0
    assert plain["peers"] == {"a": 4.0, "b": 8.0}
    assert {"command", "machine", "goal", "unit"} <= plain.keys()


def test_a_benchmark_without_peers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one peer"):
        BenchmarkResult("step", "make bench", [1.0], {}, "s", 2.0).write(tmp_path)


def test_the_machine_is_described():
    assert machine()["cores"] >= 1
    assert "python" in machine()


def test_a_folder_outside_git_has_no_commit(tmp_path):
    assert git_commit(tmp_path) == ""
    assert git_commit(tmp_path / "nothing") == ""


def test_the_commit_is_read():
    root = Path(__file__).parents[3]
    if (root / ".git").exists():
        assert len(git_commit(root).removesuffix("-dirty")) >= 12
