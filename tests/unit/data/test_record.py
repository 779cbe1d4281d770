from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, DatasetError
from burnish.core.step import Start
from burnish.data.log import EpisodeLog
from burnish.data.record import record
from tests.unit.data.line_env import LineEnv, chunk_expert, expert, line_env, starts


def test_every_episode_is_logged(tmp_path: Path) -> None:
    notes: list[tuple[int, str]] = []
    result = record(
        chunk_expert,
        line_env(2),
        starts(5),
        tmp_path,
        format="log",
        replan_steps=3,
        info={"teacher": "line"},
        progress=lambda done, note: notes.append((done, note)),
    )
    log = EpisodeLog(tmp_path / "episodes")
    assert set(log.starts) == set(starts(5))
    assert (result.episodes, result.resumed, result.exported, result.dataset) == (5, 0, 0, None)
    assert result.successes == sum(summary.success for summary in log.summaries())
    assert [done for done, _ in notes] == [1, 2, 3, 4, 5]
    assert notes[-1][1] == f"success {result.successes}/5"
    assert log.read(0).info["teacher"] == "line"
    assert "privileged.goal" in log.read(0).observation
    assert f"{result.successes} of 5 succeeded" in result.text


def test_starts_in_the_log_are_not_run_again(tmp_path: Path) -> None:
    begun: list[Start] = []
    reset = LineEnv.reset

    def watched(self: LineEnv, start: Start) -> None:
        begun.append(start)
        reset(self, start)

    record(expert, line_env(2), starts(3), tmp_path, format="log")
    (tmp_path / "episodes/episode-00000001.parquet").write_bytes(b"damaged")
    lost = set(starts(3)) - set(EpisodeLog(tmp_path / "episodes").starts)
    LineEnv.reset = watched  # type: ignore[method-assign]
    try:
        result = record(expert, line_env(2), starts(5), tmp_path, format="log")
    finally:
        LineEnv.reset = reset  # type: ignore[method-assign]
    assert set(begun) == lost | set(starts(5)[3:])
    assert (result.episodes, result.resumed) == (5, 2)
    assert result.damaged == ("episode-00000001.parquet",)
    assert "2 were there from before" in result.text


def test_no_success_nothing_to_export(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="None of 2 episodes succeeded"):
        record(lambda o: expert(o) * 0, line_env(2), starts(2), tmp_path)
    assert len(EpisodeLog(tmp_path / "episodes")) == 2


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"starts": []}, "at least one Start"),
        ({"starts": starts(2) * 2}, "more than once"),
        ({"format": "hdf5"}, "Unknown recording format 'hdf5'"),
        ({"replan_steps": 2}, "one observation for every action"),
    ],
)
def test_bad_requests(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {"starts": starts(1), "directory": tmp_path / "new", **changes}
    with pytest.raises(ConfigError, match=match):
        record(expert, line_env(1), **arguments)
    assert not (tmp_path / "new").exists()


def test_another_environment_does_not_mix_in(tmp_path: Path) -> None:
    record(expert, line_env(1), starts(1), tmp_path, format="log")
    other = line_env(1)
    other.spec = replace(other.spec, protocol={"friction": 0.3})
    with pytest.raises(DatasetError, match="do not mix"):
        record(expert, other, starts(2), tmp_path, format="log")
    (tmp_path / "record.json").write_text("{", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"record.json is damaged"):
        record(expert, line_env(1), starts(2), tmp_path, format="log")


def test_a_frame_rate_that_lerobot_cannot_hold_is_refused_before_recording(tmp_path: Path) -> None:
    env = line_env(1)
    env.spec = replace(env.spec, control_dt=0.4)
    with pytest.raises(DatasetError, match=r"acts every 0.4 s, which is 2.5 Hz"):
        record(expert, env, starts(1), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_interrupted_recording_keeps_what_is_finished(tmp_path: Path) -> None:
    calls = 0

    def stops(observation: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls > 14:
            raise KeyboardInterrupt
        return expert(observation) * 0

    with pytest.raises(KeyboardInterrupt):
        record(stops, line_env(2), starts(4), tmp_path, format="log")
    assert len(EpisodeLog(tmp_path / "episodes")) == 2
    result = record(expert, line_env(2), starts(4), tmp_path, format="log")
    assert (result.episodes, result.resumed) == (4, 2)
    np.testing.assert_array_equal(EpisodeLog(tmp_path / "episodes").read(0).action, 0)
