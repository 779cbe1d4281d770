"""The gRPC service, from the wire: a client of four methods in bytes, and pickles that only look like lerobot's."""

import contextlib
import io
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.deploy.lerobot_server import Config, Server
from burnish.deploy.lerobot_wire import Transfer, decode_fields, encode_bytes
from burnish.deploy.serving import Identity, running
from tests.unit.deploy.affine import STATE, AffinePolicy
from tests.unit.deploy.lerobot_peer import features, observation, setup

grpc = pytest.importorskip("grpc")
IDENTITY = Identity(control_dt=0.05, env_id="toy", fingerprint="abc", replan_steps=2)


class Robot:
    """What lerobot's client does, without lerobot."""

    def __init__(self, server: Server | str, key: str = "", channel: Any = None) -> None:
        where = server if isinstance(server, str) else server.url.partition("//")[2]
        alone = [("grpc.use_local_subchannel_pool", 1)]  # robots are processes of their own; channels of one share
        self.channel = channel or grpc.insecure_channel(where, alone)
        self._metadata = [("authorization", f"Api-Key {key}")] if key else []

    def call(self, method: str, request: bytes = b"") -> bytes:
        answer: bytes = self.channel.unary_unary(f"/transport.AsyncInference/{method}")(
            request, metadata=self._metadata, timeout=60
        )
        return answer

    def observe(self, data: bytes, size: int = 1 << 20) -> None:
        cut = [data[at : at + size] for at in range(0, len(data), size)]
        states = [Transfer.BEGIN, *[Transfer.MIDDLE] * (len(cut) - 1)]
        states[-1] = Transfer.END
        pieces = [bytes([8, state]) + encode_bytes(2, part) for state, part in zip(states, cut, strict=True)]
        self.channel.stream_unary("/transport.AsyncInference/SendObservations")(
            iter(pieces), metadata=self._metadata, timeout=20
        )

    def begin(self, **changes: Any) -> Self:
        self.call("Ready")
        self.call("SendPolicyInstructions", encode_bytes(1, setup(**changes)))
        return self

    def act(self) -> tuple[list[int], np.ndarray]:
        """Return (timesteps, actions); both empty when the server has nothing to answer."""
        data = decode_fields(self.call("GetActions"), data=1)[1]
        if not data:
            return [], np.zeros(0)
        return read_actions(data)

    def act_until_broken(self) -> None:
        with contextlib.suppress(grpc.RpcError, ValueError):
            while True:
                self.act()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


class _Actions(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        made = {"lerobot.async_inference.helpers.TimedAction": lambda *fields: fields, "torch.tensor": np.array}
        return made[f"{module}.{name}"]


def read_actions(data: bytes) -> tuple[list[int], np.ndarray]:
    actions = _Actions(io.BytesIO(data)).load()
    return [timestep for _, timestep, _ in actions], np.stack([action for _, _, action in actions])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = Config(port=0, max_message_bytes=1 << 16, observation_wait_s=0.2, max_clients=64)
    with running(Server(AffinePolicy(slope=1.0), IDENTITY, config)) as server:
        yield server


@pytest.fixture
def robot(server: Server) -> Iterator[Robot]:
    with Robot(server) as robot:
        yield robot


def refused(call: Any, code: str, match: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == getattr(grpc.StatusCode, code)
    assert re.search(match, caught.value.details())
    assert "Traceback" not in caught.value.details()
    assert "/secret" not in caught.value.details()


def test_a_robot_is_answered_as_many_actions_as_it_asks_for_from_its_timestep_on(robot: Robot) -> None:
    robot.begin()
    robot.observe(observation(7))
    timesteps, actions = robot.act()
    assert timesteps == [7, 8, 9]
    np.testing.assert_allclose(actions, np.float32([0.1, 0.2]) + np.arange(3)[:, None], rtol=1e-6)


def test_the_newest_observation_wins_and_a_timestep_is_answered_once(robot: Robot) -> None:
    robot.begin()
    for timestep in (1, 4, 3):
        robot.observe(observation(timestep, must_go=False))
    assert robot.act()[0] == [4, 5, 6]
    robot.observe(observation(4, must_go=False))
    assert robot.act()[0] == []
    robot.observe(observation(4, must_go=False))  # it starved since, so this may be a lost answer
    assert robot.act()[0] == [4, 5, 6]
    robot.observe(observation(4))
    assert robot.act()[0] == [4, 5, 6]


def test_ready_is_a_reset(robot: Robot) -> None:
    for _ in range(2):
        robot.begin()
        robot.observe(observation(2, must_go=False))
        assert robot.act()[0] == [2, 3, 4]
    robot.call("Ready")
    refused(lambda: robot.observe(observation(0)), "FAILED_PRECONDITION", "policy instructions before")


def test_large_observations_come_in_pieces(robot: Robot) -> None:
    robot.begin()
    robot.observe(observation(0), size=100)
    assert robot.act()[0] == [0, 1, 2]


def test_two_robots_do_not_mix(server: Server, robot: Robot) -> None:
    with Robot(server) as other:
        robot.begin()
        other.begin(actions_per_chunk=1)
        robot.observe(observation(5, **{"a.pos": 0.5}))
        other.observe(observation(9, **{"a.pos": 0.9}))
        assert other.act()[0] == [9]
        timesteps, actions = robot.act()
        assert timesteps == [5, 6, 7]
        assert actions[0, 0] == pytest.approx(0.5)


def until(happened: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    pause = threading.Event()
    while not happened():
        pause.wait(0.01)


def test_a_robot_that_connects_again_finds_its_own_state() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, observation_wait_s=0.2))) as server:
        with Robot(server) as robot:
            robot.begin()
            robot.observe(observation(3, must_go=False))
            assert robot.act()[0] == [3, 4, 5]
            session = next(iter(server._sessions.values()))
            waiting = threading.Thread(target=robot.act_until_broken)
            waiting.start()
            until(lambda: session._calls > 0)
        waiting.join(10)
        until(lambda: session.is_gone(3.0))
        with Robot(server) as robot:
            robot.observe(observation(4, must_go=False))
            assert robot.act()[0] == [4, 5, 6]
            assert list(server._sessions.values()) == [session]


def test_without_ready_there_is_nothing(server: Server) -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, warm_up=0))) as fresh, Robot(fresh) as robot:
        refused(robot.act, "FAILED_PRECONDITION", "Call Ready first")
        refused(lambda: robot.observe(observation(0)), "FAILED_PRECONDITION", "Call Ready first")


class Attack:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self._path,))


@pytest.mark.parametrize("method", ["SendPolicyInstructions", "SendObservations"])
def test_a_malicious_pickle_is_refused_and_its_sender_is_still_served(
    robot: Robot, tmp_path: Path, method: str
) -> None:
    payload = pickle.dumps(Attack(tmp_path / "marker"))
    robot.begin()
    if method == "SendObservations":
        refused(lambda: robot.observe(payload), "INVALID_ARGUMENT", "names 'pathlib.*not accepted")
    else:
        refused(lambda: robot.call(method, encode_bytes(1, payload)), "INVALID_ARGUMENT", "names 'pathlib")
    assert not (tmp_path / "marker").exists()
    robot.observe(observation(0))
    assert robot.act()[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lerobot_features": features()}, r"no camera.*Expected: .*uint8\[8, 6, 3\].*Received: .*a.pos"),
        ({"lerobot_features": features(("a.pos",), wrist=(8, 6, 3))}, "reads 3 numbers, the robot has 1"),
        ({"actions_per_chunk": -1}, "actions_per_chunk"),
    ],
)
def test_a_robot_that_does_not_fit_is_refused_in_the_handshake(
    robot: Robot, changes: dict[str, Any], match: str
) -> None:
    refused(lambda: robot.begin(**changes), "INVALID_ARGUMENT", match)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (observation(0)[:-20], "cut off"),
        (observation(0, **{"a.pos": float("nan")}), "must be finite"),
        (observation(0, **{"a.pos": None}), "'a.pos': expected a number"),
        (observation(0, task=3), "must be text"),
        (setup(), "Expected a TimedObservation"),
        (observation(0, wrist=np.zeros((200, 200, 3), np.uint8)), "more than 65536 bytes"),
    ],
)
def test_wrong_observations_are_refused_with_a_reason_and_the_robot_goes_on(
    robot: Robot, data: bytes, match: str
) -> None:
    robot.begin()
    refused(lambda: robot.observe(data), "INVALID_ARGUMENT", match)
    robot.observe(observation(0))
    assert robot.act()[0] == [0, 1, 2]


def test_a_policy_that_fails_says_so_without_a_traceback_and_goes_on(robot: Robot) -> None:
    robot.begin()
    for value, code, match in ((13.0, "INTERNAL", "log says why"), (14.0, "INVALID_ARGUMENT", "not finite")):
        robot.observe(observation(0, **{"a.pos": value}))
        refused(robot.act, code, match)
    robot.observe(observation(0))
    assert robot.act()[0] == [0, 1, 2]


def test_a_key_is_asked_for_in_every_call() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, api_key="secret"))) as server:
        for key in ("", "wrong", "Secret"):
            with Robot(server, key) as robot:
                for method in ("Ready", "SendPolicyInstructions", "GetActions"):
                    refused(lambda robot=robot, method=method: robot.call(method), "UNAUTHENTICATED", "authorization")
                refused(lambda robot=robot: robot.observe(observation(0)), "UNAUTHENTICATED", "authorization")
        with Robot(server, "secret") as robot:
            robot.begin().observe(observation(0))
            assert robot.act()[0] == [0, 1, 2]


def test_robots_beyond_the_limit_are_refused_until_one_is_gone() -> None:
    config = Config(port=0, max_clients=1, observation_wait_s=30.0)
    with running(Server(AffinePolicy(), IDENTITY, config)) as server, Robot(server) as second:
        with Robot(server) as first:
            first.begin()
            refused(lambda: second.call("Ready"), "RESOURCE_EXHAUSTED", "1 robots are served")
            waiting = threading.Thread(target=first.act_until_broken)
            waiting.start()
            session = next(iter(server._sessions.values()))
            until(lambda: session._calls > 0)
        waiting.join(10)
        session.end()  # its call notices at the end of its wait
        until(lambda: session.is_gone(1000.0))
        second.begin()


def test_an_upload_that_stands_still_is_ended() -> None:
    config = Config(port=0, upload_timeout_s=0.1)
    released = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield bytes([8, Transfer.BEGIN])
        released.wait(10)

    with running(Server(AffinePolicy(), IDENTITY, config)) as server, Robot(server) as robot:
        robot.begin()
        call = robot.channel.stream_unary("/transport.AsyncInference/SendObservations")
        refused(lambda: call(pieces(), timeout=10), "CANCELLED", "")
        released.set()
        robot.observe(observation(0))
        assert robot.act()[0] == [0, 1, 2]


def test_sampled_answers_are_a_stream_per_robot_that_ready_begins_anew() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, deterministic=False, seed=5))) as server:
        runs = []
        for _ in range(2):
            with Robot(server) as robot, Robot(server) as other:
                robot.begin()
                other.begin()
                answers = []
                for timestep in range(2):
                    robot.observe(observation(timestep))
                    other.observe(observation(timestep))
                    other.act()
                    answers.append(robot.act()[1])
                runs.append(answers)
    np.testing.assert_array_equal(runs[0], runs[1])
    alone = AffinePolicy().act(
        {STATE: np.float32([[0.1, 0.2, 0.3]])}, generator=stream(5, "deploy"), deterministic=False
    )
    np.testing.assert_allclose(runs[0][0], alone.action_chunk[0, :3], rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"host": "0.0.0.0"}, "without a key"),
        ({"port": 70000}, "port"),
        ({"certificate": "a.pem"}, "both certificate and private_key"),
        ({"observation_wait_s": 0}, "observation_wait_s"),
        ({"upload_timeout_s": -1}, "upload_timeout_s"),
    ],
)
def test_wrong_configurations_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Config(**fields)


def test_a_taken_port_and_missing_tls_files_are_clear_errors(server: Server) -> None:
    for config, match in (
        (Config(port=server.port), "Cannot listen on 127.0.0.1"),
        (Config(port=0, certificate="no.pem", private_key="no.key"), "'no.pem' does not exist"),
    ):
        with pytest.raises(ConfigError, match=match), running(Server(AffinePolicy(), IDENTITY, config)):
            pass


def test_serving_imports_neither_torch_nor_lerobot() -> None:
    code = (
        "import sys\n"
        "from burnish.deploy.lerobot_server import Config, Server\n"
        "from burnish.deploy.serving import Identity, running\n"
        "assert 'grpc' not in sys.modules\n"
        "from tests.unit.deploy.affine import AffinePolicy\n"
        "with running(Server(AffinePolicy(), Identity(0.05), Config(port=0))):\n"
        "    assert not {'torch', 'lerobot', 'google.protobuf'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
