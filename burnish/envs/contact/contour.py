"""Follow the arc of a workpiece in contact, with a force inside a band: the main task of the family."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import mujoco
import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array
from burnish.envs.contact.environment import Cameras, Progress, Reward, Robot, contact_envs
from burnish.envs.contact.forces import Readings, check_force_band
from burnish.envs.contact.scenario import Bias, Scenario, sample_fixture, sample_friction, sample_stiffness
from burnish.envs.contact.tool import PROBE_RADIUS, VISUAL, Scene, Tool, ball_tip
from burnish.envs.single import VectorEnv


@dataclass(frozen=True)
class Config:
    """Contour following on a cylinder arc."""

    radius: float = 0.15
    """Radius of the arc [m]; 0.12 or 0.2 on the split ``geometry``."""
    path_length: float = 0.1
    """Length of the path along x, centred at the top of the arc [m]."""
    cells: int = 50
    """Cells of the path that coverage counts."""
    force_low: float = 5.0
    """Lower end of the force band [N]."""
    force_high: float = 30.0
    """Upper end of the force band [N]."""
    force_limit: float = 100.0
    """Filtered force that an episode must never reach [N]."""
    coverage_goal: float = 0.95
    """Share of cells that success needs."""
    episode_seconds: float = 6.0
    """Length of an episode [s]."""
    stop_on_success: bool = True
    """End an episode when the end of the path is reached and everything holds."""
    robot: Robot = "tool"
    """What moves the tip: a Cartesian tool, which is fast, or a 7-DoF arm under Cartesian impedance control."""
    bias: Bias = field(default_factory=Bias)
    """Error of the estimated fixture pose; the wide range lies along the surface normal."""
    tool: Tool = field(default_factory=Tool)
    """Motion, sensing and contact parameters."""
    reward: Reward = field(default_factory=Reward)
    """Weights of the reward."""
    cameras: Cameras = field(default_factory=Cameras)
    """Camera images in the observation."""

    def __post_init__(self) -> None:
        """Refuse a band or a path that cannot be."""
        check_force_band("contact/contour", self.force_low, self.force_high, self.force_limit)
        if not 0.0 < self.path_length <= 0.12 or self.radius < self.path_length or self.cells < 1:
            raise ConfigError(
                "contact/contour needs 0 < path_length <= 0.12, radius >= path_length and cells >= 1, found "
                f"{self.path_length}, {self.radius}, {self.cells}."
            )

    def build(self, num_envs: int = 1) -> VectorEnv:
        """Return a vector environment of independent simulations."""
        return VectorEnv(contact_envs(lambda: Contour(self), self, num_envs))


def arc_height(x: Array, radius: float | Array) -> Array:
    """Return the TCP height z (...) [m] at which the ball touches the arc, for x (...) [m], zero at the top."""
    rho = radius + PROBE_RADIUS
    height: Array = np.sqrt(np.maximum(rho**2 - np.square(x), 0.0)) - rho
    return height


def above_arc(pose: Array, radius: float, *, inverse: bool = False) -> Array:
    """Return poses (..., 4) with their height [m] above the arc in place of z, or, inverse, the other way round.

    These are the coordinates of a task frame that follows the path (De Schutter and Van Brussel, IJRR 1988): along,
    across, and away from the surface as it is believed to be.
    """
    moved = np.array(pose, float)
    height = arc_height(moved[..., 0], radius)
    moved[..., 2] += height if inverse else -height
    return moved


class Contour:
    """The contour task; see :class:`burnish.envs.contact.environment.ContactTask`."""

    id = "contact/contour"
    instruction = "follow the contour in contact"
    yaw = False
    low: tuple[float, ...] = (-0.07, -0.02, -0.025)
    high: tuple[float, ...] = (0.07, 0.02, 0.035)
    scale: tuple[float, ...] = (0.02, 0.002, 0.006)
    geometry_name = "radius"
    geometry_unit = "m"

    def __init__(self, config: Config) -> None:
        """Keep the configuration."""
        self._config = config
        self.episode_seconds = config.episode_seconds
        self.force_limit = config.force_limit
        self._home = (-config.path_length / 2, 0.0, 0.018, 0.0)
        plain = asdict(config)
        names = ("radius", "path_length", "cells", "force_low", "force_high", "coverage_goal", "bias")
        self.settings: Mapping[str, Any] = {
            "home": self._home,
            "nominal_geometry": config.radius,
            **{name: plain[name] for name in names},
        }

    def scene(self) -> Scene:
        """Return a cylinder with its axis along y, and a ball on a rod."""
        fixture = (
            f'<geom name="arc" type="cylinder" size="{self._config.radius} 0.03" quat="1 1 0 0" '
            f'pos="0 0 {-self._config.radius}" rgba="0.62 0.66 0.7 1" {VISUAL}/>'
        )
        return Scene(fixture=fixture, tip=ball_tip(), probes=("ball",), obstacles=("arc",), yaw=False)

    def sample(self, generator: np.random.Generator, task: str) -> Scenario:
        """Draw an episode."""
        config = self._config
        offset = config.bias.sample(generator, task, uncertain=(2,))
        spread = generator.uniform(-1.0, 1.0, 3)
        radius = 0.12 if generator.random() < 0.5 else 0.2
        return Scenario(
            fixture=sample_fixture(generator),
            offset=offset,
            start=self._home + np.append(spread * (0.004, 0.004, 0.003), 0.0),
            friction=sample_friction(generator, task),
            stiffness_scale=sample_stiffness(generator, task),
            geometry=radius if task == "geometry" else config.radius,
        )

    def shape(self, model: mujoco.MjModel, scenario: Scenario) -> None:
        """Give the cylinder its radius."""
        radius = scenario.geometry
        geom = model.geom("arc")
        geom.size[0] = radius
        geom.pos[2] = -radius
        model.geom_rbound[geom.id] = np.hypot(radius, geom.size[1])
        model.geom_aabb[geom.id, 3:5] = radius

    def to_task_frame(self, pose: Array) -> Array:
        """Return x, y, height above the estimated arc, and yaw."""
        return above_arc(pose, self._config.radius)

    def from_task_frame(self, coordinates: Array) -> Array:
        """Return the pose of a point at a height above the estimated arc."""
        return above_arc(coordinates, self._config.radius, inverse=True)

    def begin(self, scenario: Scenario, tcp: Array) -> Progress:
        """Start with no cell covered."""
        self._radius = scenario.geometry
        self._covered = np.zeros(self._config.cells, bool)
        return self._progress(tcp)

    def after(self, readings: Readings) -> Progress:
        """Cover the cells that were passed with the force inside the band."""
        config = self._config
        cell = np.floor((readings.tcp[:, 0] / config.path_length + 0.5) * config.cells).astype(int)
        good = readings.in_band(config.force_low, config.force_high) & (cell >= 0) & (cell < config.cells)
        self._covered[cell[good]] = True
        return self._progress(readings.tcp[-1])

    def distance(self, tcp: Array) -> float:
        """Return the signed distance between ball and arc [m]."""
        rho = self._radius + PROBE_RADIUS
        return float(np.hypot(tcp[0], tcp[2] + rho) - rho)

    def _progress(self, tcp: Array) -> Progress:
        config = self._config
        coverage = float(self._covered.mean())
        missing = np.flatnonzero(~self._covered)
        nearness = 1.0
        if len(missing):
            x = ((missing[0] + 0.5) / config.cells - 0.5) * config.path_length
            away = np.hypot(tcp[0] - x, tcp[2] - float(arc_height(np.asarray(x), self._radius)))
            nearness = 1.0 - min(float(away) / 0.03, 1.0)
        at_end = tcp[0] >= config.path_length * (0.5 - 1.0 / config.cells)
        return Progress(
            potential=0.9 * coverage + 0.1 * nearness,
            done=bool(at_end) and coverage >= config.coverage_goal,
            coverage=coverage,
        )
