import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, DatasetError, EnvError, SpecError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.core.step import ActionSample, Start
from burnish.data.episodes import run_episodes
from burnish.deploy import chunking, safety
from burnish.deploy.robot import EnvRobot, Outcome, RealClock, Sensed, SimulatedClock
from burnish.deploy.runtime import Config, RuntimeReport, run, run_env
from burnish.deploy.ticklog import TickLog, read_decisions, read_ticks, replay
from burnish.envs import point_mass

STATE = "observation.state"
START = Start("up", 3, 7)
STEPS = 4


class Pull:
    """Moves towards the goal by velocity; row k of a chunk is slower than row 0, so that indices show."""

    def __init__(self, *, gain: float = 1.0, latency_s: float = 0.0, fails_at: int = -1) -> None:
        spec = point_mass.Config().spec()
        self.spec = PolicySpec("pull", {STATE: spec.observation[STATE]}, spec.action, STEPS)
        self.gain, self.latency_s, self.fails_at, self.calls = gain, latency_s, fails_at, 0

    def act(self, observation: Any, *, generator: np.random.Generator, deterministic: bool = False) -> ActionSample:
        assert sorted(observation) == [STATE, "task"]
        self.calls += 1
        if self.calls - 1 == self.fails_at:
            raise ValueError("no answer")
        time.sleep(self.latency_s)
        state = observation[STATE]
        towards = np.clip(self.gain * (state[:, 4:] - state[:, :2]), -0.9, 0.9)
        chunk = towards[:, None] * (1 - 0.1 * np.arange(STEPS))[None, :, None]
        if not deterministic:
            chunk = chunk + 0.01 * generator.standard_normal(chunk.shape)
        return ActionSample(chunk.astype(np.float32), np.zeros((len(state), STEPS), np.float32))


def drive(policy: Pull | None = None, *, log: Path | None = None, on_tick: Any = None, **fields: Any) -> RuntimeReport:
    env = point_mass.Config().build(1)
    return run_env(policy or Pull(), env, START, Config(**{"warm_up": 0, **fields}), log=log, on_tick=on_tick)


@pytest.mark.parametrize("replan_steps", [1, 3, 4])
def test_without_latency_it_executes_what_evaluation_executes(replan_steps: int) -> None:
    policy = Pull()

    def act(observation: Any) -> np.ndarray:
        public = {key: observation[key] for key in (STATE, "task")}
        chunk: np.ndarray = policy.act(public, generator=np.random.default_rng(), deterministic=True).action_chunk
        return chunk

    (episode,) = run_episodes(act, point_mass.Config().build(1), [START], replan_steps=replan_steps)
    report = drive(chunking=chunking.Config(replan_steps))
    assert not report.interventions
    assert report.action.tobytes() == episode.action.tobytes()
    assert report.return_ == pytest.approx(episode.return_)
    assert report.metrics == episode.metrics
    assert (report.terminated, report.truncated) == (episode.terminated, episode.truncated)


def test_a_latency_of_two_ticks_waits_first_and_then_enters_chunks_where_the_robot_is() -> None:
    rows: list[Any] = []
    report = drive(
        latency_s=0.1,  # two control periods
        max_ticks=12,
        chunking=chunking.Config(replan_steps=3, prefetch_steps=1),
        on_tick=rows.append,
    )
    # asked at ticks 0, 4, 7 and 10, with 0, 2, 5 and 7 actions done; each arrives two ticks later
    assert [(row["kind"], row["chunk"], row["index"]) for row in rows] == [
        ("wait", -1, -1), ("wait", -1, -1), ("plan", 0, 0), ("plan", 0, 1), ("plan", 0, 2), ("plan", 0, 3),
        ("plan", 1, 2), ("plan", 1, 3), ("hold", 1, -1), ("plan", 2, 1), ("plan", 2, 2), ("plan", 2, 3),
    ]  # fmt: skip
    assert report.kinds == {"wait": 2, "plan": 9, "hold": 1}
    assert report.delays.tolist() == [0, 2, 1]


def test_late_chunks_hold_the_last_action_and_then_stop() -> None:
    rows: list[Any] = []
    report = drive(latency_s=0.4, on_tick=rows.append, max_hold_s=0.3, max_wait_s=1.0)
    held = [row for row in rows if row.get("kind") == "hold"]
    assert len(held) == 7
    for row in held[:-1]:
        np.testing.assert_array_equal(row["sent"], rows[11]["sent"])
    assert report.stop == "no new action for 0.35 s; the limit is 0.3 s"
    assert "STOPPED" in report.text()


def test_on_late_stop_ends_at_the_first_tick_without_a_planned_action() -> None:
    report = drive(latency_s=0.1, on_late="stop")
    assert report.stop == "the next chunk is late"
    assert len(report.action) == STEPS


def test_a_first_action_that_never_comes_stops() -> None:
    report = drive(latency_s=100.0, max_wait_s=0.5)
    assert report.stop.startswith("no new action for 0.55 s")
    assert report.action.shape == (0, 2)


def test_modelled_jitter_is_repeatable() -> None:
    config: dict[str, Any] = {"latency_s": 0.1, "latency_jitter_s": 0.1, "max_ticks": 40}
    first, again, other = drive(**config), drive(**config), drive(**config, seed=1)
    assert first.action.tobytes() == again.action.tobytes()
    assert first.action.tobytes() != other.action.tobytes()


def test_real_time_keeps_the_rate_and_excludes_warm_up() -> None:
    policy = Pull(latency_s=0.02)
    env = point_mass.Config().build(1)
    begin = time.monotonic()
    report = run_env(
        policy,
        env,
        START,
        Config(clock="real", max_ticks=12, warm_up=2, chunking=chunking.Config(replan_steps=3, prefetch_steps=2)),
    )
    assert 0.5 < time.monotonic() - begin < 1.5
    assert report.ticks == 12
    assert len(report.inference_ms) <= policy.calls - 2
    assert report.inference_ms.min() >= 20
    assert np.median(report.jitter_ms) < 15
    assert report.jitter_ms.shape == (11,)


def test_dry_run_sends_nothing_and_ends() -> None:
    report = drive(dry_run=True, max_ticks=9)
    assert report.ticks == 9
    assert len(report.action) == 9
    assert not report.terminated
    assert report.metrics == {}
    assert drive(dry_run=True).ticks == point_mass.Config().max_episode_steps


def test_interventions_are_logged_counted_and_applied(tmp_path: Path) -> None:
    report = drive(log=tmp_path / "run", safety=safety.Config(max_rate=1.0), max_ticks=10)
    _, rows = read_ticks(tmp_path / "run")
    changed = [row for row in rows if "interventions" in row]
    assert len(changed) == report.interventions["rate"] > 0
    for row in changed:
        assert row["action"] != row["sent"]
    assert "rate" in report.text()


class Scripted:
    """A robot whose sensors are told what to do, by tick."""

    def __init__(self, clock: Any, faults: dict[int, str]) -> None:
        self.spec = point_mass.Config().spec()
        self.clock, self.faults, self.tick = clock, faults, -1
        self.sent: list[np.ndarray] = []
        self.stopped: list[np.ndarray] = []

    def observe(self) -> Sensed:
        self.tick += 1
        fault = self.faults.get(self.tick, "")
        observation: dict[str, Any] = {STATE: np.zeros((1, 6), np.float32), "task": ["up"]}
        if fault == "nan":
            observation[STATE][0, 2] = np.nan
        if fault == "missing":
            del observation[STATE]
        if fault == "slow":
            time.sleep(0.12)
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "broken":
            raise OSError("cable")
        return Sensed(observation, self.clock.now() - (1.0 if fault == "stale" else 0.0))

    def send(self, action: np.ndarray) -> Outcome:
        self.sent.append(action)
        return Outcome()

    def stop(self, action: np.ndarray) -> None:
        self.stopped.append(action)


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("stale", "the observation is 1 s old; the limit is 0.2 s"),
        ("nan", "the observation 'observation.state' is not finite"),
        ("missing", "the observation has no 'observation.state'; it has task"),
        ("interrupt", "interrupted by the operator"),
    ],
)
def test_bad_observations_and_the_operator_stop_the_robot(fault: str, match: str) -> None:
    clock = SimulatedClock()
    robot = Scripted(clock, {5: fault})
    report = run(Pull(), robot, Config(warm_up=0, max_ticks=20), clock=clock)
    assert report.stop == match
    assert len(robot.sent) == 5
    np.testing.assert_array_equal(robot.stopped, [[0.0, 0.0]])  # velocities rest at zero


def test_a_robot_that_breaks_is_told_to_stop_and_the_error_passes_on() -> None:
    clock = SimulatedClock()
    robot = Scripted(clock, {2: "broken"})
    with pytest.raises(OSError, match="cable"):
        run(Pull(), robot, Config(warm_up=0), clock=clock)
    assert len(robot.stopped) == 1


@pytest.mark.parametrize("on_late", ["hold", "stop"])
def test_a_tick_that_begins_late_is_counted_and_not_caught_up_in_a_burst(on_late: Any) -> None:
    clock = RealClock()
    robot = Scripted(clock, {2: "slow"})
    rows: list[Any] = []
    config = Config(clock="real", warm_up=0, max_ticks=6, on_late=on_late, max_observation_age_s=1.0)
    report = run(Pull(), robot, config, clock=clock, on_tick=rows.append)
    assert report.late_ticks == 1
    if on_late == "stop":
        assert "tick 3 began" in report.stop
        assert report.ticks == 4
    else:
        assert np.diff([row["time_s"] for row in rows])[3:].min() > 0.04


@pytest.mark.parametrize("clock", ["simulated", "real"])
def test_a_policy_that_fails_stops_the_robot_with_its_reason(clock: Any) -> None:
    report = drive(Pull(fails_at=1), clock=clock)
    assert report.stop == "the policy failed: ValueError: no answer"


def test_no_inference_thread_is_left() -> None:
    before = threading.active_count()
    drive(clock="real", max_ticks=3)
    deadline = time.monotonic() + 2
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_the_log_holds_header_ticks_and_decisions_and_replays_equal(tmp_path: Path) -> None:
    report = drive(log=tmp_path / "run", max_ticks=10, deterministic=False)
    header, rows = read_ticks(tmp_path / "run")
    assert header["start"] == {"task": "up", "init": 3, "seed": 7}
    assert header["control_dt"] == 0.05
    assert header["policy"]["id"] == "pull"
    assert [row["tick"] for row in rows] == list(range(10))
    np.testing.assert_array_equal(np.array([row["sent"] for row in rows], np.float32), report.action)
    assert [number for number, *_ in read_decisions(tmp_path / "run")] == [0, 1, 2]
    same = replay(Pull(), tmp_path / "run")
    assert same.same
    assert same.text() == "replay: 3 decisions, all equal to the log"


def test_replay_reports_a_policy_that_answers_otherwise(tmp_path: Path) -> None:
    drive(log=tmp_path / "run", max_ticks=8)
    report = replay(Pull(gain=0.5), tmp_path / "run")
    assert (report.decisions, report.different, report.first) == (2, 2, 0)
    assert report.max_difference > 0.01
    assert "2 of 2 decisions differ" in report.text()


def test_a_log_that_was_cut_off_is_readable_and_other_damage_is_named(tmp_path: Path) -> None:
    drive(log=tmp_path / "run", max_ticks=5)
    path = tmp_path / "run" / "ticks.jsonl"
    text = path.read_text()
    path.write_text(text[:-20])
    assert len(read_ticks(tmp_path / "run")[1]) == 4
    path.write_text(text.replace('"tick": 1,', '"tick": ,', 1))
    with pytest.raises(DatasetError, match="line 3 is damaged"):
        read_ticks(tmp_path / "run")
    path.write_text('{"format": "other"}\n')
    with pytest.raises(DatasetError, match="does not begin with a header"):
        read_ticks(tmp_path / "run")
    with pytest.raises(DatasetError, match="holds no run"):
        read_ticks(tmp_path)


def test_a_damaged_or_missing_decision_is_named(tmp_path: Path) -> None:
    drive(log=tmp_path / "run", max_ticks=5)
    first = tmp_path / "run" / "decisions" / "000000.npz"
    first.write_bytes(first.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"000000\.npz' is damaged"):
        replay(Pull(), tmp_path / "run")
    for path in first.parent.iterdir():
        path.unlink()
    with pytest.raises(DatasetError, match="no decision to replay"):
        replay(Pull(), tmp_path / "run")


def test_a_log_is_not_written_over(tmp_path: Path) -> None:
    TickLog(tmp_path, {}).close()
    with pytest.raises(ConfigError, match="holds a run already"):
        TickLog(tmp_path, {})


def test_ticks_are_strict_json_even_for_bad_numbers(tmp_path: Path) -> None:
    log = TickLog(tmp_path, {})
    log.tick({"action": np.array([np.nan, 1.0]), "count": np.int64(3)})
    log.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    row = json.loads((tmp_path / "ticks.jsonl").read_text().splitlines()[1], parse_constant=refuse)
    assert row == {"action": ["nan", 1.0], "count": 3}


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"max_ticks": -1}, "max_ticks"),
        ({"latency_s": -0.1}, "latency_s"),
        ({"max_hold_s": 0.0}, "max_hold_s"),
        ({"wait_share": 1.0}, "wait_share"),
        ({"clock": "real", "latency_s": 0.1}, "in simulated time only"),
        ({"chunking": chunking.Config(replan_steps=9)}, "chunk, which has 4"),
        ({"safety": safety.Config(max_rate=(1.0, 1.0, 1.0, 1.0))}, "has 4 entries"),
    ],
)
def test_wrong_configurations_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        drive(**fields)


def test_several_envs_and_other_actions_are_refused() -> None:
    with pytest.raises(EnvError, match="found 2"):
        EnvRobot(point_mass.Config().build(2), START, SimulatedClock())
    policy = Pull()
    policy.spec = PolicySpec("pull", policy.spec.observation, ArraySpec((3,)), STEPS)
    with pytest.raises(SpecError, match="disagree on the action"):
        drive(policy)
