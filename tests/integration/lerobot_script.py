"""Runs lerobot's own robot client or policy server, unmodified, in a process of its own; imports nothing of burnish."""

import json
import math
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.robots import Robot, RobotConfig

JOINTS = ("shoulder.pos", "elbow.pos", "gripper.pos")


@RobotConfig.register_subclass("sinusoid_arm")
@dataclass(kw_only=True)
class SinusoidArmConfig(RobotConfig):
    camera: tuple[int, int, int] = (8, 6, 3)
    sent: list[dict[str, Any]] = field(default_factory=list)


class SinusoidArm(Robot):
    """A robot whose joints follow sinusoids whatever it is sent; it remembers what it was sent."""

    config_class = SinusoidArmConfig
    name = "sinusoid_arm"

    def __init__(self, config: SinusoidArmConfig) -> None:
        super().__init__(config)
        self.config = config
        self._connected = False

    @property
    def observation_features(self) -> dict[str, Any]:
        return {**dict.fromkeys(JOINTS, float), "wrist": self.config.camera}

    @property
    def action_features(self) -> dict[str, Any]:
        return dict.fromkeys(JOINTS, float)

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def is_calibrated(self) -> bool:
        return True

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True

    def calibrate(self) -> None:
        pass

    def configure(self) -> None:
        pass

    def get_observation(self) -> dict[str, Any]:
        now = time.monotonic()
        joints = {name: math.sin(now + n) for n, name in enumerate(JOINTS)}
        return {**joints, "wrist": np.full(self.config.camera, 7, np.uint8)}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.config.sent.append(action)
        return action

    def disconnect(self) -> None:
        self._connected = False


def run_client(address: str, seconds: str) -> None:
    """Execute actions at 20 Hz, and print what happened."""
    from lerobot.async_inference.configs import RobotClientConfig
    from lerobot.async_inference.robot_client import RobotClient

    robot = SinusoidArmConfig(id="arm", calibration_dir=Path(tempfile.mkdtemp()))
    config = RobotClientConfig(
        policy_type="act",
        pretrained_name_or_path="hub/of-the-client",
        robot=robot,
        actions_per_chunk=16,
        task="press the plate",
        server_address=address,
        fps=20,
    )
    client = RobotClient(config)
    if not client.start():
        print(json.dumps({"started": False}))  # noqa: T201
        return
    threads = [
        threading.Thread(target=client.receive_actions, daemon=True),
        threading.Thread(target=client.control_loop, args=(config.task,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    timesteps = []
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        timesteps.append(client.latest_action)
        time.sleep(0.01)
    client.stop()
    for thread in threads:
        thread.join(5)
    timesteps.append(client.latest_action)
    print(json.dumps({"started": True, "sent": robot.sent, "timesteps": timesteps}))  # noqa: T201


def run_server(port: str) -> None:
    """Serve until standard input ends."""
    from concurrent import futures

    import grpc
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import PolicyServer
    from lerobot.transport import services_pb2_grpc

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(PolicyServer(PolicyServerConfig(port=int(port))), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.read()
    server.stop(0)


if __name__ == "__main__":
    {"client": run_client, "server": run_server}[sys.argv[1]](*sys.argv[2:])
