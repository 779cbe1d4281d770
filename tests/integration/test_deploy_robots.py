"""Robots of other people's packages under the runtime: a LeRobot plugin, found and driven from the command line."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.cli.acting import load_acting
from burnish.cli.main import main
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Server, running
from burnish.deploy.ticklog import read_ticks

NUMBERS = ("--num_envs", "4", "--policy.hidden", "16", "--numbers.rollout_chunks", "8", "--numbers.iterations", "1")
PATIENT = ("--runtime.max_late_s", "5", "--runtime.max_observation_age_s", "5", "--runtime.max_stall_s", "0")
"""A loaded machine is no reason to stop."""
PLUGIN = Path(__file__).with_name("lerobot_robot_toyarm.py")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robots")
    assert main(["train", "ppo", "--out", str(folder / "run"), *NUMBERS]) == 0
    assert main(["export", str(folder / "run"), "--out", str(folder / "onnx")]) == 0
    return folder / "onnx"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The plugin on the path, as an installer would leave it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(PLUGIN, folder / PLUGIN.name)
    about = folder / "lerobot_robot_toyarm-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lerobot_robot_toyarm\nVersion: 0.1\n")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def burnish(*arguments: str | Path) -> int:
    return main(["deploy", *map(str, arguments)])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_plugin_robot_is_driven_by_name_and_disconnected(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, log = tmp_path / "port", tmp_path / "log"
    status = burnish(
        *(exported, "--robot", "lerobot:toyarm", f"--robot.port={port}", "--robot.max_speed", "0.5", *PATIENT),
        *("--runtime.max_ticks", "15", "--out", log, "--record"),
    )
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "observation.state  float32[6]" in printed
    lines = read(port)
    assert lines[0] == {"connect": True}
    assert lines[-1] == {"disconnect": True}
    actions = [line["action"] for line in lines if "action" in line]
    sent = [row["sent"] for row in read_ticks(log / "000")[1] if "sent" in row]
    assert len(sent) >= 10
    for command, action in zip(actions, sent, strict=False):
        wanted = np.clip(action, -0.5, 0.5)
        assert (command["x.pos"], command["y.pos"]) == pytest.approx(tuple(wanted), abs=1e-6)
    assert main(["deploy", "export-log", str(log), "--out", str(tmp_path / "dataset")]) == 0


def test_dry_run_and_shadow_move_nothing(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = tmp_path / "port"
    robot = (exported, "--robot", "lerobot:toyarm", f"--robot.port={port}", *PATIENT, "--runtime.max_ticks", "5")
    assert burnish(*robot, "--dry-run", "--out", tmp_path / "dry") == 0
    assert burnish(*robot, "--shadow", "operator", "--out", tmp_path / "shadow") == 0
    assert "agreement over" in capsys.readouterr().out
    assert [next(iter(line)) for line in read(port)] == ["connect", "disconnect"] * 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--robot", "lerobot:toyarm", "--adapter.wiring.act", "x.pos", "z.pos"), "lerobot:toyarm has no 'z.pos'"),
        (("--robot", "lerobot:toyarm", "--robot.prt=x"), "does not accept these options of 'toyarm'"),
        (("--robot", "lerobot:toyarms"), "Did you mean 'toyarm'?"),
    ],
)
def test_mistakes_are_found_before_the_robot_is_connected(
    arguments: tuple[str, ...], match: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = tmp_path / "port"
    port_option = () if any(item.startswith("--robot.") for item in arguments) else (f"--robot.port={port}",)
    assert burnish(exported, *arguments, *port_option, "--out", tmp_path / "log") == 2
    assert match in capsys.readouterr().err
    assert not port.exists()


def test_a_foreign_server_drives_what_the_robot_offers(exported: Path, tmp_path: Path) -> None:
    acting = load_acting(exported)
    port = tmp_path / "port"
    with running(Server(acting.policy, acting.identity(), ServerConfig(port=0))) as server:
        status = burnish(
            *("--remote", server.url, "--remote-keys", "state=observation.state"),
            *("--robot", "lerobot:toyarm", f"--robot.port={port}", *PATIENT, "--runtime.max_ticks", "5"),
            *("--adapter.wiring.observe", "observation.state=x.pos,y.pos,vx,vy,goal_x,goal_y"),
            *("--adapter.wiring.act", "x.pos", "y.pos", "--adapter.control_dt", "0.05", "--out", tmp_path / "log"),
        )
    assert status == 0
    assert sum("action" in line for line in read(port)) >= 4
