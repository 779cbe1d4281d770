"""The scripted experts over many episodes: how often they succeed, and how often one that trusts the estimate fails."""

import numpy as np
import pytest

from burnish import registry
from burnish.core.step import evaluation_starts
from burnish.envs.contact import contour
from burnish.teachers.contact import Config
from tests.unit.teachers.test_contact import IDS, play


@pytest.fixture(scope="module", params=IDS)
def env(request):
    return registry.load("env", request.param)().build()


@pytest.mark.parametrize(("program", "episodes"), [("taught", 40), ("closed_loop", 15)])
def test_expert_succeeds_on_every_split(env, program, episodes):
    starts = evaluation_starts(env.spec, episodes)  # all five splits in turn
    metrics = play(env, Config(program=program).build(env.spec), starts, 8)
    assert metrics["success"].mean() >= 0.95
    assert np.median(metrics["peak_force"]) < 60.0
    if env.spec.id != "contact/peg_insert":  # a peg may wedge for a moment at twice the friction
        assert metrics["peak_force"].max() < 60.0


def test_feed_forward_on_the_estimate_fails_as_often_as_a_base_policy_should():
    env = contour.Config().build()
    horizon = env.spec.max_episode_steps
    teacher = Config(pose="estimated", chunk_steps=horizon).build(env.spec)
    metrics = play(env, teacher, evaluation_starts(env.spec, 50, split="shift"), horizon)
    share = metrics["share_above_60N"].sum() / metrics["contact_readings"].sum()
    assert 0.45 <= metrics["success"].mean() <= 0.75
    assert 0.08 <= share <= 0.3
    nominal = play(env, teacher, evaluation_starts(env.spec, 12, split="nominal"), horizon)
    assert nominal["success"].mean() >= 0.9
