"""Scripted experts for the contact tasks: they know the true fixture, approach it fast, and slow down before it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import Array, EnvSpec, Observation
from burnish.envs.contact.contour import arc_height
from burnish.envs.contact.scenario import to_local, to_parent
from burnish.envs.contact.tool import PROBE_RADIUS

PRESS = 15.0
"""Force the experts press with [N]."""


@dataclass(frozen=True)
class Config:
    """Expert for any ``contact/*`` environment, stateless: it plans a chunk from the observation alone."""

    chunk_steps: int = 8
    """Actions per answer K."""
    approach_speed: float = 0.03
    """Speed in free space [m/s]."""
    slide_speed: float = 0.04
    """Speed along the contour [m/s]."""
    blind: bool = False
    """Believe the estimated fixture pose instead of the true one, and feel nothing: the baseline that fails when the
    estimate is wrong. With ``chunk_steps`` of a whole episode this is a nominal demonstration, replayed."""

    def __post_init__(self) -> None:
        """Refuse an empty chunk or a speed that never arrives."""
        if self.chunk_steps < 1 or self.approach_speed <= 0.0 or self.slide_speed <= 0.0:
            raise ConfigError(
                "teacher 'contact' needs chunk_steps >= 1 and positive speeds, found "
                f"{self.chunk_steps}, {self.approach_speed}, {self.slide_speed}."
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
        self.observation_keys = ("observation.state", "privileged.bias", "privileged.fixture", "privileged.contact")
        self._config, self._spec = config, spec
        self._nominal_geometry = float(spec.protocol["nominal_geometry"])

    def act(self, observation: Observation, *, generator: np.random.Generator) -> Array:
        """Return action chunks (N, K, A); the plan is deterministic, ``generator`` stays untouched."""
        del generator
        state = np.asarray(observation["observation.state"], float)
        fixture = np.asarray(observation["privileged.fixture"], float)
        bias = np.asarray(observation["privileged.bias"], float)
        force = np.asarray(observation["privileged.contact"], float)[:, 1]
        scale, geometry = fixture[:, 5], fixture[:, 6]
        if self._config.blind:
            bias, force, scale = np.zeros_like(bias), np.zeros_like(force), np.ones_like(scale)
            geometry = np.full_like(geometry, self._nominal_geometry)
        entries = self._spec.action_dim
        pose = np.zeros((len(state), 4))
        pose[:, :entries] = state[:, :entries]
        stiffness = float(self._spec.protocol["stiffness"]) * scale
        lag = 2.0 * float(self._spec.protocol["damping_ratio"]) * np.sqrt(self._spec.protocol["mass"] / stiffness)
        situation = _Situation(
            config=self._config,
            spec=self._spec,
            dt=self._spec.control_dt,
            geometry=geometry,
            depth_goal=PRESS / stiffness,
            depth=np.minimum(force, 2.0 * PRESS) / stiffness,
        )
        point = np.stack([to_local(row, frame) for row, frame in zip(pose, bias, strict=True)])
        plan = _PLANS[self.spec_id]
        actions = np.zeros((len(state), self._config.chunk_steps, entries), np.float32)
        for k in range(self._config.chunk_steps):
            after, command = plan(situation, point)
            lead = command + (after - point) * (lag / situation.dt)[:, None]
            point = after
            for n, frame in enumerate(bias):
                actions[n, k] = to_parent(lead[n], frame)[:entries]
        low, high = self._spec.action.bounds()
        clipped: Array = np.clip(actions, low, high).astype(np.float32)
        return clipped


def _approach(situation: _Situation, gap: Array) -> Array:
    """Return (N,) how far to close a gap (N,) in one control step: fast, then slower towards the surface."""
    speed = np.clip(6.0 * gap, 0.004, situation.config.approach_speed)
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
    step = np.minimum(config.approach_speed * dt, away) / np.maximum(away, 1e-9)
    after[:, :2] = point[:, :2] * (1.0 - step)[:, None]
    after[:, 3] = _towards(point[:, 3], np.zeros(len(point)), 0.2 * dt)
    target = np.where(inside, bottom, -0.001)  # mouth first: the chamfer is entered slowly
    stay_above = np.where(inside, 0.0, np.clip(away - 0.0002, 0.0, 0.004))
    gap = np.maximum(point[:, 2] - target - stay_above, 0.0)
    after[:, 2] = np.where(touching, bottom, point[:, 2] - _approach(situation, gap))
    command = after.copy()
    command[:, 2] -= np.where(touching, situation.depth, 0.0)
    return after, command


_PLANS: dict[str, Callable[[_Situation, Array], tuple[Array, Array]]] = {
    "contact/contour": _contour,
    "contact/touch": _touch,
    "contact/peg_insert": _peg_insert,
}
