import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from burnish import registry
from burnish.core.errors import ConfigError, EnvError
from burnish.core.step import TRAINING_SEED_START, Start
from burnish.envs.registration import TaskEnv, gymnasium_id, register

ID = "burnish/point_mass-v0"
FIELDS = {"max_episode_steps": 5, "goal_radius": 0.45, "image": True, "image_size": 12}


@pytest.fixture(autouse=True)
def _registered():
    register({"point_mass": "burnish.envs.point_mass"})


def assert_same(one, two, where=""):
    assert type(one) is type(two), where
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, tuple) or (isinstance(one, np.ndarray) and one.dtype == object):
        for left, right in zip(one, two, strict=True):
            assert_same(left, right, where)
    elif isinstance(one, np.ndarray):
        assert one.dtype == two.dtype, where
        np.testing.assert_array_equal(one, two, err_msg=where)
    else:
        assert one == two, where


def test_ids():
    assert gymnasium_id("contact/contour") == "burnish/contact-contour-v0"
    assert register({"point_mass": "somewhere.else"}) == [ID]
    assert gymnasium.spec(ID).kwargs == {"component": "burnish.envs.point_mass:Config"}
    gymnasium.spec(ID).to_json()


def test_every_env_that_the_registry_finds_is_registered():
    ids = registry.register_envs()
    assert ID in ids
    assert len(ids) == len(registry.names("env"))
    assert all(name in gymnasium.registry for name in ids)


@pytest.mark.filterwarnings("ignore:.*A Box observation space:UserWarning")
def test_gymnasiums_own_checker_finds_nothing():
    env = gymnasium.make(ID, image=True)
    check_env(env.unwrapped)


def test_names_limits_and_privileged_entries():
    env = gymnasium.make(ID, image=True, privileged=True)
    space = env.observation_space
    assert set(space) == {"agent_pos", "pixels", "privileged_goal"}
    assert space["pixels"]["top"].shape == (32, 32, 3)
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert set(gymnasium.make(ID).observation_space) == {"agent_pos"}
    assert env.metadata["render_fps"] == 20


def test_start_is_drawn_from_training_or_given():
    env = gymnasium.make(ID, split="shift")
    _, info = env.reset(seed=3)
    assert info["task"] == "down"
    assert info["seed"] >= TRAINING_SEED_START
    assert env.reset(seed=3)[1] == info
    assert env.reset()[1] != info
    assert env.reset(options={"task": "up"})[1]["task"] == "up"
    start = Start("left", 4, 5)
    first, info = env.reset(options={"start": start})
    assert (info["task"], info["init"], info["seed"]) == ("left", 4, 5)
    again, _ = env.reset(options={"start": {"task": "left", "init": 4, "seed": 5}})
    np.testing.assert_array_equal(first["agent_pos"], again["agent_pos"])
    assert env.unwrapped.task_description == "Move left to the goal."
    assert env.unwrapped._max_episode_steps == 60


def test_success_terminates_and_time_truncates():
    env = gymnasium.make(ID, goal_radius=0.3, render_mode="rgb_array")
    observation, _ = env.reset(options={"start": Start("up", 0, 0)})
    terminated = False
    while not terminated:
        state = observation["agent_pos"]
        action = np.clip(10 * (state[4:] - state[:2]), -1, 1).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(action)
        assert not truncated
    assert info["is_success"] is True
    assert info["metrics"]["success"] == 1.0
    assert reward >= 1.0
    assert env.render().shape == (256, 256, 3)
    env.reset(options={"start": Start("up", 0, 0)})
    for _ in range(60):
        *_, terminated, truncated, info = env.step(np.zeros(2, np.float32))
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_env_gives_what_gymnasiums_own_gives(mode):
    ours = gymnasium.make_vec(ID, 3, "vector_entry_point", autoreset_mode=mode.value, **FIELDS)
    theirs = SyncVectorEnv([lambda: TaskEnv("burnish.envs.point_mass:Config", **FIELDS)] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(seed=7), theirs.reset(seed=7))
    random = np.random.default_rng(0)
    ended = np.zeros(2)
    for _ in range(25):
        action = random.uniform(-1, 1, (3, 2)).astype(np.float32)
        one, two = ours.step(action), theirs.step(action)
        assert_same(one, two)
        ended += [one[2].sum(), one[3].sum()]
        assert ours.call("task_description") == theirs.call("task_description")
    assert ended.min() > 0
    assert one[0] in ours.observation_space
    ours.close()


def test_disabled_autoreset_waits_for_a_masked_reset():
    env = gymnasium.make_vec(ID, 2, autoreset_mode=AutoresetMode.DISABLED, max_episode_steps=2)
    env.reset(seed=0)
    action = np.zeros((2, 2), np.float32)
    env.step(action)
    *_, truncated, _ = env.step(action)
    assert truncated.all()
    with pytest.raises(EnvError, match=r"\[0, 1\] have ended"):
        env.step(action)
    _, info = env.reset(options={"reset_mask": np.array([True, False])})
    assert info["_task"].tolist() == [True, False]
    with pytest.raises(EnvError, match=r"\[1\] have ended"):
        env.step(action)
    env.reset(options={"reset_mask": np.array([False, True])})
    assert not env.step(action)[3].any()
    with pytest.raises(EnvError, match="reset_mask must be bool"):
        env.reset(options={"reset_mask": np.array([1, 0])})


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"unknown field 'goal_radios'.*Did you mean 'goal_radius'"):
        gymnasium.make(ID, goal_radios=0.1)
    with pytest.raises(ConfigError, match=r"no split 'test'.*shift, train"):
        gymnasium.make(ID, split="test")
    with pytest.raises(AttributeError, match="has no 'qpos'"):
        gymnasium.make_vec(ID, 1).call("qpos")
