"""Synthetic road networks as lanes: straight, curve, merge, crossing, roundabout. Traffic keeps to the right."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.geometry import along_path, offset_path, path_lengths
from burnish.envs.driving.recording import LaneRecord

WIDTH = 3.7
"""Width of a lane [m]."""
SPACING = 2.0
"""Distance of points along lanes [m]."""


class Network:
    """Lanes under construction."""

    def __init__(self) -> None:
        """Begin without lanes."""
        self.lines: list[Array] = []
        self.speeds: list[float] = []
        self.links: list[tuple[int, int]] = []
        self.left: dict[int, int] = {}

    def add(self, line: Array, speed: float, *, after: Sequence[int] = (), right: int | None = None) -> int:
        """Add a lane by its centre line (K, 2) and speed limit [m/s], and return its number.

        Args:
            line: Centre line.
            speed: Limit.
            after: Lanes that lead into it.
            right: The lane to its right with the same direction.
        """
        number = len(self.lines)
        self.lines.append(line)
        self.speeds.append(speed)
        self.links += [(lane, number) for lane in after]
        if right is not None:
            self.left[right] = number
        return number

    def link(self, one: int, two: int) -> None:
        """Let lane ``two`` follow lane ``one``."""
        self.links.append((one, two))

    def records(self, pose: Array) -> list[LaneRecord]:
        """Return the lanes, moved by a pose (3,) of x, y, yaw."""
        right = {two: one for one, two in self.left.items()}
        turn = np.array([[math.cos(pose[2]), math.sin(pose[2])], [-math.sin(pose[2]), math.cos(pose[2])]])
        return [
            LaneRecord(
                id=number,
                left=offset_path(line, 0.5 * WIDTH) @ turn + pose[:2],
                right=offset_path(line, -0.5 * WIDTH) @ turn + pose[:2],
                successors=tuple(two for one, two in self.links if one == number),
                left_lane=self.left.get(number),
                right_lane=right.get(number),
                speed_limit=self.speeds[number],
            )
            for number, line in enumerate(self.lines)
        ]


def line(start: Sequence[float] | Array, end: Sequence[float] | Array) -> Array:
    """Return a straight centre line (K, 2)."""
    one, two = np.asarray(start, float), np.asarray(end, float)
    count = max(2, math.ceil(float(np.hypot(*(two - one))) / SPACING) + 1)
    points: Array = one + (two - one) * np.linspace(0.0, 1.0, count)[:, None]
    return points


def bend(start: Sequence[float], end: Sequence[float]) -> Array:
    """Return a cubic Hermite curve (K, 2) between two poses of x, y, heading."""
    one, two = np.asarray(start, float), np.asarray(end, float)
    chord = float(np.hypot(*(two[:2] - one[:2])))
    turn = abs(math.remainder(two[2] - one[2], 2.0 * math.pi))
    reach = chord * (1.0 + 0.2 * turn)  # nearly a circle for a right angle
    leave = reach * np.array([math.cos(one[2]), math.sin(one[2])])
    arrive = reach * np.array([math.cos(two[2]), math.sin(two[2])])
    t = np.linspace(0.0, 1.0, max(6, math.ceil(chord / 1.0)))[:, None]
    points: Array = (2 * t**3 - 3 * t**2 + 1) * one[:2] + (t**3 - 2 * t**2 + t) * leave
    points += (3 * t**2 - 2 * t**3) * two[:2] + (t**3 - t**2) * arrive
    return points


def arc(radius: float, begin: float, end: float) -> Array:
    """Return points (K, 2) on a circle about the origin from one angle to another [rad]."""
    count = max(4, math.ceil(abs(end - begin) * radius / 1.5) + 1)
    angle = np.linspace(begin, end, count)
    return radius * np.stack((np.cos(angle), np.sin(angle)), -1)


def _both_ways(reference: Array, forward: int, back: int, speed: float) -> Network:
    """Return a road along a line (K, 2): lanes to its right drive along it, lanes to its left against it."""
    roads = Network()
    for direction, count in ((1.0, forward), (-1.0, back)):
        path = reference if direction > 0.0 else reference[::-1]
        beside: int | None = None
        for index in reversed(range(count)):
            beside = roads.add(offset_path(path, -(index + 0.5) * WIDTH), speed, right=beside)
    return roads


def straight(generator: np.random.Generator) -> Network:
    """Two or three lanes one way, none to two the other."""
    speed = float(generator.uniform(12.0, 22.0))
    reference = line((0.0, 0.0), (340.0, 0.0))
    return _both_ways(reference, int(generator.integers(2, 4)), int(generator.integers(0, 3)), speed)


def curve(generator: np.random.Generator) -> Network:
    """A road that turns by 50 to 110 degrees with a radius of 40 to 110 m."""
    radius, turn = float(generator.uniform(40.0, 110.0)), float(generator.uniform(0.9, 1.9))
    side = float(generator.choice((-1.0, 1.0)))
    spiral = 20.0
    lengths = np.arange(0.0, 60.0 + turn * radius + spiral + 140.0, SPACING)
    ramp = np.clip((lengths - 60.0) / spiral, 0.0, 1.0)
    ramp -= np.clip((lengths - 60.0 - turn * radius) / spiral, 0.0, 1.0)
    heading = np.cumsum(side * ramp / radius * SPACING)
    reference = np.cumsum(SPACING * np.stack((np.cos(heading), np.sin(heading)), -1), 0)
    return _both_ways(reference, int(generator.integers(1, 3)), 1, float(generator.uniform(10.0, 16.0)))


def merge(generator: np.random.Generator) -> Network:
    """A ramp that joins the right one of two lanes."""
    speed, join = float(generator.uniform(14.0, 22.0)), float(generator.uniform(130.0, 170.0))
    roads = Network()
    right = roads.add(line((0.0, 0.0), (join, 0.0)), speed)
    left = roads.add(line((0.0, WIDTH), (join, WIDTH)), speed, right=right)
    on = roads.add(line((join, 0.0), (join + 200.0, 0.0)), speed, after=(right,))
    roads.add(line((join, WIDTH), (join + 200.0, WIDTH)), speed, after=(left,), right=on)
    slope = float(generator.uniform(0.12, 0.2))
    begin = (join - 80.0, -80.0 * slope * 0.62)
    far = (begin[0] - 60.0 * math.cos(slope), begin[1] - 60.0 * math.sin(slope))
    ramp = roads.add(line(far, begin), 0.7 * speed)
    last = roads.add(bend((*begin, slope), (join, 0.0, 0.0)), 0.85 * speed, after=(ramp,))
    roads.link(last, on)
    return roads


def crossing(generator: np.random.Generator) -> Network:
    """Four roads that meet, one lane each way, with every turn allowed."""
    speed, near, far = float(generator.uniform(9.0, 14.0)), float(generator.uniform(11.0, 15.0)), 130.0
    roads = Network()
    into, out = [], []
    for arm in range(4):
        angle = 0.5 * math.pi * arm
        away, side = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
        into.append(roads.add(line(far * away + 0.5 * WIDTH * side, near * away + 0.5 * WIDTH * side), speed))
        out.append(roads.add(line(near * away - 0.5 * WIDTH * side, far * away - 0.5 * WIDTH * side), speed))
    for one in range(4):
        for turn in (1, 2, 3):
            two = (one + turn) % 4
            start, end = roads.lines[into[one]][-1], roads.lines[out[two]][0]
            pose = (*start, 0.5 * math.pi * one + math.pi), (*end, 0.5 * math.pi * two)
            roads.link(roads.add(bend(*pose), 0.8 * speed, after=(into[one],)), out[two])
    return roads


def roundabout(generator: np.random.Generator) -> Network:
    """A ring with one lane and four roads."""
    speed, radius, far = float(generator.uniform(8.0, 12.0)), float(generator.uniform(17.0, 23.0)), 140.0
    gap, near = 0.42, radius + 16.0
    roads = Network()
    quarter = 0.5 * math.pi
    between = [roads.add(arc(radius, quarter * k + gap, quarter * (k + 1) - gap), 7.0) for k in range(4)]
    across = [roads.add(arc(radius, quarter * k - gap, quarter * k + gap), 7.0) for k in range(4)]
    for arm in range(4):
        angle = quarter * arm
        away, side = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
        roads.link(between[arm - 1], across[arm])
        roads.link(across[arm], between[arm])
        lane = roads.add(line(far * away + 0.5 * WIDTH * side, near * away + 0.5 * WIDTH * side), speed)
        entry = (*roads.lines[lane][-1], angle + math.pi), (*arc(radius, angle + gap, 9.0)[0], angle + gap + quarter)
        roads.link(roads.add(bend(*entry), 7.0, after=(lane,)), between[arm])
        lane = roads.add(line(near * away - 0.5 * WIDTH * side, far * away - 0.5 * WIDTH * side), speed)
        leave = (*arc(radius, angle - gap, 9.0)[0], angle - gap + quarter), (*roads.lines[lane][0], angle)
        roads.link(roads.add(bend(*leave), 7.0, after=(between[arm - 1],)), lane)
    return roads


KINDS: Mapping[str, Callable[[np.random.Generator], Network]] = {
    "straight": straight,
    "curve": curve,
    "merge": merge,
    "crossing": crossing,
    "roundabout": roundabout,
}
"""Name of a kind of road to what draws one."""


def way(roads: Network, first: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return a random way from a lane to where roads end: poses (K, 3) 1 m apart, and speed limits (K,) [m/s]."""
    lanes = [first]
    while following := [two for one, two in roads.links if one == lanes[-1]]:
        lanes.append(int(generator.choice(following)))
        if len(lanes) > 12:
            break
    points = np.concatenate([roads.lines[lanes[0]], *(roads.lines[lane][1:] for lane in lanes[1:])])
    ends = np.cumsum([path_lengths(roads.lines[lane])[-1] for lane in lanes])
    lengths = np.arange(0.0, ends[-1], 1.0)
    poses = along_path(points, lengths)
    poses[:, 2] = np.unwrap(poses[:, 2])
    lane = np.minimum(np.searchsorted(ends, lengths, side="right"), len(lanes) - 1)
    return poses, np.array(roads.speeds)[np.array(lanes)[lane]]
