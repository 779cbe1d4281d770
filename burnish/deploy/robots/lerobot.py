"""Any robot that lerobot knows, its own or a plugin's, driven by the runtime.

Nothing of lerobot is imported here: the robot is built by the command line, or by you, and handed in.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Device(Protocol):
    """The part of ``lerobot.robots.Robot`` that is used."""

    name: str

    @property
    def observation_features(self) -> dict[str, Any]:
        """Name of each reading to ``float``, or to (H, W, 3)."""
        ...

    @property
    def action_features(self) -> dict[str, Any]:
        """Name of each command to ``float``."""
        ...

    def get_observation(self) -> dict[str, Any]:
        """Return all readings."""
        ...

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Send commands; return those that were really sent."""
        ...


@dataclass(frozen=True)
class Config:
    """How a lerobot robot is wired to a policy."""

    wiring: WiringConfig = field(default_factory=WiringConfig)
    """Which readings and commands belong to which entries."""
    control_dt: float = 0.0
    """Seconds between two actions; 0 for the policy's own."""


class LeRobotRobot:
    """A lerobot robot as :class:`burnish.deploy.robot.Robot`.

    lerobot reads synchronously: ``observe`` asks motors and cameras, and takes as long as that takes. The observation
    is stamped with the moment before, so a slow bus shows as an old observation, and the runtime's limits apply to it.
    """

    spec: EnvSpec

    def __init__(self, device: Device, config: Config, clock: Clock) -> None:
        """Take a lerobot robot, which need not be connected before it is observed.

        Args:
            device: A lerobot robot.
            config: How it is wired.
            clock: The runtime's clock.
        """
        self.changed = 0
        """How often the robot itself sent something else than it was told, for example by ``max_relative_target``."""
        self._device = device
        self._config = config
        self._clock = clock
        self._name = f"lerobot:{device.name}"
        readings = device.observation_features
        self._numbers = [key for key, kind in readings.items() if not isinstance(kind, tuple)]
        self._pictures = {key: kind for key, kind in readings.items() if isinstance(kind, tuple)}
        self._commands = list(device.action_features)

    def offer(self) -> EnvSpec:
        """Return what it offers to a policy that does not say what it reads."""
        return offer(
            self._name,
            self._config.wiring,
            numbers=self._numbers,
            pictures=self._pictures,
            commands=self._commands,
            control_dt=self._config.control_dt or DEFAULT_CONTROL_DT,
        )

    def wire(self, policy: PolicySpec, control_dt: float) -> None:
        """Wire it to a policy; only then it has a ``spec``, and can be observed.

        Args:
            policy: What drives it.
            control_dt: The policy's seconds between two actions, where the configuration names none; 0.0 for unknown.

        Raises:
            ConfigError: If names do not fit, or no control step is known.
        """
        dt = control_step(self._config.control_dt, control_dt)
        self.wiring = Wiring(
            self._config.wiring,
            policy,
            numbers=self._numbers,
            pictures=self._pictures,
            commands=self._commands,
            where=self._name,
        )
        self.spec = robot_spec(self._name, policy, self._config.wiring, dt)

    def observe(self) -> Sensed:
        """Read motors and cameras."""
        begin = self._clock.now()
        readings = self._device.get_observation()
        return Sensed(self.wiring.observation(readings), begin, action=self.wiring.actual(readings))

    def send(self, action: Array) -> Outcome:
        """Send one action (A,)."""
        wanted = self.wiring.command(action)
        sent = self._device.send_action(dict(wanted))
        if isinstance(sent, dict) and any(
            abs(float(sent.get(key, value)) - value) > 1e-6 for key, value in wanted.items()
        ):
            self.changed += 1
        return Outcome()

    def stop(self, action: Array) -> None:
        """Send the action that the safety chain holds for safe; torque stays on until the robot is disconnected."""
        self._device.send_action(self.wiring.command(action))
