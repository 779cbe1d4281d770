import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from burnish.core.errors import DatasetError
from burnish.core.spec import ArraySpec, to_json
from burnish.data.dataset import DemonstrationDataset, fingerprint_of, read_lerobot
from burnish.data.episodes import run_episodes
from burnish.data.export import SIDE_CAR, check_episode, write_lerobot
from tests.unit.data.line_env import SPEC, expert, line_env, starts
from tests.unit.data.small_lerobot import LENGTHS, SIDE, TOP, write_small


@pytest.fixture
def small(tmp_path: Path) -> tuple[Any, DemonstrationDataset]:
    data = write_small(tmp_path / "set")
    return data, read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_everything_is_decoded(small: tuple[Any, DemonstrationDataset]) -> None:
    data, dataset = small
    assert len(dataset) == sum(LENGTHS)
    assert dataset.num_episodes == len(LENGTHS)
    assert dataset.episode_bounds.tolist() == [[0, 5], [5, 8], [8, 12]]
    assert (dataset.fps, dataset.control_dt) == (10.0, 0.1)
    assert dataset.tasks == ("open", "close")
    assert dataset.image_keys == (TOP,)
    assert dataset.observation_keys == (TOP, "observation.state", "observation.grid")
    assert dataset.features["observation.state"] == ArraySpec((2,), names=("x", "y"))
    assert dataset.features["action"].names == ("x",)
    assert "note" not in dataset.features
    for key, array in data.items():
        assert dataset.column(key).dtype == dataset.features[key].dtype
        np.testing.assert_array_equal(dataset.column(key).reshape(array.shape), array.astype(dataset.column(key).dtype))
    assert dataset.column("observation.state").dtype == np.float32
    np.testing.assert_allclose(
        dataset.statistics["observation.state"]["mean"], data["observation.state"].mean(0), atol=1e-6
    )
    np.testing.assert_allclose(dataset.statistics[TOP]["mean"], data[TOP].mean((0, 1, 2)) / 255, atol=1e-6)


def test_observations_come_with_instructions(small: tuple[Any, DemonstrationDataset]) -> None:
    data, dataset = small
    observation = dataset.observation(np.array([0, 6, 11]))
    assert observation["task"] == ["open", "close", "open"]
    np.testing.assert_array_equal(observation[TOP], data[TOP][[0, 6, 11]])
    assert list(dataset.observation(np.array([0]), ["observation.state"])) == ["observation.state", "task"]


@pytest.mark.parametrize("chunk_steps", [1, 2, 4, 20])
def test_chunks_stay_within_their_episode(small: tuple[Any, DemonstrationDataset], chunk_steps: int) -> None:
    data, dataset = small
    index = np.random.default_rng(0).permutation(len(dataset))
    observation, chunk, executed = dataset.chunks(index, chunk_steps)
    assert chunk.shape == (len(index), chunk_steps, 1)
    for row, frame in enumerate(index):
        end = next(end for begin, end in dataset.episode_bounds if begin <= frame < end)
        wanted = list(data["action"][frame : min(frame + chunk_steps, end)])
        assert executed[row] == len(wanted)
        wanted += [data["action"][end - 1]] * (chunk_steps - len(wanted))
        np.testing.assert_array_equal(chunk[row], wanted)
    np.testing.assert_array_equal(observation[TOP], data[TOP][index])


def test_videos_are_decoded_across_files(tmp_path: Path) -> None:
    data = write_small(tmp_path / "set", video=True)
    dataset = read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert dataset.features[SIDE] == ArraySpec((64, 64, 3), "uint8")
    difference = np.abs(dataset.column(SIDE).astype(int) - data[SIDE]).mean(axis=(1, 2))
    assert difference.max() < 8


def test_the_cache_is_used_and_follows_the_files(tmp_path: Path) -> None:
    write_small(tmp_path / "set")
    read_lerobot(tmp_path / "set", tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    before = (entry / "action.npy").stat().st_ino
    read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert (entry / "action.npy").stat().st_ino == before
    mark = fingerprint_of(tmp_path / "set")
    (tmp_path / "set/meta/info.json").write_text(
        (tmp_path / "set/meta/info.json").read_text(encoding="utf-8") + " ", encoding="utf-8"
    )
    assert fingerprint_of(tmp_path / "set") != mark
    read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    write_small(tmp_path / "set")
    read_lerobot(tmp_path / "set", tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "action.npy").write_bytes(b"")
    with pytest.raises(DatasetError, match="Delete it and read again"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_statistics_of_the_dataset_win(tmp_path: Path) -> None:
    write_small(tmp_path / "set")
    entry = {"mean": [5.0], "std": [2.0], "min": [0.0], "max": [9.0], "count": [12]}
    channel = {name: [[[0.5]], [[0.5]], [[0.5]]] for name in ("mean", "std", "min", "max")}
    stats = {"action": entry, TOP: channel, "index": {}, "next.done": {}}
    (tmp_path / "set/meta/stats.json").write_text(json.dumps(stats), encoding="utf-8")
    dataset = read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert dataset.statistics["action"]["mean"] == [5.0]
    assert dataset.statistics[TOP]["std"] == [0.5, 0.5, 0.5]
    assert len(dataset.statistics["observation.state"]["mean"]) == 2


def test_what_burnish_recorded_knows_its_environment(tmp_path: Path) -> None:
    write_small(tmp_path / "set")
    side_car = {"format_version": 1, "env_spec": to_json(replace(SPEC, control_dt=0.0999)), "episodes": []}
    (tmp_path / "set" / SIDE_CAR).write_text(json.dumps(side_car), encoding="utf-8")
    dataset = read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert dataset.env_spec == replace(SPEC, control_dt=0.0999)
    assert dataset.control_dt == 0.0999
    (tmp_path / "set" / SIDE_CAR).write_text("{}", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"burnish.json is damaged"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_an_unknown_key_is_answered_with_what_exists(small: tuple[Any, DemonstrationDataset]) -> None:
    with pytest.raises(DatasetError, match=r"no key 'observation.stat'. Did you mean 'observation.state'"):
        small[1].column("observation.stat")


STATE = {"observation.state": ArraySpec((2,))}
ACTION = ArraySpec((1,))


def test_fit(small: tuple[Any, DemonstrationDataset]) -> None:
    small[1].check_fit(STATE, ACTION, 0.1)


@pytest.mark.parametrize(
    ("observation", "action", "control_dt", "match"),
    [
        ({"observation.force": ArraySpec((6,))}, ACTION, 0.1, "'observation.force' is needed"),
        ({"observation.state": ArraySpec((3,))}, ACTION, 0.1, r"float32 \(2,\) in the dataset, but float32 \(3,\)"),
        (STATE, ArraySpec((7,)), 0.1, "'action' is float32"),
        (STATE, ACTION, 0.05, "acts every 0.1 s"),
    ],
)
def test_misfits(
    small: tuple[Any, DemonstrationDataset], observation: Any, action: Any, control_dt: float, match: str
) -> None:
    with pytest.raises(DatasetError, match=match):
        small[1].check_fit(observation, action, control_dt)


def no_meta(path: Path) -> None:
    (path / "meta/info.json").unlink()


def broken_json(path: Path) -> None:
    (path / "meta/info.json").write_text("{", encoding="utf-8")


def truncated_data(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    file.write_bytes(file.read_bytes()[:-10])


def truncated_episodes(path: Path) -> None:
    file = path / "meta/episodes/chunk-000/file-000.parquet"
    file.write_bytes(file.read_bytes()[:20])


def no_episodes(path: Path) -> None:
    (path / "meta/episodes/chunk-000/file-000.parquet").unlink()


def no_tasks(path: Path) -> None:
    (path / "meta/tasks.parquet").unlink()


def other_tasks(path: Path) -> None:
    pq.write_table(pa.table({"task_index": [0], "task": ["open"]}), path / "meta/tasks.parquet")


def no_data(path: Path) -> None:
    for file in path.glob("data/*/*"):
        file.unlink()


def missing_file(path: Path) -> None:
    (path / "data/chunk-000/file-001.parquet").unlink()


def shuffled(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    pq.write_table(pq.read_table(file).take([1, 0, 2, 3]), file)


def twice(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    more = table.set_column(table.column_names.index("index"), "index", pa.array(np.arange(12, 16)))
    pq.write_table(pa.concat_tables([table, more]), file)


def not_finite(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    column = table.column_names.index("action")
    pq.write_table(table.set_column(column, "action", pa.array([0, 0, np.nan, 0], pa.float32())), file)


def with_null(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    column = table.column_names.index("action")
    pq.write_table(table.set_column(column, "action", pa.array([0, None, 0, 0], pa.float32())), file)


def broken_image(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    images = pa.array([{"bytes": b"\x89PNG nothing", "path": None}] * 4)
    pq.write_table(table.set_column(table.column_names.index(TOP), TOP, images), file)


def image_outside(path: Path) -> None:
    file = path / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    images = pa.array([{"bytes": None, "path": "a.png"}] * 4, table.schema.field(TOP).type)
    pq.write_table(table.set_column(table.column_names.index(TOP), TOP, images), file)


def bad_statistics(path: Path) -> None:
    entry = {name: [0.0, 1.0] for name in ("mean", "std", "min", "max")}
    (path / "meta/stats.json").write_text(json.dumps({"action": entry}), encoding="utf-8")


def statistics_not_json(path: Path) -> None:
    (path / "meta/stats.json").write_text("{", encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (no_meta, r"there is no meta/info.json. Found: data, meta"),
        (broken_json, r"info.json is damaged"),
        (truncated_data, r"file-001.parquet cannot be read.*killed before it finalizes"),
        (truncated_episodes, r"file-000.parquet cannot be read"),
        (no_episodes, "holds no Parquet file"),
        (no_tasks, r"tasks.parquet is missing"),
        (other_tasks, r"task_index 1, meta/tasks.parquet has 1"),
        (no_data, "data holds no Parquet file"),
        (missing_file, "data holds 8 frames, meta/episodes lists 12"),
        (shuffled, "out of order; expected index 8 to 11"),
        (twice, "more than the 12 frames"),
        (not_finite, "'action' is not finite at frame 10"),
        (with_null, "1 of 4 entries are null"),
        (broken_image, "'observation.images.top' at frames 8 to 11"),
        (image_outside, "not embedded"),
        (bad_statistics, "'mean' of 'action' has 2 entries"),
        (statistics_not_json, r"stats.json is not JSON"),
    ],
)
def test_damaged_datasets(tmp_path: Path, damage: Callable[[Path], None], match: str) -> None:
    write_small(tmp_path / "set")
    damage(tmp_path / "set")
    with pytest.raises(DatasetError, match=match):
        read_lerobot(tmp_path / "set", tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))


FLOAT = {"dtype": "float32", "shape": [1], "names": None}


@pytest.mark.parametrize(
    ("info", "match"),
    [
        ({"codebase_version": "v2.1"}, r"LeRobotDataset v2.1; burnish reads v3.*convert_dataset_v21_to_v30"),
        ({"fps": 0}, "fps must be a positive number"),
        ({"fps": "fast"}, "fps must be a positive number"),
        ({"features": {"observation.state": FLOAT}}, "no feature 'action'"),
        ({"features": {"action": {"dtype": "float32"}}}, "feature 'action' is damaged"),
        ({"features": {"action": {**FLOAT, "dtype": "complicated"}}}, "feature 'action' is damaged"),
        ({"features": {"action": FLOAT, TOP: {"dtype": "image", "shape": [8, 12]}}}, "three axes"),
        ({"features": {"action": FLOAT, TOP: {"dtype": "image", "shape": [8, 12, 1]}}}, "3 channels"),
        ({"features": {"action": FLOAT, TOP: {"dtype": "image", "shape": [9, 12, 3]}}}, r"the image is \(8, 12, 3\)"),
        ({"features": {"action": {**FLOAT, "shape": [2]}}}, r"does not fit \(2,\)"),
        ({"features": {"action": FLOAT, "force": FLOAT}}, "no column force"),
        ({"total_frames": 13}, "total_frames = 12, meta/info.json says 13"),
        ({"total_episodes": 2}, "total_episodes = 3"),
    ],
)
def test_damaged_descriptions(tmp_path: Path, info: Any, match: str) -> None:
    write_small(tmp_path / "set", info=info)
    with pytest.raises(DatasetError, match=match):
        read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_gaps_between_episodes(tmp_path: Path) -> None:
    write_small(tmp_path / "set")
    file = tmp_path / "set/meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(file).take([0, 2]), file)
    with pytest.raises(DatasetError, match=r"episode 1 covers frames \[8, 12\], but must begin at 5"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_damaged_videos(tmp_path: Path) -> None:
    write_small(tmp_path / "set", video=True)
    (one, two) = sorted((tmp_path / "set").glob("videos/*/*/*"))
    one.write_bytes(one.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"file-000.mp4: cannot decode 'observation.images.side'"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")
    one.write_bytes(two.read_bytes())
    with pytest.raises(DatasetError, match=r"ends before 0.4000 s, 4 frames are missing"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")
    two.unlink()
    with pytest.raises(DatasetError, match=r"'observation.images.side' of episode 2, is missing"):
        read_lerobot(tmp_path / "set", tmp_path / "cache")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="Found: no folder"):
        read_lerobot(tmp_path / "nowhere", tmp_path / "cache")


@pytest.mark.parametrize("fps", [0, 9, 12])
def test_wrong_fps_on_writing(tmp_path: Path, fps: int) -> None:
    with pytest.raises(DatasetError, match=r"fps is .* Use fps=10"):
        write_lerobot(tmp_path / "set", [], SPEC, fps=fps)


def test_pictures_too_small_for_video(tmp_path: Path) -> None:
    small = {**SPEC.observation, TOP: ArraySpec((16, 24, 3), "uint8")}
    with pytest.raises(DatasetError, match="at least 64 pixels a side"):
        write_lerobot(tmp_path / "set", [], replace(SPEC, observation=small), fps=10, videos=True)


def test_episodes_that_cannot_be_exported() -> None:
    (good,) = run_episodes(expert, line_env(1), starts(1), replan_steps=1, keep_observation=True)
    keys = SPEC.public_observation
    check_episode(good, keys, SPEC)
    for changes, match in (
        ({"decision": np.array([0])}, "record with replan_steps=1"),
        ({"action": np.zeros((good.length, 2), np.float32)}, r"actions are \(2,\)"),
        ({"observation": {}}, "keep_observation=True"),
        ({"observation": {**good.observation, "observation.state": np.zeros((good.length, 2))}}, "is float64"),
    ):
        with pytest.raises(DatasetError, match=match):
            check_episode(replace(good, **changes), keys, SPEC)
