import json

import numpy as np
import pytest

from burnish.core.errors import DatasetError
from burnish.envs.driving import commonroad, gpudrive
from burnish.envs.driving.recording import build_scenes, candidates
from burnish.envs.driving.scene import LIGHT_STATES
from tests.unit.envs.driving.samples import LANES, LIGHT, NEW, OLD, SIGN, commonroad_folder, document, obstacle, state


@pytest.fixture
def read(tmp_path):
    def parse(text):
        path = tmp_path / "scenario.xml"
        path.write_text(text, encoding="utf-8")
        return commonroad.read(path)

    return parse


def test_commonroad_2020a(read):
    recording = read(NEW)
    assert candidates(recording) == [101, 102]
    scene = next(build_scenes(recording, [101]))
    assert scene.id == "TST_Road-1_1_T-1.101"
    assert (scene.num_lanes, scene.num_tracks, scene.num_steps) == (2, 2, 30)
    assert scene.lane_speed_limits[0] == 13.9
    assert np.isnan(scene.lane_speed_limits[1])
    assert scene.lane_sides.tolist() == [[1, -1], [-1, 0]]
    np.testing.assert_allclose(scene.ego_log[-1], (5 + 29, 0, 0, 10))
    names = [LIGHT_STATES[code] for code in scene.light_states[0]]
    # The cycle of 30 steps begins at step 4; before that it is in its last four steps.
    assert names[:4] == ["red"] * 4
    assert names[4:14] == ["green"] * 10
    assert names[14:19] == ["yellow"] * 5
    assert names[19:] == ["red"] * 11
    np.testing.assert_allclose(scene.light_positions, [(100.0, 0.0)])


def test_commonroad_2018b_with_a_standing_car(read):
    scene = next(build_scenes(read(OLD), [101]))
    assert scene.num_tracks == 2
    assert scene.track_valid.all()
    np.testing.assert_allclose(scene.track_states[1, :, 0], 80.0)
    assert scene.lane_speed_limits[0] == 13.9


def test_commonroad_is_resampled_by_time(read):
    scene = next(build_scenes(read(document(LANES + SIGN + LIGHT + obstacle(1, 0, 0, dt=0.04), dt="0.04")), [1]))
    assert scene.num_steps == 12
    np.testing.assert_allclose(scene.ego_log[:, 0], np.arange(12.0), atol=1e-9)


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY l2 "&lol;&lol;">]><commonRoad>&l2;</commonRoad>'
)
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE a SYSTEM "file:///etc/hostname"><commonRoad/>'
BAD = {
    "broken": (NEW[:-20], "no well-formed XML"),
    "empty": ("", "no well-formed XML"),
    "entities": (BOMB, "document type or an entity"),
    "external": (OUTSIDE, "document type or an entity"),
    "deep": ("<a>" * 100 + "</a>" * 100, "deeper than 64"),
    "other format": ("<osm/>", "found <osm>"),
    "version": (NEW.replace("2020a", "2017a"), "2017a"),
    "no dt": (NEW.replace("timeStepSize", "step"), "timeStepSize must be a finite number"),
    "zero dt": (document(LANES, dt="0"), "timeStepSize is 0 s"),
    "wrong dt": (NEW.replace('timeStepSize="0.1"', 'timeStepSize="0.2"'), "does not fit its states"),
    "NaN": (NEW.replace("<x>50</x>", "<x>nan</x>", 1), "finite number, found 'nan'"),
    "word": (NEW.replace("<y>2.0</y>", "<y>two</y>", 1), "found 'two'"),
    "no bound": (NEW.replace("leftBound", "bound"), "0 points in its leftBound"),
    "no obstacle": (document(LANES + SIGN + LIGHT), "no moving obstacle"),
    "no position": (NEW.replace("position", "place"), "lacks its time or position"),
    "order": (document(LANES + SIGN + LIGHT + obstacle(1, 0, 0).replace("<exact>2<", "<exact>1<")), "do not rise"),
    "shape": (NEW.replace("rectangle", "blob"), "neither rectangle"),
    "id": (NEW.replace('lanelet id="1"', 'lanelet id="one"'), "whole number, found 'one'"),
    "light": (NEW.replace('trafficLight id="80"', 'trafficLight id="81"'), "does not exist"),
    "colour": (NEW.replace("yellow", "blue"), "colours"),
    "no start": (NEW.replace("initialState", "first"), "no initialState"),
}


@pytest.mark.parametrize("case", BAD)
def test_commonroad_that_is_refused(read, case):
    text, message = BAD[case]
    with pytest.raises(DatasetError, match=message):
        read(text)


def test_commonroad_sizes(tmp_path, monkeypatch):
    with pytest.raises(DatasetError, match="Cannot read"):
        commonroad.read(tmp_path / "none.xml")
    path = tmp_path / "large.xml"
    path.write_text(NEW, encoding="utf-8")
    monkeypatch.setattr(commonroad, "MAX_FILE_BYTES", 100)
    with pytest.raises(DatasetError, match="at most 100"):
        commonroad.read(path)


def test_commonroad_missing_lanes(read):
    recording = read(document(obstacle(1, 0, 0)))
    with pytest.raises(DatasetError, match="no lanes"):
        next(build_scenes(recording, [1]))


def test_states_without_yaw_and_speed_take_them_from_the_motion(read):
    text = NEW.replace("<orientation><exact>0.0</exact></orientation>", "").replace("velocity", "unused")
    scene = next(build_scenes(read(text), [101]))
    np.testing.assert_allclose(scene.ego_log[:, 3], 10.0, atol=1e-6)
    assert state("state", 1, 0, 0)


def car(number, x, y, speed=10.0, steps=40, absent=()):
    xs = [-10000.0 if k in absent else x + 0.1 * speed * k for k in range(steps)]
    return {
        "id": number,
        "type": "vehicle",
        "length": 4.5,
        "width": 2.0,
        "position": [{"x": value, "y": y, "z": 0.0} for value in xs],
        "velocity": [{"x": speed, "y": 0.0}] * steps,
        "heading": [[0.0]] * steps,
        "valid": [True] * steps,
    }


def road(number, kind, *points):
    return {"id": number, "type": kind, "geometry": [{"x": x, "y": y, "z": 0.0} for x, y in points]}


def scenario(**changes):
    return {
        "name": "tfrecord-made-up",
        "objects": [car(5, 10, 0), car(6, 60, 0, absent=(0, 1)), car(7, 0, 4, absent=range(40))],
        "roads": [
            road(1, "lane", (0, 0), (50, 0)),
            road(2, "lane", (50.1, 0), (120, 0)),
            road(3, "road_edge", (0, -2.5), (120, -2.5)),
            road(4, "crosswalk", (60, -2), (60, 2)),
        ],
        "tl_states": {"1": {"state": ["go", "stop"], "x": [50.0, 50.0], "y": [0.0, 0.0], "time_index": [0, 12]}},
        "metadata": {"sdc_track_index": 0},
        **changes,
    }


def test_gpudrive(tmp_path):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario()), encoding="utf-8")
    recording = gpudrive.read(path)
    assert recording.dropped == {"track with fewer than 2 states": 1}
    assert candidates(recording) == [5]
    scene = next(build_scenes(recording, [5]))
    assert (scene.num_lanes, scene.num_tracks, scene.num_steps) == (2, 2, 40)
    assert scene.lane_links.tolist() == [[0, 1]]
    assert scene.track_valid[1].tolist() == [False, False] + [True] * 38
    np.testing.assert_allclose(scene.edges()[0], [(0, -2.5), (120, -2.5)])
    np.testing.assert_allclose(np.ptp(scene.polygon(0)[:, 1]), 3.7)
    assert [LIGHT_STATES[code] for code in scene.light_states[0, (0, 11, 12)]] == ["green", "green", "red"]


JSON_BAD = {
    "no list": ({"objects": {}}, "lists 'objects' and 'roads'"),
    "empty": ({"roads": []}, "not empty"),
    "lengths": ({"objects": [{**car(5, 0, 0), "heading": [0.0]}]}, r"have \[1, 40\] entries"),
    "size": ({"objects": [{**car(5, 0, 0), "length": None}]}, "lacks its length"),
    "position": ({"objects": [{**car(5, 0, 0), "position": [1, 2]}]}, "list of x and y"),
    "object": ({"objects": [3]}, "must be an object"),
    "road": ({"roads": [road(1, "lane", (0, 0), (float("nan"), 0))]}, "not finite"),
    "light": ({"tl_states": {"1": {"state": ["go"], "time_index": [0, 1]}}}, "1 states at 2 times"),
}


@pytest.mark.parametrize("case", JSON_BAD)
def test_gpudrive_that_is_refused(tmp_path, case):
    changes, message = JSON_BAD[case]
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario(**changes)), encoding="utf-8")
    with pytest.raises(DatasetError, match=message):
        gpudrive.read(path)


@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000])
def test_gpudrive_that_is_no_object(tmp_path, text):
    path = tmp_path / "scenario.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError):
        gpudrive.read(path)


FACTS = {
    "USA_Lanker-1_1_T-1": (91, 24, 41),
    "USA_Peach-4_8_T-1": (79, 9, 61),
    "USA_US101-3_3_T-1": (12, 12, 32),
    "USA_US101-4_1_T-1": (12, 22, 101),
}
"""Lanelets, vehicles and steps of the recorded scenarios."""


@pytest.mark.parametrize("name", FACTS)
def test_recorded_commonroad_files(name):
    path = commonroad_folder() / f"{name}.xml"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    recording = commonroad.read(path)
    lanes, tracks, steps = FACTS[name]
    assert (len(recording.lanes), len(recording.tracks)) == (lanes, tracks)
    assert max(len(track.times) for track in recording.tracks) == steps
    scene = next(build_scenes(recording, candidates(recording)[:1]))
    assert scene.num_lanes == lanes
    assert len(scene.edge_offsets) > 2
