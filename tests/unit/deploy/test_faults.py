"""Faults injected into the loop: the robot is held or stopped within the promised time, and the log says why."""

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.spec import Array, ArraySpec, EnvSpec, PolicySpec
from burnish.core.step import ActionSample
from burnish.deploy import cameras, chunking, safety
from burnish.deploy.robot import Outcome, RealClock, Sensed, SimulatedClock
from burnish.deploy.runtime import Config, RuntimeReport, run
from burnish.deploy.ticklog import read_ticks

STATE, CAMERA = "observation.state", "observation.images.front"
DT, STEPS = 0.05, 8
OBSERVATION = {STATE: ArraySpec((2,), unit="m"), CAMERA: ArraySpec((6, 6, 3), "uint8")}
ACTION = ArraySpec((2,), unit="m", low=-1.0, high=1.0, names=("x", "z"))
SPEC = EnvSpec("bench", OBSERVATION, ACTION, DT, 60, ("move",))


class Slide:
    """Moves on from where the robot is, a little per step; says what it is told to say instead, by call."""

    def __init__(self, step: float = 0.01, faults: dict[int, str] | None = None) -> None:
        self.spec = PolicySpec("slide", OBSERVATION, ACTION, STEPS)
        self.step, self.faults, self.calls = step, faults or {}, -1
        self.release = threading.Event()

    def act(self, observation: Any, *, generator: np.random.Generator, deterministic: bool = False) -> ActionSample:
        self.calls += 1
        fault = self.faults.get(self.calls, "")
        if fault == "raise":
            raise RuntimeError("out of memory")
        if fault == "hang":
            self.release.wait(20)
        way = self.step * np.arange(1, STEPS + 1)[None, :, None]
        chunk = observation[STATE][:, None] + way
        if fault == "nan":
            chunk = chunk * np.nan
        if fault == "jump":
            chunk = chunk + 1e6
        return ActionSample(chunk.astype(np.float32), np.zeros((1, STEPS), np.float32))


class Bench:
    """A robot on the bench that follows perfectly, and fails as it is told, by tick."""

    def __init__(self, clock: Any, faults: dict[int, str] | None = None, control_dt: float = DT) -> None:
        self.spec = replace(SPEC, control_dt=control_dt)
        self.clock, self.faults, self.tick = clock, faults or {}, -1
        self.position = np.zeros(2, np.float32)
        self.picture = np.zeros((6, 6, 3), np.uint8)
        self.sent: list[Array] = []
        self.stopped: list[Array] = []
        self.stopped_at = -1.0
        self.free = threading.Event()
        self.frozen = False
        self.fault = ""

    def observe(self) -> Sensed:
        self.tick += 1
        self.fault = self.faults.get(self.tick, "")
        now = self.clock.now()
        if self.fault == "raise":
            raise OSError("cable")
        self.frozen |= self.fault == "frozen"
        if not self.frozen:
            self.picture = self.picture + 1
        state = self.position[None].copy()
        if self.fault == "nan":
            state[0, 1] = np.nan
        observation = {STATE: state, CAMERA: self.picture[None], "task": ["move"]}
        old = {"stale": now - 0.5, "nan stamp": np.nan}.get(self.fault, now)
        camera = now - 0.7 if self.fault == "stale camera" else now
        return Sensed(observation, old, {CAMERA: camera})

    def send(self, action: Array) -> Outcome:
        assert np.isfinite(action).all()  # nothing else may ever reach a robot
        if self.fault == "hang":
            self.free.wait(20)
        self.position = action.copy()
        self.sent.append(action)
        return Outcome()

    def stop(self, action: Array) -> None:
        self.stopped.append(action)
        self.stopped_at = self.clock.now()
        self.free.set()


def drive(policy: Slide, robot: Bench, *, log: Path | None = None, rows: Any = None, **fields: Any) -> RuntimeReport:
    config = Config(**{"warm_up": 0, "max_ticks": 60, **fields})
    return run(policy, robot, config, clock=robot.clock, log=log, on_tick=None if rows is None else rows.append)


def test_a_slow_policy_holds_and_goes_on() -> None:
    robot, rows = Bench(SimulatedClock()), []
    report = drive(Slide(), robot, rows=rows, latency_s=0.2)
    assert not report.stop
    assert report.kinds["hold"] > 10
    held = [row for row in rows if row["kind"] == "hold"]
    assert all(np.array_equal(row["sent"], rows[row["tick"] - 1]["sent"]) for row in held)


@pytest.mark.parametrize(("on_late", "slow", "held"), [("hold", 0, 4), ("slow", 8, 4), ("stop", 0, 1)])
def test_a_policy_that_never_answers_again_stops_after_the_promised_ticks(
    on_late: Any, slow: int, held: int, tmp_path: Path
) -> None:
    robot, policy, rows = Bench(RealClock(), control_dt=0.01), Slide(faults={1: "hang"}), []
    try:
        report = drive(
            policy,
            robot,
            log=tmp_path,
            rows=rows,
            clock="real",
            on_late=on_late,
            max_late_s=5.0,
            max_hold_s=0.03,
            max_ticks=200,
            slow_steps=2,
            max_observation_age_s=5.0,
            chunking=chunking.Config(4, 2),
        )
    finally:
        policy.release.set()
    kinds = "".join(row["kind"][0] for row in rows)
    assert kinds.strip("w").rstrip("h").rstrip("s").strip("p") == ""
    assert kinds.count("s") <= slow
    assert kinds.count("h") == held
    assert report.stop.startswith("the next chunk is late" if on_late == "stop" else "no new action for 0.04 s")
    assert read_ticks(tmp_path)[1][-1]["stop"] == report.stop
    np.testing.assert_array_equal(robot.stopped, [robot.sent[-1]])  # held where it was sent last


def test_a_policy_that_dies_stops_the_run_at_once(tmp_path: Path) -> None:
    robot = Bench(SimulatedClock())
    report = drive(Slide(faults={2: "raise"}), robot, log=tmp_path)
    assert report.stop == "the policy failed: RuntimeError: out of memory"
    assert len(robot.sent) == 2 * STEPS
    assert read_ticks(tmp_path)[1][-1]["stop"] == report.stop


@pytest.mark.parametrize("fault", ["nan", "jump"])
def test_bad_answers_never_reach_the_robot(fault: str) -> None:
    robot = Bench(SimulatedClock())
    limits = safety.Config(max_rate=0.5, max_acceleration=5.0, position_key=STATE)
    report = drive(Slide(faults={2: fault}), robot, safety=limits)
    path = np.array(robot.sent, float)
    assert np.isfinite(path).all()
    assert np.abs(path).max() <= 1
    assert np.abs(np.diff(path, axis=0)).max() <= 0.5 * DT + 1e-6
    assert np.abs(np.diff(path, n=2, axis=0)).max() <= 5 * DT**2 + 1e-6
    assert report.interventions["not_finite" if fault == "nan" else "limit"] > 0
    assert ("is nan; the run stops" in report.stop) is (fault == "nan")
    assert np.abs(np.diff(path, axis=0)[-1]).max() <= 5 * DT**2 + 1e-6 or not report.stop  # braked, then stopped


@pytest.mark.parametrize(
    ("fault", "match", "kind"),
    [
        ("nan", "the observation 'observation.state' is not finite", "robot"),
        ("stale", "the observation is 0.5 s old; the limit is 0.2 s", "robot"),
        ("nan stamp", "the observation is nan s old", "robot"),
        ("stale camera", "the picture 'observation.images.front' is 0.7 s old; the limit is 0.2 s", "camera"),
    ],
)
def test_sensors_that_fail_stop_the_run_in_the_same_tick(fault: str, match: str, kind: str, tmp_path: Path) -> None:
    robot = Bench(SimulatedClock(), {12: fault})
    report = drive(Slide(), robot, log=tmp_path)
    assert report.stop.startswith(match)
    assert report.ticks == 13
    assert report.interventions == {kind: 1}
    np.testing.assert_array_equal(robot.stopped, [robot.sent[-1]])
    assert read_ticks(tmp_path)[1][-1]["stop"] == report.stop


def test_a_frozen_camera_stops_a_robot_that_moves_and_not_one_that_rests() -> None:
    watch = cameras.Config(max_frozen_s=0.5, min_motion=0.05)
    moving, resting = Bench(SimulatedClock(), {10: "frozen"}), Bench(SimulatedClock(), {10: "frozen"})
    report = drive(Slide(), moving, cameras=watch)
    # ten ticks of the same picture, the tick in which it froze among them
    assert report.stop.startswith("camera 'observation.images.front' has shown the same picture for 0.5 s, while")
    assert report.ticks == 20
    assert report.interventions == {"camera": 1}
    assert not drive(Slide(0.0), resting, cameras=watch).stop
    assert not drive(Slide(), Bench(SimulatedClock(), {10: "frozen"})).stop  # simulated pictures may stand still


def test_a_robot_that_breaks_is_told_to_stop_and_the_reason_is_logged(tmp_path: Path) -> None:
    robot = Bench(SimulatedClock(), {12: "raise"})
    with pytest.raises(OSError, match="cable"):
        drive(Slide(), robot, log=tmp_path)
    np.testing.assert_array_equal(robot.stopped, [robot.sent[-1]])
    assert read_ticks(tmp_path)[1][-1]["stop"] == "OSError: cable"


def test_a_robot_that_cannot_be_stopped_does_not_hide_why_it_should_have(tmp_path: Path) -> None:
    robot = Bench(SimulatedClock(), {12: "nan"})

    def broken(action: Array) -> None:
        raise OSError("no route")

    robot.stop = broken  # type: ignore[method-assign]
    report = drive(Slide(), robot, log=tmp_path)
    assert "is not finite" in report.stop
    assert read_ticks(tmp_path)[1][-1]["stop_failed"] == "OSError: no route"


def test_a_call_that_hangs_is_answered_by_stop_from_another_thread(tmp_path: Path) -> None:
    robot = Bench(RealClock(), {5: "hang"}, control_dt=0.01)  # send waits until stop is called
    report = drive(
        Slide(), robot, log=tmp_path, clock="real", max_stall_s=0.4, max_late_s=9.0, max_observation_age_s=9.0
    )
    assert report.stop.startswith("the robot has not returned from send for 0.")
    assert report.interventions == {"robot": 1}
    assert len(robot.stopped) == 1
    rows = read_ticks(tmp_path)[1]
    assert [row["stalled"] for row in rows if "stalled" in row] == ["send"]
    assert rows[-1]["stop"] == report.stop


def test_a_stop_brakes_within_the_limits_and_the_log_holds_the_way() -> None:
    robot = Bench(SimulatedClock(), {30: "nan"})
    limits = safety.Config(max_acceleration=0.5, position_key=STATE)
    report = drive(Slide(0.01), robot, safety=limits)
    assert "is not finite" in report.stop
    path = np.array(robot.sent, float)
    assert len(path) > 30  # went on after the stop
    assert np.abs(np.diff(path, n=2, axis=0)).max() <= 0.5 * DT**2 + 1e-6
    np.testing.assert_allclose(np.diff(path, axis=0)[-1], 0, atol=0.5 * DT**2 + 1e-6)
    np.testing.assert_array_equal(robot.stopped, [robot.sent[-1]])


faults = st.dictionaries(
    st.integers(0, 55), st.sampled_from(["nan", "stale", "nan stamp", "stale camera", "frozen"]), max_size=2
)
answers = st.dictionaries(st.integers(0, 12), st.sampled_from(["nan", "jump", "raise"]), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    faults,
    answers,
    st.floats(0, 0.6),
    st.floats(0, 0.2),
    st.sampled_from(["hold", "slow", "stop"]),
    st.sampled_from(["linear", "bezier"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_whatever_fails_every_tick_is_accounted_for_and_nothing_bad_is_sent(
    faults: Any, answers: Any, latency: float, jitter: float, on_late: Any, blend: Any, blend_steps: int, limited: bool
) -> None:
    robot, rows = Bench(SimulatedClock(), faults), []
    limits = safety.Config(max_rate=1.0, max_acceleration=8.0, position_key=STATE) if limited else safety.Config()
    report = drive(
        Slide(faults=answers),
        robot,
        rows=rows,
        latency_s=latency,
        latency_jitter_s=jitter,
        on_late=on_late,
        slow_steps=2,
        chunking=chunking.Config(6, 4, blend=blend, blend_steps=blend_steps),
        safety=limits,
        cameras=cameras.Config(max_frozen_s=0.3),
    )
    assert [row["tick"] for row in rows] == list(range(report.ticks))
    path = np.array(robot.sent, float).reshape(-1, 2)
    assert np.isfinite(path).all()
    assert (np.abs(path) <= 1).all()
    if limited and len(path) > 2:
        assert np.abs(np.diff(path, axis=0)).max() <= DT + 1e-6
        assert np.abs(np.diff(path, n=2, axis=0)).max() <= 8 * DT**2 + 1e-6
    planned = [(row["chunk"], row["index"]) for row in rows if row.get("kind") == "plan"]
    assert not planned or planned[0] == (0, 0)
    for before, now in pairwise(rows):
        held = now.get("kind") == before.get("kind") == "hold" and "sent" in now  # not in the tick that stops
        if held and not limited and "interventions" not in now:
            np.testing.assert_array_equal(now["sent"], before["sent"])
    assert len(robot.stopped) == bool(report.stop)
    if report.stop:
        assert np.isfinite(robot.stopped).all()
    else:
        assert report.ticks == 60
