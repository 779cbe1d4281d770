import math

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.envs.driving import tracker
from burnish.envs.driving.vehicle import Vehicle, advance, derivative, limited, rig_to_center, steady_steering

CAR = Vehicle()


def motion(x=0.0, y=0.0, yaw=0.0, speed=0.0, steering=0.0, acceleration=0.0):
    return np.array([x, y, yaw, speed, steering, acceleration])


def test_derivative_by_hand():
    state = motion(yaw=math.pi / 2, speed=10.0, steering=0.1, acceleration=1.0)
    found = derivative(state, np.array([0.3, -2.0]), CAR)
    np.testing.assert_allclose(found, (0, 10, 10 * math.tan(0.1) / 2.85, 1.0, 2.0, -30.0), atol=1e-12)


def test_straight_on_at_constant_speed():
    np.testing.assert_allclose(advance(motion(speed=10.0), np.zeros(2), CAR, 0.1), motion(x=1.0, speed=10.0))


def test_a_steady_circle_closes():
    angle = 0.2
    radius = 2.85 / math.tan(angle)
    period = 2.0 * math.pi * radius / 5.0
    state = motion(speed=5.0, steering=angle)
    for _ in range(400):
        state = advance(state, np.array([angle, 0.0]), CAR, period / 400)
    np.testing.assert_allclose(state[:2], 0.0, atol=2e-3 * radius)
    assert state[2] == pytest.approx(2.0 * math.pi, rel=1e-6)


def test_lags_follow_an_exponential():
    fine = Vehicle(substeps=50)
    state = advance(motion(speed=10.0), np.array([0.2, 2.0]), fine, 0.1)
    rise = 1.0 - math.exp(-1.0)
    np.testing.assert_allclose(state[4:], (0.2 * rise, 2.0 * rise), rtol=1e-4)
    # v gains the integral of the acceleration: 2 (t - tau (1 - exp(-t / tau)))
    assert state[3] == pytest.approx(10.0 + 2.0 * (0.1 - 0.1 * rise), rel=1e-6)


def test_limits():
    assert limited(np.array([9.0, -99.0]), CAR).tolist() == [math.pi / 4, -8.0]
    state = motion(speed=0.2, acceleration=-8.0)
    for _ in range(5):
        state = advance(state, np.array([0.0, -8.0]), CAR, 0.1)
    assert state[3] == 0.0
    assert state[0] >= 0.0
    fast = motion(speed=34.9, acceleration=6.0)
    assert advance(fast, np.array([0.0, 6.0]), CAR, 0.5)[3] == 35.0


def test_many_cars_are_one_car_many_times():
    state = np.random.default_rng(0).normal(size=(3, 4, 6))
    command = np.random.default_rng(1).normal(size=(3, 4, 2))
    np.testing.assert_array_equal(
        advance(state, command, CAR, 0.1)[1, 2], advance(state[1, 2], command[1, 2], CAR, 0.1)
    )


def test_rear_axle_of_alpasims_ego():
    assert rig_to_center(np.array(5.393)) == pytest.approx(5.393 / 2 - 1.3)


def test_steering_that_a_log_implies():
    assert steady_steering(np.array(10.0), np.array(10 * math.tan(0.1) / 2.85), CAR) == pytest.approx(0.1)
    assert steady_steering(np.array(0.1), np.array(1.0), CAR) == 0.0


@pytest.mark.parametrize(
    "field", [{"wheelbase": 0.0}, {"min_acceleration": 1.0}, {"substeps": 0}, {"steering_lag": -1.0}]
)
def test_vehicles_that_cannot_be(field):
    with pytest.raises(ConfigError, match="Vehicle"):
        Vehicle(**field)


# -- tracker --------------------------------------------------------------------------------------------------------


def straight_plan(speed, y=0.0):
    time = 0.5 * np.arange(1, 9)
    return np.stack((speed * time, np.full(8, y), np.zeros(8)), -1)


def drive(plan, state, seconds, again=None):
    state, origin = state[None], state[None, :3].copy()
    path = tracker.smooth(plan[None])
    for step in range(round(seconds / 0.1)):
        command = tracker.track(state, path, origin, np.array([0.1 * step]), CAR)
        state = advance(state, limited(command, CAR), CAR, 0.1)
    return state[0]


def test_smooth_goes_through_the_planned_poses():
    plan = np.array(
        [(1.0, 0, 0), (2, 0.2, 0.4), (3, 0.8, 0.8), (3.5, 1.6, 1.2), (3.6, 2.5, 1.5), (3.6, 3, 1.6)]
        + [(3.6, 4, 1.6)] * 2
    )
    path = tracker.smooth(plan)
    assert path.shape == (41, 2)
    np.testing.assert_allclose(path[5::5], plan[:, :2])
    # On a quarter circle of radius 10 the pieces between stay within 2 mm of the circle, a chord would not.
    angle = 0.5 * math.pi * np.arange(1, 9) / 8
    arc = np.stack((10 * np.sin(angle), 10 - 10 * np.cos(angle), angle), -1)
    np.testing.assert_allclose(np.hypot(*(tracker.smooth(arc) - (0, 10)).T), 10.0, atol=2e-3)


def test_keeps_speed_on_a_straight_plan():
    end = drive(straight_plan(10.0), motion(speed=10.0), 3.0)
    assert end[0] == pytest.approx(30.0, abs=0.3)
    np.testing.assert_allclose(end[1:3], 0.0, atol=1e-9)


def test_follows_a_circle_from_any_pose():
    angle = 8.0 * 0.5 * np.arange(1, 9) / 25.0
    plan = np.stack((25 * np.sin(angle), 25 - 25 * np.cos(angle), angle), -1)
    begin = motion(3.0, -2.0, 0.7, 8.0, math.atan(2.85 / 25))
    end = drive(plan, begin, 3.5)
    center = begin[:2] + 25 * np.array([-math.sin(0.7), math.cos(0.7)])
    assert np.hypot(*(end[:2] - center)) == pytest.approx(25.0, abs=0.25)
    assert end[2] - begin[2] == pytest.approx(8 * 3.5 / 25, abs=0.08)


def test_stops_at_the_end_of_a_plan_that_stops():
    plan = straight_plan(8.0)
    plan[:, 0] = np.minimum(plan[:, 0], 12.0)
    end = drive(plan, motion(speed=8.0), 8.0)
    assert end[0] == pytest.approx(12.0, abs=1.0)
    assert end[3] < 0.1


def test_standing_plans_keep_a_car_standing():
    end = drive(np.zeros((8, 3)), motion(yaw=1.0), 2.0)
    np.testing.assert_array_equal(end, motion(yaw=1.0))


def test_changes_lane():
    plan = straight_plan(10.0)
    share = np.clip(np.arange(1, 9) / 6.0, 0, 1)
    plan[:, 1] = 3.5 * (3 * share**2 - 2 * share**3)
    plan[:, 2] = np.arctan2(np.gradient(plan[:, 1]), 5.0)
    end = drive(plan, motion(speed=10.0), 4.0)
    assert end[1] == pytest.approx(3.5, abs=0.3)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 100.0])
def test_any_plan_gives_finite_commands(scale):
    plan = scale * np.random.default_rng(0).normal(size=(20, 8, 3))
    state = np.random.default_rng(1).normal(size=(20, 6))
    command = tracker.track(state, tracker.smooth(plan), state[:, :3], np.linspace(0, 9, 20), CAR)
    assert np.isfinite(command).all()
