import math

import numpy as np
import pytest

from burnish.envs.driving import geometry as g

UNIT = np.array([0.0, 0.0, 0.0, 4.0, 2.0])


def box(x, y, yaw=0.0, length=4.0, width=2.0):
    return np.array([x, y, yaw, length, width])


def test_rounded_box_by_hand():
    inner, radius = g.rounded(UNIT)
    assert radius == pytest.approx(0.25 * 1.96)
    np.testing.assert_allclose(inner[3:], (3.92 - 0.98, 1.96 - 0.98))


def test_corners_turn_with_the_box():
    np.testing.assert_allclose(g.box_corners(UNIT), [(2, 1), (-2, 1), (-2, -1), (2, -1)])
    np.testing.assert_allclose(g.box_corners(box(1, 0, math.pi / 2))[0], (0, 2), atol=1e-12)


@pytest.mark.parametrize(
    ("start", "end", "distance"),
    [
        ((3, -5), (3, 5), 1.0),  # beside the front
        ((-5, 0), (5, 0), 0.0),  # right through
        ((0, 0), (0.1, 0), 0.0),  # inside
        ((2, 2), (4, 2), 1.0),  # above the corner
        ((5, 5), (5, 5), 5.0),  # a point, from the corner (2, 1) by (3, 4)
        ((2, 3), (4, 1), math.sqrt(2.0)),  # past the corner at an angle: the line x + y = 5, from (2, 1)
    ],
)
def test_segment_box_distance_by_hand(start, end, distance):
    assert g.segment_box_distance(np.array(start, float), np.array(end, float), UNIT) == pytest.approx(distance)


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        (box(5, 0), 1.0),
        (box(4, 0), 0.0),
        (box(0, 0, 0.0, 1.0, 0.5), 0.0),  # one inside the other
        (box(7, 6), 5.0),  # corner to corner, 3 and 4
        (box(4.0, 0.0, math.pi / 2, 2.0, 2.0), 1.0),
        (box(2 + math.sqrt(2) + 0.5, 0, math.pi / 4, 2, 2), 0.5),  # a tip ahead
    ],
)
def test_box_distance_by_hand(other, distance):
    assert g.box_distance(UNIT, other) == pytest.approx(distance)
    assert g.box_distance(other, UNIT) == pytest.approx(distance)


def test_local_frame_and_back():
    pose = np.array([1.0, 2.0, 0.5 * math.pi])
    np.testing.assert_allclose(g.to_local(np.array([1.0, 5.0]), pose), (3.0, 0.0), atol=1e-12)
    point = np.array([0.3, -4.0])
    np.testing.assert_allclose(g.from_local(g.to_local(point, pose), pose), point)


def test_in_polygon():
    shape = np.array([(0, 0), (4, 0), (4, 4), (2, 1), (0, 4)], float)
    points = np.array([(1, 1), (2, 2), (3.9, 3), (5, 1), (-1, 0)], float)
    assert g.in_polygon(points, shape).tolist() == [True, False, True, False, False]


def test_paths_by_hand():
    path = np.array([(0, 0), (3, 4), (3, 10)], float)
    assert g.path_lengths(path).tolist() == [0.0, 5.0, 11.0]
    np.testing.assert_allclose(g.along_path(path, np.array([2.5, 8.0, 12.0]))[:, :2], [(1.5, 2), (3, 7), (3, 11)])
    length, gap = g.project(np.array([(5.0, 7.0), (-3.0, -4.0)]), path)
    np.testing.assert_allclose(length, (8.0, 0.0))
    np.testing.assert_allclose(gap, (2.0, 5.0))
    assert len(g.subdivided(path, 1.0)) == 1 + 5 + 6
    assert len(g.simplified(np.repeat(path[:1], 5, 0))) == 2


def test_offset_is_to_the_left():
    np.testing.assert_allclose(g.offset_path(np.array([(0.0, 0.0), (2.0, 0.0)]), 1.0), [(0, 1), (2, 1)])


def test_resample_by_time_not_by_index():
    times = np.array([0.0, 0.0764, 0.1764, 0.3])
    states = np.column_stack((10 * times, 0 * times, [3.1, 3.12, -3.13, -3.1], np.full(4, 10.0)))
    out, good = g.resample(times, states, np.ones(4, bool), 0.1 * np.arange(5), longest_gap=0.55)
    assert good.tolist() == [True, True, True, True, False]
    np.testing.assert_allclose(out[:4, 0], (0, 1, 2, 3))
    assert abs(out[1, 2]) > 3.1  # across the seam of the angle, not through zero
    assert not out[4].any()


def test_resample_leaves_long_gaps_out():
    times, states = np.array([0.0, 1.0, 1.1]), np.zeros((3, 4))
    _, good = g.resample(times, states, np.ones(3, bool), 0.1 * np.arange(12), longest_gap=0.55)
    assert np.flatnonzero(good).tolist() == [0, 10, 11]


def test_edges_are_where_no_lane_is():
    # Two lanes side by side with a slit of 0.1 m, and a short one across: only outer sides are edges.
    def lane(y):
        return np.array([(0.0, y), (10.0, y)])

    sides = [lane(4.0), lane(2.1), lane(2.0), lane(0.0)]
    polygons = [np.concatenate((sides[i], sides[i + 1][::-1])) for i in (0, 2)]
    edges = g.road_edges(polygons, sides)
    assert sorted(float(edge[0, 1]) for edge in edges) == [0.0, 4.0]
    assert all(edge[0, 0] == 0.0 and edge[-1, 0] == 10.0 for edge in edges)


def test_bumper_strip_is_as_deep_as_the_radius():
    inner, radius = g.rounded(UNIT)
    strip = g.bumper_strip(inner, radius, front=True)
    assert strip[:, 0].max() == pytest.approx(1.96)
    assert strip[:, 0].min() == pytest.approx(1.96 - radius)
    np.testing.assert_allclose(g.bumper_strip(inner, radius, front=False)[:, 0], -strip[:, 0])
