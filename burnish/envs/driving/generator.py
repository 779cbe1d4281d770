"""Seeded synthetic scenes with traffic, so that driving works with no data at all; every one passes the linter.

The ego drives a random way through the network behind a leader that slows down, and others come in from everywhere.
Each is driven by its own speed profile (limits, curvature, the intelligent driver model behind a leader), and is left
out where it would come near anybody who is there already; so the log is free of contact by construction.
"""

import math
from functools import lru_cache

import numpy as np

from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.seeding import stream
from burnish.core.spec import Array
from burnish.envs.driving.geometry import box_distance
from burnish.envs.driving.layout import Driver
from burnish.envs.driving.lint import lint
from burnish.envs.driving.recording import Recording, TrackRecord, build_scenes
from burnish.envs.driving.roads import KINDS, Network, way
from burnish.envs.driving.scene import STEP_SECONDS, Scene

EGO_SIZE = (5.393, 2.109)
"""Length and width of the ego [m], AlpaSim's."""
LATERAL_LIMIT = 2.0
"""Curves are driven with at most this lateral acceleration [m/s^2]."""
BRAKING = 2.0
"""Braking before curves [m/s^2]."""
MARGIN = (2.5, 0.5)
"""Room that is kept to others, in length and in width [m]."""
ATTEMPTS = 20
OTHERS = 14
"""Road users that are tried besides ego, leader and follower."""
DRIVER = Driver()


@lru_cache(maxsize=512)
def generate(kind: str, seed: int, *, seconds: float = 12.0) -> Scene:
    """Return a scene; the same arguments give the same scene.

    Args:
        kind: A key of ``KINDS``.
        seed: >= 0.
        seconds: Longest log.

    Raises:
        ConfigError: If there is no such kind.
        EnvError: If no attempt passes the linter.
    """
    if kind not in KINDS:
        raise ConfigError(f"There is no kind of road '{kind}'.{suggest(kind, KINDS)}")
    for attempt in range(ATTEMPTS):
        scene = _attempt(kind, seed, stream(seed, "driving", kind, attempt), round(seconds / STEP_SECONDS))
        if scene is not None and lint([scene]).kept:
            return scene
    raise EnvError(f"No sound scene of kind '{kind}' with seed {seed} in {ATTEMPTS} attempts.")


def _attempt(kind: str, seed: int, generator: np.random.Generator, steps: int) -> Scene | None:
    roads = KINDS[kind](generator)
    entries = sorted(set(range(len(roads.lines))) - {two for _, two in roads.links})
    poses, limits = way(roads, int(generator.choice(entries)), generator)
    platoon = _platoon(poses, limits, generator, steps)
    ego = platoon[0]
    length = int(ego[1].sum())
    if length < 40:
        return None
    tracks = [ego]
    for track in (*platoon[1:], *(_passer(roads, entries, generator, steps) for _ in range(OTHERS))):
        if track is not None and _keeps_away(track, tracks):
            tracks.append(track)
    shift = generator.uniform((-50.0, -50.0, -math.pi), (50.0, 50.0, math.pi))
    recording = Recording(
        id=f"{kind}-{seed}",
        source="burnish.envs.driving.generator",
        lanes=roads.records(shift),
        tracks=[_record(number, track, shift, length) for number, track in enumerate(tracks)],
    )
    return next(build_scenes(recording, [0]))


type _Track = tuple[Array, Array, tuple[float, float]]
"""States (T, 4), valid (T,), and length and width."""


def _profile(poses: Array, limits: Array, share: float) -> Array:
    """Return (K,) speeds at the points of a way [m/s]: limits, curvature, and braking in time for both."""
    turn = np.abs(np.gradient(poses[:, 2]))
    speed: Array = np.minimum(share * limits, np.sqrt(LATERAL_LIMIT / np.maximum(turn, 1e-4)))
    for index in range(len(speed) - 2, -1, -1):
        speed[index] = min(speed[index], math.sqrt(speed[index + 1] ** 2 + 2.0 * BRAKING))
    return speed


def _platoon(poses: Array, limits: Array, generator: np.random.Generator, steps: int) -> list[_Track]:
    """Return ego, leader and follower on one way, each behind the other; the ego's log ends where its way does."""
    begin = float(generator.uniform(25.0, 45.0))
    gaps = (0.0, float(generator.uniform(14.0, 45.0)), -float(generator.uniform(12.0, 22.0)))
    shares = (float(generator.uniform(0.8, 1.05)), float(generator.uniform(0.5, 0.95)), 1.0)
    sizes = (EGO_SIZE, _size(generator), _size(generator))
    brakes_at = int(generator.integers(10, steps)) if generator.random() < 0.4 else steps
    with_leader = generator.random() < 0.8
    order = [1, 0, 2] if with_leader else [0, 2]
    profiles = [_profile(poses, limits, share) for share in shares]
    places = {who: begin + gaps[who] for who in order}
    speeds = {who: float(np.interp(places[who], np.arange(len(poses)), profiles[who])) for who in order}
    last = len(poses) - 1.0
    tracks = {who: np.full((steps, 2), np.nan) for who in order}
    for step in range(steps):
        for rank, who in enumerate(order):
            if places[who] < last - 1.0:
                tracks[who][step] = places[who], speeds[who]
            ahead = order[rank - 1] if rank else None
            wanted = float(np.interp(places[who], np.arange(len(poses)), profiles[who]))
            if who == 1 and brakes_at <= step < brakes_at + 25:
                wanted = 1.0
            gap, pace = 1e9, 0.0
            if ahead is not None:
                gap = places[ahead] - places[who] - 0.5 * (sizes[ahead][0] + sizes[who][0])
                pace = speeds[ahead]
            push = _idm(speeds[who], wanted, gap, pace)
            after = max(speeds[who] + STEP_SECONDS * push, 0.0)
            places[who] += 0.5 * STEP_SECONDS * (speeds[who] + after)
            speeds[who] = after
    return [_on_way(poses, tracks[who], sizes[who]) for who in sorted(order)]


def _idm(speed: float, wanted: float, gap: float, pace: float) -> float:
    """Return an acceleration [m/s^2] behind a leader; above the wanted speed it brakes comfortably."""
    brake = 2.0 * math.sqrt(DRIVER.max_acceleration * DRIVER.comfortable_braking)
    room = DRIVER.standstill_gap + max(0.0, speed * DRIVER.headway + speed * (speed - pace) / brake)
    free = 1.0 - (speed / max(wanted, 0.1)) ** DRIVER.exponent
    push = max(free, -1.5) - (room / max(gap, 0.1)) ** 2
    return float(max(DRIVER.max_acceleration * push, -7.0))


def _passer(roads: Network, entries: list[int], generator: np.random.Generator, steps: int) -> _Track | None:
    """Return somebody who comes from anywhere at any time."""
    poses, limits = way(roads, int(generator.choice(entries)), generator)
    speed = _profile(poses, limits, float(generator.uniform(0.6, 1.0)))
    begin = float(generator.uniform(0.0, 0.7 * len(poses)))
    delay = 0 if generator.random() < 0.7 else int(generator.integers(0, steps // 2))
    if delay:
        begin = 3.0
    times = np.concatenate(([0.0], np.cumsum(2.0 / np.maximum(speed[1:] + speed[:-1], 0.2))))
    begin_time = float(np.interp(begin, np.arange(len(poses)), times))
    now = begin_time + STEP_SECONDS * (np.arange(steps) - delay)
    inside = (now >= begin_time - 1e-9) & (now < times[-1])
    place = np.interp(now, times, np.arange(len(poses)))
    motion = np.column_stack((place, np.interp(place, np.arange(len(poses)), speed)))
    motion[~inside] = np.nan
    return _on_way(poses, motion, _size(generator)) if inside.sum() >= 2 else None


def _size(generator: np.random.Generator) -> tuple[float, float]:
    if generator.random() < 0.1:
        return float(generator.uniform(7.0, 10.0)), float(generator.uniform(2.3, 2.55))
    return float(generator.uniform(4.0, 5.2)), float(generator.uniform(1.7, 2.0))


def _on_way(poses: Array, motion: Array, size: tuple[float, float]) -> _Track:
    """Return the track of one who is at places (T,) of a way with speeds (T,), NaN where it is not there."""
    valid = np.isfinite(motion[:, 0])
    place = np.where(valid, motion[:, 0], 0.0)
    states = np.column_stack([np.interp(place, np.arange(len(poses)), poses[:, axis]) for axis in range(3)])
    return np.column_stack((states, np.where(valid, motion[:, 1], 0.0))), valid, size


def _keeps_away(track: _Track, others: list[_Track]) -> bool:
    """Return whether a track stays clear of others at all times."""
    states, valid, size = track
    for there, present, extent in others:
        both = valid & present
        both &= np.hypot(*(states[:, :2] - there[:, :2]).T) < 0.5 * (size[0] + extent[0]) + MARGIN[0] + 2.0
        mine = np.column_stack((states[both, :3], np.tile(np.add(size, MARGIN), (both.sum(), 1))))
        theirs = np.column_stack((there[both, :3], np.tile(np.add(extent, MARGIN), (both.sum(), 1))))
        if both.any() and (box_distance(mine, theirs) <= 0.0).any():
            return False
    return True


def _record(number: int, track: _Track, shift: Array, length: int) -> TrackRecord:
    """Return a track, moved by a pose and cut to the ego's log."""
    states, valid, size = track
    cos, sin = math.cos(shift[2]), math.sin(shift[2])
    x = shift[0] + cos * states[:, 0] - sin * states[:, 1]
    y = shift[1] + sin * states[:, 0] + cos * states[:, 1]
    moved = np.column_stack((x, y, states[:, 2] + shift[2], states[:, 3]))[:length]
    kind = "truck" if size[1] > 2.2 else "vehicle"
    return TrackRecord(number, kind, *size, STEP_SECONDS * np.arange(length), moved, valid[:length])
