import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from burnish.core.errors import ConfigError, ProtocolError
from burnish.deploy.client import Client, histogram, probe
from burnish.deploy.codec import pack, unpack
from burnish.deploy.openpi import Config, Identity, Server, is_loopback, running
from tests.unit.deploy.affine import STATE, WRIST, AffinePolicy, make_observation, make_spec
from tests.unit.deploy.test_batching import GatedPolicy

IDENTITY = Identity(control_dt=0.05, env_id="toy", fingerprint="abc", replan_steps=2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, max_message_bytes=1 << 16))) as server:
        yield server


def raw(server: Server) -> ClientConnection:
    return connect(server.url, compression=None, max_size=None, proxy=None)


def status(url: str) -> tuple[int, str]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def http(server: Server, path: str) -> str:
    return server.url.replace("ws", "http", 1) + path


def test_metadata_says_what_to_send_and_what_comes(server: Server) -> None:
    with Client(server.url) as client:
        meta = client.metadata
    assert meta["observation"][STATE]["shape"] == [3]
    assert meta["observation"][WRIST]["dtype"] == "uint8"
    assert meta["aliases"]["observation/wrist"] == WRIST
    assert meta["aliases"]["prompt"] == "task"
    assert (meta["control_dt"], meta["chunk_steps"], meta["replan_steps"]) == (0.05, 4, 2)
    assert (meta["env"], meta["fingerprint"], meta["policy"]) == ("toy", "abc", "affine")


def test_answers_are_the_policys_chunk_with_timings(server: Server) -> None:
    with Client(server.url) as client:
        first, second = client.infer(make_observation()), client.infer(make_observation())
    np.testing.assert_array_equal(first["actions"], np.tile(np.float32([0.1, 0.2]), (4, 1)))
    assert first["actions"].dtype == np.float32
    assert set(first["server_timing"]) == {"infer_ms"}
    assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}
    assert "infer_ms" in first["policy_timing"]


def test_warm_up_ran_on_an_empty_observation_before_ready() -> None:
    policy = AffinePolicy()
    with running(Server(policy, IDENTITY, Config(port=0, warm_up=3))) as server:
        assert status(http(server, "/readyz")) == (200, "OK\n")
        assert server.batcher.inferences == 0
    assert len(policy.seen) == 3 + 3  # and a batch of two against each row alone
    assert not any(seen[STATE].any() for seen in policy.seen[:3])
    assert [len(seen["task"]) for seen in policy.seen] == [1, 1, 1, 1, 1, 2]


def test_health_is_told_before_ready_and_readiness_only_after() -> None:
    policy = AffinePolicy(latency_s=0.4)
    server = Server(policy, IDENTITY, Config(port=0, warm_up=1))

    async def check() -> list[int]:
        entering = asyncio.ensure_future(server.__aenter__())
        while server._listener is None:
            await asyncio.sleep(0.01)
        before = [(await asyncio.to_thread(status, http(server, path)))[0] for path in ("/healthz", "/readyz")]
        await entering
        after = [(await asyncio.to_thread(status, http(server, path)))[0] for path in ("/healthz", "/readyz")]
        await server.__aexit__()
        return before + after

    assert asyncio.run(check()) == [200, 503, 200, 200]


def _array(**changes: Any) -> dict[bytes, Any]:
    fields = {"__ndarray__": True, "data": b"\0" * 12, "dtype": "<f4", "shape": [3]}
    return {key.encode(): value for key, value in {**fields, **changes}.items()}


MALFORMED = [
    ("text", "hello", "binary msgpack"),
    ("empty", b"", "not valid msgpack"),
    ("noise", b"\xc1\xc1", "not valid msgpack"),
    ("cut off", pack(make_observation())[:-9], "not valid msgpack"),
    ("pickle", b"\x80\x04\x95cos\nsystem\n", "not valid msgpack"),
    ("list", pack([1, 2]), "map of keys to arrays"),
    ("missing key", pack({STATE: np.zeros(3, np.float32), "prompt": ""}), "lacks observation.images.wrist"),
    ("missing task", pack({STATE: np.zeros(3, np.float32), WRIST: np.zeros((8, 6, 3), np.uint8)}), "lacks task"),
    ("wrong shape", pack(make_observation(**{STATE: np.zeros(7)})), "received float64[7]"),
    ("wrong dtype", pack(make_observation(**{WRIST: np.zeros((8, 6, 3))})), "expected uint8[8, 6, 3]"),
    ("not finite", pack(make_observation(**{STATE: np.full(3, np.inf)})), "must be finite"),
    ("objects", msgpack.packb({STATE: _array(dtype="|O")}), "dtype '|O' is not accepted"),
    ("records", msgpack.packb({STATE: _array(dtype="|V4")}), "not accepted"),
    ("complex", msgpack.packb({STATE: _array(dtype="<c8")}), "not accepted"),
    ("byte count", msgpack.packb({STATE: _array(shape=[1 << 40])}), "bytes, found 12"),
    ("negative shape", msgpack.packb({STATE: _array(shape=[-3])}), "sizes >= 0"),
    ("task of another type", pack(make_observation(task=1)), "must be text"),
    ("key twice", pack(make_observation(prompt="x")), "twice"),
    ("map bomb", msgpack.packb([[{}] * 2000] * 20), "map of keys"),
    ("policy fails", pack(make_observation(**{STATE: np.full(3, 13.0)})), "The policy failed on this observation"),
    ("policy not finite", pack(make_observation(**{STATE: np.full(3, 14.0)})), "not finite; nothing was sent"),
]


@pytest.mark.parametrize(("message", "match"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_malformed_messages_get_a_text_and_1011_and_the_server_lives(
    server: Server, message: str | bytes, match: str
) -> None:
    with raw(server) as connection:
        connection.recv()
        connection.send(message)
        answer = connection.recv()
        assert isinstance(answer, str)
        assert match in answer
        assert "Traceback" not in answer
        assert "/secret" not in answer
        with pytest.raises(ConnectionClosedError) as closed:
            connection.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
    with Client(server.url) as client:
        assert client.infer(make_observation())["actions"].shape == (4, 2)


def test_an_oversized_message_closes_with_1009_and_the_server_lives(server: Server) -> None:
    with raw(server) as connection:
        connection.recv()
        connection.send(b"\0" * (1 << 17))
        with pytest.raises(ConnectionClosedError, match="1009"):
            connection.recv()
    with Client(server.url) as client:
        client.infer(make_observation())


def test_our_client_passes_the_servers_message_on(server: Server) -> None:
    with Client(server.url) as client, pytest.raises(ProtocolError, match="refused: The observation lacks"):
        client.infer({"pose": np.zeros(3)})


def test_wrong_or_missing_keys_are_refused_and_health_needs_none() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, api_key="secret"))) as server:
        for key in ("", "wrong", "Secret"):
            with pytest.raises(ProtocolError, match="API key is wrong or missing"):
                Client(server.url, api_key=key)
        two = [("Authorization", "Api-Key secret"), ("Authorization", "Api-Key other")]
        with pytest.raises(InvalidStatus, match="401"), connect(server.url, additional_headers=two, proxy=None):
            pass
        assert status(http(server, "/healthz"))[0] == 200
        with Client(server.url, api_key="secret") as client:
            client.infer(make_observation())


def test_a_web_page_cannot_connect(server: Server) -> None:
    origin = Origin("http://evil.example")
    with pytest.raises(InvalidStatus, match="403"), connect(server.url, origin=origin, proxy=None):
        pass


def test_clients_beyond_the_limit_are_refused_until_one_leaves() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, max_clients=1))) as server:
        with Client(server.url), pytest.raises(ProtocolError, match="full or warming up"):
            Client(server.url)
        deadline = time.monotonic() + 5
        while server._clients and time.monotonic() < deadline:
            time.sleep(0.01)
        with Client(server.url) as client:
            client.infer(make_observation())


def test_inference_runs_one_at_a_time_and_leaves_the_event_loop_free() -> None:
    policy = GatedPolicy()
    with running(Server(policy, IDENTITY, Config(port=0, warm_up=0, max_batch=1))) as server:

        def ask() -> Any:
            with Client(server.url) as client:
                return client.infer(make_observation())["actions"].shape

        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask) for _ in range(2)]
            assert policy.entered.wait(10)
            with raw(server) as connection:  # while the policy computes, handshakes and pings are answered
                connection.recv()
                assert connection.ping().wait(timeout=10)
            assert status(http(server, "/healthz"))[0] == 200
            assert not policy.seen
            assert not any(answer.done() for answer in answers)
            policy.gate.set()
            assert [answer.result(10) for answer in answers] == [(4, 2)] * 2
        assert [len(seen["task"]) for seen in policy.seen] == [1, 1]


def test_a_slow_inference_gives_an_error_instead_of_silence() -> None:
    config = Config(port=0, warm_up=0, inference_timeout_s=0.05)
    policy = AffinePolicy(latency_s=0.3)
    with running(Server(policy, IDENTITY, config)) as server, Client(server.url) as client:
        with pytest.raises(ProtocolError, match=r"longer than 0.05 s"):
            client.infer(make_observation())
        assert server.ready


def test_a_new_connection_begins_the_same_random_stream() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, deterministic=False))) as server, Client(server.url):
        runs = []
        for _ in range(2):
            with Client(server.url) as client:
                runs.append([client.infer(make_observation())["actions"] for _ in range(2)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0][0], runs[0][1])


def test_metadata_says_units_rates_and_training_ranges() -> None:
    identity = Identity(0.05, statistics={STATE: {"min": [0.0] * 3, "max": [1.0] * 3, "mean": [0.5] * 3}})
    metadata = Server(AffinePolicy(), identity).metadata()
    assert metadata["observation"][STATE]["unit"] == "rad"
    assert (metadata["action"]["unit"], metadata["action"]["high"]) == ("m/s", 1.0)
    assert metadata["ranges"] == {STATE: {"min": [0.0] * 3, "max": [1.0] * 3}}
    assert metadata["control_dt"] == 0.05


def test_clients_that_ask_together_share_a_call_and_get_what_they_get_alone() -> None:
    count = 4
    states = [np.full(3, 0.1 * n, np.float32) for n in range(count)]
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0))) as server, Client(server.url) as client:
        alone = [client.infer(make_observation(**{STATE: state}))["actions"] for state in states]
    config = Config(port=0, max_clients=count, batch_wait_s=20.0)
    barrier = threading.Barrier(count)
    with running(Server(AffinePolicy(), IDENTITY, config)) as server:

        def ask(state: np.ndarray) -> np.ndarray:
            with Client(server.url) as client:
                barrier.wait()
                actions: np.ndarray = client.infer(make_observation(**{STATE: state}))["actions"]
                barrier.wait()
                return actions

        with ThreadPoolExecutor(count) as pool:
            together = list(pool.map(ask, states))
        assert server.batcher.calls == 1
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)


def test_range_warnings_reach_the_client() -> None:
    identity = Identity(0.05, statistics={STATE: {"min": [0.0] * 3, "max": [1.0] * 3}})
    with running(Server(AffinePolicy(), identity, Config(port=0))) as server, Client(server.url) as client:
        answer = client.infer(make_observation(**{STATE: np.full(3, 90.0)}))
        assert "outside the training range" in answer["warnings"][0]
        assert "warnings" not in client.infer(make_observation())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"host": "0.0.0.0"}, "without a key"),
        ({"host": ""}, "without a key"),
        ({"host": "robot.local"}, "without a key"),
        ({"port": 70000}, "port"),
        ({"max_clients": 0}, "max_clients"),
        ({"inference_timeout_s": 0}, "inference_timeout_s"),
        ({"certificate": "a.pem"}, "both certificate and private_key"),
        ({"api_key": "schlüssel"}, "ASCII"),
        ({"max_batch": 0}, "max_batch"),
        ({"batch_wait_s": -1.0}, "batch_wait_s"),
        ({"batch_wait_s": 99.0}, "batch_wait_s"),
    ],
)
def test_wrong_configurations_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Config(**fields)


def test_beyond_loopback_with_a_key_or_said_explicitly_is_allowed() -> None:
    Config(host="0.0.0.0", api_key="k")
    Config(host="0.0.0.0", insecure=True)
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")


def test_a_taken_port_and_missing_tls_files_are_clear_errors(server: Server) -> None:
    for config, match in (
        (Config(port=server.port), "Cannot listen on 127.0.0.1"),
        (Config(port=0, certificate="no.pem", private_key="no.key"), "'no.pem' does not exist"),
    ):
        with pytest.raises(ConfigError, match=match), running(Server(AffinePolicy(), IDENTITY, config)):
            pass


def test_a_policy_that_fails_in_warm_up_keeps_the_server_from_starting() -> None:
    policy = AffinePolicy(gain=float("nan"))
    with pytest.raises(ProtocolError, match="not finite"), running(Server(policy, IDENTITY, Config(port=0))):
        pass


def test_probe_reports_keys_and_latency_and_names_an_old_server(server: Server) -> None:
    report = probe(server.url, requests=5)
    text = report.text()
    assert report.latency_ms.shape == (5,)
    assert report.chunk_shape == (4, 2)
    assert "observation.state: float32 [3] [rad]" in text
    assert "p99" in text
    assert "toy" in text
    assert not report.warnings


def test_probe_warns_when_inference_takes_longer_than_the_executed_chunk() -> None:
    policy = AffinePolicy(latency_s=0.02)
    with running(Server(policy, Identity(0.005, replan_steps=2), Config(port=0))) as server:
        assert "expect pauses" in probe(server.url, requests=3).text()


def test_nobody_listening_is_a_clear_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(ProtocolError, match=f"Cannot connect to ws://127.0.0.1:{port}"):
        Client(f"ws://127.0.0.1:{port}")
    with pytest.raises(ProtocolError, match="Cannot connect to nonsense"):
        Client("nonsense")


def test_histogram_counts_every_request() -> None:
    rows = histogram(np.array([1.0, 1.0, 2.0, 9.0]))
    assert sum(int(row.split()[-1]) for row in rows) == 4


def test_serve_forever_stops_on_sigint_and_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from tests.unit.deploy.affine import AffinePolicy\n"
        "from burnish.deploy.openpi import Config, Identity, Server, serve_forever\n"
        "assert 'torch' not in sys.modules\n"
        "serve_forever(Server(AffinePolicy(), Identity(0.05), Config(port=0)), lambda s: print(s.url, flush=True))\n"
        "print('stopped')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    with process:
        assert process.stdout is not None
        try:
            with Client(process.stdout.readline().strip()) as client:
                client.infer(make_observation())
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == "stopped\n"
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()


def test_spec_without_images_or_task_needs_only_the_state() -> None:
    policy = AffinePolicy(make_spec(image=False, reads_task=False))
    with running(Server(policy, IDENTITY, Config(port=0))) as server, raw(server) as connection:
        connection.recv()
        connection.send(pack({"state": np.ones(3)}))
        answer = connection.recv()
        assert isinstance(answer, bytes)
        np.testing.assert_array_equal(unpack(answer)["actions"], np.ones((4, 2)))
