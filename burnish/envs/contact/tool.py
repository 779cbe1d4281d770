"""A stiff Cartesian tool in MuJoCo: slides (and a yaw hinge) under position control, with a wrist force sensor.

The tool stands for an industrial, position-controlled robot seen from its tool centre point (TCP): reflected mass,
stiffness and damping are those of the closed position loop. Physics runs in C; set-points are interpolated linearly
to every physics step and the sensor is read after each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mujoco
import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array
from burnish.envs.contact.forces import LowPass, Readings
from burnish.envs.contact.scenario import Scenario, to_local, to_parent


@dataclass(frozen=True)
class Tool:
    """Parameters of the tool, its sensor and the contact; part of what makes force figures comparable."""

    stiffness: float = 15000.0
    """Stiffness of the position loop [N/m]; 10-20 kN/m is a position-controlled robot, 0.5-2 kN/m a compliant one."""
    damping_ratio: float = 1.0
    """Damping ratio of the position loop; 1 is critical."""
    mass: float = 1.5
    """Reflected mass at the TCP [kg]."""
    speed_limit: float = 0.06
    """Largest speed of the set-point [m/s]."""
    yaw_speed_limit: float = 0.5
    """Largest yaw rate of the set-point [rad/s]."""
    control_dt: float = 0.05
    """Time between two actions [s]."""
    physics_dt: float = 0.002
    """Physics step and time between force readings [s]."""
    solref: float = 0.008
    """Contact time constant [s]; sets the height of impact peaks. At least twice ``physics_dt``."""
    filter_hz: float = 100.0
    """Cut-off frequency of the force filter [Hz]."""
    force_noise: float = 0.5
    """Standard deviation of the noise on each observed force entry [N]."""
    torque_noise: float = 0.01
    """Standard deviation of the noise on each observed torque entry [N m]."""

    def __post_init__(self) -> None:
        """Refuse values that the simulation cannot honour."""
        for name in ("stiffness", "damping_ratio", "mass", "speed_limit", "control_dt", "physics_dt", "filter_hz"):
            if getattr(self, name) <= 0.0:
                raise ConfigError(f"Tool.{name} must be positive, found {getattr(self, name)}.")
        if abs(self.substeps * self.physics_dt - self.control_dt) > 1e-9:
            raise ConfigError(
                f"Tool.control_dt ({self.control_dt}) must be a whole multiple of physics_dt ({self.physics_dt})."
            )
        if self.solref < 2.0 * self.physics_dt:
            raise ConfigError(
                f"Tool.solref ({self.solref}) is below twice physics_dt ({self.physics_dt}): MuJoCo would clamp it, "
                "and forces would no longer depend on it. Lower physics_dt or raise solref."
            )

    @property
    def substeps(self) -> int:
        """Physics steps in one control step."""
        return round(self.control_dt / self.physics_dt)

    def damping(self, scale: float = 1.0) -> float:
        """Return the damping of the position loop [N s/m] at a stiffness factor."""
        return float(2.0 * self.damping_ratio * np.sqrt(scale * self.stiffness * self.mass))


_SCENE = """
<mujoco>
  <option timestep="{dt}" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <visual>
    <quality shadowsize="0" offsamples="0"/>
    <global offwidth="640" offheight="480"/>
    <map znear="0.01" zfar="20"/>
  </visual>
  <asset><texture name="sky" type="skybox" builtin="gradient" rgb1="0.75 0.8 0.85" rgb2="0.35 0.4 0.5"
    width="64" height="64"/></asset>
  <worldbody>
    <light pos="0.3 -0.4 1.2" dir="0.1 0.3 -1" diffuse="0.7 0.7 0.7" ambient="0.3 0.3 0.3" castshadow="false"/>
    <camera name="front" pos="0.5 -0.32 0.26" xyaxes="1 0 0 0 0.45 0.89" fovy="40"/>
    <geom name="table" type="box" size="0.4 0.4 0.02" pos="0.5 0 -0.1" rgba="0.55 0.5 0.45 1" {visual}/>
    <body name="fixture" mocap="true">{fixture}</body>
    {robot}
  </worldbody>
  <contact>{pairs}</contact>
  {extra}
  <actuator>{actuators}</actuator>
  <sensor><force site="tcp"/><torque site="tcp"/></sensor>
</mujoco>
"""

_CARRIAGE = """
    <body name="carriage" gravcomp="1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="y" type="slide" axis="0 1 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      {yaw_joint}
      <inertial pos="0 0 0.1" mass="{carriage_mass}" diaginertia="0.002 0.002 0.002"/>
      <geom type="cylinder" size="0.025 0.03" pos="0 0 0.12" rgba="0.25 0.27 0.3 1" {visual}/>
      <camera name="wrist" pos="0 -0.075 0.105" xyaxes="1 0 0 0 0.8 0.6" fovy="60"/>
      {tip}
    </body>
"""

VISUAL = 'contype="0" conaffinity="0" mass="0"'
"""Attributes of geoms; which of them collide is listed in explicit pairs, so there is no broad phase."""
TIP_MASS = 0.2
"""Mass between sensor and TCP [kg], tared away."""
YAW_STIFFNESS, YAW_DAMPING = 30.0, 0.6
"""Yaw loop [N m/rad, N m s/rad]."""


PROBE_RADIUS = 0.005
"""Radius of the ball of :func:`ball_tip` [m]; the TCP is its lowest point."""


def ball_tip() -> str:
    """Return the geoms of a ball on a rod; the one that collides is named ``ball``."""
    return (
        f'<geom name="ball" type="sphere" size="{PROBE_RADIUS}" pos="0 0 {PROBE_RADIUS}" '
        f'rgba="0.85 0.3 0.2 1" {VISUAL}/>'
        f'<geom type="capsule" size="0.003" fromto="0 0 0.01 0 0 0.09" rgba="0.8 0.8 0.82 1" {VISUAL}/>'
    )


@dataclass(frozen=True)
class Scene:
    """What a task puts into the world, whatever machine moves the tip."""

    fixture: str
    """Geoms of the fixture, in the fixture frame."""
    tip: str
    """Geoms of the tool tip, in a frame at the TCP with z up."""
    probes: tuple[str, ...]
    """Names of the tip's geoms that collide."""
    obstacles: tuple[str, ...]
    """Names of the fixture's geoms that collide."""
    yaw: bool
    """Whether the tool can turn about z."""

    @property
    def entries(self) -> int:
        """How many of x, y, z, yaw are controlled."""
        return 4 if self.yaw else 3


def scene_xml(scene: Scene, tool: Tool, *, robot: str, actuators: str, extra: str = "", pair: str = "") -> str:
    """Return the MJCF of a scene.

    Args:
        scene: What the task needs.
        tool: Parameters.
        robot: Bodies of what moves the tip; has a camera ``wrist``, and the tip of :func:`tip_xml`.
        actuators: Its actuators; the first are x, y, z and, where it can turn, yaw of the TCP in the base frame.
        extra: Further sections.
        pair: Further attributes of the colliding pairs.
    """
    condim = 4 if scene.yaw else 3
    touch = f'condim="{condim}" solref="{tool.solref} 1" solimp="0.95 0.99 0.0005 0.5 2" {pair}'
    return _SCENE.format(
        dt=tool.physics_dt,
        visual=VISUAL,
        fixture=scene.fixture,
        pairs="".join(f'<pair geom1="{a}" geom2="{b}" {touch}/>' for a in scene.probes for b in scene.obstacles),
        robot=robot,
        actuators=actuators,
        extra=extra,
    )


def tip_xml(scene: Scene) -> str:
    """Return the body of the tip; its site ``tcp`` is where forces are sensed."""
    return f'''<body name="tip" gravcomp="1">
        <inertial pos="0 0 0.03" mass="{TIP_MASS}" diaginertia="0.0001 0.0001 0.0001"/>
        {scene.tip}
        <site name="tcp" rgba="0 0 0 0"/>
      </body>'''


class Machine(Protocol):
    """What moves the tip: the Cartesian tool or an arm; :class:`Rig` does the rest."""

    model: mujoco.MjModel
    data: mujoco.MjData
    position: Array
    """(3,) or (4,) live view of the TCP pose x, y, z [m], yaw [rad] in the base frame."""
    protocol: Mapping[str, Any]
    """What makes its figures incomparable to another machine's."""
    view: str
    """Camera that shows it."""

    def place(self, pose: Array, scale: float) -> None:
        """Put the TCP at ``pose`` (4,) in the base frame, at rest, with stiffness times ``scale``."""
        ...

    def step(self) -> None:
        """Take one physics step."""
        ...

    def update(self) -> None:
        """Bring ``position`` up to date after physics steps; called once per control step."""
        ...

    def velocity(self) -> Array:
        """Return the TCP velocity (3,) in the base frame [m/s]; pure."""
        ...


class Slides:
    """The Cartesian tool: slides along x, y, z and a hinge about z, each under position control."""

    protocol: Mapping[str, Any] = {}
    view = "front"

    def __init__(self, scene: Scene, tool: Tool) -> None:
        """Compile the tool over a task's fixture."""
        robot = _CARRIAGE.format(
            visual=VISUAL,
            carriage_mass=tool.mass - TIP_MASS,
            tip=tip_xml(scene),
            yaw_joint='<joint name="yaw" type="hinge" axis="0 0 1"/>' if scene.yaw else "",
        )
        names = ("x", "y", "z", "yaw")[: scene.entries]
        actuators = "".join(f'<position name="{name}" joint="{name}"/>' for name in names)
        self.model = mujoco.MjModel.from_xml_string(scene_xml(scene, tool, robot=robot, actuators=actuators))
        self.data = mujoco.MjData(self.model)
        self.position = self.data.qpos
        self._tool = tool

    def place(self, pose: Array, scale: float) -> None:
        """Put the TCP at ``pose`` (4,) in the base frame, at rest, with stiffness times ``scale``."""
        model, data, tool = self.model, self.data, self._tool
        model.actuator_gainprm[:3, 0] = tool.stiffness * scale
        model.actuator_biasprm[:3, 1] = -tool.stiffness * scale
        model.actuator_biasprm[:3, 2] = -tool.damping(scale)
        model.actuator_gainprm[3:, 0] = YAW_STIFFNESS
        model.actuator_biasprm[3:, 1] = -YAW_STIFFNESS
        model.actuator_biasprm[3:, 2] = -YAW_DAMPING
        data.qpos[:] = data.ctrl[:] = pose[: len(data.qpos)]

    def step(self) -> None:
        """Take one physics step."""
        mujoco.mj_step(self.model, self.data)

    def update(self) -> None:
        """Do nothing: the joints are the pose."""

    def velocity(self) -> Array:
        """Return the TCP velocity (3,) in the base frame [m/s]."""
        moving: Array = self.data.qvel[:3]
        return moving


class Rig:
    """One simulated tool and fixture: reset to a scenario, then moved to set-points, read at the physics rate."""

    def __init__(self, machine: Machine, tool: Tool) -> None:
        """Take over a machine in its scene."""
        self.machine, self.model, self.data = machine, machine.model, machine.data
        self.tool = tool
        self._entries = len(machine.position)
        self._filter = LowPass(tool.filter_hz, tool.physics_dt, tool.substeps)
        self._ramp = (np.arange(tool.substeps) + 1.0)[:, None] / tool.substeps
        self._sensor = np.zeros((tool.substeps, 6))
        self._path = np.zeros((tool.substeps, 4))
        self._contact = np.zeros(tool.substeps, bool)

    def reset(self, scenario: Scenario) -> None:
        """Put fixture and tool where the scenario says, at rest, and tare the sensor."""
        model, data = self.model, self.data
        model.pair_friction[:, :2] = scenario.friction
        mujoco.mj_resetData(model, data)
        data.mocap_pos[0] = scenario.fixture[:3]
        data.mocap_quat[0] = (np.cos(scenario.fixture[3] / 2), 0.0, 0.0, np.sin(scenario.fixture[3] / 2))
        self._fixture, self._estimate = scenario.fixture, scenario.estimate
        self.setpoint = to_parent(scenario.start, self._estimate)
        self.machine.place(self.setpoint, scenario.stiffness_scale)
        mujoco.mj_forward(model, data)
        self._tare = data.sensordata.copy()
        self._wrench = np.zeros(6)

    def execute(self, target: Array) -> Readings:
        """Move the set-point towards ``target`` (4,), a pose in the estimated frame, for one control step."""
        data, tool = self.data, self.tool
        goal = to_parent(target, self._estimate)
        change = goal - self.setpoint
        reach = tool.speed_limit * tool.control_dt
        change[:3] *= min(1.0, reach / max(float(np.linalg.norm(change[:3])), 1e-12))
        turn = tool.yaw_speed_limit * tool.control_dt
        change[3] = min(max(change[3], -turn), turn)
        controls = (self.setpoint + self._ramp * change)[:, : self._entries]
        self.setpoint = self.setpoint + change
        position, sensordata = self.machine.position, data.sensordata
        ctrl, step = data.ctrl[: self._entries], self.machine.step
        sensor, path, contact, entries = self._sensor, self._path, self._contact, self._entries
        path[:, 3] = self.setpoint[3]
        for i in range(tool.substeps):
            ctrl[:] = controls[i]
            step()
            sensor[i] = sensordata
            path[i, :entries] = position
            contact[i] = data.ncon
        self.machine.update()
        tared = self._tare - sensor  # MuJoCo reports what the tip does to the wrist the other way round
        filtered = self._filter(tared, self._wrench)
        self._wrench = filtered[-1]
        return Readings(
            tcp=to_local(path, self._fixture),
            raw=np.sqrt(np.einsum("ij,ij->i", tared[:, :3], tared[:, :3])),
            filtered=np.sqrt(np.einsum("ij,ij->i", filtered[:, :3], filtered[:, :3])),
            contact=contact.copy(),
        )

    def update_view(self) -> None:
        """Bring what is drawn up to the state; the next physics step computes all of it again, so nothing changes."""
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    def pose(self) -> Array:
        """Return the TCP pose (4,) in the estimated frame."""
        return to_local(self._pose_base(), self._estimate)

    def true_pose(self) -> Array:
        """Return the TCP pose (4,) in the true fixture frame."""
        return to_local(self._pose_base(), self._fixture)

    def velocity(self) -> Array:
        """Return the TCP velocity (3,) in the estimated frame [m/s]."""
        frame = np.array([0.0, 0.0, 0.0, self._estimate[3]])
        return to_local(np.append(self.machine.velocity(), 0.0), frame)[:3]

    def wrench(self) -> Array:
        """Return (6,) force [N] and torque [N m] of the fixture on the tool, in the tool frame, tared and filtered."""
        if self._entries == 4:
            return self._wrench.copy()
        pair = self._wrench.reshape(2, 3)  # the tool does not turn, so its frame is laid along the estimate by hand
        return to_local(np.c_[pair, [0.0, 0.0]], np.array([0.0, 0.0, 0.0, self._estimate[3]]))[:, :3].ravel()

    def _pose_base(self) -> Array:
        pose = self.setpoint.copy()
        pose[: self._entries] = self.machine.position
        return pose
