import math

import numpy as np
import pytest

from burnish.envs.driving import metrics
from burnish.envs.driving.metrics import Rows, displacement, km_per_incident, scene_score, score_of


def rows(
    steps=10, *, front=(), rear=(), lateral=(), offroad=(), progress=None, distance=None, length=100.0, invalid=()
):
    """One episode in which events happen at given steps, and that gets to the end."""

    def column(at):
        events = np.zeros((1, steps), bool)
        events[0, list(at)] = True
        return events

    place = np.linspace(0.0, 1.0, steps) if progress is None else np.asarray(progress, float)
    return Rows(
        collision_front=column(front),
        collision_rear=column(rear),
        collision_lateral=column(lateral),
        offroad=column(offroad),
        progress=place[None],
        dist_to_gt_trajectory=np.zeros((1, steps)) if distance is None else np.asarray(distance, float)[None],
        dist_traveled_m=10.0 * np.arange(steps)[None],
        gt_dist_traveled_m=np.array([length]),
        valid=~column(invalid),
    )


def figures(*args, **keywords):
    score = scene_score(rows(*args, **keywords))
    return {name: value[0].item() for name, value in vars(score).items()}


def test_a_clean_episode():
    found = figures()
    assert (found["scene_score"], found["progress"], found["dist_traveled_m"]) == (1.0, 1.0, 90.0)
    assert not found["collision_any"]
    assert found["duration_frac_20s"] == pytest.approx(0.9 / 20.0)


@pytest.mark.parametrize(
    ("progress", "length", "score"),
    [(0.4, 100.0, 0.5), (0.8, 100.0, 1.0), (1.0, 100.0, 1.0), (-0.1, 100.0, 0.0), (0.0, 4.9, 1.0), (0.0, 5.0, 0.0)],
)
def test_progress_counts_up_to_four_fifths(progress, length, score):
    assert score_of(np.array(progress), np.array(length), np.array(False)) == pytest.approx(score)
    assert score_of(np.array(progress), np.array(length), np.array(True)) == 0.0


@pytest.mark.parametrize("kind", ["front", "lateral"])
def test_a_collision_at_fault_fails(kind):
    found = figures(**{kind: (5,)})
    assert found["collision_at_fault"]
    assert found["collision_any"]
    assert found["scene_score"] == 0.0


def test_a_rear_hit_is_not_at_fault_but_ends_the_progress():
    found = figures(11, rear=(4,))
    assert not found["collision_at_fault"]
    assert found["collision_any"]
    assert found["progress"] == pytest.approx(0.4)
    assert found["scene_score"] == pytest.approx(0.5)
    assert found["dist_traveled_m"] == 40.0


def test_what_comes_after_the_first_event_does_not_count():
    found = figures(11, rear=(4,), front=(6,), offroad=(7,))
    assert not found["collision_at_fault"]
    assert not found["offroad"]
    assert found["scene_score"] == pytest.approx(0.5)


def test_both_in_one_step_count():
    assert figures(11, rear=(4,), offroad=(4,))["scene_score"] == 0.0


def test_leaving_the_corridor_ends_the_rows_without_failing():
    distance = np.array([0, 0, 1, 2, 3, 3.9, 4.0, 5, 6, 7, 8])
    found = figures(11, distance=distance, offroad=(8,))
    assert found["left_corridor"]
    assert not found["offroad"]
    assert found["progress"] == pytest.approx(0.6)
    assert found["scene_score"] == pytest.approx(0.75)
    assert found["dist_to_gt_trajectory"] == 4.0
    open_end = scene_score(rows(11, distance=distance), corridor=math.inf)
    assert open_end.scene_score[0] == 1.0


def test_an_event_in_the_step_that_leaves_the_corridor_fails():
    assert figures(4, distance=[0, 0, 5, 5], front=(2,))["scene_score"] == 0.0


def test_rows_before_the_evaluation_do_not_count():
    found = figures(11, invalid=(0, 1, 2), front=(1,))
    assert found["scene_score"] == 1.0
    assert found["duration_frac_20s"] == pytest.approx(0.7 / 20.0)


def test_no_rows_at_all():
    found = figures(3, invalid=(0, 1, 2))
    assert found["progress"] == 0.0
    assert found["scene_score"] == 0.0


def test_km_per_incident():
    assert km_per_incident(np.array([1500.0, 500.0]), np.array([True, False])) == 2.0
    assert km_per_incident(np.array([1500.0]), np.array([False])) == math.inf


def test_comfort_by_hand():
    time = 0.1 * np.arange(50)
    speed = np.stack((np.full(50, 10.0), 10.0 + 3.0 * time, np.full(50, 10.0)))
    yaw = np.stack((0.3 * time + 3.0, 0 * time, 0.6 * time))
    found = metrics.comfort(speed, np.arctan2(np.sin(yaw), np.cos(yaw)))
    np.testing.assert_allclose(found["acceleration"], (0, 3, 0), atol=1e-9)
    np.testing.assert_allclose(found["lateral_acceleration"], (3, 0, 6), atol=1e-9)
    np.testing.assert_allclose(found["yaw_rate"], (0.3, 0, 0.6), atol=1e-9)
    assert found["comfortable"].tolist() == [True, False, False]


def test_displacement_by_hand():
    plan = np.array([(1.0, 0), (2, 0), (3, 0)])
    driven = np.array([(1.0, 3), (2, 4), (99, 99)])
    found = displacement(plan, driven, np.array([True, True, False]))
    assert found == {"ade": 3.5, "fde": 4.0}
