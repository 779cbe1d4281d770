import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest

from burnish.core.errors import DatasetError
from burnish.envs.driving.recording import Recording, build_scenes, candidates, check_time_step
from burnish.envs.driving.scene import ARRAYS, Scene, lane_following, load, nearest_tracks, save
from tests.unit.envs.driving.samples import lane, straight_road, track


@pytest.fixture(scope="module")
def scene():
    return straight_road(track(1, 10.0, 0.0, 10.0), track(2, 40.0, 4.0, 8.0), track(3, 150.0, 0.0, 0.0))


def test_saving_keeps_everything(scene, tmp_path):
    path = tmp_path / "scene.npz"
    save(scene, path)
    back = load(path)
    for item in fields(Scene):
        one, two = getattr(scene, item.name), getattr(back, item.name)
        np.testing.assert_array_equal(one, two, err_msg=item.name)
    assert [file.name for file in tmp_path.iterdir()] == ["scene.npz"]


def test_arrays_are_frozen_and_those_given_are_not(scene):
    states = scene.track_states.copy()
    other = replace(scene, track_states=states)
    with pytest.raises(ValueError, match="read-only"):
        other.track_states[0] = 0.0
    states[0] = 0.0


def test_route_goes_on_beyond_the_log(scene):
    log = scene.ego_log
    assert scene.route[0].tolist() == log[0, :2].tolist()
    assert scene.route[-1][0] == pytest.approx(log[-1, 0] + 80.0, abs=0.5)
    np.testing.assert_allclose(scene.route[:, 1], 0.0, atol=1e-6)


def test_lanes_are_followed_over_their_links():
    lanes = [lane(0, 0.0, x=(0.0, 50.0), successors=(1,)), lane(1, 0.0, x=(50.0, 100.0))]
    scene = next(build_scenes(Recording("links", "test", lanes, [track(1, 5.0, 0.0, 5.0)]), [1]))
    assert scene.lane_links.tolist() == [[0, 1]]
    assert scene.lane_predecessors.tolist() == [[1, 0]]
    path = lane_following(scene, np.array([10.0, 0.5, 0.0]), 60.0)
    assert path[-1][0] == pytest.approx(70.0, abs=0.5)


def test_edges_and_sides(scene):
    assert sorted({float(edge[0, 1]) for edge in scene.edges()}) == [-2.0, 6.0]
    assert scene.lane_sides.tolist() == [[1, -1], [-1, 0]]


def test_nearest_tracks_keep_the_ego(scene):
    less = nearest_tracks(scene, 2)
    assert less.track_ids.tolist() == [1, 2]
    assert less.track_ids[less.ego] == 1


BROKEN = {
    "nan": ({"route": lambda a: a * np.nan}, "route is not finite"),
    "far away": ({"lane_points": lambda a: a + 1e7}, "beyond 1e"),
    "dtype": ({"track_states": lambda a: a.astype(np.float32)}, "track_states must be float64"),
    "shape": ({"track_valid": lambda a: a[:, :-1]}, "track_states has shape"),
    "link": ({"lane_links": lambda a: np.array([[0, 9]], np.int64)}, "lane_links leaves"),
    "offsets": ({"lane_offsets": lambda a: a + 1}, "lane_offsets does not cover"),
    "ego": ({"ego": lambda a: 7}, "the ego is track 7"),
    "gap": ({"track_valid": np.zeros_like}, "has gaps"),
    "size": ({"track_sizes": lambda a: 0 * a}, "smaller than 0.05 m"),
    "speed": ({"track_states": lambda a: a + np.array([0, 0, 0, 200.0])}, "faster than 120"),
    "type": ({"track_types": lambda a: a + np.uint8(99)}, "track_types leaves"),
    "ids": ({"track_ids": lambda a: 0 * a}, "the same id"),
    "no lane": (
        {"lane_ids": lambda a: a[:0], "lane_sides": lambda a: a[:0], "lane_speed_limits": lambda a: a[:0]},
        "no lane",
    ),
    "no route": ({"route": lambda a: a[:1]}, "route has no length"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_refused(scene, case):
    changes, text = BROKEN[case]
    with pytest.raises(DatasetError, match=text) as error:
        replace(scene, **{name: change(getattr(scene, name)) for name, change in changes.items()})
    assert "Scene 'road.1'" in str(error.value)


def test_files_that_are_no_scene(scene, tmp_path):
    path = tmp_path / "scene.npz"
    with pytest.raises(DatasetError, match="no readable scene"):
        load(path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(DatasetError, match="no readable scene"):
        load(path)
    np.savez(path, header=np.array("{}"))
    with pytest.raises(DatasetError, match="no array edge_offsets"):
        load(path)
    np.savez(path, header=np.array({"a": 1}, dtype=object), **{name: np.zeros(1) for name in ARRAYS})
    with pytest.raises(DatasetError, match="pickle"):
        load(path)
    save(scene, path)
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "header": np.array(str(arrays["header"]).replace('"version": 1', '"version": 2'))})
    with pytest.raises(DatasetError, match="format 2"):
        load(path)
    np.savez(path, **{**arrays, "header": np.array("[]")})
    with pytest.raises(DatasetError, match="header"):
        load(path)


def test_a_file_that_would_fill_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", bytes(1 << 20))
    monkeypatch.setattr("burnish.envs.driving.scene.MAX_BYTES", 1 << 16)
    with pytest.raises(DatasetError, match="at most"):
        load(path)


def test_recordings_become_scenes_of_ten_hertz():
    times = np.arange(0.0, 2.01, 0.04)
    states = np.column_stack((5 * times, 0 * times, 0 * times, np.full(len(times), 5.0)))
    fine = replace(track(1, 0, 0, 0), times=times, states=states, valid=np.ones(len(times), bool))
    later = track(2, 50.0, 4.0, 4.0, steps=30, first=5)
    recording = Recording("mixed", "test", [lane(0, 0.0), lane(1, 4.0)], [fine, later])
    assert candidates(recording) == [2, 1]
    one, two = build_scenes(recording, [1, 2])
    assert (one.num_steps, two.num_steps) == (21, 30)
    np.testing.assert_allclose(np.diff(one.ego_log[:, 0]), 0.5)
    assert one.track_valid[1].tolist() == [False] * 5 + [True] * 16
    assert two.track_valid[two.track_ids.tolist().index(1)].sum() == 16


def test_recordings_that_cannot_be():
    lanes, tracks = [lane(0, 0.0)], [track(1, 0.0, 0.0, 10.0)]
    wrong = replace(tracks[0], times=2.0 * tracks[0].times)
    with pytest.raises(DatasetError, match=r"move 0\.50 times as fast"):
        check_time_step(Recording("dt", "test", lanes, [wrong]))
    check_time_step(Recording("dt", "test", lanes, tracks))
    with pytest.raises(DatasetError, match="no track 9"):
        next(build_scenes(Recording("a", "test", lanes, tracks), [9]))
    with pytest.raises(DatasetError, match="no lanes"):
        next(build_scenes(Recording("a", "test", [], tracks), [1]))
    with pytest.raises(DatasetError, match="two lanes"):
        next(build_scenes(Recording("a", "test", lanes * 2, tracks), [1]))
    with pytest.raises(DatasetError, match="no track with a valid"):
        candidates(Recording("a", "test", lanes, []))
    slow = replace(tracks[0], times=1e4 * tracks[0].times)
    with pytest.raises(DatasetError, match="time step"):
        candidates(Recording("a", "test", lanes, [slow]))
