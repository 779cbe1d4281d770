"""lerobot's own robot client against our server, and lerobot's own server against ours, each unmodified."""

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.deploy.batching import Batcher, stack
from burnish.deploy.lerobot_server import Config, Server
from burnish.deploy.lerobot_wire import decode_fields, encode_bytes
from burnish.deploy.serving import Identity, running
from burnish.policies.act import Config as ACTConfig
from tests.integration.test_lerobot_checkpoint import ENV, STATE, observe, train_a_little, write_stock_directory
from tests.unit.deploy.affine import WRIST, AffinePolicy
from tests.unit.deploy.lerobot_peer import TimedObservation, dumps, features
from tests.unit.deploy.test_lerobot_server import Attack, Robot, refused

pytest.importorskip("grpc")
pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("lerobot_script.py")
IDENTITY = Identity(control_dt=0.05, env_id="toy", fingerprint="abc")
SECONDS, RATE = 10.0, 20.0
KEYS = (STATE, "observation.images.top", "observation.images.wrist")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script while the context lasts; what it writes to stderr is in ``stderr.txt``."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        (folder / "stderr.txt").open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,  # lerobot writes its logs where it runs
            env=environment,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attack") / "marker"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, attack: Path) -> dict[str, Any]:
    """What the client did, while another peer sent malicious pickles to the same server."""
    folder = tmp_path_factory.mktemp("client")
    spec = PolicySpec(
        "affine",
        {STATE: ArraySpec((3,), unit="rad"), WRIST: ArraySpec((8, 6, 3), "uint8")},
        ArraySpec((3,), unit="rad"),
        20,
        {},
        True,
    )
    over = threading.Event()

    def attack_again_and_again(server: Server) -> None:
        message = encode_bytes(1, pickle.dumps(Attack(attack)))
        while not over.wait(0.2):
            with Robot(server) as peer:
                peer.call("Ready")
                refused(lambda: peer.call("SendPolicyInstructions", message), "INVALID_ARGUMENT", "not accepted")

    with (
        running(Server(AffinePolicy(spec), IDENTITY, Config(port=0, max_clients=1000))) as server,
        started(folder, "client", server.url.partition("//")[2], str(SECONDS)) as process,
        ThreadPoolExecutor() as pool,
    ):
        attacking = pool.submit(attack_again_and_again, server)
        try:
            printed, _ = process.communicate(timeout=300)
        finally:
            over.set()
        attacking.result()
    log = (folder / "stderr.txt").read_text()
    assert process.returncode == 0, log[-3000:]
    return {**json.loads(printed.splitlines()[-1]), "log": log + printed}


def test_the_client_executes_nine_of_ten_actions_at_20_hz(result: dict[str, Any]) -> None:
    assert result["started"]
    print(f"{len(result['sent'])} of {SECONDS * RATE:.0f} actions")  # noqa: T201
    assert len(result["sent"]) >= 0.9 * SECONDS * RATE


def test_its_timesteps_only_grow(result: dict[str, Any]) -> None:
    timesteps = np.array(result["timesteps"])
    executed = timesteps[timesteps >= 0]
    assert (np.diff(executed) >= 0).all()
    # The client runs a timestep twice when a chunk arrives between taking an action and noting its number.
    assert 0.9 * len(result["sent"]) <= executed[-1] + 1 <= len(result["sent"])


def test_its_actions_follow_what_it_observed(result: dict[str, Any]) -> None:
    sent = np.array([list(action.values()) for action in result["sent"]])
    assert list(result["sent"][0]) == ["shoulder.pos", "elbow.pos", "gripper.pos"]
    assert np.abs(np.diff(sent, axis=0)).max() < 0.9  # a sinusoid of period 2 pi, held for a chunk at most
    assert np.ptp(sent, axis=0).min() > 0.5


def test_attacks_meanwhile_had_no_effect(result: dict[str, Any], attack: Path) -> None:
    assert not attack.exists()
    assert not [line for line in result["log"].splitlines() if "status = " in line and "CANCELLED" not in line]


@contextmanager
def stock_server(folder: Path) -> Iterator[str]:
    """Run lerobot's policy server; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    with started(folder, "server", str(port)) as process:
        assert process.stdout is not None
        ready = any(line == "ready\n" for line in iter(process.stdout.readline, ""))
        assert ready, (folder / "stderr.txt").read_text()[-3000:]
        yield f"127.0.0.1:{port}"


def ask(robot: Robot, told: dict[str, Any], seen: bytes) -> tuple[list[int], np.ndarray]:
    """Go through the whole protocol; the answer is read with lerobot's and torch's own classes."""
    robot.begin(**told)
    robot.observe(seen)
    actions = pickle.loads(decode_fields(robot.call("GetActions"), data=1)[1])
    return [action.get_timestep() for action in actions], np.stack([action.get_action().numpy() for action in actions])


def test_rows_of_act_are_what_they_are_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = train_a_little(ACTConfig(path=str(write_stock_directory(tmp_path, KEYS))).build(ENV, generator=stream(0)))
    rows = [{**observe(1, seed=seed), "task": ["t"]} for seed in range(4)]
    together = policy.act(stack(rows), generator=stream(0), deterministic=True).action_chunk
    alone = [policy.act(row, generator=stream(0), deterministic=True).action_chunk[0] for row in rows]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    Batcher(policy, deterministic=True, max_batch=4).warm_up(1)
    assert not caplog.records


def test_stock_policy_server_gives_the_same_actions_from_our_directory(tmp_path: Path) -> None:
    stock = write_stock_directory(tmp_path / "stock", KEYS)
    policy = train_a_little(ACTConfig(path=str(stock)).build(ENV, generator=stream(0)))
    policy.save(tmp_path / "ours")
    names = tuple(f"joint_{n}.pos" for n in range(5))
    drawn = np.random.default_rng(3)
    values = {
        **{name: float(drawn.normal(0.5, 1)) for name in names},
        **{key: drawn.integers(0, 256, (64, 64, 3)).astype(np.uint8) for key in ("top", "wrist")},
        "task": "t",
    }
    told = {
        "pretrained_name_or_path": str(tmp_path / "ours"),
        "lerobot_features": features(names, top=(64, 64, 3), wrist=(64, 64, 3)),
        "actions_per_chunk": 6,
    }
    seen = dumps(TimedObservation(timestamp=100.0, timestep=11, observation=values, must_go=True))

    answers = []
    with running(Server(policy, IDENTITY, Config(port=0))) as server, Robot(server) as robot:
        answers.append(ask(robot, told, seen))
    with stock_server(tmp_path) as address, Robot(address) as robot:
        answers.append(ask(robot, told, seen))
    assert answers[0][0] == answers[1][0] == list(range(11, 17))
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=0, atol=1e-5)
