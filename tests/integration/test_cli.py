"""The command line on the toy, from training that is killed to a policy that is exported and deployed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from burnish.cli.acting import RANGES
from burnish.cli.building import load_checkpoint
from burnish.cli.deploy import identity_of
from burnish.cli.main import main
from burnish.cli.runtime import with_replan
from burnish.deploy.client import Client
from burnish.deploy.exported import ExportedPolicy
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Server, running
from burnish.deploy.runtime import Config as RuntimeConfig
from burnish.deploy.ticklog import read_ticks
from burnish.rl.checkpoint import resolve

ITERATIONS = 30
NUMBERS = (
    *("--num_envs", "4", "--policy.hidden", "16", "--numbers.rollout_chunks", "16", "--numbers.replan_steps", "4"),
    *("--numbers.iterations", str(ITERATIONS), "--numbers.checkpoint_every", "3"),
)


def burnish(*arguments: str | Path) -> int:
    return main([str(item) for item in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert burnish("train", "ppo", "--out", folder, *NUMBERS) == 0
    assert burnish("eval", folder, "--episodes", "40", "--videos", "1") == 0
    return folder


def test_a_killed_run_is_resumed_and_equals_the_one_that_was_not(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "burnish", "train", "ppo", "--out", str(folder), *NUMBERS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = folder / "metrics.jsonl"
    while process.poll() is None and (not log.is_file() or log.read_text().count("\n") < 8):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it must be killed in the middle"
    assert burnish("train", "--resume", folder) == 0
    ours, theirs = (load_file(resolve(at) / "policy" / "model.safetensors") for at in (finished, folder))
    for name, weights in ours.items():
        np.testing.assert_array_equal(weights, theirs[name], err_msg=name)
    assert [json.loads(line)["iteration"] for line in log.read_text().splitlines()] == list(range(1, ITERATIONS + 1))


def test_evaluation_leaves_a_result_a_report_and_films(finished: Path) -> None:
    folder = finished / "evaluations" / "default"
    result = json.loads((folder / "evaluation.json").read_text())
    assert len(result["episodes"]) == 40
    assert result["protocol"]["replan_steps"] == 4
    assert result["policy"]["recipe"] == "ppo"
    assert (folder / "report.html").stat().st_size > 10_000
    assert json.loads((folder / "videos" / "videos.json").read_text())


def test_compare_two_runs(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    assert burnish("train", "ppo", "--checkpoint", finished, "--out", other, *NUMBERS[-4:], *NUMBERS[4:6]) == 0
    assert burnish("eval", other, "--episodes", "40", "--videos", "0", "--replan_steps", "4") == 0
    assert burnish("compare", finished, other, "--out", tmp_path / "both") == 0
    assert "40 pairs" in capsys.readouterr().out
    assert json.loads((tmp_path / "both" / "comparison.json").read_text())["pairs"] == 40
    assert (tmp_path / "both" / "comparison.html").is_file()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--episodes", "41"], "start"),
        (["--replan_steps", "8"], "replan_steps"),
        (["--sampled"], "decoding"),
        (["--env", "point_mass", "--env.goal_radius", "0.12"], "goal_radius"),
    ],
)
def test_compare_refuses_another_protocol(
    options: list[str], reason: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--episodes", "40"] if "--episodes" not in options else []
    assert burnish("eval", finished, *base, *options, "--videos", "0", "--out", tmp_path) == 0
    assert burnish("compare", finished, tmp_path) == 2
    assert reason in capsys.readouterr().err


def test_export_answers_as_the_checkpoint(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert burnish("export", finished, "--out", tmp_path / "onnx") == 0
    assert "parity over 32 observations" in capsys.readouterr().out
    assert ExportedPolicy(tmp_path / "onnx").description["replan_steps"] == 4
    card = (tmp_path / "onnx" / "README.md").read_text()
    result = json.loads((finished / "evaluations" / "default" / "evaluation.json").read_text())
    assert f"40 episodes, protocol `{result['fingerprint']}`" in card
    assert "| success |" in card
    assert burnish("export", finished, "--out", tmp_path / "onnx") == 2
    assert "exists already" in capsys.readouterr().err


def test_deploy_against_the_environment_and_replay(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    assert burnish("deploy", finished, "--env", "point_mass", "--episodes", "2", "--out", log) == 0
    header, ticks = read_ticks(log / "000")
    assert header["config"]["chunking"]["replan_steps"] == 4, "the checkpoint's own, not the whole chunk"
    assert max(row["index"] for row in ticks if "index" in row) == 3
    capsys.readouterr()
    assert burnish("deploy", finished, "--replay", log / "001") == 0
    assert "all equal to the log" in capsys.readouterr().out
    first = sorted((finished / "checkpoints").glob("[0-9]*"))[0]
    assert burnish("deploy", first, "--replay", log / "001") == 1
    assert "differ from the log" in capsys.readouterr().out


def test_a_named_replan_horizon_is_kept() -> None:
    named = with_replan(RuntimeConfig(), 4)
    assert named.chunking.replan_steps == 4
    assert with_replan(named, 2) == named


def test_probe_of_a_served_checkpoint(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load_checkpoint(finished)
    with running(Server(loaded.policy, identity_of(loaded), ServerConfig(port=0))) as server:
        assert burnish("deploy", "check", server.url, "--requests", "5") == 0
        printed = capsys.readouterr().out
        assert "policy mlp" in printed
        assert "observation.state: float32 [6]" in printed
        assert burnish("deploy", "check", server.url, "--requests", "-5") == 2


def test_range_of_the_demonstrations_reaches_the_server(finished: Path) -> None:
    loaded = load_checkpoint(finished)
    assert identity_of(loaded).statistics is None
    loaded.description[RANGES] = {
        "observation.state": {"min": [-1.0] * 6, "max": [1.0] * 6},
        "observation.other": {"min": [0.0], "max": [1.0]},
    }
    with running(Server(loaded.policy, identity_of(loaded), ServerConfig(port=0))) as server, Client(server.url) as it:
        assert "warnings" not in it.infer({"observation.state": np.zeros(6, np.float32)})
        answer = it.infer({"observation.state": np.full(6, 3.0, np.float32)})
    assert "outside the training range" in answer["warnings"][0]


def test_serving_ends_with_the_signal(finished: Path) -> None:
    command = [sys.executable, "-m", "burnish", "deploy", str(finished), "--protocol", "openpi", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    guard = threading.Timer(60.0, process.kill)
    guard.start()
    try:
        line = next(text for text in process.stdout if "Serving at" in text)
        with Client(line.split()[2]) as client:
            assert client.infer({"observation.state": np.zeros(6, np.float32)})["actions"].shape == (8, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        guard.cancel()
        process.stdout.close()


def test_record_of_a_policy(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("record", "--checkpoint", finished, "--format", "log", "--episodes", "5", "--out", tmp_path / "log")
    assert burnish(*arguments) == 0
    assert burnish(*arguments) == 0
    assert "5 were there from before" in capsys.readouterr().out
    assert len(list((tmp_path / "log" / "episodes").glob("*.parquet"))) == 5
