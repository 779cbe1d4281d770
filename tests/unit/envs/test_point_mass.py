import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.step import Start
from burnish.envs.point_mass import GOAL_KEY, IMAGE_KEY, STATE_KEY, Config

START = Start("up", init=3, seed=5)


def reach(state):
    """Return the action that heads for the shown goal, (2,)."""
    return np.clip(10.0 * (state[4:] - state[:2]), -1.0, 1.0)


def test_velocity_moves_by_dt_times_action():
    env = Config(control_dt=0.1).build()
    before = env.reset([START])[STATE_KEY][0]
    step = env.step(np.array([[[0.5, -1.0]]], np.float32))
    change = step.observation[STATE_KEY][0, :4] - before[:4]
    np.testing.assert_allclose(change, [0.05, -0.1, 0.5, -1.0], atol=1e-6)


def test_force_is_a_double_integrator():
    env = Config(dynamics="force", control_dt=0.1).build()
    before = env.reset([START])[STATE_KEY][0]
    after = env.step(np.array([[[1.0, 0.0], [1.0, 0.0]]], np.float32)).observation[STATE_KEY][0]
    np.testing.assert_allclose(after[:4] - before[:4], [0.01 + 0.02, 0.0, 0.2, 0.0], atol=1e-6)


def test_actions_are_clipped_and_walls_stop():
    env = Config(dynamics="velocity", control_dt=0.5, max_episode_steps=9).build()
    env.reset([START])
    state = env.step(np.full((1, 5, 2), [-100.0, 0.0], np.float32)).observation[STATE_KEY][0]
    assert state[0] == -1.0
    assert state[2] == 0.0


def test_dense_reward_is_metres_gained_and_one_on_success():
    env = Config(max_episode_steps=200).build()
    first = env.reset([START])
    total, state = 0.0, first[STATE_KEY][0]
    while True:
        step = env.step(reach(state)[None, None].astype(np.float32))
        state = step.observation[STATE_KEY][0]
        total += float(step.reward.sum())
        if step.done[0]:
            break
    distance = np.linalg.norm(first[GOAL_KEY][0] - first[STATE_KEY][0, :2])
    assert step.terminated[0]
    assert step.metrics["success"][0] == 1.0
    assert step.metrics["distance"][0] <= 0.1
    assert total == pytest.approx(1.0 + distance - step.metrics["distance"][0], abs=1e-5)


@pytest.mark.parametrize("task", ["right", "up", "left", "down"])
@pytest.mark.parametrize("reward", ["dense", "sparse"])
def test_success_ends_inside_a_chunk(task, reward):
    env = Config(reward=reward, max_episode_steps=200).build()
    state = env.reset([Start(task, 0, 0)])[STATE_KEY][0]
    chunk = np.repeat(reach(state)[None, None], 150, axis=1).astype(np.float32)
    heading = (state[4:] - state[:2]) / np.linalg.norm(state[4:] - state[:2])
    chunk[:] = heading
    step = env.step(chunk)
    assert step.terminated[0]
    assert not step.truncated[0]
    assert 0 < step.executed[0] < 150
    assert step.reward[0, step.executed[0] - 1] >= 1.0
    assert not step.reward[0, step.executed[0] :].any()
    if reward == "sparse":
        assert step.reward.sum() == 1.0


def test_time_limit_truncates():
    env = Config(max_episode_steps=6).build()
    env.reset([START])
    step = env.step(np.zeros((1, 4, 2), np.float32))
    assert not step.done[0]
    step = env.step(np.zeros((1, 4, 2), np.float32))
    assert step.truncated[0]
    assert not step.terminated[0]
    assert step.executed[0] == 2


def test_same_start_gives_same_bits_and_seed_changes_noise_only():
    config = Config(goal_noise=0.1)
    one, two = config.build().reset([START]), config.build().reset([START])
    for key in (STATE_KEY, GOAL_KEY):
        assert one[key].tobytes() == two[key].tobytes()
    other_seed = config.build().reset([Start("up", 3, 6)])
    assert (other_seed[GOAL_KEY] == one[GOAL_KEY]).all()
    assert (other_seed[STATE_KEY][0, 4:] != one[STATE_KEY][0, 4:]).all()
    other_init = config.build().reset([Start("up", 4, 5)])
    assert (other_init[GOAL_KEY] != one[GOAL_KEY]).all()


def test_goal_noise_has_the_stated_size_and_spares_the_privileged_goal():
    env = Config(goal_noise=0.1).build(200)
    observation = env.reset([Start("left", 0, seed) for seed in range(200)])
    error = observation[STATE_KEY][:, 4:] - observation[GOAL_KEY]
    assert error.std() == pytest.approx(0.1, rel=0.15)
    assert np.ptp(observation[GOAL_KEY], axis=0).max() == 0.0


def test_picture_shows_point_and_goal():
    env = Config(image=True).build()
    picture = env.reset([Start("right", 0, 0)])[IMAGE_KEY][0]
    green = np.argwhere((picture == (60, 160, 80)).all(-1))
    blue = np.argwhere((picture == (40, 60, 190)).all(-1))
    assert len(blue) > 0
    assert green[:, 1].mean() > blue[:, 1].mean()
    assert env.render(0).shape == (256, 256, 3)
    assert env.spec.image_keys == (IMAGE_KEY,)


@pytest.mark.parametrize(
    ("field", "value"), [("goal_radius", 0.0), ("control_dt", -1.0), ("max_episode_steps", 0), ("goal_noise", -0.1)]
)
def test_bad_values_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Config(**{field: value})


def test_small_picture_is_refused():
    with pytest.raises(ConfigError, match="image_size"):
        Config(image=True, image_size=4)
