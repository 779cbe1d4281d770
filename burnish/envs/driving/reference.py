"""The numpy twin of :mod:`burnish.envs.driving.kernels`: the oracle of its tests, and what runs without numba.

It shares tables, layout and the geometry of :mod:`burnish.envs.driving.geometry`, but no line with the kernels.
"""

from dataclasses import fields

import numpy as np

from burnish.core.frames import wrap
from burnish.core.spec import Array
from burnish.envs.driving import geometry
from burnish.envs.driving.bank import CELL, PATH_STEP, ROAD_TOKENS, Tables
from burnish.envs.driving.layout import (
    ACCELERATION,
    ACCELERATION_SCALE,
    DISTANCE_SCALE,
    DT,
    EGO_ENTRIES,
    FRONT,
    GOAL_LIMIT,
    IDM,
    IDM_SAMPLES,
    IDM_SIDE,
    IDM_STEP,
    LATERAL,
    LENGTH_SCALE,
    OFFROAD,
    PARTNER_ENTRIES,
    PARTNERS,
    POLICY,
    REAR,
    REPLAY,
    ROAD_ENTRIES,
    SPEED,
    SPEED_SCALE,
    STEERING,
    VIEW,
    WIDTH_SCALE,
    YAW,
    Driver,
    State,
)
from burnish.envs.driving.vehicle import Vehicle, steady_steering
from burnish.envs.driving.vehicle import advance as bicycle


def boxes(state: State) -> Array:
    """Return (W, A, 5) boxes: centre, yaw, length and width."""
    yaw, offset = state.motion[..., YAW], state.size[..., 2]
    x, y = state.motion[..., 0] + offset * np.cos(yaw), state.motion[..., 1] + offset * np.sin(yaw)
    return np.stack((x, y, yaw, state.size[..., 0], state.size[..., 1]), -1)


def _vehicle(constants: Array) -> Vehicle:
    named = dict(zip((item.name for item in fields(Vehicle)), constants.tolist(), strict=True))
    return Vehicle(**{**named, "substeps": int(named["substeps"])})


def _slots(tables: Tables, state: State) -> tuple[Array, Array]:
    """Return (used (W, A), row in ``agents`` (W, A)); rows of unused slots are those of the ego."""
    slot = np.arange(state.mode.shape[1])
    count, first = tables.tracks[state.scene, 1], tables.tracks[state.scene, 3]
    used = slot < count[:, None]
    return used, first[:, None] + np.where(used, slot, 0)


def _logged(tables: Tables, state: State, step: Array, used: Array) -> Array:
    """Return (W, A, 5) rows of the log at a step (W,), not valid outside of it."""
    begin, steps = tables.tracks[state.scene, 0], tables.tracks[state.scene, 2]
    slot = np.where(used, np.arange(used.shape[1]), 0)
    row = begin[:, None] + slot * steps[:, None] + np.clip(step, 0, steps - 1)[:, None]
    found: Array = tables.track_states[row].copy()
    inside = used & ((step >= 0) & (step < steps))[:, None]
    found[..., 4] = np.where(inside, found[..., 4], 0.0)
    return found


def _path_pose(tables: Tables, row: Array, along: Array) -> Array:
    """Return (..., 3) poses on paths (...) of rows at lengths (...)."""
    start, count = tables.paths[row, 0], tables.paths[row, 1]
    place = np.clip(along / PATH_STEP, 0.0, count - 1.0)
    index = np.minimum(place.astype(np.int64), count - 2)
    one, two = tables.path_points[start + index], tables.path_points[start + index + 1]
    pose: Array = one + (place - index)[..., None] * (two - one)
    return pose


def advance(tables: Tables, state: State, command: Array, constants: Array, driver: Driver) -> None:
    """Move all worlds by one step; see :func:`burnish.envs.driving.kernels.advance`."""
    vehicle = _vehicle(constants)
    used, agents = _slots(tables, state)
    waiting = np.zeros_like(used)
    waiting[:, 0] = (state.mode[:, 0] == POLICY) & (state.step < state.handover)
    driven = used & (state.mode == POLICY) & ~waiting & state.present
    state.motion[driven] = bicycle(state.motion[driven], command[driven], vehicle, DT)
    before = _logged(tables, state, state.step, used)
    now = _logged(tables, state, state.step + 1, used)
    valid = now[..., 4] > 0.5
    idm = used & (state.mode == IDM) & state.present
    acceleration = _idm_acceleration(tables, state, idm, agents, driver)
    follows = used & ((state.mode == REPLAY) | waiting)
    begins = used & ~follows & ~idm & ~state.started & valid
    placed = (follows & valid) | begins
    state.motion[placed] = _from_log(before[placed], now[placed], state.size[placed, 2], vehicle)
    _move_idm(tables, state, idm, agents, acceleration, vehicle)
    state.present[...] = np.where(follows, valid, state.present | begins)
    total = PATH_STEP * (tables.paths[agents, 1] - 1.0)
    state.present[idm & (total > 2.0) & (state.along >= total)] = False
    state.started[...] |= state.present | idm
    state.step[...] += 1


def _from_log(before: Array, now: Array, offset: Array, vehicle: Vehicle) -> Array:
    """Return motions (n, 6) at logged states (n, 5)."""
    known = before[:, 4] > 0.5
    yaw, speed = now[:, 2], now[:, 3]
    angle = np.where(known, steady_steering(speed, wrap(yaw - before[:, 2]) / DT, vehicle), 0.0)
    push = np.where(known, (speed - before[:, 3]) / DT, 0.0)
    x, y = now[:, 0] - offset * np.cos(yaw), now[:, 1] - offset * np.sin(yaw)
    return np.stack((x, y, yaw, speed, angle, push), -1)


def _idm_acceleration(tables: Tables, state: State, idm: Array, agents: Array, driver: Driver) -> Array:
    """Return (W, A) accelerations of the IDM drivers [m/s^2]."""
    result = np.zeros(idm.shape)
    world, slot = np.nonzero(idm)
    if not len(world):
        return result
    gap, pace = _leaders(tables, state, world, slot, agents[world, slot])
    speed = state.motion[world, slot, SPEED]
    wanted = np.maximum(tables.agents[agents[world, slot], 3], driver.least_speed)
    brake = 2.0 * np.sqrt(driver.max_acceleration * driver.comfortable_braking)
    room = driver.standstill_gap + np.maximum(0.0, speed * driver.headway + speed * (speed - pace) / brake)
    free = 1.0 - (speed / wanted) ** driver.exponent
    push = driver.max_acceleration * (free - (room / np.maximum(gap, 0.1)) ** 2)
    result[world, slot] = np.maximum(push, -driver.hardest_braking)
    return result


def _leaders(tables: Tables, state: State, world: Array, slot: Array, row: Array) -> tuple[Array, Array]:
    """Return (gap (n,), speed (n,)) of the nearest car on each path ahead; 1e9 m for none."""
    others, motion = boxes(state)[world], state.motion[world]
    along, own = state.along[world, slot], state.size[world, slot]
    here = _path_pose(tables, row, along)
    offset = others[..., :2] - here[:, None, :2]
    reach = IDM_STEP * IDM_SAMPLES + own[:, None, 0] + others[..., 3]
    ahead = offset[..., 0] * np.cos(here[:, None, 2]) + offset[..., 1] * np.sin(here[:, None, 2])
    seen = state.present[world] & (np.arange(others.shape[1]) != slot[:, None])
    seen &= ((offset**2).sum(-1) <= reach**2) & (ahead >= 0.0)
    gaps = IDM_STEP * np.arange(IDM_SAMPLES)
    samples = _path_pose(tables, np.repeat(row[:, None], IDM_SAMPLES, 1), along[:, None] + 0.5 * own[:, :1] + gaps)
    local = np.abs(geometry.to_local(samples[:, None, :, :2], others[:, :, None, :3]))
    half_width = 0.5 * (others[..., 4] + own[:, None, 1]) + IDM_SIDE
    hits = (local[..., 0] <= 0.5 * others[..., 3, None]) & (local[..., 1] <= half_width[..., None]) & seen[..., None]
    first = hits.argmax(-1)
    gap = np.where(hits.any(-1), gaps[first], 1e9)
    best = gap.argmin(-1)
    number = np.arange(len(world))
    heading = samples[number, first[number, best], 2]
    pace = np.maximum(motion[number, best, SPEED] * np.cos(motion[number, best, YAW] - heading), 0.0)
    nearest = gap[number, best]
    return nearest, np.where(nearest < 1e9, pace, 0.0)


def _move_idm(tables: Tables, state: State, idm: Array, agents: Array, acceleration: Array, vehicle: Vehicle) -> None:
    if not idm.any():
        return
    row, push, motion = agents[idm], acceleration[idm], state.motion[idm]
    free = PATH_STEP * (tables.paths[row, 1] - 1.0) > 2.0
    speed = np.where(free, np.maximum(motion[:, SPEED] + DT * push, 0.0), 0.0)
    state.along[idm] += np.where(free, 0.5 * DT * (motion[:, SPEED] + speed), 0.0)
    pose = _path_pose(tables, row, state.along[idm])
    turn = wrap(pose[:, 2] - motion[:, YAW]) / DT
    offset = state.size[idm, 2]
    motion[:, 0] = pose[:, 0] - offset * np.cos(pose[:, 2])
    motion[:, 1] = pose[:, 1] - offset * np.sin(pose[:, 2])
    motion[:, YAW], motion[:, SPEED] = pose[:, 2], speed
    motion[:, STEERING], motion[:, ACCELERATION] = steady_steering(speed, turn, vehicle), push
    state.motion[idm] = motion


def events(tables: Tables, state: State, everybody: bool) -> None:
    """Write contacts and leaving the road; see :func:`burnish.envs.driving.kernels.events`."""
    used, _ = _slots(tables, state)
    looked = used & state.present & (state.mode == POLICY) & everybody
    looked[:, 0] = state.present[:, 0]
    state.events[used] = 0
    world, slot = np.nonzero(looked)
    if not len(world):
        return
    inner, radius = geometry.rounded(boxes(state))
    found = _contacts(state, inner, radius, world, slot)
    off = _offroad(tables, state.scene[world], inner[world, slot], radius[world, slot])
    state.events[world, slot] = found | np.where(off, OFFROAD, 0).astype(np.uint8)


def _contacts(state: State, inner: Array, radius: Array, world: Array, slot: Array) -> Array:
    """Return (n,) bits of the contacts of each driven car."""
    gap = np.hypot(*np.moveaxis(inner[world, :, :2] - inner[world, slot, None, :2], -1, 0))
    half = 0.5 * np.hypot(state.size[..., 0], state.size[..., 1])
    near = state.present[world] & (gap <= half[world] + half[world, slot][:, None])
    near[np.arange(len(world)), slot] = False
    me, other = np.nonzero(near)
    found = np.zeros(len(world), np.uint8)
    if not len(me):
        return found
    mine, theirs = inner[world[me], slot[me]], inner[world[me], other]
    my_radius, their_radius = radius[world[me], slot[me]], radius[world[me], other]
    touching = geometry.box_distance(mine, theirs) <= my_radius + their_radius
    ends = []
    for front in (True, False):
        outline = geometry.bumper_strip(mine, my_radius, front=front)
        away = geometry.segment_box_distance(outline, np.roll(outline, -1, -2), theirs[:, None]).min(-1)
        ends.append(away <= their_radius)
    kind = np.where(ends[0], FRONT, np.where(ends[1], REAR, LATERAL)).astype(np.uint8)
    np.bitwise_or.at(found, me[touching], kind[touching])
    return found


def cell_of(tables: Tables, scene: Array, point: Array) -> Array:
    """Return rows (n,) of the grid cells of points (n, 2)."""
    grid = tables.grid[scene]
    place = np.floor((point - grid[:, :2]) / CELL).astype(np.int64)
    place = np.clip(place, 0, grid[:, 2:].astype(np.int64) - 1)
    cell: Array = tables.grid_start[scene] + place[:, 0] * grid[:, 3].astype(np.int64) + place[:, 1]
    return cell


def _offroad(tables: Tables, scene: Array, inner: Array, radius: Array) -> Array:
    """Return (n,) whether rounded boxes touch a road edge and are not covered by lanes."""
    cell = cell_of(tables, scene, inner[:, :2])
    start, count = tables.cell_edges[cell].T
    who = np.repeat(np.arange(len(cell)), count)
    row = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(start, count)
    pieces = tables.edges[row]
    gap = geometry.segment_box_distance(pieces[:, :2], pieces[:, 2:], inner[who])
    touches = np.zeros(len(cell), bool)
    np.logical_or.at(touches, who, gap < radius[who] + geometry.TOUCH)
    for n in np.flatnonzero(touches):
        touches[n] = not _covered(tables, int(cell[n]), inner[n], float(radius[n]))
    return touches


def _covered(tables: Tables, cell: int, inner: Array, radius: float) -> bool:
    start, count = tables.cell_polygons[cell]
    half, root = 0.5 * inner[3:5], np.sqrt(0.5)
    x, y = half + radius
    corner = [(half[0], y), (half[0] + root * radius, half[1] + root * radius), (x, half[1])]
    outline = [(sx * a, sy * b) for sx in (-1, 1) for sy in (-1, 1) for a, b in corner]
    outline += [(x, 0.0), (-x, 0.0), (0.0, y), (0.0, -y)]
    points = geometry.from_local(np.array(outline), inner[None, :3])
    inside = np.zeros(len(points), bool)
    for polygon in tables.polygon_list[start : start + count]:
        begin, size = tables.polygons[polygon]
        inside |= geometry.in_polygon(points, tables.polygon_points[begin : begin + size])
    return bool(inside.all())


def progress(tables: Tables, state: State, out: Array) -> None:
    """Write (W, 2) place on the log and distance to it; see :func:`burnish.envs.driving.kernels.progress`."""
    centers = boxes(state)[:, 0, :2]
    for w, scene in enumerate(state.scene):
        start, count = tables.logs[scene]
        path = tables.log_points[start : start + count]
        length, gap = geometry.project(centers[w], path[:, :2])
        out[w] = length / max(path[-1, 2], 1e-9), gap


def observe(tables: Tables, state: State, who: Array, out: Array) -> None:
    """Write (n, 1848) observations; see :func:`burnish.envs.driving.kernels.observe`."""
    world, slot = who.T
    every = boxes(state)
    mine, motion = every[world, slot], state.motion[world, slot]
    agent = tables.tracks[state.scene[world], 3] + slot
    goal = geometry.to_local(tables.agents[agent, 4:6], mine) / DISTANCE_SCALE
    out[:, 0], out[:, 1] = motion[:, SPEED] / SPEED_SCALE, motion[:, STEERING]
    out[:, 2] = motion[:, ACCELERATION] / ACCELERATION_SCALE
    out[:, 3], out[:, 4] = mine[:, 3] / LENGTH_SCALE, mine[:, 4] / WIDTH_SCALE
    out[:, 5:7] = np.clip(goal, -GOAL_LIMIT, GOAL_LIMIT)
    end = EGO_ENTRIES + PARTNERS * PARTNER_ENTRIES
    out[:, EGO_ENTRIES:end] = _partners(state, every[world], mine, world, slot).reshape(len(who), -1)
    out[:, end:] = _road(tables, state.scene[world], mine).reshape(len(who), -1)


def _partners(state: State, others: Array, mine: Array, world: Array, slot: Array) -> Array:
    """Return (n, 31, 7): the first partners in view, in the order of their slots."""
    place = geometry.to_local(others[..., :2], mine[:, None, :3])
    turn = others[..., 2] - mine[:, None, 2]
    seen = state.present[world] & ((place**2).sum(-1) <= VIEW * VIEW)
    seen[np.arange(len(world)), slot] = False
    entries = np.concatenate(
        (
            place / DISTANCE_SCALE,
            others[..., 3:5] / (LENGTH_SCALE, WIDTH_SCALE),
            np.cos(turn)[..., None],
            np.sin(turn)[..., None],
            state.motion[world][..., SPEED, None] / SPEED_SCALE,
        ),
        -1,
    )
    found = np.zeros((len(world), PARTNERS, PARTNER_ENTRIES))
    rank = np.cumsum(seen, 1) - 1
    row, other = np.nonzero(seen & (rank < PARTNERS))
    found[row, rank[row, other]] = entries[row, other]
    return found


def _road(tables: Tables, scene: Array, mine: Array) -> Array:
    """Return (n, 232, 7): the road segments noted for each observer's cell."""
    ids = tables.cell_segments[cell_of(tables, scene, mine[:, :2])]
    segment = tables.segments[np.maximum(ids, 0)]
    place = geometry.to_local(segment[..., :2], mine[:, None, :3]) / DISTANCE_SCALE
    cos, sin = np.cos(mine[:, 2])[:, None], np.sin(mine[:, 2])[:, None]
    along, across = segment[..., 3], segment[..., 4]
    found = np.empty((len(scene), ROAD_TOKENS, ROAD_ENTRIES))
    found[..., :2] = place
    found[..., 2] = segment[..., 2] / LENGTH_SCALE
    found[..., 3], found[..., 4] = cos * along + sin * across, cos * across - sin * along
    found[..., 5:] = segment[..., 5:]
    found[ids < 0] = 0.0
    return found
