from dataclasses import replace

import mujoco
import numpy as np
import pytest

from burnish import registry
from burnish.core.errors import ConfigError, EnvError
from burnish.core.step import Start, evaluation_starts
from burnish.envs.contact import contour, peg_insert, touch
from burnish.envs.contact.arm import APPARENT_MASS, BASE, FLANGE, LINKS, TCP_OFFSET, Arm
from burnish.envs.contact.scenario import SPLITS, Bias
from burnish.envs.contact.tool import Tool
from burnish.envs.rendering import BACKEND_VARIABLE
from burnish.teachers import contact as experts

IDS = ("contact/contour", "contact/touch", "contact/peg_insert")
EXACT = Bias(tail_probability=0.0, core=0.0, yaw=0.0)


@pytest.fixture(scope="module", params=IDS)
def env(request):
    return replace(registry.load("env", request.param)(), robot="arm").build()


@pytest.fixture
def arm():
    return Arm(peg_insert.Peg(peg_insert.Config()).scene(), Tool())


def down(z, steps):
    return np.tile(np.array([0.0, 0.0, z], np.float32), (1, steps, 1))


def by_hand(joints):
    """The TCP in the arm's base by the published DH table (Craig), (3,)."""
    frame = np.eye(4)
    rows = zip(
        (0, 0, 0, 0.0825, -0.0825, 0, 0.088),
        (0, -1, 1, 1, -1, 1, 1),
        (0.333, 0, 0.316, 0, 0.384, 0, 0),
        joints,
        strict=True,
    )
    for a, quarter, d, theta in rows:
        c, s, ca, sa = np.cos(theta), np.sin(theta), np.cos(quarter * np.pi / 2), np.sin(quarter * np.pi / 2)
        frame = frame @ [[c, -s, 0, a], [s * ca, c * ca, -sa, -d * sa], [s * sa, c * sa, ca, d * ca], [0, 0, 0, 1]]
    return (frame @ [0.0, 0.0, 0.107 + TCP_OFFSET, 1.0])[:3]


@pytest.mark.parametrize(
    "joints", [(0, -np.pi / 4, 0, -3 * np.pi / 4, 0, np.pi / 2, np.pi / 4), np.linspace(-1, 1.2, 7)]
)
def test_kinematics_are_the_published_ones(arm, joints):
    arm.data.qpos[:] = joints
    mujoco.mj_kinematics(arm.model, arm.data)
    np.testing.assert_allclose(arm.data.site("tcp").xpos - BASE, by_hand(joints), atol=1e-9)


def test_in_the_ready_pose_the_tool_points_down(arm):
    arm.data.qpos[:] = (0, -np.pi / 4, 0, -3 * np.pi / 4, 0, np.pi / 2, np.pi / 4)
    mujoco.mj_kinematics(arm.model, arm.data)
    np.testing.assert_allclose(arm.data.site("tcp").xpos - BASE, [0.3069, 0.0, 0.5903 - TCP_OFFSET], atol=1e-4)
    np.testing.assert_allclose(arm.data.site("tcp").xmat.reshape(3, 3), np.eye(3), atol=1e-9)
    assert FLANGE == 0.107


def test_masses_and_limits_reach_the_model(arm):
    model = arm.model
    assert sum(model.body(f"link{n + 1}").mass[0] for n in range(7)) == pytest.approx(13.786, abs=1e-3)
    np.testing.assert_allclose(model.jnt_range, [[link.low, link.high] for link in LINKS])
    np.testing.assert_allclose(model.jnt_actfrcrange[:, 1], [87.0] * 4 + [12.0] * 3)


def test_inverse_kinematics_hits_the_pose_at_rest_and_gravity_is_held(arm):
    pose = np.array([0.5, -0.03, 0.12, 0.2])
    arm.place(pose, 1.0)
    mujoco.mj_forward(arm.model, arm.data)
    np.testing.assert_allclose(arm.position, pose, atol=1e-10)
    np.testing.assert_allclose(arm.data.qacc, 0.0, atol=1e-6)
    assert np.abs(arm.data.qfrc_actuator).max() > 10.0


def test_a_pose_out_of_reach_is_refused(arm):
    with pytest.raises(EnvError, match="does not reach"):
        arm.place(np.array([1.5, 0.0, 0.1, 0.0]), 1.0)


def test_posture_does_not_move_the_tcp_and_brings_the_elbow_back(arm):
    arm.place(np.array([0.5, 0.0, 0.12, 0.0]), 1.0)
    jacobian, inertia = np.zeros((6, 7)), np.zeros((7, 7))
    mujoco.mj_jacSite(arm.model, arm.data, jacobian[:3], jacobian[3:], arm.data.site("tcp").id)
    mujoco.mj_fullM(arm.model, arm.data, inertia)
    np.testing.assert_allclose(jacobian @ np.linalg.solve(inertia, arm.model.wrap_prm), 0.0, atol=1e-9)
    rest, free = arm.data.qpos.copy(), np.linalg.svd(jacobian)[2][-1]
    arm.data.qvel[:] = 0.5 * free
    swing, away = 0.0, 0.0
    for _ in range(30):
        for _ in range(25):
            arm.step()
        arm.update()
        swing = max(swing, np.abs(arm.data.qpos - rest).max())
        away = max(away, np.abs(arm.position[:3] - [0.5, 0.0, 0.12]).max())
    assert swing > 0.005
    assert np.abs(arm.data.qpos - rest).max() < 0.1 * swing
    assert away < 1e-4


def test_damping_is_laid_out_for_the_heaviest_direction(arm):
    arm.place(np.array([0.5, 0.0, 0.12, 0.0]), 1.0)
    jacobian, inertia = np.zeros((3, 7)), np.zeros((7, 7))
    mujoco.mj_jacSite(arm.model, arm.data, jacobian, None, arm.data.site("tcp").id)
    mujoco.mj_fullM(arm.model, arm.data, inertia)
    mass = 1.0 / np.diag(jacobian @ np.linalg.solve(inertia, jacobian.T))
    assert mass.max() == pytest.approx(APPARENT_MASS, rel=0.1)


def test_the_contract_is_that_of_the_tool_but_for_the_protocol(env):
    tool = registry.load("env", env.spec.id)().build().spec
    assert replace(env.spec, protocol={}) == replace(tool, protocol={})
    assert env.spec.protocol["robot"] == "arm"
    assert env.spec.protocol["mass"] == APPARENT_MASS
    assert {key for key in tool.protocol if tool.protocol[key] != env.spec.protocol[key]} == {"mass"}


def test_expert_succeeds_on_every_split(env):
    expert, generator = experts.Config().build(env.spec), np.random.default_rng(0)
    for start in evaluation_starts(env.spec, len(SPLITS)):
        observation = env.reset([start])
        while True:
            step = env.step(expert.act(observation, generator=generator))
            observation = step.observation
            if step.done[0]:
                break
        assert step.metrics["success"][0] == 1.0, start
        assert step.metrics["peak_force"][0] < 100.0


def test_the_same_start_gives_the_same_episode_however_it_is_cut_and_whatever_came_before(env):
    low, high = env.spec.action.bounds()
    action = np.linspace(high, low, 40, dtype=np.float32)[None] * [1.0, 0.2, 1.0, 1.0][: len(low)]
    results = []
    for cuts in ((40,), (7, 1, 32)):
        env.reset([Start("shift", 3, 7)])
        for chunk in np.split(action, np.cumsum(cuts)[:-1], axis=1):
            step = env.step(chunk)
        results.append(step)
        env.reset([Start("stiffness", 1, 2)])
        env.step(action[:, :30])
    for key in env.spec.observation:
        np.testing.assert_array_equal(results[0].observation[key], results[1].observation[key])
    assert {k: v[0] for k, v in results[0].metrics.items()} == {k: v[0] for k, v in results[1].metrics.items()}
    assert results[0].metrics["contact_readings"][0] > 0


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_pressing_gives_the_force_of_the_stiffness_upwards_on_the_tool(scale):
    env = touch.Config(robot="arm", tool=Tool(stiffness=15000.0 * scale), bias=EXACT).build()
    env.reset([Start("shift", 0, 0)])
    free = env.step(down(0.002, 50)).observation
    assert np.abs(free["observation.wrench"][0, :3]).max() < 2.5
    assert free["observation.state"][0] == pytest.approx([0.0, 0.0, 0.002, 0.0, 0.0, 0.0], abs=1e-4)
    pressed = env.step(down(-0.001, 20)).observation
    assert pressed["observation.wrench"][0, 2] == pytest.approx(15.0 * scale, abs=2.5)
    assert pressed["privileged.contact"][0] == pytest.approx([0.0, 15.0 * scale], abs=1.0)


def test_a_wrench_that_the_wrist_cannot_bear_is_scaled_down_whole():
    env = contour.Config(robot="arm", bias=EXACT, stop_on_success=False).build()
    env.reset([Start("shift", 0, 0)])
    single = env._envs[0]
    deep = np.array([[[0.0, 0.0, -0.025]]], np.float32)
    env.step(np.repeat(deep * 0.0 + np.float32([0.0, 0.0, 0.002]), 30, axis=1))
    for _ in range(20):
        step = env.step(deep)
        torque = np.abs(single._rig.data.qfrc_actuator) / single.model.jnt_actfrcrange[:, 1]
        assert torque.max() <= 1.0
        assert np.abs(single._rig.data.actuator_length[3:6]).max() < 0.03  # the orientation is held
    assert step.metrics["share_above_60N"][0] > 0
    assert single._rig.machine._scale < 0.6
    assert 100.0 < step.metrics["peak_force_filtered"][0] < 200.0  # 375 N at 15 kN/m, if the joints could
    back = env.step(np.repeat(deep * 0.0 + np.float32([0.0, 0.0, 0.01]), 30, axis=1))
    assert back.observation["observation.state"][0, :3] == pytest.approx([0.0, 0.0, 0.01], abs=5e-4)


def test_pictures_show_the_arm(monkeypatch):
    monkeypatch.setenv(BACKEND_VARIABLE, "null")
    env = touch.Config(robot="arm").build()
    env.reset([Start("shift", 0, 0)])
    assert env.render(0).shape == (480, 640, 3)
    env.close()


def test_an_unknown_robot_is_refused():
    with pytest.raises(ConfigError, match="no robot 'arms'"):
        touch.Config(robot="arms").build()
