from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import ConfigError
from burnish.core.spec import ArraySpec
from burnish.deploy.safety import Config, SafetyChain

ACTION = ArraySpec((2,), unit="m", low=(-1.0, 0.0), high=(1.0, 0.5), names=("x", "z"))
DT = 0.1
FREE = {"observation.state": np.zeros((1, 4), np.float32)}


def chain(**fields: Any) -> SafetyChain:
    return SafetyChain(Config(**fields), ACTION, DT)


def at(*state: float) -> dict[str, np.ndarray]:
    return {"observation.state": np.array([state], np.float32)}


def test_a_good_action_passes_bit_for_bit() -> None:
    action = np.array([0.3, 0.1], np.float32)
    verdict = chain(max_rate=10.0, max_first_distance=1.0).apply(action, FREE)
    assert verdict.action.tobytes() == action.tobytes()
    assert (verdict.interventions, verdict.stop) == ((), "")


def test_limits_cut_and_say_which_entry() -> None:
    safety = chain()
    verdict = safety.apply(np.array([0.5, 2.0]), FREE)
    np.testing.assert_allclose(verdict.action, [0.5, 0.5])
    assert verdict.interventions[0].message == "action entry 1 (z) is 2, outside [0, 0.5] m; cut"
    assert safety.counts == {"limit": 1}


def test_the_float32_value_of_a_limit_is_inside() -> None:
    safety = SafetyChain(Config(), ArraySpec((1,), low=-0.1, high=0.1), DT)
    assert not safety.apply(np.array([0.1], np.float32), FREE).interventions


def test_rate_is_per_second_and_per_entry() -> None:
    safety = chain(max_rate=(1.0, 100.0))
    safety.apply(np.array([0.0, 0.0]), FREE)
    verdict = safety.apply(np.array([0.5, 0.5]), FREE)
    np.testing.assert_allclose(verdict.action, [0.1, 0.5], rtol=1e-6)
    assert "changes by 0.5 within 0.1 s; the limit is 1 per second" in verdict.interventions[0].message
    np.testing.assert_allclose(safety.apply(np.array([0.5, 0.5]), FREE).action, [0.2, 0.5], rtol=1e-6)


def test_rate_of_the_first_action_counts_from_the_measured_position() -> None:
    safety = chain(max_rate=1.0, position_key="observation.state", position_entries=(2, 3))
    np.testing.assert_allclose(safety.apply(np.array([0.9, 0.1]), at(0, 0, 0.5, 0.1)).action, [0.6, 0.1], rtol=1e-6)


@pytest.mark.parametrize(("first", "stops"), [(0.25, False), (0.45, True)])
def test_a_first_action_far_from_the_robot_is_refused(first: float, stops: bool) -> None:
    safety = chain(max_first_distance=0.2, position_key="observation.state")
    verdict = safety.apply(np.array([first, 0.1]), at(0.1, 0.1, 0, 0))
    assert bool(verdict.stop) is stops
    if stops:
        assert "0.35 m from where the robot is in entry 0 (x)" in verdict.stop
    else:
        assert not safety.apply(np.array([0.9, 0.1]), at(0.1, 0.1, 0, 0)).stop  # only the first


def test_without_a_position_the_first_action_is_compared_with_zero() -> None:
    assert chain(max_first_distance=0.2).apply(np.array([0.3, 0.0]), FREE).stop


@pytest.mark.parametrize(
    ("state", "stops"), [((0, 30, 40, 0), False), ((0, 36, 48.1, 0), True), ((0, np.nan, 0, 0), True)]
)
def test_force_stops_and_stays_stopped(state: tuple[float, ...], stops: bool) -> None:
    safety = chain(force_key="observation.state", force_entries=(1, 2), max_force=60.0)
    safety.apply(np.array([0.5, 0.2]), FREE)
    verdict = safety.apply(np.array([0.6, 0.2]), at(*state))
    assert bool(verdict.stop) is stops
    if stops:
        np.testing.assert_allclose(verdict.action, [0.5, 0.2])  # holds the last one
        again = safety.apply(np.array([0.7, 0.2]), FREE)
        assert again.stop == verdict.stop
        assert safety.counts["force"] == 1
        safety.reset()
        assert not safety.apply(np.array([0.7, 0.2]), FREE).stop


def test_stop_with_zero_sends_the_zero_nearest_to_the_limits() -> None:
    action = ArraySpec((2,), low=(-1.0, 0.1), high=1.0)
    safety = SafetyChain(Config(at_stop="zero"), action, DT)
    safety.apply(np.array([0.5, 0.5]), FREE)
    np.testing.assert_allclose(safety.stop("operator").action, [0.0, 0.1])


@pytest.mark.parametrize(
    ("unit", "rests_at"), [("m/s", 0.0), ("m/s,rad/s", 0.0), ("N", 0.0), ("m", 0.5), ("rad", 0.5), ("", 0.5)]
)
def test_by_default_rates_and_forces_stop_at_zero_and_positions_where_they_are(unit: str, rests_at: float) -> None:
    safety = SafetyChain(Config(), ArraySpec((2,), unit=unit), DT)
    safety.apply(np.array([0.5, 0.5]), FREE)
    np.testing.assert_allclose(safety.stop("operator").action, rests_at)


def test_values_that_are_not_finite_are_replaced_then_stop() -> None:
    safety = chain(max_bad_actions=2)
    safety.apply(np.array([0.5, 0.2]), FREE)
    verdicts = [safety.apply(np.array([np.nan, 0.2]), FREE) for _ in range(3)]
    assert [bool(verdict.stop) for verdict in verdicts] == [False, False, True]
    for verdict in verdicts:
        np.testing.assert_allclose(verdict.action, [0.5, 0.2])
    assert chain().apply(np.array([np.inf, 0.0]), FREE).stop  # nothing to fall back on


numbers = st.floats(width=32) | st.floats(-2, 2, width=32)
steps = st.lists(st.tuples(numbers, numbers, st.floats(0, 70)), min_size=1, max_size=12)


@given(steps, st.sampled_from(["hold", "zero"]))
@settings(max_examples=80, deadline=None)
def test_whatever_comes_what_is_sent_is_finite_within_limits_and_slow(steps: list[Any], at_stop: str) -> None:
    safety = chain(max_rate=2.0, force_key="observation.state", force_entries=(0,), at_stop=at_stop)
    before = None
    for x, z, force in steps:
        verdict = safety.apply(np.array([x, z], np.float32), at(force, 0, 0, 0))
        low, high = ACTION.bounds()
        assert np.isfinite(verdict.action).all()
        assert ((verdict.action >= low) & (verdict.action <= high)).all()
        if before is not None and not verdict.stop:
            assert (np.abs(verdict.action - before) <= 2.0 * DT + 1e-6).all()
        changed = not np.array_equal(verdict.action, np.array([x, z], np.float32))
        assert not changed or verdict.interventions or verdict.stop
        before = verdict.action
    assert bool(verdict.stop) >= any(force > 60 for *_, force in steps)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"max_rate": 0.0}, "max_rate must be positive"),
        ({"max_first_distance": (1.0, -1.0)}, "must be positive"),
        ({"max_force": -1.0}, "max_force"),
        ({"max_bad_actions": -1}, "max_bad_actions"),
        ({"max_rate": (1.0, 1.0, 1.0)}, "has 3 entries, the action has 2"),
    ],
)
def test_wrong_limits_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        chain(**fields)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"force_key": "observation.force"}, "no 'observation.force'; it has observation.state"),
        ({"force_key": "observation.state", "force_entries": (7,)}, "no entry 7"),
        ({"max_rate": 1.0, "position_key": "observation.state", "position_entries": (0,)}, "position_entries has 1"),
    ],
)
def test_keys_that_are_not_there_are_named(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        chain(**fields).apply(np.zeros(2), FREE)
