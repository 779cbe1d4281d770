import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, DatasetError, ProtocolError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import Start
from burnish.deploy.formats import check_formats, moments
from burnish.deploy.frames import RecordingRobot, find_runs, read_episode, read_spec
from burnish.deploy.observations import handshake
from burnish.deploy.robot import Outcome, Sensed, SimulatedClock
from burnish.deploy.runtime import Config, run
from burnish.deploy.shadow import ShadowPolicy
from burnish.deploy.ticklog import replay
from tests.unit.deploy.affine import STATE, WRIST, AffinePolicy, make_observation, make_spec

SPEC = EnvSpec(
    "arm",
    {STATE: ArraySpec((3,), unit="rad"), "privileged.pose": ArraySpec((2,))},
    ArraySpec((2,), unit="m/s", low=-1.0, high=1.0),
    0.05,
    5,
    ("press",),
)
START = Start("press", 0, 7)


class Arm:
    """A robot in memory; ends after five actions."""

    spec = SPEC

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.state = np.zeros((1, 3), np.float32)
        self.stopped: list[Any] = []

    def observe(self) -> Sensed:
        seen = {STATE: self.state, "privileged.pose": np.ones((1, 2), np.float32), "task": ["press"]}
        return Sensed(seen, self.clock.now(), intervention=False)

    def send(self, action: np.ndarray) -> Outcome:
        self.state += 1.0  # in place, as a simulator that reuses its buffers
        count = float(self.state[0, 0])
        return Outcome(count, truncated=count >= 5, metrics={"success": 1.0})

    def stop(self, action: np.ndarray) -> None:
        self.stopped.append(action)


def policy(**changes: Any) -> AffinePolicy:
    return AffinePolicy(make_spec(image=False, chunk_steps=2), gain=0.1, **changes)


def record(folder: Path) -> RecordingRobot:
    clock = SimulatedClock()
    robot = RecordingRobot(Arm(clock), folder, START)
    run(policy(), robot, Config(), clock=clock, log=folder)
    robot.close()
    return robot


def test_frames_hold_what_was_seen_before_each_action_and_what_was_sent(tmp_path: Path) -> None:
    folder = tmp_path / "000"
    record(folder)
    episode, problem = read_episode(folder)
    assert problem == ""
    assert episode is not None
    assert (episode.start, episode.task, episode.length) == (START, "press", 5)
    np.testing.assert_array_equal(episode.observation[STATE][:, 0], [0, 1, 2, 3, 4])
    assert set(episode.observation) == {STATE}, "nothing privileged"
    np.testing.assert_allclose(episode.action[:, 0], [0, 0, 0.2, 0.2, 0.4], atol=1e-6)
    np.testing.assert_array_equal(episode.reward, [1, 2, 3, 4, 5])
    assert (episode.truncated, episode.success) == (True, True)
    assert episode.info == {"intervention": []}
    assert read_spec(folder) == (SPEC, START)
    assert find_runs(tmp_path) == [folder]
    seen = list(moments(folder))
    assert [moment.observation[STATE][0] for moment in seen] == [0, 1, 2, 3, 4]


def test_a_killed_run_and_a_gap_keep_what_is_whole(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "frames" / "end.json").unlink()
    (tmp_path / "frames" / "000005.partial").write_bytes(b"half")
    episode, problem = read_episode(tmp_path)
    assert episode is not None
    assert (episode.length, episode.truncated, problem) == (5, False, "")
    (tmp_path / "frames" / "000003.npz").unlink()
    episode, problem = read_episode(tmp_path)
    assert episode is not None
    assert episode.length == 3
    assert "frames after number 3 were left out" in problem or "1 frames" in problem


def test_damaged_recordings_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"Cannot read '.*spec\.json'"):
        read_episode(tmp_path)
    record(tmp_path)
    with pytest.raises(ConfigError, match="holds an episode already"):
        RecordingRobot(Arm(SimulatedClock()), tmp_path, START)
    (tmp_path / "frames" / "000001.npz").write_bytes(b"not a zip")
    with pytest.raises(DatasetError, match=r"000001\.npz' is damaged"):
        read_episode(tmp_path)
    (tmp_path / "frames" / "spec.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"spec\.json' is damaged: KeyError"):
        read_spec(tmp_path)


def test_braking_is_not_recorded(tmp_path: Path) -> None:
    robot = RecordingRobot(Arm(SimulatedClock()), tmp_path, START)
    robot.observe()
    robot.send(np.zeros(2, np.float32))
    robot.send(np.zeros(2, np.float32))
    robot.stop(np.zeros(2, np.float32))
    robot.close()
    assert json.loads((tmp_path / "frames" / "end.json").read_text())["frames"] == 1


def test_unknown_formats_are_refused() -> None:
    check_formats(("rrd", "mcap"))
    with pytest.raises(ConfigError, match="There is no log format 'bag'"):
        check_formats(("bag",))


@pytest.mark.parametrize(("tolerance", "same"), [(0.0, False), (1e-3, False), (0.05, True)])
def test_replay_has_a_tolerance(tolerance: float, same: bool, tmp_path: Path) -> None:
    record(tmp_path)
    assert replay(policy(), tmp_path, tolerance=tolerance).same
    report = replay(policy(slope=0.01), tmp_path, tolerance=tolerance)
    assert report.same is same
    assert report.max_difference == pytest.approx(0.01, abs=1e-6)
    assert ("all within 0.05" in report.text()) is same


def test_a_candidate_in_the_shadow_changes_nothing(tmp_path: Path) -> None:
    driver = policy()
    shadow = ShadowPolicy(driver, policy(slope=0.5), path=tmp_path / "shadow.jsonl")
    observation = {STATE: np.float32([[0.3, 0.2, 0.1]]), "task": [""]}
    answer = shadow.act(observation, generator=stream(0), deterministic=True)
    wanted = driver.act(observation, generator=stream(0), deterministic=True)
    np.testing.assert_array_equal(answer.action_chunk, wanted.action_chunk)
    report = shadow.report()
    assert report.compared == 1
    np.testing.assert_allclose(report.mean_difference, [0.25, 0.25], atol=1e-6)
    assert "action[1]" in report.text()
    assert json.loads((tmp_path / "shadow.jsonl").read_text())["question"] == 0


def test_a_candidate_that_fails_is_reported_and_one_of_another_action_refused() -> None:
    shadow = ShadowPolicy(policy(), policy())
    shadow.act({STATE: np.float32([[13, 0, 0]]) * 0 + 12, "task": [""]}, generator=stream(0), deterministic=True)
    assert shadow.report().failed == ""
    broken = AffinePolicy(make_spec(image=True, chunk_steps=2))
    shadow = ShadowPolicy(policy(), broken)
    shadow.act({STATE: np.zeros((1, 3), np.float32), "task": [""]}, generator=stream(0), deterministic=True)
    assert shadow.report().compared == 1
    other = make_spec(image=False)
    wide = type(other)(other.id, other.observation, ArraySpec((3,)), 2)
    with pytest.raises(SpecError, match="act otherwise"):
        ShadowPolicy(policy(), AffinePolicy(wide))


def batch(**changes: Any) -> dict[str, Any]:
    return {key: [x] if isinstance(x, str) else x[None] for key, x in make_observation(**changes).items()}


def test_a_handshake_that_fits_is_a_table() -> None:
    found = handshake(make_spec(), batch())
    found.check()
    lines = found.text().splitlines()
    assert lines[0].split() == ["key", "expected", "received", "values"]
    assert lines[1].split() == [STATE, "float32[3]", "rad", "float32[3]", "0.1", "..", "0.3", "ok"]
    assert lines[3].split() == ["task", "text", "str", "ok"]


def test_a_handshake_warns_outside_the_quantiles_and_refuses_what_cannot_be_right() -> None:
    statistics = {STATE: {"q01": [0.0] * 3, "q99": [0.15] * 3, "min": [-9.0] * 3, "max": [9.0] * 3}}
    warned = handshake(make_spec(), batch(task=""), statistics)
    warned.check()
    assert "observation.state[1] is 0.2, outside the training range" in warned.text()
    assert "'task' is empty" in warned.text()
    wrong = batch(**{WRIST: np.zeros((8, 6, 3), np.float32)})
    del wrong[STATE]
    refused = handshake(make_spec(), wrong)
    assert refused.text().count("REFUSED") == 2
    with pytest.raises(ProtocolError, match=r"(?s)'observation\.state' is missing.*Send images as uint8"):
        refused.check()
