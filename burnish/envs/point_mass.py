"""The toy: a point in the plane moves to a goal. It needs no simulator and PPO solves it in seconds.

It is also the worked example of a task: one file with a frozen ``Config`` whose ``build`` returns a VecEnv, and a
class that implements :class:`burnish.envs.single.SingleEnv`. Nothing else is edited to add one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import IMAGE_PREFIX, PRIVILEGED_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.single import VectorEnv

STATE_KEY = "observation.state"
GOAL_KEY = f"{PRIVILEGED_PREFIX}goal"
IMAGE_KEY = f"{IMAGE_PREFIX}top"

DIRECTIONS: Mapping[str, float] = {"right": 0.0, "up": 0.5 * math.pi, "left": math.pi, "down": 1.5 * math.pi}
"""Task to the direction in which its goals lie, seen from the middle [rad]."""

_BACKGROUND, _GOAL, _POINT = (235, 235, 235), (60, 160, 80), (40, 60, 190)


@dataclass(frozen=True)
class Config:
    """A point in the square [-1, 1] m that is to reach a goal."""

    dynamics: Literal["velocity", "force"] = "velocity"
    """Whether an action is a velocity [m/s] or a force on 1 kg [N]; the second makes a double integrator."""
    reward: Literal["dense", "sparse"] = "dense"
    """"dense" pays the metres gained in each step and 1 on success, "sparse" only the 1."""
    goal_radius: float = 0.1
    """Distance to the goal that counts as reached [m]."""
    goal_noise: float = 0.0
    """Standard deviation, per axis, of the error of the goal that is shown [m]; ``privileged.goal`` has none."""
    control_dt: float = 0.05
    """Seconds between two actions."""
    max_episode_steps: int = 60
    """Actions after which an episode is truncated."""
    image: bool = False
    """Whether the observation has a picture from above, ``observation.images.top``."""
    image_size: int = 32
    """Height and width of that picture in pixels."""

    def __post_init__(self) -> None:
        """Refuse values that give no task."""
        for name in ("goal_radius", "control_dt", "max_episode_steps"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"point_mass: {name} must be positive, found {getattr(self, name)}.")
        if self.goal_noise < 0:
            raise ConfigError(f"point_mass: goal_noise must not be negative, found {self.goal_noise}.")
        if self.image_size < 8:
            raise ConfigError(f"point_mass: image_size must be at least 8 pixels, found {self.image_size}.")

    def spec(self) -> EnvSpec:
        """Describe the task under this configuration."""
        observation = {
            STATE_KEY: ArraySpec(
                (6,), unit="m,m,m/s,m/s,m,m", frame="world", names=("x", "y", "vx", "vy", "goal_x", "goal_y")
            ),
            GOAL_KEY: ArraySpec((2,), unit="m", frame="world", names=("x", "y")),
        }
        if self.image:
            observation[IMAGE_KEY] = ArraySpec((self.image_size, self.image_size, 3), dtype="uint8")
        unit = "m/s" if self.dynamics == "velocity" else "N"
        return EnvSpec(
            id="point_mass",
            observation=observation,
            action=ArraySpec((2,), unit=unit, frame="world", low=-1.0, high=1.0, names=("x", "y")),
            control_dt=self.control_dt,
            max_episode_steps=self.max_episode_steps,
            tasks=tuple(DIRECTIONS),
            splits={"train": ("right", "up", "left"), "shift": ("down",)},
            metrics={
                "success": MetricSpec("binary", better="higher", description="The goal was reached."),
                "distance": MetricSpec(
                    "mean", unit="m", better="lower", description="Distance to the goal at the end."
                ),
            },
            protocol={"dynamics": self.dynamics, "goal_radius": self.goal_radius, "goal_noise": self.goal_noise},
        )

    def build(self, num_envs: int = 1) -> VectorEnv:
        """Return ``num_envs`` of them; they are too cheap for threads."""
        spec = self.spec()
        return VectorEnv([PointMass(self, spec) for _ in range(num_envs)])


class PointMass:
    """One point; plain Python floats, since arrays of two entries cost more than they save."""

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        """Keep the configuration; an episode begins with :meth:`reset`."""
        self.spec = spec
        self._config = config
        self._task = spec.tasks[0]
        self._x = self._y = self._vx = self._vy = 0.0
        self._goal = self._shown_goal = (0.0, 0.0)
        self._distance = 0.0
        self._steps = 0
        self._success = False

    def reset(self, start: Start) -> None:
        """Place point and goal by ``start.init``, and draw start and goal errors from ``start.seed``."""
        placing = stream(start.init, "point_mass", start.task)
        noise = stream(start.seed, "point_mass", "noise", start.init)
        angle = DIRECTIONS[start.task] + placing.uniform(-0.25, 0.25) * math.pi
        radius = placing.uniform(0.5, 0.9)
        self._goal = (radius * math.cos(angle), radius * math.sin(angle))
        self._x, self._y = (placing.uniform(-0.3, 0.3, 2) + noise.normal(0.0, 0.01, 2)).tolist()
        self._vx = self._vy = 0.0
        error_x, error_y = (self._config.goal_noise * noise.standard_normal(2)).tolist()
        self._shown_goal = (self._goal[0] + error_x, self._goal[1] + error_y)
        self._task = start.task
        self._steps = 0
        self._success = False
        self._distance = self._distance_to_goal()

    def advance(self, action: Array) -> tuple[float, bool, bool]:
        """Move by one ``control_dt``; actions outside the limits are clipped."""
        dt = self._config.control_dt
        command_x, command_y = action.tolist()
        command_x, command_y = min(max(command_x, -1.0), 1.0), min(max(command_y, -1.0), 1.0)
        if self._config.dynamics == "velocity":
            self._vx, self._vy = command_x, command_y
        else:
            self._vx, self._vy = self._vx + dt * command_x, self._vy + dt * command_y
        self._x, self._vx = _bounded(self._x + dt * self._vx, self._vx)
        self._y, self._vy = _bounded(self._y + dt * self._vy, self._vy)
        self._steps += 1
        before, self._distance = self._distance, self._distance_to_goal()
        self._success = self._distance <= self._config.goal_radius
        reward = float(self._success)
        if self._config.reward == "dense":
            reward += before - self._distance
        return reward, self._success, not self._success and self._steps >= self._config.max_episode_steps

    def observe(self) -> dict[str, Any]:
        """Return state, true goal and instruction, and the picture where it is asked for."""
        observation: dict[str, Any] = {
            STATE_KEY: np.array((self._x, self._y, self._vx, self._vy, *self._shown_goal), np.float32),
            GOAL_KEY: np.array(self._goal, np.float32),
            TASK_KEY: f"Move {self._task} to the goal.",
        }
        if self._config.image:
            observation[IMAGE_KEY] = self._draw(self._config.image_size, self._shown_goal)
        return observation

    def metrics(self) -> dict[str, float]:
        """Return success and the distance to the true goal [m]."""
        return {"success": float(self._success), "distance": self._distance}

    def render(self) -> Array:
        """Return a (256, 256, 3) picture with the true goal."""
        return self._draw(256, self._goal)

    def close(self) -> None:
        """Hold nothing."""

    def _distance_to_goal(self) -> float:
        return math.hypot(self._goal[0] - self._x, self._goal[1] - self._y)

    def _draw(self, size: int, goal: tuple[float, float]) -> Array:
        """Return a (size, size, 3) uint8 picture of [-1.1, 1.1] m, x to the right and y up."""
        axis = 1.1 * (2.0 * (np.arange(size) + 0.5) / size - 1.0)
        picture = np.full((size, size, 3), _BACKGROUND, np.uint8)
        for (x, y), radius, colour in (
            (goal, max(self._config.goal_radius, 2.2 / size), _GOAL),
            ((self._x, self._y), max(0.05, 2.2 / size), _POINT),
        ):
            picture[(axis[None, :] - x) ** 2 + (-axis[:, None] - y) ** 2 <= radius**2] = colour
        return picture


def _bounded(position: float, velocity: float) -> tuple[float, float]:
    """Stop at the walls of [-1, 1] m."""
    if -1.0 <= position <= 1.0:
        return position, velocity
    return math.copysign(1.0, position), 0.0
