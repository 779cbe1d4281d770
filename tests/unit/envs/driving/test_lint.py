import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.envs.driving import commonroad
from burnish.envs.driving.generator import generate
from burnish.envs.driving.lint import lint
from burnish.envs.driving.recording import build_scenes, candidates
from burnish.envs.driving.roads import KINDS
from tests.unit.envs.driving.samples import commonroad_folder, straight_road, track


def test_scenes_are_kept_or_dropped_with_a_reason():
    ego = track(1, 20.0, 0.0, 10.0)
    scenes = [
        straight_road(ego, track(2, 50.0, 4.0, 10.0), name="good"),
        straight_road(ego, track(2, 22.0, 1.0, 10.0), name="overlap"),
        straight_road(ego, track(2, 50.0, 4.0, 1.0), track(3, 50.0, 4.5, 1.0), name="others overlap"),
        straight_road(ego, track(2, 40.0, 0.0, 0.0), name="runs into"),
        straight_road(ego, track(2, 5.0, 0.0, 20.0), name="is run into"),
        straight_road(track(1, 20.0, 0.0, 10.0, yaw=-0.1), name="leaves"),
        straight_road(track(1, 20.0, 0.0, 0.0), name="stands"),
    ]
    report = lint(scenes)
    found = {verdict.id.split(".")[0]: verdict.reason for verdict in report.verdicts}
    assert found == {
        "good": "",
        "overlap": "overlap at the start",
        "others overlap": "overlap at the start",
        "runs into": "collision at fault",
        "is run into": "progress below 0.99",
        "leaves": "offroad",
        "stands": "",
    }
    assert report.dropped == {
        "overlap at the start": 2,
        "collision at fault": 1,
        "progress below 0.99": 1,
        "offroad": 1,
    }
    assert report.summary().startswith("kept 2 of 7 scenes; dropped: 1 collision at fault")
    assert lint([]).summary() == "kept 0 of 0 scenes"


@pytest.mark.parametrize("kind", KINDS)
def test_generated_scenes_are_sound(kind):
    scenes = [generate(kind, seed) for seed in range(4)]
    report = lint(scenes)
    assert report.dropped == {}
    assert all(verdict.scene_score == 1.0 and verdict.progress >= 0.99 for verdict in report.verdicts)
    assert all(scene.num_tracks >= 3 and scene.num_steps >= 40 for scene in scenes)
    assert len({scene.id for scene in scenes}) == 4


def test_the_same_seed_gives_the_same_scene():
    one, two = (generate.__wrapped__("crossing", 1) for _ in range(2))
    np.testing.assert_array_equal(one.track_states, two.track_states)
    np.testing.assert_array_equal(one.lane_points, two.lane_points)
    assert not np.array_equal(one.ego_log[0], generate("crossing", 2).ego_log[0])


def test_an_unknown_kind():
    with pytest.raises(ConfigError, match="Did you mean 'crossing'"):
        generate("crosing", 0)


KEPT = {
    "USA_Lanker-1_1_T-1": (20, 1),
    "USA_Peach-4_8_T-1": (7, 0),
    "USA_US101-3_3_T-1": (12, 0),
    "USA_US101-4_1_T-1": (15, 3),
}
"""Scenes of the recorded scenarios that are kept, and dropped."""


@pytest.mark.parametrize("name", KEPT)
def test_recorded_scenes_replay(name):
    path = commonroad_folder() / f"{name}.xml"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    recording = commonroad.read(path)
    report = lint(list(build_scenes(recording, candidates(recording))))
    assert (len(report.kept), sum(report.dropped.values())) == KEPT[name]
    kept = [verdict for verdict in report.verdicts if not verdict.reason]
    assert not any(verdict.collision_at_fault or verdict.offroad for verdict in kept)
    assert min(verdict.progress for verdict in kept) >= 0.99
