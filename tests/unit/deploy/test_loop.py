"""Who drives: the policy, a human, nobody, or somebody else with the policy in the shadow; and real-time chunking."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.inpainting import Prefix
from burnish.core.spec import Array, ArraySpec, EnvSpec
from burnish.deploy import chunking, deadman, realtime, safety
from burnish.deploy.inference import ask
from burnish.deploy.robot import Outcome, Sensed, SimulatedClock
from burnish.deploy.runtime import Config, RuntimeReport, run
from burnish.deploy.ticklog import read_ticks
from tests.unit.core.gaussian_flow import GaussianFlowPolicy
from tests.unit.deploy.affine import AffinePolicy, make_spec

STATE = "observation.state"
DT = 0.05


class Follower:
    """Follows position targets perfectly; ``human`` gives what a human does, by tick."""

    def __init__(self, clock: Any, human: Any = None, *, unit: str = "m", taken_over: bool = True) -> None:
        action = ArraySpec((2,), unit=unit, low=-5.0, high=5.0, names=("x", "z"))
        self.spec = EnvSpec("follower", {STATE: ArraySpec((2,), unit="m")}, action, DT, 80, ("move",))
        self.clock, self.human, self.taken_over, self.tick = clock, human or {}, taken_over, -1
        self.position = np.zeros(2, np.float32)
        self.sent: list[Array] = []
        self.stopped: list[Array] = []

    def observe(self) -> Sensed:
        self.tick += 1
        action = self.human.get(self.tick)
        seen = {STATE: self.position[None].copy(), "task": ["move"]}
        return Sensed(seen, self.clock.now(), action=action, intervention=self.taken_over and action is not None)

    def send(self, action: Array) -> Outcome:
        self.position = action.copy()
        self.sent.append(action)
        return Outcome()

    def stop(self, action: Array) -> None:
        self.stopped.append(action)


def drive(policy: Any, robot: Follower, *, log: Path | None = None, rows: Any = None, **fields: Any) -> RuntimeReport:
    more = {name: fields.pop(name) for name in ("deadman", "operator") if callable(fields.get(name)) or name in fields}
    config = Config(**{"warm_up": 0, "max_ticks": 40, **fields})
    on_tick = None if rows is None else rows.append
    return run(policy, robot, config, clock=robot.clock, log=log, on_tick=on_tick, **more)


def jumps(report: RuntimeReport) -> float:
    return float(np.abs(np.diff(report.action, axis=0)).max())


# --- real-time chunking ------------------------------------------------------------------------------------------


def chunked(**fields: Any) -> dict[str, Any]:
    return {"chunking": chunking.Config(8, 4), "latency_s": 0.12, "max_ticks": 150, **fields}


def test_a_flow_policy_goes_on_from_its_plan_without_a_jump(tmp_path: Path) -> None:
    policy, plain = GaussianFlowPolicy(), GaussianFlowPolicy()
    report = drive(policy, Follower(SimulatedClock()), log=tmp_path, **chunked())
    other = drive(plain, Follower(SimulatedClock()), **chunked(inpaint=realtime.Config(use="off")))
    assert all(prefix is None for prefix in plain.prefixes)
    assert other.in_painted == 0
    assert report.in_painted > 5
    # three ticks of latency: the delay of an answer, and what is frozen once one was measured
    assert policy.prefixes[:2] == [None, None]
    assert {prefix.frozen_steps for prefix in policy.prefixes[2:] if prefix is not None} == {3}
    assert set(report.delays.tolist()) == {0, 3}
    seams = np.abs(np.diff(report.action, axis=0)).max(1)
    plain_seams = np.abs(np.diff(other.action, axis=0)).max(1)
    assert np.quantile(seams[20:], 0.99) < 0.5 * np.quantile(plain_seams[20:], 0.99)
    rows = [row for row in read_ticks(tmp_path)[1] if "frozen_steps" in row]
    assert len(rows) == report.in_painted
    told = policy.prefixes[2]
    assert told is not None
    np.testing.assert_array_equal(np.array(rows[0]["prefix"], np.float32), told.action)


def test_the_frozen_actions_are_executed_as_they_were_planned() -> None:
    policy, rows = GaussianFlowPolicy(), []
    drive(policy, Follower(SimulatedClock()), rows=rows, **chunked(latency_jitter_s=0.1))
    sent = {row["tick"]: row["sent"] for row in rows if "sent" in row}
    for row in rows:
        if "frozen_steps" in row:  # whatever the real delay was, these actions were promised to the policy
            promised = np.array(row["prefix"], np.float32)[: row["frozen_steps"]]
            done = [sent[tick] for tick in range(row["tick"], row["tick"] + len(promised)) if tick in sent]
            np.testing.assert_array_equal(done, promised[: len(done)])


def test_without_delay_nothing_is_in_painted_so_that_it_runs_as_in_evaluation() -> None:
    policy = GaussianFlowPolicy()
    drive(policy, Follower(SimulatedClock()), chunking=chunking.Config(8), max_ticks=60)
    assert len(policy.prefixes) == 8
    assert policy.prefixes == [None] * 8


def test_a_slow_first_answer_is_not_jumped_over_and_not_remembered() -> None:
    """The first chunk begins at index 0 after 21 ticks of waiting, and 21 is not the delay to expect from then on."""

    class Waking(GaussianFlowPolicy):
        def _answer(self, observation: Any, prefix: Prefix | None, generator: Any) -> Any:
            robot.clock.sleep_until(robot.clock.now() + (1.05 if not self.prefixes else 0.0))
            return super()._answer(observation, prefix, generator)

    robot, rows = Follower(SimulatedClock()), []
    policy = Waking()
    drive(policy, robot, rows=rows, **chunked(max_observation_age_s=5.0, max_late_s=5.0))
    first = next(row for row in rows if row.get("kind") == "plan")
    assert (first["chunk"], first["index"]) == (0, 0)
    assert {prefix.frozen_steps for prefix in policy.prefixes if prefix is not None} == {3}


def test_ensembles_are_not_in_painted_and_other_policies_are_not_asked_to() -> None:
    policy = GaussianFlowPolicy()
    drive(policy, Follower(SimulatedClock()), **chunked(chunking=chunking.Config(8, 4, ensemble_decay=0.1)))
    assert set(policy.prefixes) == {None}
    affine = AffinePolicy(make_spec(image=False))
    from burnish.core.errors import SpecError

    with pytest.raises(SpecError, match="has no act_with_prefix"):
        ask(affine, 0, {}, 0, True, Prefix(np.zeros((1, 2)), 1))


# --- human take-over ---------------------------------------------------------------------------------------------


class Still:
    """Wants to be at (1, 1), from wherever it is."""

    def __init__(self, unit: str = "m") -> None:
        from burnish.core.spec import PolicySpec

        action = ArraySpec((2,), unit=unit, low=-5.0, high=5.0)
        self.spec = PolicySpec("still", {STATE: ArraySpec((2,), unit="m")}, action, 8)
        self.seen: list[Array] = []

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> Any:
        from burnish.core.step import ActionSample

        self.seen.append(observation[STATE][0].copy())
        share = np.linspace(0.1, 0.8, 8)[:, None]
        chunk = (1 - share) * observation[STATE] + share * np.ones(2)
        return ActionSample(chunk[None].astype(np.float32), np.zeros((1, 8), np.float32))


@pytest.mark.parametrize("by", ["robot", "operator"])
def test_a_human_takes_over_through_the_safety_chain_and_the_policy_plans_anew(by: str, tmp_path: Path) -> None:
    wanted = {tick: np.array([-0.02 * (tick - 9), 9.0], np.float32) for tick in range(10, 20)}
    robot = Follower(SimulatedClock(), wanted if by == "robot" else None)
    policy = Still()
    fields: dict[str, Any] = {"operator": lambda sensed: wanted.get(robot.tick)} if by == "operator" else {}
    report = drive(policy, robot, log=tmp_path, latency_s=0.1, chunking=chunking.Config(8, 4), **fields)
    rows = read_ticks(tmp_path)[1]
    human = [row for row in rows if row.get("intervention")]
    assert [row["tick"] for row in human] == list(range(10, 20))
    assert {row["kind"] for row in human} == {"human"}
    assert [row["sent"][1] for row in human] == [5.0] * 10  # cut to the limit, as the policy's would be
    assert report.interventions["limit"] == 10
    assert (report.takeovers, report.kinds["human"]) == (1, 10)
    assert [row.get("event") for row in rows if "event" in row] == ["human begins", "human ends"]
    # the answer that was being computed when he began is thrown away; the next one is asked for where he left the robot
    after = [row for row in rows if row["tick"] >= 20]
    assert "decision" in after[0]
    np.testing.assert_allclose(policy.seen[after[0]["decision"]], [-0.2, 5.0], rtol=1e-6)
    assert [row["kind"] for row in after[:3]] == ["hold", "hold", "plan"]
    np.testing.assert_allclose(after[1]["sent"], [-0.2, 5.0], rtol=1e-6)
    assert after[2]["index"] == 0
    assert "took over 1x, for 10 ticks" in report.text()


def test_what_a_human_wants_is_slowed_down_too_and_nan_is_not_passed_on() -> None:
    robot = Follower(SimulatedClock(), {12: np.array([4.0, -4.0]), 13: np.array([np.nan, 0.0])})
    report = drive(Still(), robot, safety=safety.Config(max_rate=1.0, position_key=STATE))
    assert np.isfinite(report.action).all()
    assert jumps(report) <= 1.0 * DT + 1e-6
    assert report.interventions["not_finite"] == 1


def test_after_a_human_the_first_action_is_judged_again() -> None:
    far = {tick: np.array([3.0, 3.0], np.float32) for tick in range(10, 14)}
    limits = safety.Config(max_first_distance=0.15, position_key=STATE)
    report = drive(Still(), Follower(SimulatedClock(), far), safety=limits)
    assert report.stop.startswith("the first action is 0.2 m from where the robot is")
    assert report.ticks == 15


def test_an_intervention_without_an_action_is_an_error_that_stops_the_robot() -> None:
    robot = Follower(SimulatedClock())
    observe = robot.observe
    robot.observe = lambda: Sensed(observe().observation, robot.clock.now(), intervention=True)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"Sensed\.action must hold it"):
        drive(Still(), robot)
    assert len(robot.stopped) == 1


# --- dead-man's switch -------------------------------------------------------------------------------------------


class Pressed:
    """Confirms at the ticks it is told."""

    def __init__(self, ticks: Any) -> None:
        self.ticks, self.tick, self.closed = set(ticks), -1, False

    def confirmed(self) -> bool:
        self.tick += 1
        return self.tick in self.ticks

    def close(self) -> None:
        self.closed = True


def test_a_dead_man_is_held_then_stopped_in_the_promised_time(tmp_path: Path) -> None:
    robot, switch = Follower(SimulatedClock()), Pressed(range(15))
    config = deadman.Config(timeout_s=0.2)
    report = run(
        Still(),
        robot,
        Config(warm_up=0, deadman=config, max_hold_s=0.3),
        clock=robot.clock,
        deadman=switch,
        log=tmp_path,
    )
    rows = read_ticks(tmp_path)[1]
    held = [row["tick"] for row in rows if row.get("kind") == "deadman"]
    assert held == list(range(19, 26))  # 0.2 s after tick 14, then 0.3 s
    assert report.stop.startswith("nobody has confirmed the dead-man's switch for 0.2 s")
    assert report.interventions == {"deadman": 1}
    for row in rows[19:26]:
        assert row["sent"] == rows[18]["sent"]
    assert switch.closed


def test_somebody_who_comes_back_gives_the_robot_back_and_the_policy_plans_anew() -> None:
    robot, rows = Follower(SimulatedClock()), []
    switch = Pressed([*range(10), *range(25, 80)])  # a confirmation lasts for 0.5 s
    report = drive(Still(), robot, deadman=switch, rows=rows, max_ticks=40)
    assert not report.stop
    assert [row["event"] for row in rows if "event" in row] == ["deadman begins", "deadman ends"]
    assert [row["tick"] for row in rows if row["kind"] == "deadman"] == list(range(20, 25))
    assert "decision" in rows[25]


def test_nobody_there_at_the_beginning_sends_nothing() -> None:
    robot = Follower(SimulatedClock())
    report = drive(Still(), robot, deadman=Pressed([]), max_wait_s=0.5)
    assert report.stop == "nobody has ever confirmed the dead-man's switch"
    assert robot.sent == []


# --- shadow ------------------------------------------------------------------------------------------------------


def shadowed(human: Any, **fields: Any) -> tuple[Follower, RuntimeReport, list[Any]]:
    robot, rows = Follower(SimulatedClock(), human, taken_over=False), []
    return robot, drive(Still(), robot, rows=rows, shadow=True, **fields), rows


def test_in_the_shadow_nothing_is_sent_and_every_tick_is_compared() -> None:
    human = {tick: np.array([0.2, 0.01 * tick], np.float32) for tick in range(40)}
    robot, report, rows = shadowed(human)
    assert robot.sent == robot.stopped == []
    assert report.ticks == 40
    found = report.agreement
    assert found is not None
    assert found.ticks == 40
    ours, theirs = (np.array([row[key] for row in rows], float) for key in ("sent", "actual"))
    np.testing.assert_allclose(found.rms, np.sqrt(((ours - theirs) ** 2).mean(0)))
    assert "agreement over 40 ticks (policy - actual m)" in report.text()


def test_in_the_shadow_a_reason_to_stop_is_counted_and_the_run_goes_on() -> None:
    human = {tick: np.array([0.01 * tick, 0.0], np.float32) for tick in range(40)}
    robot, report, rows = shadowed(human, safety=safety.Config(max_first_distance=0.05, position_key=STATE))
    assert report.ticks == 40
    assert not report.stop
    assert report.would_stop["first_action"] > 0
    assert sum("would_stop" in row for row in rows) == sum(report.would_stop.values())
    assert "would stop" in report.text()
    assert robot.stopped == []


def test_a_shadow_needs_somebody_who_drives() -> None:
    with pytest.raises(ConfigError, match="robot 'follower' does not report it"):
        shadowed({0: np.zeros(2, np.float32)})


# --- on_late slow ------------------------------------------------------------------------------------------------


class Ramp(Still):
    """Goes on at a constant speed."""

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> Any:
        sample = super().act(observation, generator=generator)
        sample.action_chunk[:] = observation[STATE] + 0.04 * np.arange(1, 9)[:, None]
        return sample


def test_a_late_chunk_slows_positions_down_evenly_and_speeds_up_again() -> None:
    common: dict[str, Any] = {"latency_s": 0.5, "chunking": chunking.Config(8, 5)}
    report = drive(Ramp(), Follower(SimulatedClock()), on_late="slow", slow_steps=3, **common)
    held = drive(Ramp(), Follower(SimulatedClock()), **common)
    assert report.kinds["slow"] > 5
    turns = [np.abs(np.diff(item.action, n=2, axis=0)).max() for item in (report, held)]
    assert turns[1] == pytest.approx(0.04, rel=1e-3)  # from full speed to none
    assert turns[0] == pytest.approx(0.04 / 6, rel=1e-3)


def test_slow_velocities_come_to_zero() -> None:
    class Cruise(Still):
        def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> Any:
            sample = super().act(observation, generator=generator)
            sample.action_chunk[:] = 1.0
            return sample

    robot, rows = Follower(SimulatedClock(), unit="m/s"), []
    drive(Cruise("m/s"), robot, rows=rows, latency_s=0.6, on_late="slow", slow_steps=2, chunking=chunking.Config(8, 5))
    held = [row["sent"] for row in rows if row["kind"] == "hold"]
    assert held
    assert not np.any(held)
    sent = [row["sent"][0] for row in rows if "sent" in row]
    assert np.abs(np.diff(sent)).max() <= 0.25 + 1e-6


def test_slowing_down_without_actions_left_is_refused() -> None:
    with pytest.raises(ConfigError, match="slowing down needs planned actions"):
        drive(Still(), Follower(SimulatedClock()), on_late="slow")
