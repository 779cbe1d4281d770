import json

import numpy as np
import pytest

from burnish.core.errors import DatasetError
from burnish.evaluation.curves import learning_curves, read_log, running_mean


def log(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(offset, steps=(0, 10, 20, 30)):
    return [
        {"iteration": i, "env_steps": x, "collect/success": x / 100 + offset, "loss": 1} for i, x in enumerate(steps)
    ]


def test_several_runs_give_mean_and_range(tmp_path):
    runs = [log(tmp_path / "a", rows(0.0)), log(tmp_path / "b", rows(0.2))]
    (curve,) = learning_curves(runs, {"success"})
    assert (curve.name, curve.progress) == ("collect/success", "env_steps")
    np.testing.assert_array_equal(curve.x, [0, 10, 20, 30])
    np.testing.assert_allclose(curve.middle, [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(curve.high - curve.low, 0.2)
    assert "2 runs" in curve.band


def test_runs_of_other_steps_meet_where_both_were(tmp_path):
    runs = [log(tmp_path / "a", rows(0.0)), log(tmp_path / "b", rows(0.0, (5, 15, 25)))]
    (curve,) = learning_curves(runs, {"success"})
    np.testing.assert_array_equal(curve.x, [5, 10, 15, 20, 25])
    np.testing.assert_allclose(curve.middle, curve.x / 100)


def test_one_run_gives_a_running_mean(tmp_path):
    (curve,) = learning_curves([log(tmp_path / "a", rows(0.0))], {"success"})
    np.testing.assert_allclose(curve.middle, [0.05, 0.1, 0.2, 0.25])
    assert (curve.high >= curve.low).all()


def test_running_mean_by_hand():
    middle, error = running_mean(np.array([1.0, 3.0, 5.0]), 1)
    np.testing.assert_allclose(middle, [2, 3, 4])
    np.testing.assert_allclose(error, [1, 2 / np.sqrt(3), 1])
    assert running_mean(np.array([1.0, 3.0]), 0)[1].tolist() == [0, 0]


def test_readings_that_are_missing_or_not_finite_are_left_out(tmp_path):
    entries = [{"iteration": i, "success": value} for i, value in enumerate((0.1, None, float("nan"), 0.4))]
    (curve,) = learning_curves([log(tmp_path / "a", [*entries, {"iteration": 9}])], {"success"})
    np.testing.assert_array_equal(curve.x, [0, 3])


@pytest.mark.parametrize("entries", [[], [{"iteration": 0, "success": 1.0}], [{"success": 1.0}, {"success": 2.0}]])
def test_nothing_to_draw(tmp_path, entries):
    assert learning_curves([log(tmp_path / "a", entries)], {"success"}) == []


def test_a_line_that_was_cut_off_is_left_out_and_a_damaged_one_refused(tmp_path):
    folder = log(tmp_path / "a", rows(0.0))
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text() + '{"iteration": 4, "env')
    assert len(read_log(folder)) == 4
    file.write_text("{\n" + file.read_text())
    with pytest.raises(DatasetError, match="line 1"):
        read_log(folder)
    with pytest.raises(DatasetError, match="no training log"):
        read_log(tmp_path / "b")
