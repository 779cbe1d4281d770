import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from burnish.deploy.seams import bezier_seam, linear_seam, slope


def test_linear_by_hand() -> None:
    faded = linear_seam(np.zeros((3, 1)), np.full((3, 1), 8.0), 3)
    assert faded[:, 0].tolist() == [2.0, 4.0, 6.0]


def test_bezier_by_hand() -> None:
    # T = 4 ticks, control points 0, 0 + 4/3 * 3 = 4, 8 - 4/3 * 0 = 8, 8; at u = 1/4, 1/2, 3/4:
    # 27/64 * 4 + 9/64 * 8 + 1/64 * 8, 3/8 * 4 + 3/8 * 8 + 1/8 * 8, 9/64 * 4 + 27/64 * 8 + 27/64 * 8
    curve = bezier_seam(np.array([0.0]), np.array([3.0]), np.array([8.0]), np.array([0.0]), 3)
    np.testing.assert_allclose(curve[:, 0], [188 / 64, 5.5, 468 / 64])


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 1), st.floats(-1, 1))
def test_bezier_is_continuous_in_position_and_velocity_at_both_ends(p: float, q: float, v: float, w: float) -> None:
    steps = 3000
    dense = bezier_seam(*(np.array([x]) for x in (p, v / 1000, q, w / 1000)), steps)[:, 0]
    assert abs(dense[0] - p - v / 1000) < 1e-4
    assert abs(dense[-1] - q + w / 1000) < 1e-4
    assert abs((dense[1] - dense[0]) * 1000 - v) < 0.02
    assert abs((dense[-1] - dense[-2]) * 1000 - w) < 0.02


def test_bezier_of_a_straight_line_is_the_line() -> None:
    curve = bezier_seam(np.array([1.0]), np.array([0.5]), np.array([3.0]), np.array([0.5]), 3)
    np.testing.assert_allclose(curve[:, 0], [1.5, 2.0, 2.5])


def test_slope_is_centred_and_one_sided_at_the_ends() -> None:
    chunk = np.array([[0.0], [1.0], [4.0]])
    assert [slope(chunk, row).item() for row in range(3)] == [1.0, 2.0, 3.0]
    assert slope(chunk[:1], 0).item() == 0.0
