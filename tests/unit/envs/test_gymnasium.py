import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from burnish.core.config import from_plain, to_plain
from burnish.core.errors import ConfigError, EnvError
from burnish.core.spec import TASK_KEY
from burnish.core.step import Start
from burnish.envs.gymnasium import STATE_KEY, Config

TOY = Config(env_id="tests.unit.envs.gymnasium_toys:Toy-v0", task="Count.")
FRONT = "observation.images.front"


def with_kwargs(config, **kwargs):
    return replace(config, kwargs=tuple(kwargs.items()))


def begin(config, num_envs=1):
    env = config.build(num_envs)
    observation = env.reset([Start(env.spec.tasks[0], 0, seed) for seed in range(num_envs)])
    return env, observation


def run(env, steps):
    return env.step(np.zeros((env.num_envs, steps, env.spec.action_dim), np.float32))


def test_default_is_as_gymnasium_gives_it():
    env, observation = begin(Config(), 2)
    theirs = gymnasium.make("MountainCarContinuous-v0")
    expected, _ = theirs.reset(seed=1)
    np.testing.assert_array_equal(observation[STATE_KEY][1], expected)
    step = env.step(np.full((2, 1200, 1), 0.3, np.float32))
    assert step.executed.tolist() == [999, 999]
    assert step.truncated.all()
    for _ in range(999):
        expected, reward, terminated, truncated, _ = theirs.step(np.array([0.3], np.float32))
    assert (terminated, truncated) == (False, True)
    np.testing.assert_array_equal(step.observation[STATE_KEY][1], expected)
    assert step.reward[1, 998] == np.float32(reward)
    assert step.metrics["success"].tolist() == [0.0, 0.0]
    assert env.spec.control_dt == pytest.approx(1 / 30)
    assert env.spec.action.low == (-1.0,)


def test_dict_observation_by_default():
    env, observation = begin(TOY, 2)
    assert env.spec.observation[STATE_KEY].shape == (6,)
    assert env.spec.observation[FRONT].shape == (4, 5, 3)
    assert env.spec.control_dt == 0.25
    assert env.spec.max_episode_steps == 6
    assert observation[TASK_KEY] == ["Count.", "Count."]
    step = run(env, 3)
    assert step.observation[STATE_KEY][0].tolist() == [3.0, observation[STATE_KEY][0, 1], 0, 1, 2, 3]
    assert step.observation[FRONT][1].tolist() == np.full((4, 5, 3), 3).tolist()
    assert observation[STATE_KEY][0, 0] == 0.0


def test_keys_choose_order_and_privilege():
    keys = (("goal", STATE_KEY), ("agent_pos", STATE_KEY), ("goal", "privileged.goal"), ("pixels/front", FRONT))
    _, observation = begin(replace(TOY, keys=keys))
    assert observation[STATE_KEY][0, :4].tolist() == observation["privileged.goal"][0].tolist() == [0, 1, 2, 3]
    assert set(observation) == {STATE_KEY, "privileged.goal", FRONT, TASK_KEY}


def test_plain_picture_and_camera():
    env, observation = begin(with_kwargs(replace(TOY, camera="side"), observation="picture"))
    assert observation["observation.images.camera"].shape == (1, 4, 5, 3)
    assert observation["observation.images.side"].shape == (1, 6, 7, 3)
    assert env.spec.observation["observation.images.side"].is_image
    assert env.render(0).shape == (6, 7, 3)


def test_same_start_gives_the_same_whatever_ran_before():
    env, first = begin(TOY)
    for seed in (5, 9, 5, 0):
        run(env, 2)
        again = env.reset([Start("Count.", 0, seed)])
    np.testing.assert_array_equal(first[STATE_KEY], again[STATE_KEY])


@pytest.mark.parametrize(
    ("changes", "kwargs", "executed", "terminated", "truncated"),
    [
        ({}, {"ending": "terminated"}, 4, True, False),
        ({}, {"ending": "truncated"}, 4, False, True),
        ({}, {"length": 99}, 6, False, True),
        ({}, {"length": 6}, 6, True, False),
        ({"max_episode_steps": 3}, {}, 3, False, True),
        ({"max_episode_steps": 50}, {"length": 30}, 30, True, False),
        ({"end_on_success": True}, {}, 2, True, False),
    ],
)
def test_termination_and_truncation_are_told_apart(changes, kwargs, executed, terminated, truncated):
    env, _ = begin(with_kwargs(replace(TOY, **changes), **kwargs))
    step = run(env, 60)
    assert step.executed.tolist() == [executed]
    assert step.terminated.tolist() == [terminated]
    assert step.truncated.tolist() == [truncated]
    assert step.reward.sum() == 0.5 * executed
    assert run(env, 1).executed.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "success", "expected"),
    [
        ({}, "success", 1.0),
        ({}, "is_success", 1.0),
        ({"success_key": "won"}, "won", 1.0),
        ({"success_return": 2.0}, "", 1.0),
        ({"success_return": 2.1}, "", 0.0),
        ({"env_id": "tests.unit.envs.gymnasium_toys:Endless-v0", "max_episode_steps": 9}, "", 1.0),
    ],
)
def test_success_comes_from_info_else_from_the_return(changes, success, expected):
    env, _ = begin(with_kwargs(replace(TOY, **changes), success=success))
    step = run(env, 4)
    assert step.metrics["success"].tolist() == [expected]
    assert step.metrics["return"].tolist() == [2.0]


def test_success_that_nobody_tells_is_an_error():
    env, _ = begin(with_kwargs(TOY, success=""))
    with pytest.raises(EnvError, match=r"does not tell success: info has nothing.*Set success_key, or success_return"):
        run(env, 1)
    env, _ = begin(replace(TOY, success_key="won"))
    with pytest.raises(EnvError, match="gave no 'won' in info; set success_key to one of: success"):
        run(env, 1)


def test_actions_are_clipped_to_the_limits():
    env, _ = begin(TOY)
    env.step(np.array([[[-5.0, 1.5], [0.25, 9.0]]], np.float32))
    actions = env._envs[0]._env.unwrapped.actions
    assert [action.tolist() for action in actions] == [[-1.0, 1.5], [0.25, 2.0]]


def test_config_survives_json():
    config = with_kwargs(replace(TOY, keys=(("goal", STATE_KEY),)), a=1, b=0.5, c="x", d=True, e=None)
    assert from_plain(Config, json.loads(json.dumps(to_plain(config)))) == config
    json.dumps(dict(TOY.build().spec.protocol))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(env_id="Nowhere-v0"), "'Nowhere-v0'.*failed.*doesn't exist.*write 'package:id'"),
        (Config(env_id="nowhere:Toy-v0"), "No module named 'nowhere'"),
        (with_kwargs(TOY, colour="red"), "unexpected keyword argument 'colour'"),
        (replace(TOY, env_id="tests.unit.envs.gymnasium_toys:Switch-v0"), "Discrete.*continuous and need a Box"),
        (replace(TOY, env_id="tests.unit.envs.gymnasium_toys:Endless-v0"), "without a time limit; set max_episode"),
        (with_kwargs(TOY, observation="mode"), "entry 'mode' of the observation is Discrete.*only Box.*setting keys"),
        (replace(TOY, keys=(("agent_po", STATE_KEY),)), "observes no 'agent_po'. Did you mean 'agent_pos'"),
        (replace(TOY, keys=(("agent_pos", FRONT),)), r"'observation.images.front' needs one \(H, W, 3\) uint8 entry"),
    ],
)
def test_what_cannot_be_a_task_is_refused(config, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        config.build()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_episode_steps": -1}, "must not be negative"),
        ({"camera": "side", "render_mode": ""}, "a camera needs render_mode 'rgb_array'"),
        ({"keys": (("a", "state"),)}, "'a' is mapped to 'state'; keys begin with 'observation.'"),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(TOY, **changes)
