"""``burnish deploy`` with a policy that is local, exported, or behind a server; its logs; and training on them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from burnish.cli.acting import load_acting
from burnish.cli.deploy import PROTOCOLS, protocol_module
from burnish.cli.main import main
from burnish.core.errors import ConfigError
from burnish.data.dataset import read_lerobot
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Server, running
from burnish.deploy.ticklog import read_ticks

NUMBERS = (
    *("--num_envs", "4", "--policy.hidden", "16", "--numbers.rollout_chunks", "8", "--numbers.replan_steps", "4"),
    *("--numbers.iterations", "2"),
)


def burnish(*arguments: str | Path) -> int:
    return main([str(item) for item in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "run"
    assert burnish("train", "ppo", "--out", folder, *NUMBERS) == 0
    return folder


@pytest.fixture(scope="module")
def exported(finished: Path) -> Path:
    folder = finished.with_name("onnx")
    assert burnish("export", finished, "--out", folder) == 0
    return folder


@pytest.fixture(scope="module")
def server(finished: Path) -> Iterator[Server]:
    acting = load_acting(finished)
    with running(Server(acting.policy, acting.identity(), ServerConfig(port=0))) as server:
        yield server


def sent(log: Path) -> np.ndarray:
    return np.array([row["sent"] for row in read_ticks(log)[1] if "sent" in row])


def test_local_exported_and_remote_drive_the_same(
    finished: Path, exported: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ("--env", "point_mass", "--episodes", "2")
    assert burnish("deploy", finished, *env, "--out", tmp_path / "local") == 0
    assert "observation.state  float32[6]" in capsys.readouterr().out
    assert burnish("deploy", exported, *env, "--out", tmp_path / "exported") == 0
    assert burnish("deploy", "--remote", server.url, *env, "--out", tmp_path / "remote") == 0
    keys = ("--remote-keys", "observation/state=observation.state")
    assert burnish("deploy", "--remote", server.url, *env, *keys, "--out", tmp_path / "keys") == 0
    for name in ("000", "001"):
        local = sent(tmp_path / "local" / name)
        assert len(local) > 20
        np.testing.assert_allclose(sent(tmp_path / "exported" / name), local, atol=1e-4)
        np.testing.assert_array_equal(sent(tmp_path / "remote" / name), local)
    header, rows = read_ticks(tmp_path / "remote" / "000")
    assert header["config"]["chunking"]["replan_steps"] == 4, "as the server says, not the whole chunk"
    header, rows = read_ticks(tmp_path / "keys" / "000")
    assert rows[-1]["tick"] > 20
    capsys.readouterr()
    assert burnish("deploy", exported, "--replay", tmp_path / "local" / "000") in (0, 1)
    assert burnish("deploy", exported, "--replay", tmp_path / "local" / "000", "--tolerance", "1e-4") == 0
    assert "all within 0.0001 of the log" in capsys.readouterr().out
    assert burnish("deploy", finished, "--replay", tmp_path / "remote" / "000", "--tolerance", "-1") == 2


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "lerobot"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
from burnish.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_exported_folder_runs_where_torch_cannot_be_imported(exported: Path, tmp_path: Path) -> None:
    arguments = ["deploy", exported, "--env", "point_mass", "--out", tmp_path / "log", "--record"]
    command = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(sent(tmp_path / "log" / "000")) > 20


def test_a_recorded_run_becomes_a_dataset_that_is_trained_on(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, dataset = tmp_path / "log", tmp_path / "dataset"
    assert burnish("deploy", finished, "--env", "point_mass", "--episodes", "3", "--out", log, "--record") == 0
    assert burnish("deploy", "export-log", log, "--out", dataset) == 0
    assert "Wrote 3 of 3 episodes" in capsys.readouterr().out
    assert burnish("deploy", "export-log", log, "--out", dataset) == 2
    assert "exists already" in capsys.readouterr().err
    read = read_lerobot(dataset, tmp_path / "cache")
    assert read.num_episodes == 3
    lengths = [len(sent(log / f"{number:03d}")) for number in range(3)]
    assert (read.episode_bounds[:, 1] - read.episode_bounds[:, 0]).tolist() == lengths
    training = ("--numbers.steps", "3", "--policy.hidden", "8", "--policy.chunk_steps", "4")
    base = ("train", "pretrain", "--dataset", dataset, "--env", "point_mass", "--policy", "mlp")
    assert burnish(*base, "--out", tmp_path / "trained", *training) == 0
    assert burnish("eval", tmp_path / "trained", "--episodes", "2", "--videos", "0") == 0


def test_export_log_names_what_is_missing(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    assert burnish("deploy", finished, "--env", "point_mass", "--out", log) == 0
    assert burnish("deploy", "export-log", log, "--out", tmp_path / "dataset") == 2
    assert "kept by runs with --record" in capsys.readouterr().err
    assert burnish("deploy", "export-log", tmp_path / "nowhere", "--out", tmp_path / "dataset") == 2
    assert "There is no folder" in capsys.readouterr().err
    assert not (tmp_path / "dataset").exists()


def test_logs_for_viewers(finished: Path, tmp_path: Path) -> None:
    from mcap.reader import make_reader

    log = tmp_path / "log"
    formats = ("--log_formats", "rrd", "mcap")
    assert burnish("deploy", finished, "--env", "point_mass", "--out", log, "--record", *formats) == 0
    assert (log / "000" / "run.rrd").read_bytes()[:4] == b"RRF2"
    with (log / "000" / "run.mcap").open("rb") as file:
        messages = [
            (channel.topic, json.loads(message.data)) for _, channel, message in make_reader(file).iter_messages()
        ]
    ticks = [message for topic, message in messages if topic == "/tick"]
    assert [tick["tick"] for tick in ticks] == list(range(len(sent(log / "000"))))
    seen = [message for topic, message in messages if topic == "/observation"]
    assert len(seen) == len(ticks)
    assert len(seen[0]["observation.state"]) == 6
    (log / "000" / "run.mcap").unlink()
    assert burnish("deploy", "export-log", log, "--format", "mcap") == 0
    assert (log / "000" / "run.mcap").is_file()
    assert burnish("deploy", finished, "--env", "point_mass", "--out", tmp_path / "x", "--log_formats", "bag") == 2


def test_dry_run_sends_nothing_and_shadow_compares(
    finished: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ("--env", "point_mass")
    assert burnish("deploy", finished, *env, "--dry-run", "--out", tmp_path / "dry") == 0
    assert all("reward" not in row for row in read_ticks(tmp_path / "dry" / "000")[1])
    capsys.readouterr()
    assert burnish("deploy", finished, *env, "--shadow", "operator", "--out", tmp_path / "operator") == 2
    assert "has no operator" in capsys.readouterr().err
    assert burnish("deploy", exported, *env, "--shadow", finished, "--out", tmp_path / "shadow") == 0
    printed = capsys.readouterr().out
    assert "answers compared" in printed
    rows = [json.loads(line) for line in (tmp_path / "shadow" / "000" / "shadow.jsonl").read_text().splitlines()]
    assert max(max(row["difference"]) for row in rows) < 1e-4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--env", "point_mass"], "Name what acts"),
        (["x", "--remote", "ws://127.0.0.1:1", "--env", "point_mass"], "Name what acts"),
        (["x", "--protocol", "openpi", "--env", "point_mass"], "Choose one of"),
        (["x", "--protocol", "opnpi"], "Did you mean 'openpi'"),
        (["--remote", "ws://127.0.0.1:1", "--protocol", "openpi"], "--remote goes with"),
        (["--remote", "ws://127.0.0.1:1", "--env", "point_mass"], "Cannot connect to ws://127.0.0.1:1"),
        (["x", "--robot", "ros1"], "There is no robot 'ros1'"),
        (["export-log"], "Name the folder of the logs"),
    ],
)
def test_wrong_use_is_explained(arguments: list[str], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert burnish("deploy", *arguments) == 2
    assert match in capsys.readouterr().err


def test_every_protocol_has_a_server() -> None:
    for name in PROTOCOLS:
        module = protocol_module(name)
        assert callable(module.Server)
        assert module.Config().host == "127.0.0.1"
        assert callable(module.serve_forever)
    with pytest.raises(ConfigError, match="There is no protocol 'x'"):
        protocol_module("x")
