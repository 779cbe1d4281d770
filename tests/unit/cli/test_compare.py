"""``burnish compare`` on evaluations of a toy task: one seed a side, several, and several before, too."""

import json
from pathlib import Path

import pytest

from burnish.evaluation.evaluate import evaluate
from tests.unit.cli.conftest import Command
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluations")
    for force in (22, 24, 38, 40):
        evaluate(PressPolicy(float(force)), press_env(4), starts(12), replan_steps=5).save(folder / str(force))
    return folder


def test_one_seed_is_compared_without_figures_over_seeds(command: Command, evaluations: Path, tmp_path: Path) -> None:
    status, printed = command("compare", evaluations / "22", evaluations / "40", "--out", tmp_path / "both")
    assert status == 0
    assert "12 pairs" in printed
    assert "interquartile mean" not in printed
    assert json.loads((tmp_path / "both" / "comparison.json").read_text())["over_seeds"] == {}


def test_several_seeds_give_interquartile_means_and_a_probability(
    command: Command, evaluations: Path, tmp_path: Path
) -> None:
    runs = [evaluations / name for name in ("22", "38", "40")]
    status, printed = command("compare", *runs, "--out", tmp_path / "both")
    assert status == 0
    assert "24 pairs" in printed
    assert "interquartile mean over 1 seed before and 2 after" in printed
    found = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert found["seeds"] == 2
    success = found["over_seeds"]["success"]
    assert success["probability_of_improvement"]["value"] == 1
    assert success["interquartile_mean"]["after"]["value"] > success["interquartile_mean"]["before"]["value"]
    assert f"burnish compare {' '.join(map(str, runs))}" in (tmp_path / "both" / "comparison.html").read_text()


def test_seeds_that_began_from_different_policies_name_them_all(
    command: Command, evaluations: Path, tmp_path: Path
) -> None:
    runs = [evaluations / name for name in ("22", "38", "40")]
    more = ("--out", tmp_path / "both", "--more-before", evaluations / "24")
    status, printed = command("compare", *runs, *more)
    assert status == 0
    assert "over 2 seeds before and 2 after" in printed
    status, printed = command("compare", *runs, *more, evaluations / "24")
    assert status == 2
    assert "found 3 before and 2 after" in printed
