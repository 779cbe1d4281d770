import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import DatasetError
from burnish.core.step import Start
from burnish.data.columns import FORMAT_VERSION, from_table, to_table
from burnish.data.durable import durable_file, durable_folder
from burnish.data.episodes import Episode, run_episodes
from burnish.data.log import INDEX_NAME, EpisodeLog
from tests.unit.data.line_env import chunk_expert, line_env, starts


def episodes(count: int = 3, replan_steps: int = 3) -> list[Episode]:
    return list(
        run_episodes(chunk_expert, line_env(2), starts(count), replan_steps=replan_steps, keep_observation=True)
    )


def assert_equal(one: Episode, two: Episode) -> None:
    for name in ("env_id", "start", "task", "terminated", "truncated", "info"):
        assert getattr(one, name) == getattr(two, name)
    np.testing.assert_equal(one.metrics, two.metrics)
    arrays = [(one.action, two.action), (one.reward, two.reward), (one.decision, two.decision)]
    for mine, theirs in ((one.observation, two.observation), (one.last_observation, two.last_observation)):
        assert list(mine) == list(theirs)
        arrays += [(mine[key], theirs[key]) for key in mine]
    if one.log_prob is not None and two.log_prob is not None:
        arrays.append((one.log_prob, two.log_prob))
    else:
        assert one.log_prob is two.log_prob is None
    for mine, theirs in arrays:
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@st.composite
def any_episode(draw: st.DrawFn) -> Episode:
    length = draw(st.integers(1, 9))
    decision = np.array([0, *sorted(draw(st.sets(st.integers(1, length - 1) if length > 1 else st.nothing())))])
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16"]),
                st.lists(st.integers(1, 3), max_size=4),
            ),
            max_size=4,
        )
    )
    observation = {
        f"observation.{i}": (generator.random((len(decision), *shape)) * 9).astype(dtype)
        for i, (dtype, shape) in enumerate(kinds)
    }
    return Episode(
        env_id="test/any",
        start=Start("task", 1, 2),
        task="do it \N{SNOWMAN}",
        action=generator.normal(size=(length, 2)).astype(np.float32),
        reward=generator.normal(size=length).astype(np.float32),
        decision=decision.astype(np.int64),
        observation=observation,
        last_observation={key: item[-1] for key, item in observation.items()},
        log_prob=generator.normal(size=(len(decision), 3)).astype(np.float32) if draw(st.booleans()) else None,
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        metrics={"success": 1.0, "force": float("nan")},
        info={"wall_time": 0.1, "policy": {"id": "x"}},
    )


@settings(deadline=None, max_examples=30)
@given(any_episode())
def test_every_episode_survives_the_disk(episode: Episode) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(to_table(episode), sink, compression="zstd")
    assert_equal(from_table(pq.read_table(pa.BufferReader(sink.getvalue()))), episode)


def test_columns_that_others_can_read() -> None:
    episode = episodes(1)[0]
    table = to_table(episode)
    assert table.num_rows == episode.length
    assert table.column("next.done").to_pylist() == [False] * (episode.length - 1) + [True]
    assert table.column("chunk_index").to_pylist() == [i // 3 for i in range(episode.length)]
    assert table.column("step_in_chunk").to_pylist() == [i % 3 for i in range(episode.length)]
    state = table.column("observation.state").to_pylist()
    assert [row is None for row in state] == [i % 3 != 0 for i in range(episode.length)]
    assert table.column("next.observation.state").null_count == episode.length - 1
    assert "privileged.goal" in table.column_names


def test_write_and_read_again(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "log")
    written = episodes(3)
    for episode in written:
        assert log.write(episode).parent == tmp_path / "log"
    for reader in (log, EpisodeLog(tmp_path / "log")):
        assert len(reader) == 3
        assert reader.damaged == {}
        assert set(reader.starts) == set(starts(3))
        assert set(reader.env_ids) == {"test/line"}
        for mine, theirs in zip(reader, written, strict=True):
            assert_equal(mine, theirs)
        assert reader.summaries() == [episode.summary() for episode in written]
    assert_equal(log.read(-1), written[-1])
    with pytest.raises(DatasetError, match=r"holds 3 episodes; there is no episode 3"):
        log.read(3)


def test_an_empty_log(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "nothing")
    assert len(log) == 0
    assert list(log) == []
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("index", [None, b"", b"{garbage\n[1]\n", "torn"])
def test_the_index_is_rebuilt_from_the_files(tmp_path: Path, index: Any) -> None:
    log = EpisodeLog(tmp_path)
    for episode in episodes(2):
        log.write(episode)
    good = (tmp_path / INDEX_NAME).read_bytes()
    (tmp_path / INDEX_NAME).unlink()
    if index is not None:
        (tmp_path / INDEX_NAME).write_bytes(good[:-20] if index == "torn" else index)
    again = EpisodeLog(tmp_path)
    assert again.summaries() == log.summaries()
    again.write(episodes(1)[0])
    assert (tmp_path / INDEX_NAME).read_bytes().startswith(good)
    assert len((tmp_path / INDEX_NAME).read_text(encoding="utf-8").splitlines()) == 3
    (tmp_path / INDEX_NAME).write_text("", encoding="utf-8")
    again.rebuild_index()
    assert (tmp_path / INDEX_NAME).read_bytes().startswith(good)


def test_unfinished_files_are_skipped_and_later_removed(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.write(episodes(1)[0])
    for name, age in ((".writing-0-episode-00000001.parquet", 0), (".writing-1-episode-00000001.parquet", 7200)):
        (tmp_path / name).write_bytes(b"PAR1 half")
        stat = (tmp_path / name).stat()
        os.utime(tmp_path / name, (stat.st_atime - age, stat.st_mtime - age))
    again = EpisodeLog(tmp_path)
    assert len(again) == 1
    assert again.damaged == {}
    (tmp_path / INDEX_NAME).unlink()
    again.refresh()
    again.write(episodes(1)[0])
    assert [path.name for path in sorted(tmp_path.glob(".writing*"))] == [".writing-0-episode-00000001.parquet"]


def damage_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def damage_all(path: Path) -> None:
    path.write_bytes(b"not a parquet file")


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_foreign(path: Path) -> None:
    pq.write_table(pa.table({"action": [1.0], "next.reward": [1.0]}), path)


def damage_newer(path: Path) -> None:
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[b"burnish"])
    header["format_version"] = FORMAT_VERSION + 1
    pq.write_table(table.replace_schema_metadata({b"burnish": json.dumps(header).encode()}), path)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (damage_tail, "cannot be read"),
        (damage_all, "cannot be read"),
        (damage_empty, "cannot be read"),
        (damage_foreign, "no episode header"),
        (damage_newer, "format version is 2"),
    ],
)
def test_damaged_files_are_named_and_the_others_stay(tmp_path: Path, damage: Any, match: str) -> None:
    log = EpisodeLog(tmp_path)
    written = episodes(3)
    for episode in written:
        log.write(episode)
    damage(tmp_path / log.files[1])
    with pytest.raises(DatasetError, match=r"episode-00000001.parquet cannot be read.*other 2 episodes"):
        log.read(1)
    again = EpisodeLog(tmp_path)
    assert list(again.damaged) == ["episode-00000001.parquet"]
    assert match in again.damaged["episode-00000001.parquet"]
    assert again.starts == (written[0].start, written[2].start)
    assert again.write(written[1]).name == "episode-00000003.parquet"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path)
    log.write(episodes(1)[0])
    path = tmp_path / log.files[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))
    assert list(EpisodeLog(tmp_path).verify()) == [path.name]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"reward": np.zeros(1, np.float32)}, "rewards"),
        ({"action": np.zeros((0, 1), np.float32), "reward": np.zeros(0, np.float32)}, "T >= 1"),
        ({"decision": np.array([1, 2])}, "start at 0"),
        ({"decision": np.array([0, 99])}, "stay below"),
        ({"log_prob": np.zeros((1, 1), np.float32)}, "'policy.log_prob' has 1 entries"),
        ({"info": {"policy": object()}}, "JSON values"),
    ],
)
def test_episodes_that_contradict_themselves(tmp_path: Path, changes: Any, match: str) -> None:
    with pytest.raises(DatasetError, match=match):
        EpisodeLog(tmp_path).write(replace(episodes(1)[0], **changes))
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DatasetError, match="is a file"):
        EpisodeLog(tmp_path / "file")


WRITER = """
import sys
from pathlib import Path
from burnish.data.episodes import run_episodes
from burnish.data.log import EpisodeLog
from tests.unit.data.line_env import chunk_expert, line_env, starts
log = EpisodeLog(Path(sys.argv[1]))
written = list(run_episodes(chunk_expert, line_env(2), starts(4), replan_steps=3, keep_observation=True))
while True:
    for episode in written:
        print(log.write(episode).name, flush=True)
"""


def test_kill_9_loses_no_finished_episode(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(25)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.read().split()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    log = EpisodeLog(tmp_path)
    assert log.verify() == {}
    assert set(acknowledged) <= set(log.files)
    assert len(log) <= len(acknowledged) + 1
    assert all(episode.length for episode in log)


def test_durable_writers_leave_nothing_behind_on_failure(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old", encoding="utf-8")

    def fail(writer: Any) -> None:
        with writer as temporary:
            (temporary / "new" if temporary.is_dir() else temporary).write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail(durable_file(tmp_path / "file"))
    with pytest.raises(RuntimeError):
        fail(durable_folder(tmp_path / "folder"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "old"]
    with durable_folder(tmp_path / "folder") as temporary:
        (temporary / "new").write_text("new", encoding="utf-8")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "new"]
