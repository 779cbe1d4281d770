"""Recording through lerobot's own classes: what we write, stock lerobot reads, and a kill loses nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.errors import DatasetError
from burnish.data.dataset import read_lerobot, write_lerobot
from burnish.data.episodes import Episode, run_episodes
from burnish.data.log import EpisodeLog
from burnish.data.record import record
from tests.unit.data.line_env import SPEC, expert, line_env, starts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TOP = "observation.images.top"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))


def episodes(count: int) -> list[Episode]:
    return list(run_episodes(expert, line_env(2), starts(count), replan_steps=1, keep_observation=True))


def stock(directory: Path) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("burnish/test", root=directory, video_backend="pyav", return_uint8=True)


@pytest.mark.parametrize("videos", [False, True])
def test_stock_lerobot_reads_what_we_write_and_we_read_the_same(tmp_path: Path, videos: bool) -> None:
    written = episodes(4)
    assert write_lerobot(tmp_path / "set", written, SPEC, fps=10, videos=videos) == 4
    theirs = stock(tmp_path / "set")
    ours = read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert len(theirs) == len(ours) == sum(episode.length for episode in written)
    assert theirs.num_episodes == ours.num_episodes == 4
    assert not any(key.startswith("privileged.") for key in theirs.features)
    assert ours.env_spec == SPEC
    observation, chunk, _ = ours.chunks(np.arange(len(ours)), 1)
    for frame in range(len(ours)):
        item = theirs[frame]
        assert item["task"] == observation["task"][frame]
        np.testing.assert_array_equal(item["observation.state"].numpy(), observation["observation.state"][frame])
        np.testing.assert_array_equal(item["action"].numpy().reshape(1), chunk[frame, 0])
        assert bool(item["next.done"]) == bool(ours.column("next.done")[frame, 0])
        image = np.asarray(item[TOP].permute(1, 2, 0))
        image = image if image.dtype == np.uint8 else (image * 255).round().astype(np.uint8)
        np.testing.assert_array_equal(image, observation[TOP][frame])
    state = np.concatenate([episode.observation["observation.state"] for episode in written])
    np.testing.assert_array_equal(ours.column("observation.state"), state)
    np.testing.assert_allclose(ours.statistics["observation.state"]["mean"], state.mean(0), atol=1e-5)
    assert len(ours.statistics[TOP]["mean"]) == 3
    if not videos:
        pictures = np.concatenate([episode.observation[TOP] for episode in written])
        np.testing.assert_array_equal(ours.column(TOP), pictures)


def test_privileged_entries_are_written_only_on_request(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "set", episodes(1), SPEC, fps=10, privileged=True, outcome=False)
    dataset = read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert "privileged.goal" in dataset.features
    assert "privileged.goal" not in dataset.observation_keys
    assert "next.reward" not in dataset.features


def test_a_failed_export_leaves_the_old_dataset(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "set", episodes(1), SPEC, fps=10)
    with pytest.raises(DatasetError, match="no episode to write"):
        write_lerobot(tmp_path / "set", [], SPEC, fps=10)
    assert read_lerobot(tmp_path / "set", tmp_path / "cache").num_episodes == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_record_exports_in_the_order_of_the_starts(tmp_path: Path) -> None:
    result = record(expert, line_env(3), starts(5), tmp_path / "all", keep_only_success=False)
    assert result.exported == result.episodes == 5
    dataset = read_lerobot(tmp_path / "all" / "dataset", tmp_path / "cache")
    alone = list(run_episodes(expert, line_env(1), starts(5), replan_steps=1))
    np.testing.assert_array_equal(dataset.column("action"), np.concatenate([episode.action for episode in alone]))
    info = tmp_path / "all/dataset/meta/info.json"
    before = info.stat().st_mtime_ns
    assert record(expert, line_env(3), starts(5), tmp_path / "all", keep_only_success=False).resumed == 5
    assert info.stat().st_mtime_ns == before
    assert record(expert, line_env(3), starts(5), tmp_path / "all").exported == result.successes


RECORDER = """
import sys, time
from pathlib import Path
from burnish.data.record import record
from tests.unit.data.line_env import expert, line_env, starts
def slow(observation):
    time.sleep(0.005)
    return expert(observation)
record(slow, line_env(2), starts(200), Path(sys.argv[1]), format="log",
       progress=lambda done, note: print(done, flush=True))
"""


def test_kill_9_while_recording_then_resume(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(tmp_path / "rec")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    for _ in range(7):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = 7 + len(process.stdout.read().split())
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    log = EpisodeLog(tmp_path / "rec/episodes")
    assert log.verify() == {}
    assert acknowledged <= len(log) <= acknowledged + 1
    wanted = starts(200)[: len(log) + 2]
    kept = len(set(log.starts) & set(wanted))
    result = record(expert, line_env(2), wanted, tmp_path / "rec")
    assert (result.resumed, result.episodes) == (kept, len(wanted))
    assert read_lerobot(tmp_path / "rec/dataset", tmp_path / "cache").num_episodes == result.successes > 0
