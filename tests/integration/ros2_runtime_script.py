"""Runs inside the side environment: burnish's runtime drives the driver's robot, without torch and without lerobot."""

import ros_wheels_bootstrapper  # noqa: F401, I001  (starts the process again with the libraries' path; must be first)

import json
import sys
from typing import Any

import numpy as np

from burnish.core.errors import BurnishError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.core.step import ActionSample
from burnish.deploy.robot import RealClock
from burnish.deploy.robots.ros2 import Config, Ros2Robot
from burnish.deploy.robots.wiring import WiringConfig
from burnish.deploy.runtime import Config as RuntimeConfig
from burnish.deploy.runtime import run

STATE, FRONT = "observation.state", "observation.images.front"


class Step:
    """Asks both joints to go a hundredth of a radian further."""

    spec = PolicySpec(
        "step",
        {STATE: ArraySpec((2,), unit="rad", names=("elbow", "wrist")), FRONT: ArraySpec((8, 6, 3), "uint8")},
        ArraySpec((2,), unit="rad", low=-3.0, high=3.0, names=("elbow", "wrist")),
        2,
    )
    colours: set[tuple[bool, bool]] = set()  # noqa: RUF012

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> ActionSample:
        picture = observation[FRONT][0]
        self.colours.add((bool(picture[..., 2].any()), bool(picture[..., :2].any())))
        chunk = observation[STATE][:, None] + 0.01 * np.arange(1, 3)[None, :, None]
        return ActionSample(chunk.astype(np.float32), np.zeros((1, 2), np.float32))


def main(topic: str, ticks: int) -> dict[str, Any]:
    config = Config(
        joint_topic=topic,
        cameras=("front=/camera/image",),
        command_topic="/arm/joint_trajectory",
        connect_timeout_s=15.0 if topic == "/joint_states" else 1.0,
        wiring=WiringConfig(task="go"),
    )
    clock, policy = RealClock(), Step()
    try:
        with Ros2Robot(config, clock) as robot:
            offered = robot.offer()
            robot.wire(policy.spec, 0.05)
            first = robot.observe().observation[STATE][0].tolist()
            limits = RuntimeConfig(
                clock="real", max_ticks=ticks, max_observation_age_s=1.0, max_late_s=1.0, max_stall_s=0
            )
            report = run(policy, robot, limits, clock=clock)
    except BurnishError as error:
        return {"error": str(error)}
    return {
        "offered": list(offered.observation[STATE].names),
        "picture": list(offered.observation[FRONT].shape),
        "first": first,
        "sent": report.action.tolist(),
        "stop": report.stop,
        "torch": "torch" in sys.modules,
        "colours": sorted(policy.colours),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))  # noqa: T201
