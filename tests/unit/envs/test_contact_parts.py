import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.seeding import stream
from burnish.envs.contact.forces import ForceRecord, LowPass, Readings, force_penalty
from burnish.envs.contact.scenario import Bias, Scenario, rotate, to_local, to_parent


def test_low_pass_is_the_recursion_across_blocks():
    generator = np.random.default_rng(0)
    reading = generator.normal(size=(30, 2))
    low_pass = LowPass(cutoff_hz=100.0, dt=0.002, block=10)
    a = np.exp(-2 * np.pi * 100.0 * 0.002)
    expected, state = [], np.zeros(2)
    for x in reading:
        state = a * state + (1 - a) * x
        expected.append(state)
    last, found = np.zeros(2), []
    for block in reading.reshape(3, 10, 2):
        found.append(low_pass(block, last))
        last = found[-1][-1]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-12)


def test_force_record_counts_contact_readings_only():
    record = ForceRecord(dt=0.002)
    raw = np.array([70.0, 80.0, 20.0, 90.0])
    filtered = np.array([61.0, 60.0, 31.0, 75.0])
    record.add(Readings(np.zeros((4, 4)), raw, filtered, np.array([True, True, True, False])))
    record.add(Readings(np.zeros((1, 4)), np.array([1.0]), np.array([1.0]), np.array([False])))
    assert record.metrics() == {
        "peak_force": 90.0,
        "peak_force_filtered": 75.0,
        "share_above_60N": 1.0,
        "share_above_30N": 3.0,
        "contact_readings": 3.0,
        "impulse": pytest.approx(170.0 * 0.002),
    }


def test_force_penalty_starts_at_the_threshold_and_is_bounded():
    assert force_penalty(np.array([30.0, 0.0]), 30.0) == 0.0
    assert force_penalty(np.array([45.0, 30.0]), 30.0) == pytest.approx(0.25)
    assert force_penalty(np.array([1e6]), 30.0) == 2.0


def test_rotate_turns_x_into_y():
    np.testing.assert_allclose(rotate(np.array([1.0, 0.0, 2.0]), np.pi / 2), [0.0, 1.0, 2.0], atol=1e-15)


poses = st.lists(st.floats(-3, 3), min_size=4, max_size=4).map(np.array)


@settings(max_examples=50, deadline=None)
@given(poses, poses, poses)
def test_frames_invert_and_compose(pose, frame, outer):
    np.testing.assert_allclose(to_local(to_parent(pose, frame), frame), pose, atol=1e-12)
    np.testing.assert_allclose(
        to_parent(to_parent(pose, frame), outer), to_parent(pose, to_parent(frame, outer)), atol=1e-12
    )


def test_estimate_and_offset_give_the_true_fixture():
    scenario = Scenario(
        fixture=np.array([0.5, 0.1, 0.1, 0.3]),
        offset=np.array([0.001, -0.002, 0.004, 0.01]),
        start=np.zeros(4),
        friction=0.3,
        stiffness_scale=1.0,
        geometry=0.15,
    )
    np.testing.assert_allclose(to_parent(scenario.offset, scenario.estimate), scenario.fixture, atol=1e-15)


def test_bias_is_small_on_nominal_and_wide_along_uncertain_axes_only():
    bias = Bias()
    draws = {
        task: np.array([bias.sample(stream(seed, "test"), task, (2,)) for seed in range(2000)])
        for task in ("nominal", "shift")
    }
    assert np.abs(draws["nominal"][:, :3]).max() < 5 * bias.core
    assert np.abs(draws["shift"][:, :2]).max() < 5 * bias.core
    wide = np.abs(draws["shift"][:, 2]) > 5 * bias.core
    assert wide.mean() == pytest.approx(bias.tail_probability * (1 - 5 * bias.core / bias.tail), abs=0.04)
    assert np.abs(draws["shift"][:, 2]).max() <= bias.tail
