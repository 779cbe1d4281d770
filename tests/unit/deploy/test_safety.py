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


def test_a_first_action_is_judged_before_it_is_slowed_down() -> None:
    safety = chain(max_first_distance=0.2, max_rate=0.1, position_key="observation.state")
    assert (
        "the first action is 0.9 m from where the robot is" in safety.apply(np.array([0.9, 0.1]), at(0, 0.1, 0, 0)).stop
    )


def test_a_position_that_is_not_finite_refuses_the_run() -> None:
    verdict = chain(max_rate=1.0, position_key="observation.state").apply(np.zeros(2), at(np.nan, 0, 0, 0))
    assert verdict.stop == "the position in 'observation.state' is not finite; the run is refused"
    np.testing.assert_array_equal(verdict.action, [0, 0])


def test_acceleration_is_per_second_squared_and_stops_at_a_target_that_stands_still() -> None:
    safety = SafetyChain(Config(max_acceleration=100.0), ArraySpec((1,), unit="m"), DT)  # one per tick and tick
    safety.apply(np.array([0.0]), FREE)
    verdicts = [safety.apply(np.array([6.0]), FREE) for _ in range(7)]
    # speeds 1, 2, then what stops at the 3 that are left: 2, 1
    assert [verdict.action.item() for verdict in verdicts] == [1.0, 3.0, 5.0, 6.0, 6.0, 6.0, 6.0]
    assert verdicts[0].interventions[0].message == (
        "action entry 0 changes by 6 at 0 per second, which needs more than the limit of 100 per second^2; slowed down"
    )
    assert safety.counts == {"acceleration": 3}


def test_a_move_that_could_not_stop_before_the_limit_is_slowed_down_in_time() -> None:
    action = ArraySpec((1,), unit="m", high=6.0)
    safety = SafetyChain(Config(max_acceleration=100.0), action, DT)
    for position in (0.0, 1.0, 3.0, 6.0):
        verdict = safety.apply(np.array([position]), FREE)
    assert verdict.action.item() == 5.0
    assert "could not stop before its limit; slowed down" in verdict.interventions[0].message
    assert [safety.apply(np.array([6.0]), FREE).action.item() for _ in range(2)] == [6.0, 6.0]


def test_velocities_begin_at_rest() -> None:
    safety = SafetyChain(Config(max_rate=1.0), ArraySpec((1,), unit="m/s"), DT)
    values = [safety.apply(np.array([0.25]), FREE).action.item() for _ in range(3)]
    assert values == pytest.approx([0.1, 0.2, 0.25])
    down = [safety.stop("operator").action.item(), *(safety.brake().item() for _ in range(3))]
    assert down == pytest.approx([0.15, 0.05, 0.0, 0.0])
    assert safety.is_at_rest()


def test_a_stop_brakes_within_the_acceleration_limit_and_a_force_does_not_wait() -> None:
    for force, wanted in ((0.0, [4.0, 4.0, 4.0]), (99.0, [3.0, 3.0, 3.0])):
        config = Config(max_acceleration=100.0, force_key="observation.state", force_entries=(0,))
        safety = SafetyChain(config, ArraySpec((1,), unit="m"), DT)
        for position in (0.0, 1.0, 3.0):
            safety.apply(np.array([position]), FREE)
        verdict = safety.apply(np.array([6.0]), at(force, 0, 0, 0)) if force else safety.stop("left", "deadman")
        assert verdict.emergency is bool(force)
        assert [verdict.action.item(), *(safety.brake().item() for _ in range(2))] == wanted
        assert safety.is_at_rest()
    assert safety.counts["force"] == 1


def test_the_workspace_is_a_box_of_named_entries() -> None:
    safety = chain(workspace=("z",), workspace_low=(0.1,), workspace_high=(0.3,))
    verdict = safety.apply(np.array([2.0, 0.4]), FREE)
    np.testing.assert_allclose(verdict.action, [1.0, 0.3])
    assert [item.kind for item in verdict.interventions] == ["limit", "workspace"]
    assert verdict.interventions[1].message == "action entry 1 (z) is 0.4, outside the workspace [0.1, 0.3]; cut"
    np.testing.assert_allclose(
        chain(workspace=("z",), workspace_low=(0.1,), workspace_high=(0.3,), at_stop="zero").stop("x").action, [0, 0.1]
    )


def test_rest_before_the_first_action_is_where_the_robot_is() -> None:
    safety = chain(position_key="observation.state")
    np.testing.assert_allclose(safety.resting_action(at(0.4, 0.2, 0, 0)), [0.4, 0.2], rtol=1e-6)
    np.testing.assert_allclose(safety.resting_action(at(np.nan, 0.2, 0, 0)), [0, 0])
    np.testing.assert_allclose(safety.resting_action(), [0, 0])


def test_what_somebody_else_did_is_where_the_next_action_starts_from() -> None:
    safety = chain(max_rate=1.0)
    safety.follow(np.array([0.7, 0.2]))
    np.testing.assert_allclose(safety.apply(np.array([0.0, 0.2]), FREE).action, [0.6, 0.2], rtol=1e-6)


numbers = st.floats(width=32) | st.floats(-2, 2, width=32)
steps = st.lists(st.tuples(numbers, numbers, st.floats(0, 70)), min_size=1, max_size=12)


@given(
    steps,
    st.sampled_from(["hold", "zero"]),
    st.sampled_from([None, 0.3, 2.0, 50.0]),
    st.sampled_from([None, 0.5, 20.0, 3000.0]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_whatever_comes_what_is_sent_is_finite_and_within_all_limits_at_once(
    steps: list[Any], at_stop: Any, rate: float | None, acceleration: float | None, boxed: bool, measured: bool
) -> None:
    box: dict[str, Any] = {"workspace": ("x",), "workspace_low": (-0.4,), "workspace_high": (0.2,)} if boxed else {}
    safety = chain(
        max_rate=rate,
        max_acceleration=acceleration,
        force_key="observation.state",
        force_entries=(0,),
        at_stop=at_stop,
        position_key="observation.state" if measured else "",
        position_entries=(1, 2),
        **box,
    )
    low, high = np.array([-0.4 if boxed else -1.0, 0.0]), np.array([0.2 if boxed else 1.0, 0.5])
    sent: list[np.ndarray] = []
    emergency = False
    for x, z, force in [*steps, *[(0.0, 0.0, 0.0)] * 3]:
        verdict = safety.apply(np.array([x, z], np.float32), at(force, 0.1, 0.2, 0))
        assert np.isfinite(verdict.action).all()
        assert ((verdict.action >= low - 1e-7) & (verdict.action <= high + 1e-7)).all()
        changed = not np.array_equal(verdict.action, np.array([x, z], np.float32))
        assert not changed or verdict.interventions or verdict.stop
        emergency |= verdict.emergency
        if not emergency:
            sent.append(verdict.action.astype(float))
    assert bool(verdict.stop) >= any(force > 60 for *_, force in steps)
    rounding = 1e-6
    if rate is not None:
        assert (np.abs(np.diff(sent, axis=0)) <= rate * DT + rounding).all()
    if acceleration is not None:
        assert (np.abs(np.diff(sent, n=2, axis=0)) <= acceleration * DT**2 + rounding).all()
    for _ in range(2000):
        if safety.is_at_rest():
            break
        safety.stop("the end")
    assert safety.is_at_rest()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"max_rate": 0.0}, "max_rate must be positive"),
        ({"max_first_distance": (1.0, -1.0)}, "must be positive"),
        ({"max_acceleration": -1.0}, "max_acceleration must be positive"),
        ({"workspace": ("x",)}, "workspace names 1 entries, workspace_low has 0"),
        ({"workspace": ("y",), "workspace_low": (0.0,), "workspace_high": (1.0,)}, "no action entry. .*Entries: x, z"),
        ({"workspace": ("z",), "workspace_low": (2.0,), "workspace_high": (3.0,)}, "nothing in common"),
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


def test_a_workspace_that_is_no_number_or_names_an_entry_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be numbers"):
        Config(workspace=("x",), workspace_low=(float("nan"),), workspace_high=(0.5,))
    with pytest.raises(ConfigError, match="twice"):
        Config(workspace=("x", "x"), workspace_low=(0.0, 0.0), workspace_high=(0.5, 0.5))


def test_one_number_from_a_command_line_holds_for_all_entries() -> None:
    spec = ArraySpec((2,), low=-1.0, high=1.0)
    chain = SafetyChain(Config(max_rate=(1.0,)), spec, 0.1)
    chain.apply(np.zeros(2, np.float32), {})
    np.testing.assert_allclose(chain.apply(np.ones(2, np.float32), {}).action, [0.1, 0.1], atol=1e-6)
