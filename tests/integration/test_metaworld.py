"""An environment and an expert that others wrote, through the Gymnasium adapter."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from burnish.core.step import Start
from burnish.envs.gymnasium import STATE_KEY, Config

pytest.importorskip("metaworld")
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = Config(
    env_id="metaworld_mujoco:Meta-World/MT1",
    kwargs=(("env_name", "peg-insert-side-v3"), ("seed", 0)),
    task="Insert the peg into the hole in the side of the box.",
    max_episode_steps=500,
)


def test_scripted_expert_inserts_the_peg(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    env = CONFIG.build(2)
    from metaworld.policies import SawyerPegInsertionSideV3Policy

    expert = SawyerPegInsertionSideV3Policy()
    starts = [Start(CONFIG.task, 0, seed) for seed in (2, 3)]
    first = observation = env.reset(starts)
    for _ in range(120):
        action = np.stack([expert.get_action(state.astype(np.float64)) for state in observation[STATE_KEY]])
        step = env.step(action[:, None].astype(np.float32))
        observation = step.observation
    assert step.metrics["success"].tolist() == [1.0, 1.0]
    assert not step.done.any()
    again = env.reset(starts[::-1])
    np.testing.assert_array_equal(again[STATE_KEY], first[STATE_KEY][::-1])
    assert len({tuple(goal) for goal in first[STATE_KEY][:, -3:]}) > 1
    step = env.step(np.zeros((2, 501, 4), np.float32))
    assert step.executed.tolist() == [500] * 2
    assert step.truncated.all()
    env.close()


def test_success_alone_is_rewarded_and_ends_the_episode(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    config = replace(CONFIG, env_id="metaworld_success:Meta-World/MT1-success", end_on_success=True)
    env = config.build(1)
    from metaworld.policies import SawyerPegInsertionSideV3Policy

    expert = SawyerPegInsertionSideV3Policy()
    observation = env.reset([Start(CONFIG.task, 0, 2)])
    reward = []
    for _ in range(CONFIG.max_episode_steps):
        action = expert.get_action(observation[STATE_KEY][0].astype(np.float64))
        step = env.step(action[None, None].astype(np.float32))
        observation = step.observation
        reward.append(float(step.reward[0, 0]))
        if step.done.any():
            break
    assert step.terminated.tolist() == [True]
    assert step.metrics["success"].tolist() == [1.0]
    assert reward == [0.0] * (len(reward) - 1) + [1.0]
    env.close()
