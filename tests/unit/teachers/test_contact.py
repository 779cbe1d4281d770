import numpy as np
import pytest

from burnish import registry
from burnish.core.errors import ConfigError
from burnish.core.spec import to_json
from burnish.core.step import evaluation_starts
from burnish.envs import point_mass
from burnish.teachers.contact import Config

IDS = ("contact/contour", "contact/touch", "contact/peg_insert")


def play(env, teacher, starts, replan_steps):
    """Final metrics of one episode per Start, one array per metric."""
    generator, rows = np.random.default_rng(0), []
    for start in starts:
        observation = env.reset([start])
        while True:
            step = env.step(teacher.act(observation, generator=generator)[:, :replan_steps])
            observation = step.observation
            if step.done[0]:
                break
        rows.append(step.metrics)
    return {name: np.array([row[name][0] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module", params=IDS)
def env(request):
    return registry.load("env", request.param)().build()


@pytest.mark.parametrize(("program", "episodes"), [("taught", 10), ("closed_loop", 5)])
def test_expert_succeeds_on_every_split(env, program, episodes):
    starts = evaluation_starts(env.spec, episodes)  # all five splits in turn; many episodes: tests/integration
    metrics = play(env, Config(program=program).build(env.spec), starts, 8)
    assert metrics["success"].sum() >= episodes - 1
    assert np.median(metrics["peak_force"]) < 60.0


@pytest.mark.parametrize("replan_steps", [1, 5])
def test_expert_does_not_depend_on_how_its_chunks_are_cut(env, replan_steps):
    starts = evaluation_starts(env.spec, 4, split="nominal")
    assert play(env, Config().build(env.spec), starts, replan_steps)["success"].all()


def test_taught_setpoints_are_laid_on_the_estimate_where_that_is_good_enough(env):
    teacher = Config().build(env.spec)
    observation = env.reset([evaluation_starts(env.spec, 1, split="nominal")[0]])
    observation["privileged.bias"][:] = 0.0
    straight = teacher.act(observation, generator=np.random.default_rng(0))
    observation["privileged.bias"][:] = [[0.0002, 0.0, 0.0003, 0.0]]
    np.testing.assert_array_equal(teacher.act(observation, generator=np.random.default_rng(0)), straight)
    observation["privileged.bias"][:] = [[0.0, 0.0, 0.004, 0.0]]
    corrected = teacher.act(observation, generator=np.random.default_rng(0))
    assert np.abs(corrected - straight).max() > 0.0 or env.spec.id == "contact/peg_insert"


def test_act_is_batched_and_inside_the_limits(env):
    big = registry.load("env", env.spec.id)().build(3)
    observation = big.reset(evaluation_starts(env.spec, 3, split="shift"))
    chunk = Config(chunk_steps=5).build(env.spec).act(observation, generator=np.random.default_rng(0))
    assert chunk.shape == (3, 5, env.spec.action_dim)
    assert chunk.dtype == np.float32
    low, high = env.spec.action.bounds()
    assert (chunk >= low - 1e-6).all()
    assert (chunk <= high + 1e-6).all()


@pytest.mark.parametrize("values", [{"chunk_steps": 0}, {"approach_speed": 0.0}, {"slide_speed": -1.0}])
def test_bad_values_are_refused(values):
    with pytest.raises(ConfigError, match="teacher 'contact'"):
        Config(**values)


def test_there_is_no_expert_for_other_environments():
    with pytest.raises(ConfigError, match="no scripted expert for 'point_mass'"):
        Config().build(point_mass.Config().build().spec)


def test_the_spec_is_plain_enough_for_a_checkpoint(env):
    assert to_json(env.spec)["protocol"]["home"]
