"""GR00T's protocol over real ZeroMQ sockets, with a client written from its description."""

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import msgpack
import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.deploy.codec import Encoding, pack, unpack_and_tell
from burnish.deploy.gr00t import Config, Server
from burnish.deploy.serving import Identity, running
from tests.unit.deploy.affine import STATE, AffinePolicy
from tests.unit.deploy.test_lerobot_server import until

zmq = pytest.importorskip("zmq")
IDENTITY = Identity(control_dt=0.05, env_id="toy", statistics={STATE: {"min": [-1.0] * 3, "max": [1.0] * 3}})


def to_npy(value: Any) -> Any:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def from_npy(value: Any) -> Any:
    return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False) if "__ndarray_class__" in value else value


def to_msgpack_numpy(value: Any) -> Any:
    return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, b"data": value.tobytes()}


def from_msgpack_numpy(value: Any) -> Any:
    return np.frombuffer(value[b"data"], value[b"type"]).reshape(value[b"shape"]) if b"nd" in value else value


class Client:
    """A REQ socket that times out, so that a test fails instead of waiting."""

    encode: Callable[[Any], Any] = staticmethod(to_npy)
    decode: Callable[[Any], Any] = staticmethod(from_npy)

    def __init__(self, server: Server, token: str = "") -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.REQ)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVTIMEO, 20_000)
        self.socket.connect(server.url)
        self._token = token

    def call(self, endpoint: str, data: Any = None) -> Any:
        request = {"endpoint": endpoint, "data": data} | ({"api_token": self._token} if self._token else {})
        return self.raw(msgpack.packb(request, default=self.encode))

    def raw(self, message: bytes) -> Any:
        self.socket.send(message)
        return msgpack.unpackb(self.socket.recv(), object_hook=self.decode)

    def act(self, observation: Any) -> Any:
        return self.call("get_action", {"observation": observation, "options": None})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self._context.term()


class OtherClient(Client):
    """One that uses PyPI's ``msgpack-numpy``."""

    encode = staticmethod(to_msgpack_numpy)
    decode = staticmethod(from_msgpack_numpy)


def nested(rows: int = 1, value: float = 0.1, **changes: Any) -> dict[str, Any]:
    return {
        "video": {"wrist": np.zeros((rows, 1, 8, 6, 3), np.uint8)},
        "state": {"state": np.full((rows, 1, 3), value, np.float32) * (1 + np.arange(rows, dtype="f4")[:, None, None])},
        "language": {"annotation.human.task_description": [["press"]] * rows},
        **changes,
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server(AffinePolicy(slope=1.0), IDENTITY, Config(port=0, max_message_bytes=1 << 16))) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client


def test_ping(client: Client) -> None:
    assert client.call("ping") == {"status": "ok", "message": "Server is running"}


def test_the_modality_config_says_keys_and_steps(client: Client) -> None:
    config = client.call("get_modality_config")
    assert {key: item["as_json"]["modality_keys"] for key, item in config.items()} == {
        "video": ["wrist"],
        "state": ["state"],
        "action": ["action"],
        "language": ["task"],
    }
    assert config["action"]["as_json"]["delta_indices"] == [0, 1, 2, 3]
    assert all(item["__ModalityConfig_class__"] for item in config.values())


@pytest.mark.parametrize("kind", [Client, OtherClient])
def test_actions_come_in_the_callers_encoding_one_chunk_per_row(server: Server, kind: type[Client]) -> None:
    with kind(server) as client:
        actions, info = client.act(nested(rows=2))
    assert actions["action"].dtype == np.float32
    expected = np.float32([0.1, 0.2])[:, None, None] + np.arange(4)[:, None] + np.zeros(2)
    np.testing.assert_allclose(actions["action"], expected, rtol=1e-6)
    assert "infer_ms" in info


def test_flat_keys_are_answered_flat(client: Client) -> None:
    flat = {
        "video.wrist": np.zeros((1, 1, 8, 6, 3), np.uint8),
        "state.state": np.full((1, 1, 3), 0.5, np.float32),
        "annotation.human.task_description": ["press"],
    }
    actions, _ = client.act(flat)
    np.testing.assert_allclose(actions["action.action"][0, 0], [0.5, 0.5])


def test_values_outside_the_training_range_are_warned_about(client: Client) -> None:
    assert "outside the training range" in client.act(nested(value=5.0))[1]["warnings"][0]


def test_reset_begins_the_random_stream_again() -> None:
    config = Config(port=0, deterministic=False, seed=3)
    with running(Server(AffinePolicy(), IDENTITY, config)) as server, Client(server) as client, Client(server) as other:
        first = [client.act(nested())[0]["action"] for _ in range(2)]
        np.testing.assert_array_equal(other.act(nested())[0]["action"], first[0])
        assert not np.array_equal(first[0], first[1])
        assert client.call("reset", {"options": None})["control_dt"] == 0.05
        np.testing.assert_array_equal(client.act(nested())[0]["action"], first[0])
    alone = AffinePolicy().act({STATE: np.full((1, 3), 0.1, np.float32)}, generator=stream(3, "deploy"))
    np.testing.assert_array_equal(first[0], alone.action_chunk)


def test_rows_share_a_call_and_clients_get_what_they_get_alone() -> None:
    with (
        running(Server(AffinePolicy(), IDENTITY, Config(port=0, batch_wait_s=20.0))) as server,
        Client(server) as client,
    ):
        client.act(nested(rows=4))
        assert server.batcher.calls == 1
    values = [0.1, 0.2, 0.3]

    def ask(value: float) -> np.ndarray:
        with Client(server) as client:
            answer: np.ndarray = client.act(nested(value=value))[0]["action"]
            return answer

    with running(Server(AffinePolicy(), IDENTITY, Config(port=0))) as server, ThreadPoolExecutor(3) as pool:
        for value, answer in zip(values, pool.map(ask, values), strict=True):
            np.testing.assert_allclose(answer, value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("observation", "match"),
    [
        (None, "must hold an 'observation'"),
        ({}, "must hold an 'observation'"),
        ({"video": {}, "state": {}}, "as many rows"),
        (nested(state={}), "lacks observation.state"),
        (nested(state={"state": np.zeros((2, 1, 3), np.float32)}), "as many rows"),
        (nested(state={"state": np.zeros((1, 2, 3), np.float32)}), r"T = 1, received float32\[1, 2, 3\]"),
        (nested(state={"state": np.zeros(3, np.float32)}), "T = 1"),
        (nested(state={"state": np.zeros((1, 1, 7), np.float32)}), "expected float32.*received float32"),
        (nested(state={"state": 1.0}), "received float"),
        (nested(language={"task": [[1]]}), "one text per row"),
        (nested(language={"a": [["x"]], "b": [["x"]]}), "given once"),
        (nested(rows=65, video={"wrist": np.zeros((65, 1, 1, 1, 3), np.uint8)}), "1 to 64"),
        (nested(value=float("nan")), "must be finite"),
        (nested(value=13.0), "log says why"),
        (nested(value=14.0), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason_and_the_client_goes_on(
    client: Client, observation: Any, match: str
) -> None:
    answer = client.act(observation)
    assert re.search(match, answer["error"])
    assert "Traceback" not in answer["error"]
    assert "/secret" not in answer["error"]
    assert client.call("ping")["status"] == "ok"


def _npy(header: bytes, data: bytes = b"", version: int = 1) -> bytes:
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + data


PICKLED = io.BytesIO()
np.save(PICKLED, np.array([None]), allow_pickle=True)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (b"", "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (b"\x80\x04\x95cos\nsystem\n", "not valid msgpack"),
        (pack([1]), "map with an endpoint"),
        (pack({"endpoint": "explode"}), "There is no endpoint 'explode'"),
        (pack({"endpoint": 3}), "must be a text"),
        (pack({"endpoint": np.zeros(2)}), "must be a text"),
        (pack({"endpoint": "get_action", "data": 4}), "must hold an 'observation'"),
        (pack({"endpoint": "kill"}), "without an API token"),
        *(
            (msgpack.packb({"data": {"__ndarray_class__": True, "as_npy": file}}), match)
            for file, match in [
                (3, "bytes of a .npy file"),
                (b"PK\x03\x04", "bytes of a .npy file"),
                (PICKLED.getvalue(), "not accepted"),
                (_npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }"), "bytes, found 0"),
                (_npy(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", b"\0" * 4), "header"),
                (_npy(b"__import__('os').system('true')"), "header"),
                (_npy(b" " * 5000), "header"),
                (_npy(b"", version=2)[:11], "bytes of a .npy file"),
            ]
        ),
    ],
)
def test_malformed_messages_get_an_error_and_the_server_lives(client: Client, message: bytes, match: str) -> None:
    assert re.search(match, client.raw(message)["error"])
    assert client.call("ping")["status"] == "ok"


def test_messages_that_no_req_socket_sends_are_dropped(server: Server, client: Client) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 1000)
        dealer.connect(server.url)
        dealer.send_multipart([b"x"])
        dealer.send_multipart([b"", b"a", b"b", b"c"])
        dealer.send_multipart([b"", pack({"endpoint": "ping"})])
        assert dealer.recv_multipart()[0] == b""
    assert client.call("ping")["status"] == "ok"


def test_an_oversized_message_is_dropped_with_its_connection(server: Server) -> None:
    with Client(server) as client:
        client.socket.set(zmq.RCVTIMEO, 300)
        client.socket.send(b"\0" * (1 << 17))
        with pytest.raises(zmq.Again):
            client.socket.recv()
    with Client(server) as client:
        assert client.call("ping")["status"] == "ok"


def test_a_token_is_asked_for_in_every_call_and_kill_ends_the_server() -> None:
    with running(Server(AffinePolicy(), IDENTITY, Config(port=0, api_key="secret"))) as server:
        for token in ("", "wrong", "Secret"):
            with Client(server, token) as client:
                for endpoint in ("ping", "get_action", "reset", "get_modality_config", "kill"):
                    assert "Unauthorized" in client.call(endpoint)["error"]
        assert not server.stop_requested.is_set()
        with Client(server, "secret") as client:
            assert client.act(nested())[0]["action"].shape == (1, 4, 2)
            assert client.call("kill")["status"] == "ok"
        until(server.stop_requested.is_set)  # set once the answer is on its way


def test_kill_ends_serve_forever_after_its_answer() -> None:
    code = (
        "import sys\n"
        "from burnish.deploy.gr00t import Config, Server, serve_forever\n"
        "from burnish.deploy.serving import Identity\n"
        "assert 'zmq' not in sys.modules\n"
        "from tests.unit.deploy.affine import AffinePolicy\n"
        "server = Server(AffinePolicy(), Identity(0.05), Config(port=0, api_key='k'))\n"
        "serve_forever(server, lambda s: print(s.url, flush=True))\n"
        "assert 'torch' not in sys.modules\n"
        "print('stopped')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            with zmq.Context() as context, context.socket(zmq.REQ) as socket:
                socket.set(zmq.LINGER, 0)
                socket.set(zmq.RCVTIMEO, 20_000)
                socket.connect(url)
                socket.send(msgpack.packb({"endpoint": "kill", "api_token": "k"}))
                assert msgpack.unpackb(socket.recv())["status"] == "ok"
            assert process.stdout.readline() == "stopped\n"
            assert process.wait(10) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("fields", "match"),
    [({"host": "0.0.0.0"}, "without a key"), ({"port": -1}, "port"), ({"max_batch": 0}, "max_batch")],
)
def test_wrong_configurations_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Config(**fields)


def test_a_taken_port_is_a_clear_error(server: Server) -> None:
    config = Config(port=server.port)
    with (
        pytest.raises(ConfigError, match="Cannot listen on"),
        running(Server(AffinePolicy(), IDENTITY, config)),
    ):
        pass


@pytest.mark.parametrize("encoding", ["openpi", "msgpack_numpy", "npy"])
def test_every_encoding_comes_back_and_is_told(encoding: Encoding) -> None:
    value = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.zeros((), "u1"), "c": np.float32(2)}
    back, told = unpack_and_tell(pack(value, encoding))
    assert told == encoding
    for key, array in value.items():
        np.testing.assert_array_equal(back[key], array)
        assert back[key].dtype == array.dtype
