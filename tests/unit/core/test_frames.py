import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from burnish.core import frames
from burnish.core.errors import SpecError
from burnish.core.frames import Pose

quick = settings(max_examples=20, deadline=None)
vectors = arrays(float, 3, elements=st.floats(-3.0, 3.0))
positions = arrays(float, 3, elements=st.floats(-100.0, 100.0))
rotations = vectors.map(frames.exp)
poses = st.builds(Pose, rotations, positions)


def same(p: np.ndarray, q: np.ndarray, tolerance: float = 1e-7) -> bool:
    return bool(frames.angle_between(p, q) < tolerance)


def test_quarter_turn_by_hand() -> None:
    q = frames.exp(np.array([0.0, 0.0, np.pi / 2]))
    np.testing.assert_allclose(q, [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], atol=1e-15)
    np.testing.assert_allclose(frames.rotate(q, np.array([1.0, 0.0, 0.0])), [0, 1, 0], atol=1e-15)
    assert frames.yaw_of(q) == pytest.approx(np.pi / 2)


@quick
@given(rotations, rotations, rotations)
def test_rotations_are_a_group(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> None:
    assert same(frames.multiply(frames.multiply(p, q), r), frames.multiply(p, frames.multiply(q, r)))
    assert same(frames.multiply(p, frames.identity()), p)
    assert same(frames.multiply(p, frames.conjugate(p)), frames.identity())
    np.testing.assert_allclose(np.linalg.norm(frames.multiply(p, q)), 1.0)


@quick
@given(rotations, rotations, vectors)
def test_rotating_is_a_linear_isometry_that_composes(p: np.ndarray, q: np.ndarray, v: np.ndarray) -> None:
    np.testing.assert_allclose(np.linalg.norm(frames.rotate(p, v)), np.linalg.norm(v), atol=1e-12)
    np.testing.assert_allclose(
        frames.rotate(frames.multiply(p, q), v), frames.rotate(p, frames.rotate(q, v)), atol=1e-12
    )
    np.testing.assert_allclose(frames.to_matrix(p) @ v, frames.rotate(p, v), atol=1e-12)


@quick
@given(vectors)
def test_log_inverts_exp_below_half_a_turn(v: np.ndarray) -> None:
    if np.linalg.norm(v) < np.pi - 1e-6:
        np.testing.assert_allclose(frames.log(frames.exp(v)), v, atol=1e-9)
    assert same(frames.exp(frames.log(frames.exp(v))), frames.exp(v))


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-12, 1e-8, 1e-5])
def test_small_rotations_keep_their_precision(size: float) -> None:
    v = size * np.array([0.6, 0.0, 0.8])
    np.testing.assert_allclose(frames.log(frames.exp(v)), v, rtol=1e-9, atol=0.0 if size > 1e-100 else 1e-100)


@quick
@given(rotations, vectors)
def test_boxminus_inverts_boxplus(q: np.ndarray, v: np.ndarray) -> None:
    small = 0.5 * v / max(1.0, float(np.linalg.norm(v)))
    np.testing.assert_allclose(frames.boxminus(frames.boxplus(q, small), q), small, atol=1e-9)


@quick
@given(rotations, vectors)
def test_boxplus_is_a_right_perturbation_by_finite_differences(q: np.ndarray, v: np.ndarray) -> None:
    # d/dt rotate(q exp(t w), v) at 0 is rotate(q, w x v)
    step, w = 1e-6, np.array([0.3, -0.2, 0.5])
    ahead, behind = (frames.rotate(frames.boxplus(q, s * step * w), v) for s in (1.0, -1.0))
    np.testing.assert_allclose((ahead - behind) / (2 * step), frames.rotate(q, np.cross(w, v)), atol=1e-7)


@quick
@given(rotations)
def test_matrices_go_there_and_back(q: np.ndarray) -> None:
    matrix = frames.to_matrix(q)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1.0)
    assert same(frames.from_matrix(matrix), q)
    assert frames.from_matrix(matrix)[0] >= 0.0


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_half_turns_from_matrices(axis: int) -> None:
    vector = np.pi * np.eye(3)[axis]
    assert same(frames.from_matrix(frames.to_matrix(frames.exp(vector))), frames.exp(vector), 1e-6)


@quick
@given(rotations, rotations, st.floats(0.0, 1.0))
def test_slerp_runs_the_shortest_way_evenly(p: np.ndarray, q: np.ndarray, share: float) -> None:
    way = frames.angle_between(p, q)
    assert frames.angle_between(p, frames.slerp(p, q, share)) == pytest.approx(share * way, abs=1e-6)
    assert same(frames.slerp(p, q, 1.0), q)


@quick
@given(poses, poses, poses, positions)
def test_poses_are_a_group(a: Pose, b: Pose, c: Pose, point: np.ndarray) -> None:
    one = frames.compose(frames.compose(a, b), c)
    two = frames.compose(a, frames.compose(b, c))
    assert same(one.rotation, two.rotation)
    np.testing.assert_allclose(one.position, two.position, atol=1e-9)
    back = frames.compose(a, frames.inverse(a))
    assert same(back.rotation, frames.identity())
    np.testing.assert_allclose(back.position, 0.0, atol=1e-9)
    moved = frames.transform(a, frames.transform(b, point))
    np.testing.assert_allclose(frames.transform(frames.compose(a, b), point), moved, atol=1e-9)


@quick
@given(poses, poses)
def test_pose_matrices_multiply(a: Pose, b: Pose) -> None:
    both = frames.pose_to_matrix(frames.compose(a, b))
    np.testing.assert_allclose(frames.pose_to_matrix(a) @ frames.pose_to_matrix(b), both, atol=1e-9)
    again = frames.pose_from_matrix(both)
    assert same(again.rotation, frames.multiply(a.rotation, b.rotation), 1e-6)


@quick
@given(st.floats(-np.pi + 1e-6, np.pi - 1e-6))
def test_yaw(yaw: float) -> None:
    assert frames.yaw_of(frames.from_yaw(yaw)) == pytest.approx(yaw, abs=1e-12)


@quick
@given(st.floats(-100.0, 100.0))
def test_wrap(angle: float) -> None:
    wrapped = float(frames.wrap(angle))
    assert -np.pi <= wrapped <= np.pi
    assert np.cos(wrapped) == pytest.approx(np.cos(angle), abs=1e-9)
    assert np.sin(wrapped) == pytest.approx(np.sin(angle), abs=1e-9)


def test_enu_and_ned_by_hand() -> None:
    np.testing.assert_array_equal(frames.ned_from_enu(np.array([1.0, 2.0, 3.0])), [2.0, 1.0, -3.0])
    np.testing.assert_array_equal(frames.frd_from_flu(np.array([1.0, 2.0, 3.0])), [1.0, -2.0, -3.0])
    # FLU body facing east in ENU has no rotation; facing east in NED is a yaw of +90 degrees about down.
    assert same(frames.ned_frd_from_enu_flu(frames.identity()), frames.from_yaw(np.pi / 2))
    # Facing north in ENU is a yaw of 90 degrees; in NED it is no rotation.
    assert same(frames.ned_frd_from_enu_flu(frames.from_yaw(np.pi / 2)), frames.identity())


@quick
@given(rotations, vectors)
def test_conversions_agree_with_vectors(world_from_body: np.ndarray, v_flu: np.ndarray) -> None:
    there = frames.ned_frd_from_enu_flu(world_from_body)
    np.testing.assert_allclose(
        frames.rotate(there, frames.frd_from_flu(v_flu)),
        frames.ned_from_enu(frames.rotate(world_from_body, v_flu)),
        atol=1e-9,
    )
    assert same(frames.ned_frd_from_enu_flu(there), world_from_body)
    np.testing.assert_allclose(frames.rotate(frames.NED_FROM_ENU, v_flu), frames.ned_from_enu(v_flu), atol=1e-12)


def test_leading_axes_and_orders() -> None:
    q = frames.exp(np.random.default_rng(0).normal(size=(4, 5, 3)))
    assert frames.multiply(q, frames.identity()).shape == (4, 5, 4)
    assert frames.rotate(q, np.ones(3)).shape == (4, 5, 3)
    assert frames.from_matrix(frames.to_matrix(q)).shape == (4, 5, 4)
    np.testing.assert_array_equal(frames.wxyz(frames.xyzw(q)), q)
    np.testing.assert_array_equal(frames.xyzw(np.array([1.0, 2.0, 3.0, 4.0])), [2.0, 3.0, 4.0, 1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frames.normalised(np.zeros(4)), "finite and not zero"),
        (lambda: frames.normalised(np.array([np.nan, 0, 0, 1])), "finite and not zero"),
        (lambda: frames.normalised(np.ones(3)), r"4 entries \(w, x, y, z\); found an array of shape \(3,\)"),
        (lambda: frames.from_matrix(np.diag([1.0, 1.0, -1.0])), "Not a rotation matrix"),
        (lambda: frames.from_matrix(2.0 * np.eye(3)), "differs from 1 by 3"),
    ],
)
def test_refusals(call: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()  # type: ignore[operator]
