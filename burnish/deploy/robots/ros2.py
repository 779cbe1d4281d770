"""A ROS 2 robot: JointState and Image in, JointTrajectory out, through the system's ``rclpy``.

Each action becomes a trajectory of one point, to be reached one control step later, which is what a
``joint_trajectory_controller`` follows. The newest message of each topic is used; how old it is counts, so that a
camera or a driver that fell silent stops the run.
"""

import importlib.util
import io
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ConfigError, EnvError, MissingExtraError
from burnish.core.spec import Array, EnvSpec, PolicySpec
from burnish.deploy.robot import Clock, Outcome, Sensed
from burnish.deploy.robots.wiring import (
    DEFAULT_CONTROL_DT,
    Wiring,
    WiringConfig,
    control_step,
    offer,
    robot_spec,
)

_LOG = logging.getLogger(__name__)
_NAME = "ros2"
_POSITION = ".pos"
_CHANNELS = {"rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "mono8": (0, 0, 0)}
"""Encoding to the channels that are red, green and blue."""
_WIDTH = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}
_MAX_SKEW_S = 0.05
"""A stamp further in the future than this comes from a clock that is not ours [s]."""


@dataclass(frozen=True)
class Config:
    """Topics, and how they are wired to a policy."""

    joint_topic: str = "/joint_states"
    """sensor_msgs/JointState; a joint ``j`` is read as ``j.pos``, ``j.vel`` and ``j.effort``."""
    cameras: tuple[str, ...] = ()
    """``name=/topic`` each: sensor_msgs/Image, or CompressedImage where the topic ends in ``/compressed``."""
    command_topic: str = "/joint_trajectory_controller/joint_trajectory"
    """trajectory_msgs/JointTrajectory."""
    lead_s: float = 0.0
    """``time_from_start`` of the point [s]; 0 for one control step."""
    stamp_commands: bool = False
    """Whether commands carry the time; without, a controller begins at once, also where its clock differs."""
    age: Literal["stamp", "arrival"] = "stamp"
    """Whether an observation is as old as its header says, or as its arrival here; headers need synchronised clocks."""
    reliable_commands: bool = True
    """Quality of service of commands; observations are read as sensor data (best effort), which fits either."""
    connect_timeout_s: float = 10.0
    """How long to wait for the first message of every topic [s]."""
    node: str = "burnish"
    """Name of the node."""
    control_dt: float = 0.0
    """Seconds between two actions; 0 for the policy's own."""
    wiring: WiringConfig = field(default_factory=WiringConfig)
    """Which readings and commands belong to which entries."""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if min(self.lead_s, self.control_dt) < 0 or self.connect_timeout_s <= 0:
            raise ConfigError(
                "ros2: lead_s and control_dt must not be negative and connect_timeout_s must be positive, found "
                f"{self.lead_s}, {self.control_dt}, {self.connect_timeout_s}."
            )
        for item in self.cameras:
            name, separator, topic = item.partition("=")
            if not separator or not name or not topic.startswith("/"):
                raise ConfigError(f"ros2: cameras wants name=/topic, found '{item}'.")


@dataclass(frozen=True)
class Message:
    """The newest message of a topic."""

    value: Any
    arrived: float
    """Monotonic time [s]."""
    age: float
    """How old it was when it arrived, by its header; 0.0 where that is not known [s]."""


class Ros2Robot:
    """A node of its own in a thread of its own; a context manager."""

    spec: EnvSpec

    def __init__(self, config: Config, clock: Clock) -> None:
        """Start the node and wait for the first message of every topic.

        Args:
            config: Topics and wiring.
            clock: The runtime's clock.

        Raises:
            MissingExtraError: If there is no rclpy.
            EnvError: If a topic stays silent.
            ConfigError: If the clock is simulated.
        """
        if clock.simulated:
            raise ConfigError("A ROS 2 robot moves in real time; set --runtime.clock real.")
        self._config = config
        self._clock = clock
        self._dt = config.control_dt
        self._newest: dict[str, Message] = {}
        self._arrival = threading.Condition()
        self._warned = False
        self._cameras = dict(item.split("=", 1) for item in config.cameras)
        self._executor: Any = None
        self._open()
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def offer(self) -> EnvSpec:
        """Return what it offers to a policy that does not say what it reads."""
        return offer(
            _NAME,
            self._config.wiring,
            numbers=list(self._joints()),
            pictures={name: self._picture(name).shape for name in self._cameras},
            commands=self._commands(),
            control_dt=self._dt or DEFAULT_CONTROL_DT,
        )

    def wire(self, policy: PolicySpec, control_dt: float) -> None:
        """Wire it to a policy; only then it has a ``spec``, and can be observed.

        Args:
            policy: What drives it.
            control_dt: The policy's seconds between two actions, where the configuration names none; 0.0 for unknown.

        Raises:
            ConfigError: If names do not fit, or no control step is known.
        """
        self._dt = control_step(self._config.control_dt, control_dt)
        self.wiring = Wiring(
            self._config.wiring,
            policy,
            numbers=list(self._joints()),
            pictures={name: self._picture(name).shape for name in self._cameras},
            commands=self._commands(),
            where=_NAME,
        )
        self.spec = robot_spec(_NAME, policy, self._config.wiring, self._dt)

    def _joints(self) -> dict[str, float]:
        return joint_readings(self._newest[self._config.joint_topic].value)

    def _commands(self) -> list[str]:
        return [name + _POSITION for name in self._newest[self._config.joint_topic].value.name]

    def _picture(self, name: str) -> Array:
        return picture(self._newest[self._cameras[name]].value, name)

    def observe(self) -> Sensed:
        """Return the newest message of each topic; the observation is as old as the oldest of them.

        Raises:
            EnvError: If an image has an encoding that is not known.
        """
        config = self._config
        with self._arrival:
            newest = dict(self._newest)
        now, moment = time.monotonic(), self._clock.now()
        readings: dict[str, Any] = joint_readings(newest[config.joint_topic].value)
        oldest = self._age(newest[config.joint_topic], now)
        camera_time: dict[str, float] = {}
        for key, name in self.wiring.cameras.items():
            message = newest[self._cameras[name]]
            readings[name] = picture(message.value, name)
            age = self._age(message, now)
            camera_time[key] = moment - age
            oldest = max(oldest, age)
        return Sensed(
            self.wiring.observation(readings), moment - oldest, camera_time, action=self.wiring.actual(readings)
        )

    def send(self, action: Array) -> Outcome:
        """Publish one action (A,)."""
        from builtin_interfaces.msg import Duration  # type: ignore[import-not-found]
        from trajectory_msgs.msg import (  # type: ignore[import-not-found]
            JointTrajectory,
            JointTrajectoryPoint,
        )

        command = self.wiring.command(action)
        seconds, rest = divmod(round((self._config.lead_s or self._dt) * 1e9), 10**9)
        point = JointTrajectoryPoint(
            positions=list(command.values()), time_from_start=Duration(sec=seconds, nanosec=rest)
        )
        names = [name.removesuffix(_POSITION) for name in command]
        trajectory = JointTrajectory(joint_names=names, points=[point])
        if self._config.stamp_commands:
            trajectory.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(trajectory)
        return Outcome()

    def stop(self, action: Array) -> None:
        """Command the position that the safety chain holds for safe."""
        self.send(action)

    def close(self) -> None:
        """End the node; may be called twice."""
        if self._executor is not None:
            self._executor.shutdown()
            self._thread.join()
            self._node.destroy_node()
            self._context.try_shutdown()
            self._executor = None

    def __enter__(self) -> "Ros2Robot":
        """Return the robot."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the node."""
        self.close()

    def _open(self) -> None:
        if importlib.util.find_spec("rclpy") is None:
            raise MissingExtraError(
                "The package 'rclpy' is needed for a ROS 2 robot. It comes with ROS 2 itself: install ROS 2, run "
                "'source /opt/ros/<distribution>/setup.bash', and use a virtual environment of the same Python, made "
                "with --system-site-packages."
            )
        import rclpy
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.node import Node
        from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
        from rclpy.signals import SignalHandlerOptions
        from sensor_msgs.msg import CompressedImage, Image, JointState  # type: ignore[import-not-found]
        from trajectory_msgs.msg import JointTrajectory

        config = self._config
        self._context: Any = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node: Any = Node(config.node, context=self._context)
        kind = ReliabilityPolicy.RELIABLE if config.reliable_commands else ReliabilityPolicy.BEST_EFFORT
        self._publisher = self._node.create_publisher(
            JointTrajectory, config.command_topic, QoSProfile(depth=1, reliability=kind)
        )
        self._topics: dict[str, Any] = {config.joint_topic: JointState}
        self._topics |= {
            topic: CompressedImage if topic.endswith("/compressed") else Image for topic in self._cameras.values()
        }
        for topic, message_type in self._topics.items():
            self._node.create_subscription(message_type, topic, self._callback(topic), qos_profile_sensor_data)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._executor.spin, name="ros2", daemon=True)
        self._thread.start()

    def _callback(self, topic: str) -> Any:
        def take(value: Any) -> None:
            now = time.monotonic()
            message = Message(value, now, self._header_age(value))
            with self._arrival:
                self._newest[topic] = message
                self._arrival.notify_all()

        return take

    def _header_age(self, value: Any) -> float:
        stamp = value.header.stamp
        if self._config.age == "arrival" or (stamp.sec == 0 and stamp.nanosec == 0):
            return 0.0
        now = self._node.get_clock().now().nanoseconds
        age = (now - stamp.sec * 10**9 - stamp.nanosec) * 1e-9
        if age < -_MAX_SKEW_S and not self._warned:
            self._warned = True
            _LOG.warning(
                "a message is stamped %.3g s in the future: the clocks differ. Synchronise them, or set --adapter.age "
                "arrival.",
                -age,
            )
        return max(float(age), 0.0)

    def _age(self, message: Message, now: float) -> float:
        return now - message.arrived + message.age

    def _wait(self) -> None:
        deadline = time.monotonic() + self._config.connect_timeout_s
        with self._arrival:
            while set(self._topics) - set(self._newest):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._arrival.wait(left)
        silent = set(self._topics) - set(self._newest)
        if silent:
            known = ", ".join(f"{name} ({', '.join(kinds)})" for name, kinds in self._node.get_topic_names_and_types())
            raise EnvError(
                f"No message on {', '.join(sorted(silent))} within {self._config.connect_timeout_s:.3g} s. Topics that "
                f"are there: {known or 'none'}. Check names, ROS_DOMAIN_ID, and that the driver runs."
            )


def joint_readings(message: Any) -> dict[str, float]:
    """Return the numbers of a JointState by name: ``j.pos``, and ``j.vel`` and ``j.effort`` where it has them."""
    readings: dict[str, float] = {}
    for suffix, values in ((_POSITION, message.position), (".vel", message.velocity), (".effort", message.effort)):
        if len(values) == len(message.name):
            readings |= {name + suffix: float(value) for name, value in zip(message.name, values, strict=True)}
    return readings


def picture(message: Any, name: str) -> Array:
    """Return the (H, W, 3) uint8 picture of an Image or CompressedImage.

    Args:
        message: The message.
        name: Of the camera, for errors.

    Raises:
        EnvError: If its encoding is not known, or its size does not fit its data.
    """
    if hasattr(message, "format"):
        return _decoded(bytes(message.data), name)
    encoding = message.encoding
    if encoding not in _CHANNELS:
        raise EnvError(f"Camera '{name}' sends encoding '{encoding}'; known are {', '.join(_CHANNELS)}.")
    width, row = _WIDTH[encoding], message.step or message.width * _WIDTH[encoding]
    data = np.frombuffer(message.data, np.uint8)
    if data.size != row * message.height or row < message.width * width:
        raise EnvError(
            f"Camera '{name}' announces {message.height} rows of {row} bytes and sends {data.size} bytes: damaged."
        )
    pixels = data.reshape(message.height, row)[:, : message.width * width].reshape(message.height, message.width, width)
    return np.ascontiguousarray(pixels[..., list(_CHANNELS[encoding])])


def _decoded(data: bytes, name: str) -> Array:
    import av

    try:
        kind = "png_pipe" if data[:4] == b"\x89PNG" else "jpeg_pipe"
        with av.open(io.BytesIO(data), "r", format=kind) as container:
            decoded: Array = next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.FFmpegError, StopIteration) as error:
        raise EnvError(f"Camera '{name}' sent a compressed image that cannot be read: {error}.") from error
    return decoded
