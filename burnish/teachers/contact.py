"""Scripted experts for the contact tasks: they know the true fixture, approach it fast, and slow down before it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import Array, EnvSpec, Observation
from burnish.envs.contact.contour import above_arc, arc_height
from burnish.envs.contact.scenario import to_local, to_parent
from burnish.envs.contact.tool import PROBE_RADIUS

PRESS = 15.0
"""Force the experts press with [N]."""


@dataclass(frozen=True)
class Config:
    """Expert for any ``contact/*`` environment, stateless: it plans a chunk from the observation alone."""

    chunk_steps: int = 8
    """Actions per answer K."""
    program: Literal["taught", "closed_loop"] = "taught"
    """"taught" replays one timed motion, as an industrial robot does, and is what demonstrations are recorded with: its
    set-points do not depend on what is felt. "closed_loop" plans from where the tool is, so it can also label states
    that another policy brought about."""
    pose: Literal["corrected", "estimated"] = "corrected"
    """Which fixture pose a taught motion is laid on. "corrected" leaves an estimate as it is where that is good enough
    for the force band, as an operator would, and puts in the true pose elsewhere: so demonstrations do not show how to
    follow a displaced surface. "estimated" never corrects: blind feed-forward, the baseline that fails where the
    estimate is wrong. The closed loop always goes by the true pose."""
    approach_speed: float = 0.03
    """Speed in free space [m/s]."""
    slide_speed: float = 0.04
    """Speed along the contour [m/s]."""
    centre_speed: float = 0.015
    """Speed sideways over a hole [m/s]."""
    insert_speed: float = 0.008
    """Speed inside a hole [m/s]."""

    def __post_init__(self) -> None:
        """Refuse an empty chunk and a speed that never arrives."""
        speeds = (self.approach_speed, self.slide_speed, self.centre_speed, self.insert_speed)
        if self.chunk_steps < 1 or min(speeds) <= 0.0:
            raise ConfigError(
                f"teacher 'contact' needs chunk_steps >= 1 and positive speeds, found {self.chunk_steps}, {speeds}."
            )

    def build(self, env_spec: EnvSpec) -> "Expert":
        """Return the expert of an environment.

        Raises:
            ConfigError: If there is no expert for it.
        """
        if env_spec.id not in _PLANS:
            raise ConfigError(f"There is no scripted expert for '{env_spec.id}'.{suggest(env_spec.id, _PLANS)}")
        return Expert(self, env_spec)


@dataclass
class _Situation:
    """What a plan goes by, N environments at once; poses in the frame of the (believed) fixture."""

    config: Config
    spec: EnvSpec
    dt: float
    lag: Array
    """(N,) delay of the tool behind its set-point [s]."""
    geometry: Array
    """(N,) radius, tilt or clearance."""
    depth_goal: Array
    """(N,) how deep the set-point goes below the surface to press with PRESS [m]."""
    depth: Array
    """(N,) how deep it is below the surface now [m]."""


class Expert:
    """Plans set-points from the privileged observation; see :class:`burnish.core.contracts.Teacher`."""

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        """Look up what the environment's protocol says about tool and task."""
        self.spec_id = spec.id
        self.observation_keys = (
            "observation.state",
            "observation.environment_state",
            "privileged.bias",
            "privileged.fixture",
            "privileged.contact",
        )
        self._config, self._spec = config, spec
        self._motions: dict[tuple[float, float], tuple[Array, Array]] = {}

    def act(self, observation: Observation, *, generator: np.random.Generator) -> Array:
        """Return action chunks (N, K, A); the plan is deterministic, ``generator`` stays untouched."""
        del generator
        entries, count = self._spec.action_dim, self._config.chunk_steps
        state = np.asarray(observation["observation.state"], float)
        bias = self._believed_bias(observation)
        pose: Array = np.zeros((len(state), 4))
        pose[:, :entries] = state[:, :entries]
        pose = self._task_frame(pose, inverse=True)
        point = np.stack([to_local(row, frame) for row, frame in zip(pose, bias, strict=True)])
        situation = self._situation(observation)
        if self._config.program == "taught":
            left = np.asarray(observation["observation.environment_state"], float)[:, 4]
            step = np.rint((1.0 - left) * self._spec.max_episode_steps).astype(int)
            command = self._replay(situation, point, step)
        else:
            _, command = _roll(situation, point, count)
        local = self._task_frame(np.stack([to_parent(command[:, n], frame) for n, frame in enumerate(bias)]))
        clipped: Array = np.clip(local[:, :, :entries], *self._spec.action.bounds()).astype(np.float32)
        return clipped

    def _task_frame(self, pose: Array, *, inverse: bool = False) -> Array:
        """Return poses (..., 4) of the estimated frame in the coordinates of the actions, or the other way round."""
        if self._spec.id != "contact/contour":
            return pose
        return above_arc(pose, float(self._spec.protocol["nominal_geometry"]), inverse=inverse)

    def _replay(self, situation: _Situation, point: Array, step: Array) -> Array:
        """Return (K, N, 4) set-points of the taught motion after ``step`` (N,), joined in free space from ``point``."""
        horizon, count = self._spec.max_episode_steps, self._config.chunk_steps
        home = np.asarray(self._spec.protocol["home"], float)
        chunk = np.empty((count, len(point), 4))
        for n, now in enumerate(np.minimum(step, horizon - 1).tolist()):
            points, commands = self._motion(situation, n, home)
            free = int(np.argmax(points[:, 2] < home[2] - 0.012))  # control steps until the surface is near
            steps = np.minimum(now + np.arange(count), horizon - 1)
            weight = np.clip((free - steps - 1.0) / max(free - now, 1), 0.0, 1.0)
            chunk[:, n] = commands[steps] + (point[n] - points[now]) * weight[:, None]
        return chunk

    def _motion(self, situation: _Situation, n: int, home: Array) -> tuple[Array, Array]:
        """Return the taught motion for environment ``n``: poses (T + 1, 4) and set-points (T, 4), computed once."""
        key = (float(situation.geometry[n]), float(situation.depth_goal[n]))
        if key not in self._motions:
            one = replace(
                situation,
                **{name: getattr(situation, name)[n : n + 1] for name in ("lag", "geometry", "depth_goal", "depth")},
            )
            points, commands = _roll(one, home[None], self._spec.max_episode_steps)
            self._motions[key] = points[:, 0], commands[:, 0]
        return self._motions[key]

    def _believed_bias(self, observation: Observation) -> Array:
        bias = np.asarray(observation["privileged.bias"], float)
        if self._config.program == "closed_loop":
            return bias
        fixture = np.asarray(observation["privileged.fixture"], float)
        force = PRESS + float(self._spec.protocol["stiffness"]) * fixture[:, 5] * bias[:, 2]
        good = (force > 7.0) & (force * (1.0 + fixture[:, 4]) < 28.0) & (np.hypot(bias[:, 0], bias[:, 1]) < 0.0007)
        if self._config.pose == "estimated":
            good[:] = True
        return np.where(good[:, None], 0.0, bias)

    def _situation(self, observation: Observation) -> _Situation:
        fixture = np.asarray(observation["privileged.fixture"], float)
        force = np.asarray(observation["privileged.contact"], float)[:, 1]
        scale, geometry = fixture[:, 5], fixture[:, 6]
        protocol = self._spec.protocol
        if self._config.pose == "estimated":
            scale, geometry = np.ones_like(scale), np.full_like(geometry, float(protocol["nominal_geometry"]))
        if self._config.program == "taught":
            force = np.zeros_like(force)
        stiffness = float(protocol["stiffness"]) * scale
        return _Situation(
            config=self._config,
            spec=self._spec,
            dt=self._spec.control_dt,
            lag=2.0 * float(protocol["damping_ratio"]) * np.sqrt(protocol["mass"] / stiffness),
            geometry=geometry,
            depth_goal=PRESS / stiffness,
            depth=np.minimum(force, 2.0 * PRESS) / stiffness,
        )


def _roll(situation: _Situation, point: Array, steps: int) -> tuple[Array, Array]:
    """Follow a plan from ``point`` (N, 4). Returns the poses on the way (T + 1, N, 4) and the set-points (T, N, 4)."""
    plan = _PLANS[situation.spec.id]
    points, commands = [point], []
    for _ in range(steps):
        after, command = plan(situation, points[-1])
        commands.append(command + (after - points[-1]) * (situation.lag / situation.dt)[:, None])
        points.append(after)
    return np.stack(points), np.stack(commands)


def _approach(situation: _Situation, gap: Array, fastest: Array | None = None) -> Array:
    """Return (N,) how far to close a gap (N,) in one control step: fast, then slower towards the surface."""
    speed = np.clip(6.0 * gap, 0.004, situation.config.approach_speed if fastest is None else fastest)
    closed: Array = np.minimum(speed * situation.dt, np.maximum(gap, 0.0))
    return closed


def _press(situation: _Situation, touching: Array) -> None:
    """Deepen the set-point of those that touch by one control step, up to its goal."""
    deeper = situation.depth + np.minimum(0.02 * situation.dt, situation.depth_goal - situation.depth)
    situation.depth = np.where(touching, deeper, situation.depth)


def _towards(now: Array, goal: Array, step: float) -> Array:
    """Move ``now`` to ``goal`` by at most ``step``."""
    moved: Array = now + np.clip(goal - now, -step, step)
    return moved


def _contour(situation: _Situation, point: Array) -> tuple[Array, Array]:
    """Descend onto the start of the arc, press, then slide along it. Returns (next point, set-point), (N, 4) each."""
    config, dt = situation.config, situation.dt
    half = float(situation.spec.protocol["path_length"]) / 2.0
    after = point.copy()
    gap = point[:, 2] - arc_height(point[:, 0], situation.geometry)
    touching = gap < 0.0002
    _press(situation, touching)
    sliding = touching & (situation.depth > 0.6 * situation.depth_goal)
    before_start = _towards(point[:, 0], np.full(len(point), -half - 0.001), config.approach_speed * dt)
    along = np.minimum(point[:, 0] + config.slide_speed * dt, half + 0.003)
    after[:, 0] = np.where(sliding, along, np.where(touching, point[:, 0], before_start))
    after[:, 1] = _towards(point[:, 1], np.zeros(len(point)), 0.01 * dt)
    surface = arc_height(after[:, 0], situation.geometry)
    gap = np.where(touching, 0.0, after[:, 2] - surface)
    after[:, 2] = surface + gap - _approach(situation, gap)
    command = after.copy()
    command[:, 2] -= np.where(touching, situation.depth, 0.0)
    return after, command


def _touch(situation: _Situation, point: Array) -> tuple[Array, Array]:
    """Go over the point, descend, press and stay. Returns (next point, set-point), (N, 4) each."""
    config, dt = situation.config, situation.dt
    after = point.copy()
    tilt = situation.geometry
    surface = -np.tan(tilt) * point[:, 0] + PROBE_RADIUS * (1.0 / np.cos(tilt) - 1.0)
    touching = point[:, 2] - surface < 0.0002
    _press(situation, touching)
    away = np.hypot(point[:, 0], point[:, 1])
    step = np.minimum(config.approach_speed * dt, away) / np.maximum(away, 1e-9)
    after[:, :2] = point[:, :2] * (1.0 - step)[:, None]
    gap = np.maximum(point[:, 2] - surface, 0.0)
    stay_above = np.clip(away - 0.001, 0.0, 0.004)
    after[:, 2] = np.where(touching, surface, point[:, 2] - _approach(situation, np.maximum(gap - stay_above, 0.0)))
    command = after.copy()
    command[:, 2] -= np.where(touching, situation.depth, 0.0)
    return after, command


def _peg_insert(situation: _Situation, point: Array) -> tuple[Array, Array]:
    """Go over the hole, insert, press on the bottom and stay. Returns (next point, set-point), (N, 4) each."""
    config, dt = situation.config, situation.dt
    after = point.copy()
    bottom = -float(situation.spec.protocol["depth"])
    away = np.hypot(point[:, 0], point[:, 1])
    inside = point[:, 2] < 0.0
    touching = point[:, 2] - bottom < 0.0002
    _press(situation, touching)
    step = np.minimum(config.centre_speed * dt, away) / np.maximum(away, 1e-9)
    after[:, :2] = point[:, :2] * (1.0 - step)[:, None]
    after[:, 3] = _towards(point[:, 3], np.zeros(len(point)), 0.2 * dt)
    target = np.where(inside, bottom, -0.001)  # mouth first: the chamfer is entered slowly
    stay_above = np.where(inside, 0.0, np.clip(away - 0.0002, 0.0, 0.004))
    gap = np.maximum(point[:, 2] - target - stay_above, 0.0)
    fastest = np.where(inside, config.insert_speed, config.approach_speed)
    after[:, 2] = np.where(touching, bottom, point[:, 2] - _approach(situation, gap, fastest))
    command = after.copy()
    command[:, 2] -= np.where(touching, situation.depth, 0.0)
    return after, command


_PLANS: dict[str, Callable[[_Situation, Array], tuple[Array, Array]]] = {
    "contact/contour": _contour,
    "contact/touch": _touch,
    "contact/peg_insert": _peg_insert,
}
