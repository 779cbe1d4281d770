"""Insert a peg into a chamfered hole whose position is not known well; round or square."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import mujoco
import numpy as np

from burnish.core.errors import ConfigError, EnvError
from burnish.core.spec import Array
from burnish.envs.contact.environment import Cameras, Progress, Reward, Robot, contact_envs
from burnish.envs.contact.forces import Readings
from burnish.envs.contact.scenario import Bias, Scenario, sample_fixture, sample_friction, sample_stiffness
from burnish.envs.contact.tool import VISUAL, Scene, Slides, Tool
from burnish.envs.single import VectorEnv

DEPTH = 0.012
"""Depth of the hole [m]."""
CHAMFER = 0.001
"""Width and height of the chamfer [m]."""
PEG_LENGTH = 0.04
"""Length of the peg [m]."""


HOME = (0.0, 0.0, 0.016, 0.0)
"""Mean start pose x, y, z [m], yaw [rad]."""


def _lateral() -> Bias:
    return Bias(tail=0.003)


def _compliant() -> Tool:
    return Tool(stiffness=5000.0)


@dataclass(frozen=True)
class Config:
    """Insert an 8 mm peg."""

    shape: Literal["round", "square"] = "round"
    """Cross-section of peg and hole; the round hole is an octagon around its circle."""
    diameter: float = 0.008
    """Diameter or side of the peg [m]."""
    clearance: float = 0.0005
    """Hole width minus peg width [m]; half of it on the split ``geometry``, by a thicker peg."""
    depth_tolerance: float = 0.0015
    """Distance to the bottom that counts as seated [m]."""
    yaw_tolerance: float = 0.087
    """Yaw error that counts as seated [rad]; for the square peg only."""
    hold_seconds: float = 0.2
    """How long the peg must stay seated [s]."""
    force_limit: float = 100.0
    """Filtered force that an episode must never reach [N]."""
    episode_seconds: float = 5.0
    """Length of an episode [s]."""
    stop_on_success: bool = True
    """End an episode when the peg is seated."""
    robot: Robot = "tool"
    """What moves the tip: a Cartesian tool, which is fast, or a 7-DoF arm under Cartesian impedance control."""
    bias: Bias = field(default_factory=_lateral)
    """Error of the estimated fixture pose; the wide range lies across the hole's axis."""
    tool: Tool = field(default_factory=_compliant)
    """Motion, sensing and contact parameters; softer than on a contour, as tools for insertion are."""
    reward: Reward = field(default_factory=Reward)
    """Weights of the reward."""
    cameras: Cameras = field(default_factory=Cameras)
    """Camera images in the observation."""

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit into each other."""
        if not 0.0 < self.clearance < self.diameter / 2.0 <= 0.01:
            raise ConfigError(
                "contact/peg_insert needs 0 < clearance < diameter / 2 <= 0.01, found "
                f"clearance {self.clearance} and diameter {self.diameter}."
            )
        if not 0.0 < self.depth_tolerance < DEPTH or self.hold_seconds <= 0.0 or self.yaw_tolerance <= 0.0:
            raise ConfigError(
                f"contact/peg_insert needs 0 < depth_tolerance < {DEPTH}, hold_seconds > 0 and yaw_tolerance > 0, "
                f"found {self.depth_tolerance}, {self.hold_seconds}, {self.yaw_tolerance}."
            )

    def build(self, num_envs: int = 1) -> VectorEnv:
        """Return a vector environment of independent simulations.

        Raises:
            EnvError: If the compiled hole is not open, or lets the peg through its walls.
        """
        envs = contact_envs(lambda: Peg(self), self, num_envs)
        check_hole_open(
            envs[0].model if self.robot == "tool" else Slides(Peg(self).scene(), self.tool).model, self.clearance
        )
        return VectorEnv(envs)


def hole_geoms(sides: int, width: float) -> tuple[str, list[str]]:
    """Return the MJCF of a block with a chamfered hole, and the names of its geoms.

    Args:
        sides: Walls of the hole, 4 for a square.
        width: Distance between opposite walls [m].
    """
    half, slope, reach = width / 2.0, CHAMFER / np.sqrt(2.0), 0.012
    floor = 0.003
    text = f'<geom name="floor" type="box" size="0.01 0.01 {floor}" pos="0 0 {-DEPTH - floor}" {{look}}/>'
    names = ["floor"]
    wall = (DEPTH - CHAMFER) / 2.0
    parts = {
        # name: (size x (outwards), z, position outwards, z, tilt about the wall's tangent)
        "wall": (reach, wall, half + reach, -CHAMFER - wall, 0.0),
        "rim": (reach, CHAMFER / 2.0, half + CHAMFER + reach, -CHAMFER / 2.0, 0.0),
        "chamfer": (slope, slope / 2.0, half + 0.75 * CHAMFER, -0.75 * CHAMFER, -np.pi / 4.0),
    }
    for side in range(sides):
        angle = 2.0 * np.pi * side / sides
        for name, (size_x, size_z, out, z, tilt) in parts.items():
            # a wall fills the half-space outside its plane, so it may be wider than the hole
            text += (
                f'<geom name="{name}{side}" type="box" size="{size_x} 0.015 {size_z}" '
                f'pos="{out * np.cos(angle)} {out * np.sin(angle)} {z}" '
                f'quat="{_quat(angle, tilt)}" {{look}}/>'
            )
            names.append(f"{name}{side}")
    return text.format(look=f'rgba="0.62 0.66 0.7 1" {VISUAL}'), names


def _quat(yaw: float, pitch: float) -> str:
    a, b = yaw / 2.0, pitch / 2.0
    return " ".join(
        str(q) for q in (np.cos(a) * np.cos(b), -np.sin(a) * np.sin(b), np.cos(a) * np.sin(b), np.sin(a) * np.cos(b))
    )


def check_hole_open(model: mujoco.MjModel, clearance: float) -> None:
    """Move the peg through the compiled hole and see that it is free inside, and blocked by walls and floor.

    Raises:
        EnvError: Says where it touches and should not, or the other way round.
    """
    data = mujoco.MjData(model)
    play = clearance / 2.0
    probes = [((0.0, 0.0, -depth), False) for depth in np.linspace(0.0, DEPTH - 1e-4, 13)]
    for angle in np.linspace(0.0, 2.0 * np.pi, 8, endpoint=False):
        direction = np.array([np.cos(angle), np.sin(angle), 0.0])
        probes.append((tuple(0.8 * play * direction + (0, 0, -DEPTH / 2)), False))
        probes.append((tuple((1.6 * play + 1e-4) * direction + (0, 0, -DEPTH / 2)), True))
    probes.append(((0.0, 0.0, -DEPTH - 1e-4), True))
    for position, blocked in probes:
        data.qpos[:] = (*position, 0.0)
        mujoco.mj_forward(model, data)
        if bool(data.ncon) != blocked:
            raise EnvError(
                f"contact/peg_insert: the peg {'is free' if blocked else 'touches'} at {position} m in the hole's "
                f"frame, where it should {'touch' if blocked else 'be free'}. The collision geometry is wrong."
            )


class Peg:
    """The insertion task; see :class:`burnish.envs.contact.environment.ContactTask`."""

    id = "contact/peg_insert"
    instruction = "insert the peg into the hole"
    yaw = True
    low: tuple[float, ...] = (-0.02, -0.02, -0.02, -0.3)
    high: tuple[float, ...] = (0.02, 0.02, 0.03, 0.3)
    scale: tuple[float, ...] = (0.024, 0.024, 0.012, 0.1)
    geometry_name = "clearance"
    geometry_unit = "m"

    def __init__(self, config: Config) -> None:
        """Keep the configuration."""
        self._config = config
        self.episode_seconds = config.episode_seconds
        self.force_limit = config.force_limit
        self._needed_steps = round(config.hold_seconds / config.tool.control_dt)
        plain = asdict(config)
        names = ("shape", "diameter", "clearance", "depth_tolerance", "yaw_tolerance", "hold_seconds", "bias")
        self.settings: Mapping[str, Any] = {
            "home": HOME,
            "nominal_geometry": config.clearance,
            "depth": DEPTH,
            **{name: plain[name] for name in names},
        }

    def scene(self) -> Scene:
        """Return a block with a hole along -z, and a peg that ends at the TCP."""
        config = self._config
        round_peg = config.shape == "round"
        fixture, obstacles = hole_geoms(8 if round_peg else 4, config.diameter + config.clearance)
        half, length = config.diameter / 2.0, PEG_LENGTH / 2.0
        size = f"{half} {length}" if round_peg else f"{half} {half} {length}"
        tip = (
            f'<geom name="peg" type="{"cylinder" if round_peg else "box"}" size="{size}" pos="0 0 {length}" '
            f'rgba="0.85 0.3 0.2 1" {VISUAL}/>'
            f'<geom type="cylinder" size="0.008 0.025" pos="0 0 0.065" rgba="0.4 0.4 0.45 1" {VISUAL}/>'
        )
        return Scene(fixture=fixture, tip=tip, probes=("peg",), obstacles=tuple(obstacles), yaw=True)

    def sample(self, generator: np.random.Generator, task: str) -> Scenario:
        """Draw an episode."""
        config = self._config
        offset = config.bias.sample(generator, task, uncertain=(0, 1))
        spread = generator.uniform(-1.0, 1.0, 4)
        return Scenario(
            fixture=sample_fixture(generator),
            offset=offset,
            start=HOME + spread * (0.01, 0.01, 0.004, 0.08),
            friction=sample_friction(generator, task),
            stiffness_scale=sample_stiffness(generator, task),
            geometry=config.clearance / 2.0 if task == "geometry" else config.clearance,
        )

    def shape(self, model: mujoco.MjModel, scenario: Scenario) -> None:
        """Give the peg its width."""
        config = self._config
        half = (config.diameter + config.clearance - scenario.geometry) / 2.0
        model.geom("peg").size[: 1 if config.shape == "round" else 2] = half

    def to_task_frame(self, pose: Array) -> Array:
        """Return the pose: the estimated frame is the task frame."""
        return pose

    def from_task_frame(self, coordinates: Array) -> Array:
        """Return the coordinates: the estimated frame is the task frame."""
        return coordinates

    def begin(self, scenario: Scenario, tcp: Array) -> Progress:
        """Start outside the hole."""
        self._held = 0
        self._deepest = 0.0
        return self._progress(tcp)

    def after(self, readings: Readings) -> Progress:
        """Count the control steps in which the peg is seated throughout."""
        config, tcp = self._config, readings.tcp
        seated = (tcp[:, 2] < config.depth_tolerance - DEPTH) & (np.hypot(tcp[:, 0], tcp[:, 1]) < config.clearance)
        if config.shape == "square":
            seated &= np.abs(tcp[:, 3]) < config.yaw_tolerance
        self._held = self._held + 1 if bool(seated.all()) else 0
        return self._progress(tcp[-1])

    def distance(self, tcp: Array) -> float:
        """Return the distance from the peg's end to the bottom of the hole [m]."""
        return float(tcp[2] + DEPTH)

    def _progress(self, tcp: Array) -> Progress:
        lateral = float(np.hypot(tcp[0], tcp[1]))
        nearness = 1.0 - min(max(float(tcp[2]), 0.0) / 0.02, 1.0)
        centring = 1.0 - min(lateral / 0.004, 1.0)
        inside = lateral < 2.0 * CHAMFER
        depth = min(max(-float(tcp[2]) / (DEPTH - self._config.depth_tolerance), 0.0), 1.0) if inside else 0.0
        self._deepest = max(self._deepest, depth)
        return Progress(
            potential=0.1 * nearness + 0.4 * centring + 0.5 * depth,
            done=self._held >= self._needed_steps,
            coverage=self._deepest,
        )
