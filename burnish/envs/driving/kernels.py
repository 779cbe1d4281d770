"""The compiled core of the simulator (numba); :mod:`burnish.envs.driving.reference` says the same in numpy.

Each function writes into the state's arrays, world after world. Both cores are tested to agree to 1e-5.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.bank import CELL, PATH_STEP, ROAD_TOKENS, Tables
from burnish.envs.driving.geometry import ROUNDNESS, SHRINK, TOUCH
from burnish.envs.driving.layout import (
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
    SPEED_SCALE,
    VIEW,
    WIDTH_SCALE,
    Driver,
    State,
)


def compiled[F: Callable[..., Any]](function: F) -> F:
    """Compile a function when it is first called, and keep the machine code on disk."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


@compiled
def _wrap(angle: float) -> float:
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


@compiled
def _bicycle(motion: Array, steering: float, acceleration: float, constants: Array) -> None:
    wheelbase, steering_lag, acceleration_lag = constants[0], constants[1], constants[2]
    command_angle = min(max(steering, -constants[3]), constants[3])
    command_acceleration = min(max(acceleration, constants[4]), constants[5])
    count = int(constants[7])
    step = DT / count
    x, y, yaw, speed, angle, push = motion[0], motion[1], motion[2], motion[3], motion[4], motion[5]
    for _ in range(count):
        half = 0.5 * step
        yaw_m = yaw + half * speed * math.tan(angle) / wheelbase
        speed_m = min(max(speed + half * push, 0.0), constants[6])
        angle_m = angle + half * (command_angle - angle) / steering_lag
        push_m = push + half * (command_acceleration - push) / acceleration_lag
        x += step * speed_m * math.cos(yaw_m)
        y += step * speed_m * math.sin(yaw_m)
        yaw += step * speed_m * math.tan(angle_m) / wheelbase
        speed = min(max(speed + step * push_m, 0.0), constants[6])
        angle += step * (command_angle - angle_m) / steering_lag
        push += step * (command_acceleration - push_m) / acceleration_lag
    motion[0], motion[1], motion[2], motion[3], motion[4], motion[5] = x, y, yaw, speed, angle, push


@compiled
def _replay(motion: Array, offset: float, before: Array, now: Array, constants: Array) -> None:
    """Put a slot where its log says; front-wheel angle and acceleration are what the log implies."""
    x, y, yaw, speed = now[0], now[1], now[2], now[3]
    angle, push = 0.0, 0.0
    if before[4] > 0.5:
        push = (speed - before[3]) / DT
        if speed > 0.25:
            angle = math.atan(constants[0] * _wrap(yaw - before[2]) / DT / speed)
            angle = min(max(angle, -constants[3]), constants[3])
    motion[0], motion[1] = x - offset * math.cos(yaw), y - offset * math.sin(yaw)
    motion[2], motion[3], motion[4], motion[5] = yaw, speed, angle, push


@compiled
def _path_pose(points: Array, start: int, count: int, along: float) -> tuple[float, float, float]:
    place = min(max(along / PATH_STEP, 0.0), count - 1.0)
    index = min(int(place), count - 2)
    share = place - index
    one, two = start + index, start + index + 1
    return (
        points[one, 0] + share * (points[two, 0] - points[one, 0]),
        points[one, 1] + share * (points[two, 1] - points[one, 1]),
        points[one, 2] + share * (points[two, 2] - points[one, 2]),
    )


@compiled
def _leader(tables: Tables, state: State, w: int, a: int, start: int, count: int) -> tuple[float, float]:
    """Return (gap to the nearest car on the path ahead [m], its speed along the path [m/s]); 1e9 for none."""
    along, length, width = state.along[w, a], state.size[w, a, 0], state.size[w, a, 1]
    x, y, yaw = _path_pose(tables.path_points, start, count, along)
    best, pace = 1e9, 0.0
    slots = state.mode.shape[1]
    for b in range(slots):
        if b == a or not state.present[w, b]:
            continue
        other = state.motion[w, b]
        cos, sin = math.cos(other[2]), math.sin(other[2])
        offset = state.size[w, b, 2]
        ox, oy = other[0] + offset * cos, other[1] + offset * sin
        dx, dy = ox - x, oy - y
        reach = IDM_STEP * IDM_SAMPLES + length + state.size[w, b, 0]
        if dx * dx + dy * dy > reach * reach or dx * math.cos(yaw) + dy * math.sin(yaw) < 0.0:
            continue
        half_length = 0.5 * state.size[w, b, 0]
        half_width = 0.5 * (state.size[w, b, 1] + width) + IDM_SIDE
        for k in range(IDM_SAMPLES):
            gap = IDM_STEP * k
            px, py, heading = _path_pose(tables.path_points, start, count, along + 0.5 * length + gap)
            ahead = cos * (px - ox) + sin * (py - oy)
            side = cos * (py - oy) - sin * (px - ox)
            if abs(ahead) <= half_length and abs(side) <= half_width:
                if gap < best:
                    best, pace = gap, max(other[3] * math.cos(other[2] - heading), 0.0)
                break
    return best, pace


@compiled
def advance(tables: Tables, state: State, command: Array, constants: Array, driver: Driver) -> None:
    """Move all worlds by one step, driven cars first, then traffic, which sees where those have gone.

    Args:
        tables: Of the bank.
        state: Written in place.
        command: (W, A, 2) front-wheel angle [rad], acceleration [m/s^2]; read where a slot is driven.
        constants: (8,) of the vehicle.
        driver: Of the IDM traffic.
    """
    worlds, slots = state.mode.shape
    acceleration = np.zeros(slots)
    for w in range(worlds):
        scene = state.scene[w]
        begin, count, steps, first = tables.tracks[scene]
        now = state.step[w] + 1
        for a in range(count):
            logged = state.mode[w, a] != POLICY or (a == 0 and state.step[w] < state.handover[w])
            if not logged and state.present[w, a]:
                _bicycle(state.motion[w, a], command[w, a, 0], command[w, a, 1], constants)
        for a in range(count):
            if state.mode[w, a] == IDM and state.present[w, a]:
                row = first + a
                gap, pace = _leader(tables, state, w, a, tables.paths[row, 0], tables.paths[row, 1])
                speed = state.motion[w, a, 3]
                wanted = max(tables.agents[row, 3], driver.least_speed)
                brake = 2.0 * math.sqrt(driver.max_acceleration * driver.comfortable_braking)
                room = driver.standstill_gap + max(0.0, speed * driver.headway + speed * (speed - pace) / brake)
                ratio = room / max(gap, 0.1)
                free = 1.0 - (speed / wanted) ** driver.exponent
                acceleration[a] = max(driver.max_acceleration * (free - ratio * ratio), -driver.hardest_braking)
        for a in range(count):
            row = begin + a * steps + min(now, steps - 1)
            here = tables.track_states[row]
            valid = now < steps and here[4] > 0.5
            mode = state.mode[w, a]
            follows = mode == REPLAY or (a == 0 and mode == POLICY and state.step[w] < state.handover[w])
            if follows:
                state.present[w, a] = valid
                if valid:
                    before = tables.track_states[row - 1] if now > 0 else here
                    _replay(state.motion[w, a], state.size[w, a, 2], before, here, constants)
            elif mode == IDM and state.present[w, a]:
                path = first + a
                start, points = tables.paths[path, 0], tables.paths[path, 1]
                total = PATH_STEP * (points - 1)
                speed = max(state.motion[w, a, 3] + DT * acceleration[a], 0.0)
                if total > 2.0:
                    state.along[w, a] += 0.5 * DT * (state.motion[w, a, 3] + speed)
                else:
                    speed = 0.0
                x, y, yaw = _path_pose(tables.path_points, start, points, state.along[w, a])
                turn = _wrap(yaw - state.motion[w, a, 2]) / DT
                angle = math.atan(constants[0] * turn / speed) if speed > 0.25 else 0.0
                offset = state.size[w, a, 2]
                state.motion[w, a, 0] = x - offset * math.cos(yaw)
                state.motion[w, a, 1] = y - offset * math.sin(yaw)
                state.motion[w, a, 2] = yaw
                state.motion[w, a, 3] = speed
                state.motion[w, a, 4] = min(max(angle, -constants[3]), constants[3])
                state.motion[w, a, 5] = acceleration[a]
                if total > 2.0 and state.along[w, a] >= total:
                    state.present[w, a] = False
            elif valid and not state.started[w, a]:
                before = tables.track_states[row - 1] if now > 0 else here
                _replay(state.motion[w, a], state.size[w, a, 2], before, here, constants)
                state.present[w, a] = True
            state.started[w, a] |= state.present[w, a]
        state.step[w] = now


@compiled
def _segment_box(ax: float, ay: float, bx: float, by: float, box: Array) -> float:
    """Return the distance of a segment to a filled box (x, y, cos, sin, half length, half width)."""
    cos, sin, hx, hy = box[2], box[3], box[4], box[5]
    dx, dy = ax - box[0], ay - box[1]
    ax, ay = cos * dx + sin * dy, cos * dy - sin * dx
    dx, dy = bx - box[0], by - box[1]
    bx, by = cos * dx + sin * dy, cos * dy - sin * dx
    sx, sy = bx - ax, by - ay
    tx = sx if abs(sx) >= 1e-12 else 1e-12
    ty = sy if abs(sy) >= 1e-12 else 1e-12
    x1, x2, y1, y2 = (-hx - ax) / tx, (hx - ax) / tx, (-hy - ay) / ty, (hy - ay) / ty
    enter = max(min(x1, x2), min(y1, y2), 0.0)
    leave = min(max(x1, x2), max(y1, y2), 1.0)
    if enter <= leave:
        return 0.0
    ux, uy = max(abs(ax) - hx, 0.0), max(abs(ay) - hy, 0.0)
    best = ux * ux + uy * uy
    ux, uy = max(abs(bx) - hx, 0.0), max(abs(by) - hy, 0.0)
    best = min(best, ux * ux + uy * uy)
    size = max(sx * sx + sy * sy, 1e-18)
    for corner in range(4):
        cx = hx if corner in (0, 3) else -hx
        cy = hy if corner < 2 else -hy
        share = min(max(((cx - ax) * sx + (cy - ay) * sy) / size, 0.0), 1.0)
        ux, uy = cx - ax - share * sx, cy - ay - share * sy
        best = min(best, ux * ux + uy * uy)
    return math.sqrt(best)


@compiled
def _inner(state: State, w: int, a: int, box: Array) -> float:
    """Write the inner box of a slot's rounded box, and return its radius."""
    yaw, offset = state.motion[w, a, 2], state.size[w, a, 2]
    length, width = (1.0 - SHRINK) * state.size[w, a, 0], (1.0 - SHRINK) * state.size[w, a, 1]
    radius: float = 0.5 * ROUNDNESS * min(length, width)
    box[2], box[3] = math.cos(yaw), math.sin(yaw)
    box[0] = state.motion[w, a, 0] + offset * box[2]
    box[1] = state.motion[w, a, 1] + offset * box[3]
    box[4], box[5] = 0.5 * length - radius, 0.5 * width - radius
    return radius


@compiled
def _boxes_within(one: Array, two: Array, limit: float) -> bool:
    dx, dy = two[0] - one[0], two[1] - one[1]
    ahead, side = one[2] * dx + one[3] * dy, one[2] * dy - one[3] * dx
    if abs(ahead) <= one[4] and abs(side) <= one[5]:
        return True
    for k in range(4):
        x1, y1 = (one[4] if k in (0, 3) else -one[4]), (one[5] if k < 2 else -one[5])
        n = (k + 1) % 4
        x2, y2 = (one[4] if n in (0, 3) else -one[4]), (one[5] if n < 2 else -one[5])
        ax, ay = one[0] + one[2] * x1 - one[3] * y1, one[1] + one[3] * x1 + one[2] * y1
        bx, by = one[0] + one[2] * x2 - one[3] * y2, one[1] + one[3] * x2 + one[2] * y2
        if _segment_box(ax, ay, bx, by, two) <= limit:
            return True
    return False


@compiled
def _strip_within(box: Array, radius: float, sign: float, other: Array, limit: float) -> bool:
    """Return whether the front (sign 1) or rear (-1) strip of a rounded box comes within a distance of a box."""
    root = math.sqrt(0.5)
    hx, hy = box[4], box[5]
    outline = (
        (hx, -hy - radius),
        (hx + root * radius, -hy - root * radius),
        (hx + radius, -hy),
        (hx + radius, hy),
        (hx + root * radius, hy + root * radius),
        (hx, hy + radius),
    )
    for k in range(6):
        x1, y1 = sign * outline[k][0], outline[k][1]
        x2, y2 = sign * outline[(k + 1) % 6][0], outline[(k + 1) % 6][1]
        ax, ay = box[0] + box[2] * x1 - box[3] * y1, box[1] + box[3] * x1 + box[2] * y1
        bx, by = box[0] + box[2] * x2 - box[3] * y2, box[1] + box[3] * x2 + box[2] * y2
        if _segment_box(ax, ay, bx, by, other) <= limit:
            return True
    return False


@compiled
def _cell(tables: Tables, scene: int, x: float, y: float) -> int:
    grid = tables.grid[scene]
    nx, ny = int(grid[2]), int(grid[3])
    ix = min(max(math.floor((x - grid[0]) / CELL), 0), nx - 1)
    iy = min(max(math.floor((y - grid[1]) / CELL), 0), ny - 1)
    return int(tables.grid_start[scene] + ix * ny + iy)


@compiled
def _on_lane(tables: Tables, cell: int, x: float, y: float) -> bool:
    begin, count = tables.cell_polygons[cell, 0], tables.cell_polygons[cell, 1]
    for k in range(begin, begin + count):
        polygon = tables.polygon_list[k]
        start, size = tables.polygons[polygon, 0], tables.polygons[polygon, 1]
        inside = False
        px, py = tables.polygon_points[start + size - 1, 0], tables.polygon_points[start + size - 1, 1]
        for v in range(start, start + size):
            qx, qy = tables.polygon_points[v, 0], tables.polygon_points[v, 1]
            if (py > y) != (qy > y) and x < px + (y - py) * (qx - px) / (qy - py):
                inside = not inside
            px, py = qx, qy
        if inside:
            return True
    return False


@compiled
def _covered(tables: Tables, cell: int, box: Array, radius: float) -> bool:
    """Return whether 16 points of a rounded box's outline all lie on lanes."""
    root = math.sqrt(0.5)
    for sx in (-1.0, 1.0):
        for sy in (-1.0, 1.0):
            for k in range(4):
                if k == 0:
                    x, y = box[4], box[5] + radius
                elif k == 1:
                    x, y = box[4] + root * radius, box[5] + root * radius
                elif k == 2:
                    x, y = box[4] + radius, box[5]
                elif sx == sy:
                    x, y = 0.0, box[5] + radius
                else:
                    x, y = box[4] + radius, 0.0
                x, y = sx * x, sy * y
                px, py = box[0] + box[2] * x - box[3] * y, box[1] + box[3] * x + box[2] * y
                if not _on_lane(tables, cell, px, py):
                    return False
    return True


@compiled
def events(tables: Tables, state: State, everybody: bool) -> None:
    """Write what happened into ``state.events``: contacts of each driven car by where they are, and leaving the road.

    Args:
        tables: Of the bank.
        state: ``events`` is written.
        everybody: All driven slots are looked at; else the ego only, whoever moves it.
    """
    worlds = state.mode.shape[0]
    box, other = np.zeros(6), np.zeros(6)
    for w in range(worlds):
        scene = state.scene[w]
        count = tables.tracks[scene, 1]
        for a in range(count):
            state.events[w, a] = 0
            if not state.present[w, a] or not (a == 0 or (everybody and state.mode[w, a] == POLICY)):
                continue
            radius = _inner(state, w, a, box)
            near = 0.5 * math.hypot(state.size[w, a, 0], state.size[w, a, 1])
            found = 0
            for b in range(count):
                if b == a or not state.present[w, b]:
                    continue
                reach = near + 0.5 * (state.size[w, b, 0] + state.size[w, b, 1]) + abs(state.size[w, b, 2])
                dx, dy = state.motion[w, b, 0] - box[0], state.motion[w, b, 1] - box[1]
                if dx * dx + dy * dy > reach * reach:
                    continue
                others = _inner(state, w, b, other)
                if _boxes_within(box, other, radius + others):
                    if _strip_within(box, radius, 1.0, other, others):
                        found |= FRONT
                    elif _strip_within(box, radius, -1.0, other, others):
                        found |= REAR
                    else:
                        found |= LATERAL
            cell = _cell(tables, scene, box[0], box[1])
            begin, pieces = tables.cell_edges[cell, 0], tables.cell_edges[cell, 1]
            touches = False
            for k in range(begin, begin + pieces):
                mx, my = (
                    0.5 * (tables.edges[k, 0] + tables.edges[k, 2]),
                    0.5 * (tables.edges[k, 1] + tables.edges[k, 3]),
                )
                if abs(mx - box[0]) > near + 2.6 or abs(my - box[1]) > near + 2.6:
                    continue
                gap = _segment_box(tables.edges[k, 0], tables.edges[k, 1], tables.edges[k, 2], tables.edges[k, 3], box)
                if gap < radius + TOUCH:
                    touches = True
                    break
            if touches and not _covered(tables, cell, box, radius):
                found |= OFFROAD
            state.events[w, a] = found


@compiled
def progress(tables: Tables, state: State, out: Array) -> None:
    """Write (W, 2): place of the ego's centre on its logged path, 0 to 1, and distance to that path [m]."""
    for w in range(state.mode.shape[0]):
        start, count = tables.logs[state.scene[w], 0], tables.logs[state.scene[w], 1]
        yaw, offset = state.motion[w, 0, 2], state.size[w, 0, 2]
        x, y = state.motion[w, 0, 0] + offset * math.cos(yaw), state.motion[w, 0, 1] + offset * math.sin(yaw)
        best, length = 1e18, 0.0
        for k in range(start, start + count - 1):
            ax, ay = tables.log_points[k, 0], tables.log_points[k, 1]
            sx, sy = tables.log_points[k + 1, 0] - ax, tables.log_points[k + 1, 1] - ay
            size = max(sx * sx + sy * sy, 1e-18)
            share = min(max(((x - ax) * sx + (y - ay) * sy) / size, 0.0), 1.0)
            ux, uy = x - ax - share * sx, y - ay - share * sy
            square = ux * ux + uy * uy
            if square < best:
                best, length = square, tables.log_points[k, 2] + share * math.sqrt(size)
        out[w, 0] = length / max(tables.log_points[start + count - 1, 2], 1e-9)
        out[w, 1] = math.sqrt(best)


@compiled
def observe(tables: Tables, state: State, who: Array, out: Array) -> None:
    """Write vector observations.

    Args:
        tables: Of the bank.
        state: Read.
        who: (n, 2) int64 world and slot of each observer.
        out: (n, 1848) float32, laid out as :mod:`burnish.envs.driving.layout` says.
    """
    for n in range(len(who)):
        w, a = who[n, 0], who[n, 1]
        row, scene = out[n], state.scene[w]
        motion, size = state.motion[w, a], state.size[w, a]
        cos, sin = math.cos(motion[2]), math.sin(motion[2])
        x, y = motion[0] + size[2] * cos, motion[1] + size[2] * sin
        agent = tables.tracks[scene, 3] + a
        gx, gy = tables.agents[agent, 4] - x, tables.agents[agent, 5] - y
        row[0] = motion[3] / SPEED_SCALE
        row[1] = motion[4]
        row[2] = motion[5] / ACCELERATION_SCALE
        row[3] = size[0] / LENGTH_SCALE
        row[4] = size[1] / WIDTH_SCALE
        row[5] = min(max((cos * gx + sin * gy) / DISTANCE_SCALE, -GOAL_LIMIT), GOAL_LIMIT)
        row[6] = min(max((cos * gy - sin * gx) / DISTANCE_SCALE, -GOAL_LIMIT), GOAL_LIMIT)
        k = EGO_ENTRIES
        end = EGO_ENTRIES + PARTNERS * PARTNER_ENTRIES
        for b in range(tables.tracks[scene, 1]):
            if k == end:
                break
            if b == a or not state.present[w, b]:
                continue
            other = state.motion[w, b]
            ocos, osin = math.cos(other[2]), math.sin(other[2])
            dx, dy = other[0] + state.size[w, b, 2] * ocos - x, other[1] + state.size[w, b, 2] * osin - y
            if dx * dx + dy * dy > VIEW * VIEW:
                continue
            row[k] = (cos * dx + sin * dy) / DISTANCE_SCALE
            row[k + 1] = (cos * dy - sin * dx) / DISTANCE_SCALE
            row[k + 2] = state.size[w, b, 0] / LENGTH_SCALE
            row[k + 3] = state.size[w, b, 1] / WIDTH_SCALE
            row[k + 4] = cos * ocos + sin * osin
            row[k + 5] = cos * osin - sin * ocos
            row[k + 6] = other[3] / SPEED_SCALE
            k += PARTNER_ENTRIES
        row[k:end] = 0.0
        k = end
        ids = tables.cell_segments[_cell(tables, scene, x, y)]
        for t in range(ROAD_TOKENS):
            if ids[t] < 0:
                row[k:] = 0.0
                break
            segment = tables.segments[ids[t]]
            dx, dy = segment[0] - x, segment[1] - y
            row[k] = (cos * dx + sin * dy) / DISTANCE_SCALE
            row[k + 1] = (cos * dy - sin * dx) / DISTANCE_SCALE
            row[k + 2] = segment[2] / LENGTH_SCALE
            row[k + 3] = cos * segment[3] + sin * segment[4]
            row[k + 4] = cos * segment[4] - sin * segment[3]
            row[k + 5] = segment[5]
            row[k + 6] = segment[6]
            k += ROAD_ENTRIES
