"""Bring a probe to a point of a metal plate and hold it there with a bounded force."""

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

HOME = (0.0, 0.0, 0.022, 0.0)
"""Mean start pose x, y, z [m], yaw [rad]."""


@dataclass(frozen=True)
class Config:
    """Touch a point of a plate and hold."""

    hold_seconds: float = 0.5
    """How long the touch must last without a break [s]."""
    lateral_tolerance: float = 0.003
    """How far from the point the probe may touch [m]."""
    tilt: float = 0.07
    """Tilt of the plate about y on the split ``geometry`` [rad], either way; level elsewhere."""
    force_low: float = 5.0
    """Lower end of the force band [N]."""
    force_high: float = 30.0
    """Upper end of the force band [N]."""
    force_limit: float = 100.0
    """Filtered force that an episode must never reach [N]."""
    episode_seconds: float = 4.0
    """Length of an episode [s]."""
    stop_on_success: bool = True
    """End an episode when the touch has been held."""
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
        """Refuse a band, tolerance or tilt that cannot be."""
        check_force_band("contact/touch", self.force_low, self.force_high, self.force_limit)
        if self.lateral_tolerance <= 0.0 or self.hold_seconds <= 0.0 or not 0.0 <= self.tilt < 0.3:
            raise ConfigError(
                "contact/touch needs lateral_tolerance > 0, hold_seconds > 0 and 0 <= tilt < 0.3, found "
                f"{self.lateral_tolerance}, {self.hold_seconds}, {self.tilt}."
            )

    def build(self, num_envs: int = 1) -> VectorEnv:
        """Return a vector environment of independent simulations."""
        return VectorEnv(contact_envs(lambda: Touch(self), self, num_envs))


class Touch:
    """The touch task; see :class:`burnish.envs.contact.environment.ContactTask`."""

    id = "contact/touch"
    instruction = "touch the marked point and hold"
    yaw = False
    low: tuple[float, ...] = (-0.04, -0.04, -0.02)
    high: tuple[float, ...] = (0.04, 0.04, 0.04)
    scale: tuple[float, ...] = (0.006, 0.006, 0.006)
    geometry_name = "tilt"
    geometry_unit = "rad"

    def __init__(self, config: Config) -> None:
        """Keep the configuration."""
        self._config = config
        self.episode_seconds = config.episode_seconds
        self.force_limit = config.force_limit
        self._needed_steps = round(config.hold_seconds / config.tool.control_dt)
        plain = asdict(config)
        names = ("hold_seconds", "lateral_tolerance", "tilt", "force_low", "force_high", "bias")
        self.settings: Mapping[str, Any] = {
            "home": HOME,
            "nominal_geometry": 0.0,
            **{name: plain[name] for name in names},
        }

    def scene(self) -> Scene:
        """Return a plate whose top is the plane z = 0, a mark, and a ball on a rod."""
        fixture = (
            f'<geom name="plate" type="box" size="0.06 0.06 0.008" pos="0 0 -0.008" rgba="0.62 0.66 0.7 1" {VISUAL}/>'
            f'<geom name="mark" type="cylinder" size="0.003 0.0001" rgba="0.9 0.75 0.1 1" {VISUAL}/>'
        )
        return Scene(fixture=fixture, tip=ball_tip(), probes=("ball",), obstacles=("plate",), yaw=False)

    def sample(self, generator: np.random.Generator, task: str) -> Scenario:
        """Draw an episode."""
        offset = self._config.bias.sample(generator, task, uncertain=(2,))
        spread = generator.uniform(-1.0, 1.0, 3)
        tilt = self._config.tilt * (1.0 if generator.random() < 0.5 else -1.0)
        return Scenario(
            fixture=sample_fixture(generator),
            offset=offset,
            start=HOME + np.append(spread * (0.02, 0.02, 0.004), 0.0),
            friction=sample_friction(generator, task),
            stiffness_scale=sample_stiffness(generator, task),
            geometry=tilt if task == "geometry" else 0.0,
        )

    def shape(self, model: mujoco.MjModel, scenario: Scenario) -> None:
        """Tilt the plate about the marked point."""
        half = scenario.geometry / 2.0
        plate = model.geom("plate")
        plate.quat[:] = model.geom("mark").quat[:] = (np.cos(half), 0.0, np.sin(half), 0.0)
        plate.pos[:] = (-0.008 * np.sin(2 * half), 0.0, -0.008 * np.cos(2 * half))

    def to_task_frame(self, pose: Array) -> Array:
        """Return the pose: the estimated frame is the task frame."""
        return pose

    def from_task_frame(self, coordinates: Array) -> Array:
        """Return the coordinates: the estimated frame is the task frame."""
        return coordinates

    def begin(self, scenario: Scenario, tcp: Array) -> Progress:
        """Start with nothing held."""
        self._tilt = scenario.geometry
        self._held = self._longest = 0
        return self._progress(tcp)

    def after(self, readings: Readings) -> Progress:
        """Count the control steps whose every reading is inside band and tolerance."""
        config = self._config
        near = np.hypot(readings.tcp[:, 0], readings.tcp[:, 1]) <= config.lateral_tolerance
        held = bool((near & readings.in_band(config.force_low, config.force_high)).all())
        self._held = self._held + 1 if held else 0
        self._longest = max(self._longest, self._held)
        return self._progress(readings.tcp[-1])

    def distance(self, tcp: Array) -> float:
        """Return the signed distance between ball and plate [m]."""
        s, c = np.sin(self._tilt), np.cos(self._tilt)
        return float(s * tcp[0] + c * (tcp[2] + PROBE_RADIUS) - PROBE_RADIUS)

    def _progress(self, tcp: Array) -> Progress:
        nearness = 1.0 - min(float(np.linalg.norm(tcp[:3])) / 0.03, 1.0)
        share = min(self._held / self._needed_steps, 1.0)
        return Progress(
            potential=0.1 * nearness + 0.9 * share,
            done=self._held >= self._needed_steps,
            coverage=min(self._longest / self._needed_steps, 1.0),
        )
