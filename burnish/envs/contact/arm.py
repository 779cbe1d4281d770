"""A 7-DoF arm under Cartesian impedance control, in place of the Cartesian tool.

Kinematics, joint limits, torque limits and link inertias are those that the manufacturer publishes for the Franka Emika
Robot ("Panda"; `DH parameters and limits <https://frankarobotics.github.io/docs/robot_specifications.html>`_, inertias
from its ``franka_description``). Shapes are our own primitives and do not collide: the tip alone touches the fixture.

The control law is tau = J^T (K (x_d - x) - D v) + tau_posture + gravity, at every physics step and inside MuJoCo: K and
D act on the pose of the site ``tcp`` in the base frame, so J^T is the transmission of the actuators, and their damping
is integrated implicitly. tau_posture pulls the elbow back to where it was at reset. It acts along M n, n spanning the
null space of J: then J M^-1 tau_posture = 0, and it does not move the TCP (dynamically consistent null space, Khatib
1987, IEEE J. Robotics and Automation 3(1)).

MuJoCo clamps the sum at the torque limits. A clamp alone bends the wrench: where the wrist cannot hold what shoulder
and elbow press with, the hand folds over and hits the fixture. So a wrench that some joint cannot bear is scaled down
whole, which bounds the force and keeps its direction. Over the fixture this begins at about 90 N where friction at the
end of a slide adds to the load of the wrist, and at about 150 N where the tip presses straight down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np

from burnish.core.errors import EnvError
from burnish.core.spec import Array
from burnish.envs.contact.tool import VISUAL, Scene, Tool, scene_xml, tip_xml

APPARENT_MASS = 4.0
"""Mass that the damping is laid out for [kg]: about the largest that the arm shows at the TCP over the fixture."""
TILT_STIFFNESS, YAW_STIFFNESS = 400.0, 150.0
"""Stiffness against turning about the horizontal axes and about the vertical one [N m/rad]."""
APPARENT_INERTIA = 0.15
"""Inertia that the damping against turning is laid out for [kg m^2]."""
POSTURE_RATE = 10.0
"""Natural frequency of the elbow about its posture [rad/s], critically damped."""
RESERVE = 0.95
"""Share of a torque limit that a scaled wrench uses; posture and the change within a physics step take the rest."""
ROTOR_INERTIA = 0.1
"""Inertia of motor and gear behind each joint [kg m^2]; not published, a usual guess."""
JOINT_DAMPING = 0.5
"""Friction that compensation leaves in each joint [N m s/rad]; a guess as well."""
FRICTION_SOLREF = 0.3
"""Time constant with which friction stops sliding [s]. Friction is a soft constraint of MuJoCo's convex contact model:
with the time constant of the normal direction, the model pushes a sliding tip off the surface, and since the arm's
inertia couples the two directions it chatters. A slow one leaves sliding friction at its coefficient, and lets a tip
that sticks creep by about 1 mm/s where the load comes near the limit."""
BASE = (0.0, 0.0, -0.08)
"""Where the arm is bolted down: on the table's level, in front of it [m]."""
TCP_OFFSET = 0.14
"""From the flange to the TCP [m]: force sensor, holder and tip."""
WRIST_MASS = 0.3
"""Mass between flange and sensor [kg]."""
READY = (0.0, 0.2, 0.0, -2.3, 0.0, 2.5, np.pi / 4.0)
"""Joint angles that inverse kinematics starts from [rad]: elbow up, tool down, in the middle of every range."""


@dataclass(frozen=True)
class Link:
    """One link behind its joint, in its frame by modified (Craig's) DH parameters; the joint turns about z."""

    a: float
    """Distance along the x axis before [m]."""
    alpha: float
    """Turn about the x axis before, in quarter turns."""
    d: float
    """Distance along the joint axis [m]."""
    low: float
    """Lower joint limit [rad]."""
    high: float
    """Upper joint limit [rad]."""
    torque: float
    """Torque limit [N m]."""
    mass: float
    """Mass [kg]."""
    centre: tuple[float, float, float]
    """Centre of mass [m]."""
    inertia: tuple[float, float, float, float, float, float]
    """Inertia xx, yy, zz, xy, xz, yz about the centre of mass [kg m^2]."""
    shape: tuple[tuple[float, ...], ...]
    """Capsules that are drawn: two end points and a radius, x, y, z, x, y, z, r [m]."""


_PI = 2.8973
LINKS = (
    Link(0.0, 0, 0.333, -_PI, _PI, 87.0, 2.7907, (0.00033, -0.02204, -0.04762),
         (0.0156478, 0.0143988, 0.0050044, 0.0000053, -0.0000368, -0.0024848),
         ((0, 0, -0.18, 0, 0, -0.03, 0.06),)),
    Link(0.0, -1, 0.0, -1.7628, 1.7628, 87.0, 2.5420, (0.00038, -0.09211, 0.01908),
         (0.0166243, 0.0046250, 0.0154513, 0.0000309, 0.0000084, 0.0035590),
         ((0, 0, -0.055, 0, 0, 0.055, 0.06), (0, 0, 0, 0, -0.14, 0, 0.055))),
    Link(0.0, 1, 0.316, -_PI, _PI, 87.0, 2.2513, (0.05152, 0.01696, -0.02971),
         (0.0063174, 0.0086629, 0.0065780, 0.0009731, 0.0029253, 0.0009347),
         ((0, 0, -0.14, 0, 0, -0.05, 0.055), (0, 0, -0.05, 0.0825, 0, 0, 0.05))),
    Link(0.0825, 1, 0.0, -3.0718, -0.0698, 87.0, 2.2037, (-0.05113, 0.05825, 0.01698),
         (0.0089559, 0.0076054, 0.0111408, -0.0033959, 0.0015870, -0.0018148),
         ((0, 0, -0.05, 0, 0, 0.05, 0.055), (0, 0, 0, -0.0825, 0.1, 0, 0.05))),
    Link(-0.0825, -1, 0.384, -_PI, _PI, 12.0, 2.2855, (-0.00005, 0.03730, -0.09280),
         (0.0229701, 0.0209506, 0.0043061, -0.0000095, -0.0000206, 0.0038235),
         ((0, 0, -0.28, 0, 0.02, -0.2, 0.05), (0, 0.03, -0.2, 0, 0.05, -0.03, 0.035))),
    Link(0.0, 1, 0.0, -0.0175, 3.7525, 12.0, 1.3530, (0.06572, -0.00371, 0.00153),
         (0.0008796, 0.0027780, 0.0028670, -0.0002149, -0.0001191, 0.0000127),
         ((0, 0, -0.045, 0, 0, 0.045, 0.045), (0, 0, 0, 0.088, 0, 0, 0.042))),
    Link(0.088, 1, 0.0, -_PI, _PI, 12.0, 0.35973, (0.00089, -0.00044, 0.05491),
         (0.0001954, 0.0001921, 0.0001794, 0.0000017, 0.0000015, -0.0000013),
         ((0, 0, -0.02, 0, 0, 0.06, 0.042),)),
)  # fmt: skip
"""From the base to the flange. The published inertia of link 4 belongs to no rigid body: its principal moments break
the triangle inequality by 0.0011 kg m^2, so that is added to each of xx, yy, zz."""
FLANGE = 0.107
"""From the last link's frame to the flange along z [m]."""

_NO_MULTICCD = '<flag multiccd="disable"/>'
"""One contact per pair: where a slightly tilted peg just touches a wall, MuJoCo 3.17's search for further contacts now
and then reports one as deep as the wall is thick, and the peg is shot out of the hole."""
_ROWS = [0, 1, 2, 5, 3, 4]
"""Rows of a Jacobian (velocity, angular velocity) in the order of the actuators."""
_LIGHT, _DARK = "0.92 0.93 0.94 1", "0.25 0.27 0.3 1"
_HAND = f"""
<body name="hand" gravcomp="1" pos="0 0 {FLANGE + TCP_OFFSET}" quat="0 {np.cos(np.pi / 8)} {-np.sin(np.pi / 8)} 0">
  <inertial pos="0 0 0.12" mass="{WRIST_MASS}" diaginertia="0.0003 0.0003 0.0003"/>
  <geom type="cylinder" fromto="0 0 0.14 0 0 0.19" size="0.036" rgba="{_LIGHT}" {VISUAL}/>
  <geom type="cylinder" fromto="0 0 0.112 0 0 0.14" size="0.034" rgba="{_DARK}" {VISUAL}/>
  <geom type="cylinder" fromto="0 0 0.088 0 0 0.112" size="0.02" rgba="0.4 0.4 0.45 1" {VISUAL}/>
  <camera name="wrist" pos="0 -0.075 0.105" xyaxes="1 0 0 0 0.8 0.6" fovy="60"/>
  {{tip}}
</body>"""
_ACTUATORS = "".join(
    f'<position name="{name}" site="tcp" refsite="base" gear="{gear}"/>'
    for name, gear in (
        ("x", "1 0 0 0 0 0"),
        ("y", "0 1 0 0 0 0"),
        ("z", "0 0 1 0 0 0"),
        ("yaw", "0 0 0 0 0 1"),
        ("roll", "0 0 0 1 0 0"),
        ("pitch", "0 0 0 0 1 0"),
    )
)


def arm_xml(scene: Scene, tool: Tool) -> str:
    """Return the MJCF of the arm over a task's fixture."""
    body = _HAND.format(tip=tip_xml(scene))
    for number in range(len(LINKS), 0, -1):
        link = LINKS[number - 1]
        turn = link.alpha * np.pi / 4.0
        inertia = " ".join(map(str, link.inertia))
        offset = np.array([link.a, -np.sin(2.0 * turn) * link.d, np.cos(2.0 * turn) * link.d])
        look = _DARK if number in (3, 5) else _LIGHT
        body = (
            f'<body name="link{number}" gravcomp="1" pos="{_words(offset)}" quat="{np.cos(turn)} {np.sin(turn)} 0 0">'
            f'<inertial mass="{link.mass}" pos="{_words(link.centre)}" fullinertia="{inertia}"/>'
            f'<joint name="joint{number}" axis="0 0 1" range="{np.degrees(link.low)} {np.degrees(link.high)}" '
            f'armature="{ROTOR_INERTIA}" damping="{JOINT_DAMPING}" actuatorgravcomp="true" '
            f'actuatorfrcrange="{-link.torque} {link.torque}"/>'
            + "".join(
                f'<geom type="capsule" fromto="{_words(part[:6])}" size="{part[6]}" rgba="{look}" {VISUAL}/>'
                for part in link.shape
            )
            + f"{body}</body>"
        )
    robot = (
        '<site name="base" rgba="0 0 0 0"/>'
        '<camera name="cell" pos="0.95 -1.15 0.75" xyaxes="0.83 0.56 0 -0.22 0.32 0.92" fovy="45"/>'
        f'<body name="pedestal" pos="{_words(BASE)}">'
        f'<geom type="cylinder" fromto="0 0 0 0 0 0.14" size="0.065" rgba="{_LIGHT}" {VISUAL}/>'
        f'<geom type="box" size="0.1 0.1 0.02" pos="0 0 -0.02" rgba="{_DARK}" {VISUAL}/>{body}</body>'
    )
    joints = "".join(f'<joint joint="joint{number}" coef="1"/>' for number in range(1, len(LINKS) + 1))
    return scene_xml(
        scene,
        tool,
        robot=robot,
        actuators=f'{_ACTUATORS}<position name="posture" tendon="posture"/>',
        extra=f'<option>{_NO_MULTICCD}</option><tendon><fixed name="posture">{joints}</fixed></tendon>',
        pair=f'solreffriction="{FRICTION_SOLREF} 1"',
    )


def _words(values: Array | tuple[float, ...]) -> str:
    return " ".join(str(float(value)) for value in values)


class Arm:
    """The arm; see :class:`burnish.envs.contact.tool.Machine`."""

    view = "cell"

    def __init__(self, scene: Scene, tool: Tool) -> None:
        """Compile the arm over a task's fixture."""
        self.model = mujoco.MjModel.from_xml_string(arm_xml(scene, tool))
        self.data = mujoco.MjData(self.model)
        self.position = self.data.actuator_length[: scene.entries]
        self.protocol: Mapping[str, Any] = {
            "robot": "arm",
            "mass": APPARENT_MASS,
            "tilt_stiffness": TILT_STIFFNESS,
            "yaw_stiffness": YAW_STIFFNESS,
            "rotor_inertia": ROTOR_INERTIA,
            "joint_damping": JOINT_DAMPING,
            "friction_solref": FRICTION_SOLREF,
        }
        self._tool = replace(tool, mass=APPARENT_MASS)
        self._entries = scene.entries
        self._tcp = int(self.model.site("tcp").id)
        self._limit = self.model.jnt_actfrcrange[:, 1].copy()
        self._full = np.zeros((2, 6))
        self._scale = 1.0
        self._jacobian = np.zeros((6, self.model.nv))
        self._inertia = np.zeros((self.model.nv, self.model.nv))

    def place(self, pose: Array, scale: float) -> None:
        """Put the TCP at ``pose`` (4,) in the base frame, at rest, with stiffness times ``scale``."""
        turning = np.array([YAW_STIFFNESS, TILT_STIFFNESS, TILT_STIFFNESS])
        self._full[:, :3] = [[self._tool.stiffness * scale], [self._tool.damping(scale)]]
        self._full[:, 3:] = turning, 2.0 * np.sqrt(turning * APPARENT_INERTIA)
        self._scale = 1.0
        self._gain(slice(0, 6), *self._full)
        target = np.zeros(6)
        target[: self._entries] = pose[: self._entries]
        self._solve(target)
        self._rest = self.data.qpos.copy()
        self.data.ctrl[:6] = target
        self._hold_posture()

    def step(self) -> None:
        """Take one physics step, and scale the wrench of the next one to what the joints can bear."""
        mujoco.mj_step(self.model, self.data)
        if self._scale < 1.0 or bool((np.abs(self.data.qfrc_actuator) >= self._limit).any()):
            self._bound_wrench()

    def update(self) -> None:
        """Bring pose and Jacobian up to the joints, which the last physics step moved, and turn the posture along."""
        mujoco.mj_fwdPosition(self.model, self.data)
        self._hold_posture()

    def velocity(self) -> Array:
        """Return the TCP velocity (3,) in the base frame [m/s]."""
        jacobian = np.zeros((3, self.model.nv))
        mujoco.mj_jacSite(self.model, self.data, jacobian, None, self._tcp)
        moving: Array = jacobian @ self.data.qvel
        return moving

    def _gain(self, which: slice, stiffness: float | Array, damping: float | Array) -> None:
        model = self.model
        model.actuator_gainprm[which, 0] = stiffness
        model.actuator_biasprm[which, 1] = -np.asarray(stiffness)
        model.actuator_biasprm[which, 2] = -np.asarray(damping)

    def _bound_wrench(self) -> None:
        model, data = self.model, self.data
        mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._tcp)
        torque = data.actuator_force[:6] / self._scale @ self._jacobian[_ROWS]
        left = RESERVE * self._limit - data.qfrc_gravcomp * np.sign(torque)
        self._scale = min(1.0, float((left / np.maximum(np.abs(torque), 1e-9)).min()))
        self._gain(slice(0, 6), *(self._scale * self._full))

    def _solve(self, target: Array) -> None:
        """Find joint angles for ``target`` (6,) by Newton's method, with the smallest steps away from READY."""
        model, data = self.model, self.data
        data.qpos[:] = READY
        for _ in range(30):
            mujoco.mj_fwdPosition(model, data)
            error = target - data.actuator_length[:6]
            if np.abs(error).max() < 1e-11:
                break
            mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._tcp)
            data.qpos[:] += np.linalg.pinv(self._jacobian[_ROWS]) @ error
        low, high = model.jnt_range[:, 0], model.jnt_range[:, 1]
        if np.abs(error).max() > 1e-6 or (data.qpos < low).any() or (data.qpos > high).any():
            raise EnvError(
                f"The arm does not reach x, y, z, yaw = {target[:4].round(4).tolist()} in its base frame: inverse "
                f"kinematics ends at {data.qpos.round(3).tolist()}, joint limits are {low.round(3).tolist()} to "
                f"{high.round(3).tolist()}. Use a narrower bias, or robot='tool'."
            )

    def _hold_posture(self) -> None:
        """Lay the posture's torque along M n at the present pose."""
        model, data = self.model, self.data
        mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._tcp)
        mujoco.mj_fullM(model, data, self._inertia)
        free = np.linalg.svd(self._jacobian)[2][-1]
        along = self._inertia @ free
        mass = float(free @ along)
        model.wrap_prm[:] = along
        self._gain(slice(6, 7), POSTURE_RATE**2 / mass, 2.0 * POSTURE_RATE / mass)
        data.ctrl[6] = along @ self._rest
