import importlib.util
import math

import numpy as np
import pytest

from burnish.core.errors import ConfigError, EnvError
from burnish.envs.driving import reference
from burnish.envs.driving.bank import Bank
from burnish.envs.driving.generator import generate
from burnish.envs.driving.layout import DT, FRONT, LATERAL, OFFROAD, REAR, Driver
from burnish.envs.driving.metrics import Rows, scene_score
from burnish.envs.driving.scoring import Scoring
from burnish.envs.driving.simulator import Simulator
from burnish.envs.driving.vehicle import Vehicle, advance
from tests.unit.envs.driving.samples import straight_road, track

NUMBA = importlib.util.find_spec("numba") is not None
CORES = ["numpy", *(["numba"] if NUMBA else [])]


def world(scene, core="numpy", **how):
    bank = Bank(8)
    simulator = Simulator(bank, 1, core=core)
    simulator.reset([bank.add(scene)], **how)
    return simulator


@pytest.fixture(params=CORES)
def core(request):
    return request.param


@pytest.fixture(scope="module")
def bank():
    bank = Bank(32)
    for kind in ("straight", "crossing", "roundabout"):
        bank.add(generate(kind, 0))
    bank.add(straight_road(track(1, 10.0, 1.5, 10.0, yaw=0.02), track(2, 45.0, 0.0, 3.0), track(3, 80, 4, 0.0)))
    return bank


# -- the two cores --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not NUMBA, reason="numba is not installed; the numpy twin is all there is")
@pytest.mark.parametrize("traffic", ["log", "idm", "policy"])
def test_numba_and_numpy_agree(bank, traffic):
    one, two = (Simulator(bank, len(bank.scenes), core=core, everybody=True) for core in ("numba", "numpy"))
    generator = np.random.default_rng(0)
    seen = 0
    for simulator in (one, two):
        simulator.reset(range(len(bank.scenes)), traffic=traffic, handover=4)
    for _ in range(60):
        others = generator.normal(size=(len(bank.scenes), 32, 2)) * (0.08, 2.0)
        for simulator in (one, two):
            simulator.step(others=others)
        for name, mine, theirs in zip(one.state._fields, one.state, two.state, strict=True):
            if mine.dtype.kind in "biu":
                np.testing.assert_array_equal(mine, theirs, err_msg=name)
            else:
                gap = np.abs(mine - theirs).reshape(*one.state.present.shape, -1)[one.state.present]
                assert gap.max(initial=0.0) <= 1e-5, name
        np.testing.assert_allclose(one.observe(), two.observe(), atol=1e-5)
        np.testing.assert_allclose(one.progress(), two.progress(), atol=1e-5)
        seen |= int(np.bitwise_or.reduce(one.state.events, axis=None))
    assert seen & OFFROAD
    assert traffic != "policy" or seen == FRONT | REAR | LATERAL | OFFROAD


def test_without_numba_the_twin_steps(monkeypatch, bank):
    monkeypatch.setattr("burnish.envs.driving.simulator.find_spec", lambda name: None)
    simulator = Simulator(bank, 1)
    assert simulator._kernels is reference
    with pytest.raises(ConfigError, match=r"pip install 'burnish\[driving\]'"):
        Simulator(bank, 1, core="numba")


# -- what moves -----------------------------------------------------------------------------------------------------


def test_driven_cars_are_bicycles(core):
    simulator = world(straight_road(), core)
    state = simulator.state.motion[0, 0].copy()
    for command in ((0.1, 1.0), (-0.2, -3.0), (9.0, 99.0)):
        simulator.step(np.array([command]))
        state = advance(state, np.array(command), Vehicle(), DT)
        np.testing.assert_allclose(simulator.state.motion[0, 0], state, atol=1e-9)


def test_a_car_that_brakes_at_standstill_stays(core):
    simulator = world(straight_road(track(1, 10.0, 0.0, 0.0)), core)
    before = simulator.state.motion[0, 0, :3].copy()
    for _ in range(10):
        simulator.step(np.array([[0.5, -8.0]]))
    np.testing.assert_array_equal(simulator.state.motion[0, 0, :3], before)


def test_logs_are_replayed_exactly(core):
    scene = straight_road(track(1, 10.0, 0.0, 10.0), track(2, 40.0, 4.0, 8.0, steps=20), track(3, 90, 0, 1, first=10))
    simulator = world(scene, core, ego="log")
    for step in range(1, 50):
        simulator.step()
        boxes = reference.boxes(simulator.state)[0]
        np.testing.assert_allclose(boxes[0, :3], scene.ego_log[step, :3], atol=1e-9)
        present = simulator.state.present[0, :3].tolist()
        assert present == [True, step < 20, step >= 10]
    assert simulator.ended()[0]
    assert simulator.traveled[0] == pytest.approx(49.0)


def test_handover_keeps_pose_and_speed(core):
    simulator = world(straight_road(), core, handover=5)
    for step in range(8):
        simulator.step(np.array([[0.0, 0.0]]))
        assert simulator.state.motion[0, 0, 3] == pytest.approx(10.0)
        assert simulator.centers()[0, 0] == pytest.approx(11.0 + step)


def test_idm_follows_and_keeps_a_gap(core):
    scene = straight_road(track(1, 60.0, 0.0, 0.0), track(2, 10.0, 0.0, 10.0))
    simulator = world(scene, core, ego="log", traffic="idm")
    for _ in range(48):
        simulator.step()
    gap = 60.0 - simulator.state.along[0, 1] - 10.0 - 4.0
    assert 1.0 < gap < 12.0
    assert simulator.state.motion[0, 1, 3] < 5.0
    assert not simulator.state.events[0, 0]


def test_idm_on_a_free_road_by_hand(core):
    # Equation 3 without a leader: a (1 - (v / v0)^4), from v = 5 with v0 = 10 (its fastest logged speed).
    slow = track(2, 10.0, 4.0, 5.0)
    slow.states[-1, 3] = 10.0
    simulator = world(straight_road(track(1, 100.0, 0.0, 0.0), slow), core, traffic="idm")
    simulator.step(np.zeros((1, 2)))
    assert simulator.state.motion[0, 1, 3] == pytest.approx(5.0 + 0.1 * 1.5 * (1 - 0.5**4))
    assert Driver().max_acceleration == 1.5


def test_parked_cars_stay_parked(core):
    simulator = world(straight_road(track(1, 10, 0, 5), track(2, 60, 4, 0.0, yaw=0.3)), core, traffic="idm")
    before = simulator.state.motion[0, 1, :2].copy()
    for _ in range(20):
        simulator.step(np.zeros((1, 2)))
    np.testing.assert_allclose(simulator.state.motion[0, 1, :2], before)


# -- contacts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "event"),
    [
        ((54.5, 0.0, 0.0), 0),  # half a metre of air
        ((53.8, 0.0, 0.0), FRONT),
        ((46.2, 0.0, 0.0), REAR),
        ((50.0, 1.9, 0.0), FRONT),  # side by side, as long: its side reaches along the front strip
        ((50.0, 2.5, 0.5 * math.pi), LATERAL),
        ((51.5, 2.8, 0.5 * math.pi), FRONT),
        ((48.5, 2.8, 0.5 * math.pi), REAR),
        ((53.8, 1.9, 0.0), 0),  # corners that are round do not meet
    ],
)
def test_contacts_by_hand(core, other, event):
    x, y, yaw = other
    scene = straight_road(track(1, 50.0, 0.0, 0.0), track(2, x, y, 0.0, yaw=yaw))
    simulator = world(scene, core, ego="log")
    simulator.step()
    assert int(simulator.state.events[0, 0]) & (FRONT | REAR | LATERAL) == event


@pytest.mark.parametrize(
    ("y", "yaw", "off"),
    [
        (0.0, 0.0, False),
        (-1.01, 0.0, False),
        (-1.03, 0.0, True),
        (2.0, 0.0, False),
        (5.1, 0.0, True),
        (0.0, 0.5 * math.pi, False),
        (-0.1, 0.5 * math.pi, True),
    ],
)
def test_offroad_by_hand(core, y, yaw, off):
    # Lanes cover y from -2 to 6; the car is 2 m wide, 1.96 m as it is tested.
    scene = straight_road(track(1, 50.0, y, 0.0, yaw=yaw))
    simulator = world(scene, core, ego="log")
    simulator.step()
    assert bool(simulator.state.events[0, 0] & OFFROAD) == off


# -- score, observation, copies -------------------------------------------------------------------------------------


def test_running_score_equals_the_score_of_all_rows(bank):
    worlds = len(bank.scenes)
    simulator, scoring = Simulator(bank, worlds), Scoring(worlds)
    simulator.reset(range(worlds))
    scoring.begin(simulator, np.arange(worlds))
    generator = np.random.default_rng(3)
    columns = {name: [] for name in ("events", "place", "gap", "traveled")}
    for step in range(60):
        if step:
            simulator.step(generator.normal(size=(worlds, 2)) * (0.05, 1.0) + (0.0, 0.3))
            scoring.update(simulator, np.ones(worlds, bool))
        place, gap = simulator.progress()
        for name, value in zip(columns, (simulator.state.events[:, 0], place, gap, simulator.traveled), strict=True):
            columns[name].append(value.copy())
    events, place, gap, traveled = (np.stack(column, 1) for column in columns.values())
    score = scene_score(
        Rows(
            (events & FRONT) > 0, (events & REAR) > 0, (events & LATERAL) > 0, (events & OFFROAD) > 0,
            place, gap, traveled, scoring.log_length, np.ones(events.shape, bool),
        )
    )  # fmt: skip
    np.testing.assert_array_equal(scoring.scene_score(), score.scene_score)
    for name in ("progress", "collision_at_fault", "collision_any", "offroad", "left_corridor", "dist_traveled_m"):
        np.testing.assert_array_equal(getattr(scoring, name), getattr(score, name), err_msg=name)
    assert score.left_corridor.any() or score.offroad.any()


def test_observation_by_hand(core):
    scene = straight_road(track(1, 50.0, 0.0, 6.0), track(2, 60.0, 4.0, 3.0), track(3, 150.0, 0.0, 0.0))
    row = world(scene, core).observe()[0]
    assert row.dtype == np.float32
    assert len(row) == 1848
    goal = 50.0 + 6.0 * 4.9
    np.testing.assert_allclose(row[:7], (0.2, 0.0, 0.0, 0.4, 0.4, (goal - 50) / 50, 0.0), atol=1e-6)
    np.testing.assert_allclose(row[7:14], (0.2, 0.08, 0.4, 0.4, 1.0, 0.0, 0.1), atol=1e-6)
    assert not row[14 : 7 + 31 * 7].any()  # the third is beyond 60 m
    road = row[7 + 31 * 7 :].reshape(232, 7)
    known = road[:, 5] + road[:, 6] == 1.0
    np.testing.assert_allclose(np.hypot(road[known, 3], road[known, 4]), 1.0, atol=1e-5)
    assert set(np.round(road[known & (road[:, 5] == 1.0), 1], 4)) == {np.float32(-0.04), np.float32(0.12)}
    assert not road[~known].any()


def test_forks_go_their_own_way_bit_for_bit(bank):
    simulator = Simulator(bank, len(bank.scenes))
    simulator.reset(range(len(bank.scenes)), traffic="idm")
    plan = np.stack((4.0 * np.arange(1, 9), 0.1 * np.arange(1, 9) ** 2, 0.05 * np.arange(1, 9)), -1)
    for _ in range(7):
        simulator.follow(np.repeat(plan[None], len(bank.scenes), 0))
        simulator.step()
    kept = simulator.snapshot()
    fork = simulator.fork(kept)
    for _ in range(40):
        simulator.step()
        fork.step()
    for mine, theirs in zip(simulator.state, fork.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(simulator.traveled, fork.traveled)
    assert (kept.state.step == 7).all()
    simulator.restore(kept)
    fork.step()
    assert (simulator.state.step == 7).all()
    np.testing.assert_array_equal(simulator.state.motion, kept.state.motion)


def test_one_world_forks_many_times(bank):
    simulator = Simulator(bank, 2)
    simulator.reset([0, 3])
    many = simulator.fork(simulator.snapshot(np.array([1, 1, 1])))
    many.step(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]))
    assert many.worlds == 3
    speeds = many.state.motion[:, 0, 3]
    assert speeds[0] > speeds[1] > speeds[2]
    with pytest.raises(EnvError, match="snapshot of 3 worlds"):
        simulator.restore(many.snapshot())


def test_plans_that_follow_the_log_score_full(bank):
    simulator = Simulator(bank, 3)
    scoring = Scoring(3)
    simulator.reset(range(3))
    scoring.begin(simulator, np.arange(3))
    while not (over := simulator.ended()).all():
        if (simulator.state.step % 5 == 0).any():
            simulator.follow(logged_plans(simulator))
        simulator.step()
        scoring.update(simulator, ~over)
    np.testing.assert_allclose(scoring.scene_score(), 1.0)
    assert (scoring.progress > 0.9).all()
    assert (scoring.dist_to_gt_trajectory < 1.0).all()


def logged_plans(simulator):
    """Plans (W, 8, 3) of what the log does next."""
    plans = []
    for w, number in enumerate(simulator.state.scene.tolist()):
        scene = simulator.bank.scenes[number]
        steps = np.minimum(simulator.state.step[w] + 5 * np.arange(1, 9), scene.num_steps - 1)
        log = scene.ego_log[steps]
        offset = simulator.state.size[w, 0, 2]
        pose = simulator.state.motion[w, 0, :3]
        rig = log[:, :2] - offset * np.stack((np.cos(log[:, 2]), np.sin(log[:, 2])), -1) - pose[:2]
        cos, sin = math.cos(pose[2]), math.sin(pose[2])
        plans.append(np.column_stack((rig @ [cos, sin], rig @ [-sin, cos], log[:, 2] - pose[2])))
    return np.array(plans)


def test_idm_takes_over_where_the_ego_is(core):
    simulator = world(straight_road(), core)
    for _ in range(10):
        simulator.step(np.zeros((1, 2)))
    before = simulator.centers()[0, 0]
    simulator.drive_egos("idm")
    simulator.step()
    assert simulator.centers()[0, 0] == pytest.approx(before + 1.0, abs=0.05)


def test_refusals(bank):
    simulator = Simulator(bank, 2)
    with pytest.raises(EnvError, match="2 worlds"):
        simulator.reset([0])
    with pytest.raises(EnvError, match="bank has 4"):
        simulator.reset([0, 99])
    with pytest.raises(ConfigError, match="drives like 'ghost'"):
        simulator.reset([0, 1], traffic="ghost")
    with pytest.raises(ConfigError, match="has 3 tracks, but a world has 2 slots"):
        Bank(2).add(bank.scenes[3])
    assert bank.add(bank.scenes[3]) == 3
    assert bank.number("nobody") == -1
