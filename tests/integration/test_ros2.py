"""A ROS 2 robot for real: a driver node and burnish's runtime, two processes of an environment with PyPI's rclpy."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PACKAGES = (
    *("ros-rclpy==9.1.2", "ros-rmw-fastrtps-cpp==9.3.3", "ros-sensor-msgs", "ros-trajectory-msgs", "ros-std-msgs"),
    *("numpy>=2", "msgpack", "websockets"),
)
HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def side_python() -> str:
    """Interpreter of an environment with rclpy; made once per machine, and kept."""
    folder = Path(tempfile.gettempdir()) / f"burnish-ros2-9.1.2-{os.getuid()}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        problem = _install(folder, python)
        if problem:
            pytest.skip(f"rclpy could not be installed (package index out of reach, or no wheel here?): {problem}")
        (folder / "complete").touch()
    return str(python)


def _install(folder: Path, python: Path) -> str:
    uv = shutil.which("uv")
    steps = (
        [
            [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", str(python)],
        ]
        if uv
        else [[sys.executable, "-m", "venv", "--clear", str(folder)], [str(python), "-m", "pip", "install"]]
    )
    for step in (steps[0], [*steps[1], *PACKAGES]):
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
        if done.returncode:
            return done.stderr.strip()[-500:] or f"{step[0]} ended with {done.returncode}"
    return ""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """A domain of one's own, so that no robot on the network hears of the test."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "ROS_DOMAIN_ID": str(1 + os.getpid() % 100),
        "ROS_LOCALHOST_ONLY": "1",
    }


@contextmanager
def driver(python: str, environment: dict[str, str], *arguments: str) -> Iterator[list[dict[str, Any]]]:
    """The robot's driver; the list is filled with its commands when the context ends."""
    commands: list[dict[str, Any]] = []
    command = [python, str(HERE / "ros2_driver_script.py"), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield commands
            out, error = process.communicate("", timeout=60)
            assert process.returncode == 0, error
            commands.extend(json.loads(out.splitlines()[-1]))
        finally:
            process.kill()


def runtime(python: str, environment: dict[str, str], topic: str, ticks: int) -> dict[str, Any]:
    done = subprocess.run(
        [python, str(HERE / "ros2_runtime_script.py"), topic, str(ticks)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_joint_states_and_pictures_become_trajectories(side_python: str, environment: dict[str, str]) -> None:
    with driver(side_python, environment) as commands:
        result = runtime(side_python, environment, "/joint_states", 40)
    assert result["stop"] == ""
    assert not result["torch"]
    assert result["offered"] == ["wrist.pos", "elbow.pos", "wrist.vel", "elbow.vel"]
    assert result["picture"] == [8, 6, 3]
    assert result["first"] == pytest.approx([0.1, 0.2]), "in the policy's order, which is not the driver's"
    assert result["colours"][-1] == [True, False], "what the camera calls blue arrives as blue"
    assert len(commands) >= 20
    assert all(command["names"] == ["elbow", "wrist"] for command in commands)
    assert all(command["after"] == pytest.approx(0.05) for command in commands)
    sent = [pytest.approx(row) for row in result["sent"]]
    assert all(command["at"] in sent for command in commands)
    assert commands[-1]["at"][0] > 0.2


def test_a_frozen_camera_stops_the_robot(side_python: str, environment: dict[str, str]) -> None:
    with driver(side_python, environment, "frozen"):
        result = runtime(side_python, environment, "/joint_states", 400)
    assert "same picture" in result["stop"] or "old" in result["stop"], result["stop"]
    assert len(result["sent"]) < 200


def test_a_silent_topic_is_named(side_python: str, environment: dict[str, str]) -> None:
    with driver(side_python, environment):
        result = runtime(side_python, environment, "/joint_state", 5)
    assert "No message on /joint_state within 1 s" in result["error"]
    assert "/joint_states (sensor_msgs/msg/JointState)" in result["error"]
