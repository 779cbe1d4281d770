"""The environment that all contact tasks share: frames, sensing, reward terms and figures; tasks plug in below it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import mujoco
import numpy as np

from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.seeding import stream
from burnish.core.spec import IMAGE_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.contact.arm import Arm
from burnish.envs.contact.forces import FORCE_METRICS, ForceRecord, Readings, force_penalty
from burnish.envs.contact.scenario import SPLITS, Scenario
from burnish.envs.contact.tool import Machine, Rig, Scene, Slides, Tool
from burnish.envs.rendering import Renderer


@dataclass(frozen=True)
class Reward:
    """Weights of the reward; the dense preset pays for progress in contact, never for keeping away."""

    sparse: bool = False
    """Pay for success only."""
    success: float = 1.0
    """Paid once, when the task is first done."""
    progress: float = 1.0
    """Weight of the change of the task's potential, which rises from 0 to 1."""
    force_penalty: float = 0.15
    """Weight per control step of max(0, F - threshold) / threshold, at most 2, averaged over readings."""
    force_threshold: float = 30.0
    """Filtered force above which the penalty starts [N]."""

    def __post_init__(self) -> None:
        """Refuse a threshold that divides by zero."""
        if self.force_threshold <= 0.0:
            raise ConfigError(f"Reward.force_threshold must be positive, found {self.force_threshold}.")


CAMERA_NAMES = ("wrist", "front")

type Robot = Literal["tool", "arm"]

_MACHINES: dict[str, type[Slides | Arm]] = {"tool": Slides, "arm": Arm}


def make_machine(robot: str, scene: Scene, tool: Tool) -> Machine:
    """Return what moves the tip, in its scene.

    Raises:
        ConfigError: If there is no such robot.
    """
    if robot not in _MACHINES:
        raise ConfigError(f"There is no robot '{robot}' for the contact tasks.{suggest(robot, _MACHINES)}")
    return _MACHINES[robot](scene, tool)


@dataclass(frozen=True)
class Cameras:
    """A camera at the wrist that looks at the tip, and a fixed one in front of the fixture."""

    enabled: bool = False
    """Show ``observation.images.wrist`` and ``observation.images.front``."""
    size: int = 64
    """Pixels each way."""
    profile: Literal["fast", "shadows", "fidelity"] = "fast"
    """Visual quality."""

    def __post_init__(self) -> None:
        """Refuse pictures without pixels."""
        if self.size < 1:
            raise ConfigError(f"Cameras.size must be at least 1 pixel, found {self.size}.")

    def renderer(self, model: mujoco.MjModel) -> Renderer | None:
        """Return what draws the cameras of a model, None when they are off."""
        return Renderer(model, self.size, self.size, profile=self.profile) if self.enabled else None


@dataclass(frozen=True)
class Progress:
    """What a task says after a control step."""

    potential: float
    """How far the task is, 0 to 1."""
    done: bool
    """Whether the task's goal holds now, whatever the force was."""
    coverage: float
    """Share of the required contact that has been made, 0 to 1."""


class ContactTask(Protocol):
    """One task: its scene, what it draws, and what counts as progress. Poses are in the true fixture frame."""

    id: str
    instruction: str
    yaw: bool
    low: tuple[float, ...]
    high: tuple[float, ...]
    scale: tuple[float, ...]
    episode_seconds: float
    force_limit: float
    geometry_name: str
    geometry_unit: str
    settings: Mapping[str, Any]

    def scene(self) -> Scene:
        """Return fixture and tip."""
        ...

    def sample(self, generator: np.random.Generator, task: str) -> Scenario:
        """Draw an episode of a split."""
        ...

    def shape(self, model: mujoco.MjModel, scenario: Scenario) -> None:
        """Give the compiled fixture the drawn geometry."""
        ...

    def to_task_frame(self, pose: Array) -> Array:
        """Return the coordinates (..., 4) that observations and actions use, of a pose in the estimated frame."""
        ...

    def from_task_frame(self, coordinates: Array) -> Array:
        """Return the pose (..., 4) in the estimated frame; the inverse of :meth:`to_task_frame`."""
        ...

    def begin(self, scenario: Scenario, tcp: Array) -> Progress:
        """Start counting; tcp (4,) is the tool pose at reset."""
        ...

    def after(self, readings: Readings) -> Progress:
        """Count one control step."""
        ...

    def distance(self, tcp: Array) -> float:
        """Return the signed distance [m] from the tool at tcp (4,) to the surface it shall touch."""
        ...


class ContactEnv:
    """A :class:`burnish.envs.single.SingleEnv` over a :class:`ContactTask`."""

    def __init__(
        self,
        task: ContactTask,
        tool: Tool,
        reward: Reward,
        cameras: Cameras,
        *,
        stop_on_success: bool,
        robot: Robot = "tool",
    ) -> None:
        """Compile the scene.

        Args:
            task: What to do.
            tool: How the tool moves and senses.
            reward: Weights.
            cameras: What the cameras see.
            stop_on_success: End an episode as soon as it has succeeded.
            robot: What moves the tip.
        """
        self._task, self._tool, self._reward = task, tool, reward
        self._stop_on_success = stop_on_success
        machine = make_machine(robot, task.scene(), tool)
        self._rig = Rig(machine, tool)
        self._eyes = cameras.renderer(self._rig.model)
        self._window: Renderer | None = None
        protocol = {
            "cameras": self._eyes.protocol if self._eyes else None,
            "stop_on_success": stop_on_success,
            **machine.protocol,
        }
        self.spec = make_spec(task, tool, cameras, protocol)
        self._low, self._high = self.spec.action.bounds()
        self._noise_scale = np.array([tool.force_noise] * 3 + [tool.torque_noise] * 3)

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled scene; its geometry and gains are those of the running episode."""
        return self._rig.model

    def reset(self, start: Start) -> None:
        """Begin an episode; everything random is drawn here from the Start alone."""
        self._scenario = self._task.sample(stream(start.seed, self.spec.id, start.init), start.task)
        self._noise = stream(start.seed, self.spec.id, start.init, "wrench").standard_normal(
            (self.spec.max_episode_steps + 1, 6)
        )
        self._task.shape(self._rig.model, self._scenario)
        self._rig.reset(self._scenario)
        self._progress = self._task.begin(self._scenario, self._rig.true_pose())
        distance = self._task.distance(self._rig.true_pose())
        if distance <= 0.0 or self._rig.data.ncon:
            raise EnvError(
                f"{self.spec.id}: the tool starts inside the fixture (surface distance {distance:.4f} m) at "
                f"{self._scenario.start.tolist()} in the estimated frame with {start}. Lower the bias."
            )
        self._record = ForceRecord(self._tool.physics_dt)
        self._steps, self._success, self._success_once, self._cycle_steps = 0, False, False, 0

    def advance(self, action: Array) -> tuple[float, bool, bool]:
        """Move the set-point towards one action (A,) for one control step."""
        target = self._scenario.start.copy()
        target[: len(action)] = np.clip(action, self._low, self._high)
        readings = self._rig.execute(self._task.from_task_frame(target))
        self._record.add(readings)
        before, self._progress = self._progress, self._task.after(readings)
        self._steps += 1
        self._success = self._progress.done and self._record.peak_filtered < self._task.force_limit
        first = self._success and not self._success_once
        if first:
            self._success_once, self._cycle_steps = True, self._steps
        terminated = self._success and self._stop_on_success
        truncated = not terminated and self._steps >= self.spec.max_episode_steps
        weights = self._reward
        reward = weights.success if first else 0.0
        if not weights.sparse:
            reward += weights.progress * (self._progress.potential - before.potential)
            reward -= weights.force_penalty * force_penalty(readings.filtered, weights.force_threshold)
        return reward, terminated, truncated

    def observe(self) -> dict[str, Any]:
        """Return the observation; pure."""
        rig, scenario = self._rig, self._scenario
        pose, wrench = self._task.to_task_frame(rig.pose()), rig.wrench()
        left = 1.0 - self._steps / self.spec.max_episode_steps
        fixture = [*scenario.fixture, scenario.friction, scenario.stiffness_scale, scenario.geometry]
        force = float(np.linalg.norm(wrench[:3]))
        entries = {
            "observation.state": [*pose[: 4 if self._task.yaw else 3], *rig.velocity()],
            "observation.environment_state": [*scenario.estimate, left],
            "observation.wrench": wrench + self._noise[self._steps] * self._noise_scale,
            "privileged.bias": scenario.offset,
            "privileged.fixture": fixture,
            "privileged.contact": [self._task.distance(rig.true_pose()), force],
        }
        observation: dict[str, Any] = {key: np.asarray(item, np.float32) for key, item in entries.items()}
        if self._eyes is not None:
            self._rig.update_view()
            for name in CAMERA_NAMES:
                observation[IMAGE_PREFIX + name] = self._eyes.render(self._rig.data, name)
        observation[TASK_KEY] = self._task.instruction
        return observation

    def metrics(self) -> dict[str, float]:
        """Return the figures of the episode so far."""
        return {
            "success": float(self._success),
            "success_once": float(self._success_once),
            "success_at_end": float(self._success),
            "coverage": self._progress.coverage,
            "cycle_time": (self._cycle_steps or self._steps) * self._tool.control_dt,
            **self._record.metrics(),
        }

    def render(self) -> Array:
        """Return a picture of the robot, (480, 640, 3) uint8."""
        if self._window is None:
            self._window = Renderer(self._rig.model, 640, 480, profile="fidelity")
        self._rig.update_view()
        return self._window.render(self._rig.data, self._rig.machine.view)

    def close(self) -> None:
        """Free the rendering contexts."""
        for renderer in (self._eyes, self._window):
            if renderer is not None:
                renderer.close()


class ContactConfig(Protocol):
    """What the configurations of all contact tasks have in common."""

    @property
    def tool(self) -> Tool:
        """How the tool moves and senses."""
        ...

    @property
    def reward(self) -> Reward:
        """Weights."""
        ...

    @property
    def cameras(self) -> Cameras:
        """What the cameras see."""
        ...

    @property
    def stop_on_success(self) -> bool:
        """End an episode as soon as it has succeeded."""
        ...

    @property
    def robot(self) -> Robot:
        """What moves the tip."""
        ...


def contact_envs(task: Callable[[], ContactTask], config: ContactConfig, num_envs: int) -> list[ContactEnv]:
    """Return independent simulations, each with a task of its own."""
    return [
        ContactEnv(
            task(),
            config.tool,
            config.reward,
            config.cameras,
            stop_on_success=config.stop_on_success,
            robot=config.robot,
        )
        for _ in range(num_envs)
    ]


def make_spec(task: ContactTask, tool: Tool, cameras: Cameras, protocol: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of a contact environment."""
    frame = "fixture_estimated"
    position = ("x", "y", "z", "yaw") if task.yaw else ("x", "y", "z")
    position_unit = "m,m,m,rad" if task.yaw else "m"
    pose_unit = f"{position_unit},m/s,m/s,m/s" if task.yaw else "m,m,m,m/s,m/s,m/s"
    pose_names = ("fixture_x", "fixture_y", "fixture_z", "fixture_yaw")
    fixture_names = (*pose_names, "friction", "stiffness_scale", task.geometry_name)
    observation = {
        "observation.state": ArraySpec(
            (len(position) + 3,),
            unit=pose_unit,
            frame=frame,
            names=(*position, "vx", "vy", "vz"),
            scale=(*(0.01 if name != "yaw" else 0.1 for name in position), 0.03, 0.03, 0.03),
        ),
        "observation.environment_state": ArraySpec(
            (5,), unit="m,m,m,rad,", frame="base", names=(*pose_names, "time_left")
        ),
        "observation.wrench": ArraySpec(
            (6,),
            unit="N,N,N,Nm,Nm,Nm",
            frame="tool",
            names=("fx", "fy", "fz", "tx", "ty", "tz"),
            scale=(20.0, 20.0, 20.0, 0.04, 0.04, 0.04),
        ),
        "privileged.bias": ArraySpec(
            (4,), unit="m,m,m,rad", frame=frame, names=("dx", "dy", "dz", "dyaw"), scale=(0.003, 0.003, 0.003, 0.01)
        ),
        "privileged.fixture": ArraySpec(
            (7,), unit=f"m,m,m,rad,,,{task.geometry_unit}", frame="base", names=fixture_names
        ),
        "privileged.contact": ArraySpec(
            (2,), unit="m,N", names=("surface_distance", "force_filtered"), scale=(0.005, 20.0)
        ),
    }
    if cameras.enabled:
        image = ArraySpec((cameras.size, cameras.size, 3), "uint8")
        observation |= {IMAGE_PREFIX + name: image for name in CAMERA_NAMES}
    metrics = {
        "success": MetricSpec("binary", "", "higher", description="The task holds at the end, force limit kept."),
        "success_once": MetricSpec("binary", "", "higher", description="The task held at some time."),
        "success_at_end": MetricSpec("binary", "", "higher", description="The same as success."),
        "coverage": MetricSpec("mean", "", "higher", description="Share of the required contact that was made."),
        "cycle_time": MetricSpec(
            "mean", "s", "lower", beside=("success",), description="Time to success, or episode length without."
        ),
        **FORCE_METRICS,
    }
    return EnvSpec(
        id=task.id,
        observation=observation,
        action=ArraySpec(
            (len(position),),
            unit=position_unit,
            frame=frame,
            low=task.low,
            high=task.high,
            names=position,
            scale=task.scale,
        ),
        control_dt=tool.control_dt,
        max_episode_steps=round(task.episode_seconds / tool.control_dt),
        tasks=SPLITS,
        splits={
            "train": ("shift",),
            "eval": ("shift",),
            "demonstrations": ("nominal",),
            **{name: (name,) for name in SPLITS},
        },
        metrics=metrics,
        protocol={
            "mujoco": mujoco.__version__,
            **asdict(tool),
            "force_limit": task.force_limit,
            **task.settings,
            **protocol,
        },
    )
