"""Runs inside the side environment as the robot's driver: publishes joints and a picture, follows trajectories.

Imports nothing of burnish. Prints one JSON line when it ends: what it was commanded.
"""

import ros_wheels_bootstrapper  # noqa: F401, I001  (starts the process again with the libraries' path; must be first)

import json
import os
import sys
import threading
import time

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

PERIOD_S = 0.02


class Driver(Node):
    def __init__(self) -> None:
        super().__init__("driver")
        self.joints = self.create_publisher(JointState, "/joint_states", qos_profile_sensor_data)
        self.camera = self.create_publisher(Image, "/camera/image", qos_profile_sensor_data)
        self.create_subscription(JointTrajectory, "/arm/joint_trajectory", self.follow, 10)
        self.at = {"wrist": 0.2, "elbow": 0.1}
        self.commands: list[dict[str, object]] = []
        self.ticks = 0
        self.create_timer(PERIOD_S, self.publish)

    def publish(self) -> None:
        stamp = self.get_clock().now().to_msg()
        joints = JointState(name=list(self.at), position=list(self.at.values()), velocity=[0.0, 0.0])
        joints.header.stamp = stamp
        self.joints.publish(joints)
        self.ticks += 1
        pixels = np.zeros((8, 6, 3), np.uint8)
        pixels[..., 0] = self.ticks % 256  # blue
        image = Image(height=8, width=6, encoding="bgr8", step=18, data=pixels.tobytes())
        image.header.stamp = stamp
        if "frozen" not in sys.argv or len(self.commands) < 10:
            self.camera.publish(image)

    def follow(self, message: JointTrajectory) -> None:
        (point,) = message.points
        seconds = point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec
        self.commands.append({"names": list(message.joint_names), "at": list(point.positions), "after": seconds})
        self.at.update(zip(message.joint_names, point.positions, strict=True))


def main() -> None:
    rclpy.init()
    driver = Driver()
    executor = SingleThreadedExecutor()
    executor.add_node(driver)
    thread = threading.Thread(target=executor.spin, daemon=True)
    thread.start()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.read()  # until the test closes it
    time.sleep(0.2)
    print(json.dumps(driver.commands), flush=True)  # noqa: T201
    os._exit(0)  # a spinning executor does not end in order


if __name__ == "__main__":
    main()
