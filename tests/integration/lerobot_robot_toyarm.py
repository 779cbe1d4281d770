"""A third-party robot for LeRobot, as a plugin package would hold it: a point whose commands are velocities.

It writes what is done to it, one JSON line each, into the file that its configuration names as its port.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot.robots import Robot, RobotConfig


@RobotConfig.register_subclass("toyarm")
@dataclass
class ToyArmConfig(RobotConfig):
    port: str
    max_speed: float = 1.0


class ToyArm(Robot):
    config_class = ToyArmConfig
    name = "toyarm"

    def __init__(self, config: ToyArmConfig) -> None:
        super().__init__(config)
        self.config = config
        self._connected = False
        self._at = {"y.pos": 0.5, "x.pos": -0.5}

    @property
    def observation_features(self) -> dict[str, Any]:
        return dict.fromkeys(("goal_y", "goal_x", "vy", "vx", "y.pos", "x.pos"), float)

    @property
    def action_features(self) -> dict[str, Any]:
        return {"y.pos": float, "x.pos": float}

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def is_calibrated(self) -> bool:
        return True

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True
        self._write({"connect": calibrate})

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_observation(self) -> dict[str, Any]:
        assert self._connected
        return {**self._at, "vx": 0.0, "vy": 0.0, "goal_x": 0.0, "goal_y": 0.0}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        sent = {key: max(min(value, self.config.max_speed), -self.config.max_speed) for key, value in action.items()}
        self._at = {key: value + 0.05 * sent[key] for key, value in self._at.items()}
        self._write({"action": sent})
        return sent

    def disconnect(self) -> None:
        self._connected = False
        self._write({"disconnect": True})

    def _write(self, line: dict[str, Any]) -> None:
        with Path(self.config.port).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
