from dataclasses import replace

import numpy as np
import pytest

from burnish import registry
from burnish.core.errors import ConfigError, EnvError
from burnish.core.seeding import stream
from burnish.core.step import Start, evaluation_starts
from burnish.envs.contact import contour, peg_insert, touch
from burnish.envs.contact.environment import Cameras, Reward
from burnish.envs.contact.forces import Readings
from burnish.envs.contact.scenario import SPLITS, Bias, Scenario, to_local
from burnish.envs.contact.tool import Tool
from burnish.envs.rendering import BACKEND_VARIABLE

IDS = ("contact/contour", "contact/touch", "contact/peg_insert")


@pytest.fixture(scope="module", params=IDS)
def env(request):
    built = registry.load("env", request.param)().build(2)
    yield built
    built.close()


def motion(env, steps):
    """A dip into the fixture and a move sideways, (steps, A), in the action limits."""
    action = np.zeros((steps, env.spec.action_dim), np.float32)
    action[:, 0] = np.linspace(-0.005, 0.005, steps)
    action[:, 2] = np.linspace(0.015, -0.003, steps)
    return action


def rollout(env, starts, action, cuts):
    """Observations at the end, rewards and metrics of one action sequence, executed in chunks of the given lengths."""
    step, reward, at = None, [], 0
    env.reset(starts)
    for cut in cuts:
        chunk = np.repeat(action[None, at : at + cut], env.num_envs, axis=0)
        step = env.step(chunk)
        reward.append(step.reward)
        at += cut
    return step.observation, np.concatenate(reward, 1), step.metrics


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for key in a:
                np.testing.assert_array_equal(a[key], b[key], err_msg=key)
        else:
            np.testing.assert_array_equal(a, b)


def test_the_same_start_gives_the_same_episode_however_it_is_cut_and_whatever_came_before(env):
    action = motion(env, 60)
    starts = [Start("shift", 3, 7), Start("stiffness", 4, 8)]
    whole = rollout(env, starts, action, [60])
    rollout(env, [Start("geometry", 0, 1), Start("friction", 1, 2)], 3 * action, [11])
    assert_same(rollout(env, starts, action, [8, 1, 16, 35]), whole)
    assert whole[2]["contact_readings"].max() > 0


def test_observe_does_not_change_what_follows(env):
    single = env._envs[0]
    figures = []
    for looks in (0, 3):
        single.reset(Start("shift", 0, 5))
        for action in motion(env, 50):
            single.advance(action)
            for _ in range(looks):
                first, second = single.observe(), single.observe()
                for key in env.spec.observation:
                    np.testing.assert_array_equal(first[key], second[key])
        figures.append((single.observe()["observation.state"].tolist(), single.metrics()))
    assert figures[0] == figures[1]


@pytest.mark.parametrize("task", SPLITS)
def test_no_reset_starts_in_contact(env, task):
    for start in evaluation_starts(env.spec, 30, tasks=(task,)):
        observation = env.reset([start, start])
        assert observation["privileged.contact"][0, 0] > 0.002
        assert observation["privileged.contact"][0, 1] == 0.0
        assert np.abs(observation["observation.wrench"][0, :3]).max() < 5 * 0.5


def test_splits_draw_the_same_episode_except_for_what_they_vary(env):
    nominal, shift, friction, stiffness = (
        env.reset([Start(task, 1, 11)] * 2) for task in ("nominal", "shift", "friction", "stiffness")
    )
    for other in (shift, friction, stiffness):
        np.testing.assert_array_equal(nominal["privileged.fixture"][0, :4], other["privileged.fixture"][0, :4])
    assert friction["privileged.fixture"][0, 4] == pytest.approx(2 * shift["privileged.fixture"][0, 4])
    assert stiffness["privileged.fixture"][0, 5] in (0.5, 2.0)
    np.testing.assert_array_equal(friction["privileged.bias"], shift["privileged.bias"])


def test_a_tool_that_never_touches_earns_little_and_its_force_figures_do_not_stand_alone(env):
    starts = evaluation_starts(env.spec, 2, split="shift")
    hover = np.zeros((env.spec.max_episode_steps, env.spec.action_dim), np.float32)
    hover[:, 2] = 0.012
    if env.spec.id == "contact/contour":
        hover[:, 0] = np.linspace(-0.05, 0.05, len(hover))
    _, reward, metrics = rollout(env, starts, hover, [len(hover)])
    assert reward.sum(1).max() < 0.3
    assert metrics["success"].max() == metrics["success_once"].max() == metrics["coverage"].max() == 0.0
    assert metrics["contact_readings"].max() == metrics["share_above_60N"].max() == 0.0
    for name in ("share_above_60N", "share_above_30N", "peak_force", "peak_force_filtered", "impulse"):
        assert {"coverage", "success"} <= set(env.spec.metrics[name].beside)
    assert env.spec.metrics["share_above_60N"].per == "contact_readings"


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_pressing_gives_the_force_of_the_stiffness_upwards_on_the_tool(scale):
    config = touch.Config(tool=Tool(stiffness=15000.0 * scale), bias=Bias(tail_probability=0.0, core=0.0, yaw=0.0))
    env = config.build()
    env.reset([Start("shift", 0, 0)])
    down = np.tile(np.array([0.0, 0.0, 0.002], np.float32), (1, 40, 1))
    free = env.step(down).observation
    assert np.abs(free["observation.wrench"][0, :3]).max() < 2.5
    down[..., 2] = -0.001
    step = env.step(down[:, :9])
    assert step.observation["observation.wrench"][0, 2] == pytest.approx(15.0 * scale, abs=2.5)
    assert step.observation["privileged.contact"][0] == pytest.approx([0.0, 15.0 * scale], abs=0.5)
    assert step.observation["observation.state"][0, 2] == pytest.approx(0.0, abs=1e-4)  # the set-point is below


def test_setpoints_move_no_faster_than_the_limit_and_stay_in_the_action_limits():
    env = touch.Config().build()
    env.reset([Start("shift", 0, 0)])
    rig = env._envs[0]._rig
    before = rig.setpoint
    env.step(np.array([[[9.0, 9.0, 9.0]]], np.float32))
    assert np.linalg.norm(rig.setpoint[:3] - before[:3]) == pytest.approx(0.06 * 0.05, rel=1e-5)
    env.step(np.full((1, 60, 3), 9.0, np.float32))
    found = to_local(rig.setpoint, env._envs[0]._scenario.estimate)
    np.testing.assert_allclose(found[:3], env.spec.action.high, rtol=1e-5)


def scenario(geometry):
    return Scenario(np.zeros(4), np.zeros(4), np.zeros(4), 0.3, 1.0, geometry)


def readings(x, force, z=0.0):
    count = len(x)
    tcp = np.zeros((count, 4))
    tcp[:, 0], tcp[:, 2] = x, z
    force = np.asarray(force, float)
    return Readings(tcp, raw=force, filtered=force, contact=force > 0)


def test_contour_covers_the_cells_passed_inside_the_band():
    task = contour.Contour(contour.Config(cells=10))  # cells of 10 mm from -50 to 50 mm
    task.begin(scenario(0.15), np.zeros(4))
    assert task.after(readings([-0.049, -0.039, -0.029], [10.0, 4.9, 30.1])).coverage == pytest.approx(0.1)
    assert task.after(readings([-0.039, -0.06, 0.06], [5.0, 10.0, 10.0])).coverage == pytest.approx(0.2)
    almost = task.after(readings(np.arange(-0.025, 0.05, 0.01), [10.0] * 8))
    assert almost.coverage == pytest.approx(1.0)
    assert almost.done
    assert almost.potential == pytest.approx(1.0)


def test_contour_is_done_only_at_the_end_of_the_path():
    task = contour.Contour(contour.Config(cells=100, coverage_goal=0.5))
    task.begin(scenario(0.15), np.zeros(4))
    x = np.arange(-0.0495, 0.0475, 0.001)
    assert not task.after(readings(x, np.full(len(x), 10.0))).done
    assert task.after(readings([0.0491], [0.0])).done


def test_arc_height_is_where_ball_and_arc_touch():
    task = contour.Contour(contour.Config())
    task.begin(scenario(0.15), np.zeros(4))
    for x in (-0.05, 0.0, 0.03):
        z = float(contour.arc_height(np.asarray(x), 0.15))
        assert task.distance(np.array([x, 0.0, z, 0.0])) == pytest.approx(0.0, abs=1e-12)
    assert task.distance(np.array([0.0, 0.0, 0.007, 0.0])) == pytest.approx(0.007)


def test_touch_counts_an_unbroken_hold():
    config = touch.Config(hold_seconds=0.15)
    task = touch.Touch(config)
    task.begin(scenario(0.0), np.zeros(4))
    good, off, hard = readings([0.001] * 3, [10.0] * 3), readings([0.004] * 3, [10.0] * 3), readings([0.0], [31.0])
    assert [task.after(r).done for r in (good, good, hard, good, good, off, good, good, good)] == [False] * 8 + [True]
    assert task.after(off).coverage == 1.0


def test_peg_must_stay_seated_and_aligned():
    task = peg_insert.Peg(peg_insert.Config(shape="square", hold_seconds=0.1))
    task.begin(scenario(0.0005), np.zeros(4))
    seated = readings([0.0, 0.0], [0.0, 0.0], z=-0.0106)
    turned = readings([0.0], [0.0], z=-0.0106)
    turned.tcp[:, 3] = 0.1
    assert [task.after(r).done for r in (seated, turned, seated, seated)] == [False, False, False, True]
    assert task.after(readings([0.0], [0.0], z=-0.0104)).done is False


@pytest.mark.parametrize("shape", ["round", "square"])
@pytest.mark.parametrize("clearance", [0.0005, 0.0002, 0.0001])
def test_hole_is_open_at_every_clearance(shape, clearance):
    peg_insert.Config(shape=shape, clearance=clearance).build().close()


def test_a_wrong_hole_is_found_out():
    model = peg_insert.Config().build()._envs[0].model
    with pytest.raises(EnvError, match="should be free"):
        peg_insert.check_hole_open(model, 0.002)
    model.geom("floor").pos[2] += 0.004
    with pytest.raises(EnvError, match="should be free"):
        peg_insert.check_hole_open(model, 0.0005)
    model.geom("floor").pos[2] -= 0.008
    with pytest.raises(EnvError, match="should touch"):
        peg_insert.check_hole_open(model, 0.0005)


def test_a_start_inside_the_fixture_is_refused():
    env = touch.Config(bias=Bias(tail_probability=1.0, tail=0.2)).build()
    start = next(
        start
        for start in evaluation_starts(env.spec, 20, split="shift")
        if env._envs[0]._task.sample(stream(start.seed, env.spec.id, start.init), "shift").offset[2] > 0.05
    )
    with pytest.raises(EnvError, match="inside the fixture"):
        env.reset([start])


def test_the_torque_shows_on_which_side_of_the_peg_the_hole_is():
    env = peg_insert.Config(bias=Bias(tail_probability=0.0, core=0.0, yaw=0.0)).build()
    torque = []
    for x in (0.002, -0.002):
        env.reset([Start("shift", 0, 0)])
        above, pressed = np.array([x, 0, 0.004, 0]), np.array([x, 0, -0.004, 0])
        observation = env.step(np.array([[above] * 30 + [pressed] * 10], np.float32)).observation
        assert observation["observation.wrench"][0, 2] > 10.0
        torque.append(observation["observation.wrench"][0, 4])
    assert torque[0] < -0.03
    assert torque[1] > 0.03  # the support, and so the torque about y, is on the side away from the hole


def test_sparse_reward_pays_for_success_only():
    env = contour.Config(reward=Reward(sparse=True)).build()
    _, reward, metrics = rollout(env, [Start("shift", 0, 0)], motion(env, 60), [60])
    assert metrics["contact_readings"][0] > 0
    assert not reward.any()


def test_without_stop_on_success_a_later_peak_takes_success_away():
    bias = Bias(tail_probability=0.0, core=0.0, yaw=0.0)
    env = touch.Config(stop_on_success=False, bias=bias, hold_seconds=0.1).build()
    env.reset([Start("shift", 0, 0)])
    home = np.tile(np.array([0.0, 0.0, 0.002], np.float32), (1, 30, 1))
    press = np.tile(np.array([0.0, 0.0, -0.001], np.float32), (1, 10, 1))
    env.step(home)
    step = env.step(press)
    assert not step.done[0]
    assert step.metrics["success"][0] == step.metrics["success_once"][0] == 1.0
    crush = np.tile(np.array([0.0, 0.0, -0.01], np.float32), (1, 8, 1))
    step = env.step(crush)
    assert step.metrics["success_once"][0] == 1.0
    assert step.metrics["success"][0] == step.metrics["success_at_end"][0] == 0.0
    assert step.metrics["peak_force_filtered"][0] > 100.0
    assert step.metrics["share_above_60N"][0] > 0.0
    assert step.metrics["cycle_time"][0] < 2.0


def test_cameras_add_images(monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "null")
    env = contour.Config(cameras=Cameras(enabled=True, size=16)).build()
    observation = env.reset([Start("shift", 0, 0)])
    assert env.spec.image_keys == ("observation.images.wrist", "observation.images.front")
    assert observation["observation.images.wrist"].shape == (1, 16, 16, 3)
    assert env.spec.protocol["cameras"]["profile"] == "fast"
    assert env.render(0).shape == (480, 640, 3)
    env.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tool(stiffness=-1.0), "stiffness must be positive"),
        (lambda: Tool(physics_dt=0.003), "whole multiple"),
        (lambda: Tool(solref=0.003), "twice physics_dt"),
        (lambda: Bias(tail_probability=1.5), "within"),
        (lambda: Bias(core=-1.0), "negative"),
        (lambda: Reward(force_threshold=0.0), "force_threshold"),
        (lambda: Cameras(size=0), "pixel"),
        (lambda: contour.Config(force_low=40.0), "force_low < force_high"),
        (lambda: contour.Config(path_length=0.5), "path_length"),
        (lambda: touch.Config(force_high=200.0), "force_high < force_limit"),
        (lambda: touch.Config(tilt=1.0), "tilt"),
        (lambda: peg_insert.Config(clearance=0.0), "clearance"),
        (lambda: peg_insert.Config(depth_tolerance=0.1), "depth_tolerance"),
    ],
)
def test_bad_values_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_changes_forces_changes_the_protocol():
    spec = contour.Config().build().spec
    for other in (
        contour.Config(tool=Tool(solref=0.01)),
        contour.Config(bias=Bias(tail=0.004)),
        contour.Config(stop_on_success=False),
        replace(contour.Config(), force_high=25.0),
    ):
        assert other.build().spec.protocol != spec.protocol
