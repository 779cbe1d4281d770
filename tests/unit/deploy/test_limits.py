import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.deploy.limits import Limits, Motion, approach, coast, speed_range, stopping_speed

INF = np.inf


def braking_distance(speed: float, deceleration: float) -> float:
    """Return v + (v - a) + (v - 2a) + ..., positive terms only."""
    total = 0.0
    while speed > 0:
        total += speed
        speed -= deceleration
    return total


@pytest.mark.parametrize(
    ("distance", "speed"),
    # a = 1: 1 needs 1, 2 needs 2 + 1, 2.5 needs 2.5 + 1.5 + 0.5, 3 needs 6
    [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (3.0, 2.0), (4.5, 2.5), (6.0, 3.0), (5.0, 8 / 3)],
)
def test_stopping_speed_by_hand(distance: float, speed: float) -> None:
    assert stopping_speed(distance, 1.0) == pytest.approx(speed)


@given(st.floats(0, 100), st.floats(0.05, 50))
def test_stopping_speed_inverts_the_braking_distance(distance: float, deceleration: float) -> None:
    speed = float(stopping_speed(distance, deceleration))
    assert braking_distance(speed, deceleration) == pytest.approx(distance, rel=1e-6, abs=1e-9)


def test_without_limits_everything_can_be_stopped() -> None:
    np.testing.assert_allclose(stopping_speed(np.array([3.0, INF]), np.array([INF, INF])), [3.0, 1e15])
    assert np.isfinite(stopping_speed(INF, 1.0))


def limits(low: float, high: float, speed: float, acceleration: float) -> Limits:
    return Limits(*(np.array([value]) for value in (low, high, speed, acceleration)))


def test_a_step_is_approached_and_not_passed() -> None:
    box = limits(-10, 10, 3.0, 1.0)
    motion, positions = Motion(np.zeros(1), np.zeros(1)), []
    for _ in range(9):
        position, changed = approach(np.array([9.0]), motion, box, 0.0)
        motion = Motion(position, position - motion.position)
        positions.append(position.item())
    # speeds 1, 2, 3 (limit), then the largest that stop at the 3 that are left: 2, 1
    assert positions == [1.0, 3.0, 6.0, 8.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    assert not changed.any()


def test_a_target_that_moves_on_is_caught_up_with_and_then_followed_exactly() -> None:
    box = limits(-1000, 1000, 5.0, 1.0)
    motion, target = Motion(np.zeros(1), np.zeros(1)), np.array([10.0])  # ten behind, target at two per tick
    gaps = []
    for _ in range(12):
        target = target + 2.0
        position, changed = approach(target, motion, box, 2.0)
        motion = Motion(position, position - motion.position)
        gaps.append((target - position).item())
    assert min(gaps) >= 0
    assert gaps[-1] == 0
    assert motion.speed.item() == 2.0
    assert not changed.any()


def test_the_wall_is_approached_at_a_speed_that_stops_before_it() -> None:
    box = limits(-1, 6.0, 100.0, 1.0)
    motion, positions = Motion(np.zeros(1), np.array([3.0])), []
    for _ in range(4):
        low, high = speed_range(motion, box)
        position = motion.position + high  # as fast as allowed
        motion = Motion(position, position - motion.position)
        positions.append(position.item())
        assert low <= high
    assert positions == [3.0, 5.0, 6.0, 6.0]


def test_a_target_that_can_be_reached_is_reached_bit_for_bit() -> None:
    motion = Motion(np.array([0.1, 0.2]), np.array([0.01, 0.0]))
    free = Limits(np.full(2, -1.0), np.full(2, 1.0), np.full(2, 0.02), np.full(2, 0.01))
    target = np.array([0.12, 0.19])
    reached, changed = approach(target, motion, free, target - motion.position)
    assert reached.tobytes() == target.tobytes()
    assert not changed.any()


def test_coasting_brakes_to_a_rest() -> None:
    motion, box = Motion(np.zeros(2), np.array([2.5, -1.0])), limits(-10, 10, 9.0, 1.0)
    seen = []
    for _ in range(4):
        motion = coast(motion, box)
        seen.append(motion.position.tolist())
    assert seen == [[1.5, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]


numbers = st.floats(-3, 3) | st.sampled_from([-1.0, 1.0, 0.0, 1e6, -1e6])
sizes = st.floats(0.01, 3) | st.just(INF)


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40), sizes, sizes, st.floats(-1, 1))
def test_all_limits_hold_at_once_whatever_is_wanted(
    targets: list[float], speed: float, change: float, start: float
) -> None:
    box = limits(-1.0, 1.0, speed, change)
    motion = Motion(np.array([start]), np.zeros(1))
    before = motion.position
    for target in targets:
        inside = np.clip(np.array([target]), -1.0, 1.0)
        position, changed = approach(inside, motion, box, inside - before)
        before = inside
        step = position - motion.position
        assert -1.0 <= position.item() <= 1.0
        assert abs(step.item()) <= speed + 1e-6
        assert abs((step - motion.speed).item()) <= change + 1e-6
        assert changed.any() or (position == inside).all()
        motion = Motion(position, step)
    for _ in range(400):  # and from anywhere it can be brought to rest inside
        motion = coast(motion, box)
        assert -1.0 <= motion.position.item() <= 1.0
        if not motion.speed.any():
            return
    raise AssertionError("still moving")
