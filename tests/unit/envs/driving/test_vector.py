from pathlib import Path

import gymnasium
import numpy as np
import pytest

from burnish.core.check import check_env
from burnish.core.errors import ConfigError, DatasetError, EnvError
from burnish.core.step import Start, evaluation_starts
from burnish.envs.driving.importing import import_recordings
from burnish.envs.driving.recording import Recording, build_scenes
from burnish.envs.driving.route import COMMANDS, command_of
from burnish.envs.driving.scene import load, save
from burnish.envs.driving.vector import Config
from burnish.envs.registration import register
from tests.unit.envs.driving.samples import NEW, OLD, lane, straight_road, track

CORE = {"core": "numpy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with six scenes; in the first the road is free, in the second somebody stands in the way."""
    path = tmp_path_factory.mktemp("scenes")
    for number in range(6):
        others = [track(2, 45.0, 0.0, 0.0)] if number == 1 else []
        scene = straight_road(track(1, 10.0 + number, 0.0, 10.0, size=(5.0, 2.0)), *others, name=f"scene{number}")
        save(scene, path / f"scene{number}.npz")
    return path


def env_of(folder, **fields):
    env = Config(scenes=str(folder), start_noise=0.0, **CORE, **fields).build(1)
    env.reset([Start("scene0", 0, 0)])
    return env


@pytest.mark.parametrize("fields", [{}, {"action": "plan", "steps_per_action": 5, "traffic": "idm"}])
def test_contract(folder, fields):
    assert check_env(Config(scenes=str(folder), episode_seconds=3.0, start_noise=0.1, **CORE, **fields).build)


def test_tasks_and_splits(folder):
    spec = Config().spec()
    assert spec.splits["train"] == ("straight", "curve", "merge", "crossing", "roundabout")
    assert spec.splits["eval"][0] == "straight_held_out"
    assert set(spec.splits["train"]).isdisjoint(spec.splits["eval"])
    logs = Config(scenes=str(folder)).spec()
    assert logs.splits == {"train": ("scene1", "scene2", "scene3", "scene4"), "eval": ("scene0", "scene5")}
    assert logs.protocol != spec.protocol
    assert len(evaluation_starts(spec, 10, split="eval")) == 10


def test_driving_on_scores_and_ends_with_the_log(folder):
    env = env_of(folder)
    step = env.step(np.zeros((1, 60, 2), np.float32))
    assert step.executed[0] == 49
    assert step.terminated[0]
    assert not step.truncated[0]
    found = {name: float(value[0]) for name, value in step.metrics.items()}
    assert found["success"] == found["scene_score"] == found["comfortable"] == 1.0
    assert found["progress"] == pytest.approx(1.0)
    assert found["km_per_incident"] == pytest.approx(0.049)
    assert found["incidents"] == 0.0
    assert step.reward.sum() == pytest.approx(1.0, abs=1e-5)
    again = env.step(np.zeros((1, 3, 2), np.float32))
    assert again.executed[0] == 0


def test_standing_still_is_no_success(folder):
    env = env_of(folder)
    step = env.step(np.tile(np.float32([0.0, -8.0]), (1, 60, 1)))
    assert step.terminated[0]
    assert step.metrics["scene_score"][0] == pytest.approx(step.metrics["progress"][0] / 0.8)
    assert step.metrics["success"][0] == 0.0
    assert step.metrics["comfortable"][0] == 0.0


def test_running_into_somebody_costs_and_ends(folder):
    env = env_of(folder)
    env.reset([Start("scene1", 0, 0)])
    step = env.step(np.zeros((1, 60, 2), np.float32))
    assert step.terminated[0]
    assert 25 < step.executed[0] < 33
    assert step.metrics["collision_at_fault"][0] == step.metrics["incidents"][0] == 1.0
    assert step.metrics["scene_score"][0] == 0.0
    assert step.reward[0, step.executed[0] - 1] < -0.9


def test_leaving_the_road_ends(folder):
    step = env_of(folder).step(np.tile(np.float32([-0.2, 0.0]), (1, 60, 1)))
    assert step.terminated[0]
    assert step.metrics["offroad"][0] == 1.0


def test_leaving_the_corridor_ends_without_an_incident(folder):
    env = env_of(folder, corridor=1.0)
    step = env.step(np.tile(np.float32([0.02, 0.0]), (1, 60, 1)))
    assert step.terminated[0]
    assert step.metrics["left_corridor"][0] == 1.0
    assert step.metrics["incidents"][0] == 0.0


def test_a_plan_is_followed(folder):
    env = env_of(folder, action="plan", steps_per_action=5)
    assert env.spec.control_dt == 0.5
    plan = np.zeros((8, 3), np.float32)
    plan[:, 0] = 5.0 * np.arange(1, 9)
    step = env.step(np.tile(plan.reshape(-1), (1, 12, 1)))
    assert step.metrics["success"][0] == 1.0
    assert step.executed[0] == 10


def test_what_is_observed(folder):
    env = env_of(folder)
    shown = env.reset([Start("scene2", 0, 0)])
    np.testing.assert_allclose(shown["observation.state"][0], (10, 0, 0, 0), atol=1e-6)
    assert shown["observation.command"][0].tolist() == [0, 1, 0, 0]
    route = shown["observation.route"][0]
    np.testing.assert_allclose(np.diff(route[:, 0]), 80 / 19, atol=1e-4)
    np.testing.assert_allclose(route[:, 1], 0.0, atol=1e-5)
    assert shown["observation.route_valid"].all()
    np.testing.assert_allclose(shown["privileged.place"][0], (0, 0, 1), atol=1e-6)
    assert shown["task"] == ["drive along the route"]
    assert env.render(0).shape == (384, 384, 3)
    assert len(np.unique(env.render(0).reshape(-1, 3), axis=0)) >= 4


@pytest.mark.parametrize(
    ("points", "command"),
    [
        ([(17, 9), (21, 2)], "straight"),
        ([(19, 0), (21, 3.1)], "left"),
        ([(19, 0), (21, -3.1)], "right"),
        ([(19, 0), (0, 0)], "unknown"),
    ],
)
def test_command_of_a_route(points, command):
    assert COMMANDS[command_of(np.array(points, float), np.array([True, True]))] == command


def test_the_seed_disturbs_the_start_and_init_changes_the_scene():
    env = Config(scenes_per_task=2, **CORE).build(1)
    one, two, three = (
        env.reset([start])["observation.state"][0].copy()
        for start in (Start("straight", 0, 0), Start("straight", 0, 1), Start("straight", 1, 0))
    )
    assert 0.0 < abs(one[0] - two[0]) < 0.2
    assert abs(one[0] - three[0]) > 1e-3


def test_gymnasium_makes_it(folder):
    register({"driving/vector": "burnish.envs.driving.vector"})
    env = gymnasium.make("burnish/driving-vector-v0", scenes=str(folder), split="eval", render_mode="rgb_array", **CORE)
    observation, info = env.reset(seed=0)
    assert set(observation) == {"agent_pos", "command", "route", "route_valid"}
    assert info["task"] in ("scene0", "scene5")
    *_, info = env.step(np.zeros(2, np.float32))
    assert info["metrics"]["scene_score"] >= 0.0
    assert env.render().dtype == np.uint8


@pytest.mark.parametrize(
    "field", [{"scenes_per_task": 0}, {"corridor": -1.0}, {"start_noise": 2.0}, {"scenes": "/nowhere"}]
)
def test_configurations_that_give_no_task(field):
    with pytest.raises(ConfigError, match="driving/vector"):
        Config(**field).build(1)


def test_scenes_with_too_many_tracks_are_refused(folder):
    env = Config(scenes=str(folder), agent_slots=1, **CORE).build(1)
    with pytest.raises(ConfigError, match="has 2 tracks, but a world has 1 slots"):
        env.reset([Start("scene1", 0, 0)])
    with pytest.raises(EnvError, match="unknown task"):
        env.reset([Start("straight", 0, 0)])


def test_a_folder_of_recordings_becomes_a_folder_of_scenes(tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    with pytest.raises(DatasetError, match="no recording"):
        import_recordings(source, target)
    for name, text in (("new.xml", NEW), ("old.xml", OLD), ("broken.xml", "<a>"), ("notes.txt", "")):
        (source / name).write_text(text, encoding="utf-8")
    done = import_recordings(source, target)
    assert [path.name for path in done.written] == ["TST_Road-1_1_T-1.101.npz", "TST_Road-1_1_T-1.102.npz"]
    assert done.dropped == {"same id as another scene": 1}
    assert list(done.unreadable) == ["broken.xml"]
    assert "well-formed" in done.unreadable["broken.xml"]
    assert load(target / "TST_Road-1_1_T-1.102.npz").num_tracks == 2
    assert Path(target).is_dir()


def test_a_scene_with_a_route_that_ends_shows_so(tmp_path):
    recording = Recording(
        "short", "test", [lane(0, 0.0, x=(0.0, 70.0))], [track(1, 10.0, 0.0, 5.0, steps=45)], ego_id=1
    )
    save(next(build_scenes(recording, [1])), tmp_path / "short.npz")
    env = Config(scenes=str(tmp_path), start_noise=0.0, **CORE).build(1)
    shown = env.reset([Start("short", 0, 0)])
    valid = shown["observation.route_valid"][0]
    assert 10 < valid.sum() < 20
    assert not shown["observation.route"][0][valid == 0].any()
