"""A policy behind the ZeroMQ protocol of NVIDIA's GR00T: its ``PolicyClient`` talks to it.

A message is one msgpack map ``{"endpoint", "data", "api_token"}``; endpoints are ``ping``, ``get_action``, ``reset``,
``get_modality_config`` and ``kill``. An observation is ``{"video": {camera: (B, T, H, W, 3)}, "state": {key:
(B, T, D)}, "language": {key: B lists of T texts}}`` or flat, ``video.<camera>`` and so on; T is 1. The answer is
``[{"action": (B, K, A)}, info]``, under ``action.action`` to a flat one. Arrays come as ``.npy`` files inside the
message or as PyPI's ``msgpack-numpy`` writes them; the answer uses what the caller used. Nothing is unpickled, and
``kill`` needs a token. ZeroMQ is in the clear; beyond one machine, put a tunnel in between.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from burnish.core.errors import BurnishError, ProtocolError, require
from burnish.core.seeding import stream
from burnish.core.spec import IMAGE_PREFIX, TASK_KEY
from burnish.deploy.batching import Batcher, Inferred
from burnish.deploy.codec import Encoding, Limits, pack, unpack_and_tell
from burnish.deploy.observations import ActingPolicy, ObservationReader
from burnish.deploy.serving import (
    Identity,
    address,
    cannot_listen,
    check_settings,
    describe,
    one_line,
    reader_for,
    same_key,
    serve_forever,
)

__all__ = ["Config", "Server", "serve_forever"]

_LOG = logging.getLogger(__name__)
_MAX_ROWS = 64
"""Observations in one request."""
_ACTIVE_S = 2.0
"""A client that has asked within this time is likely to ask again soon [s]."""
_LINGER_MS = 200
"""How long closing waits for the last answers to leave [ms]."""
_STATE_PREFIX = "observation."


@dataclass(frozen=True)
class Config:
    """Where and how a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs ``api_key`` or ``insecure``."""
    port: int = 5555
    """TCP port; 0 takes a free one."""
    api_key: str = ""
    """Clients must send it as ``api_token``, and may then stop the server with ``kill``; "" lets everybody in."""
    insecure: bool = False
    """Allow an address beyond loopback without a key: whoever reaches the port moves the robot's policy."""
    max_message_bytes: int = 64 << 20
    """Larger messages close the connection."""
    max_clients: int = 4
    """Requests that are worked on at a time; more wait. Also how many clients' random streams are remembered."""
    inference_timeout_s: float = 60.0
    """A client whose inference takes longer, waiting for others included, gets an error [s]."""
    warm_up: int = 2
    """Inferences on an empty observation before the server answers."""
    deterministic: bool = True
    """Answer with the most likely chunk instead of a sample."""
    seed: int = 0
    """Seed of sampled answers; every new client, and every ``reset``, begins the same stream."""
    max_batch: int = 8
    """Observations of one or several clients that share a call of the policy. Sampled answers never share."""
    batch_wait_s: float = 0.003
    """How long an observation waits for those of other active clients before its call [s]."""

    def __post_init__(self) -> None:
        """Refuse what would expose the policy, or cannot work."""
        check_settings(self)


@dataclass
class _Client:
    """What is remembered of a client, by the identity of its socket."""

    reader: ObservationReader
    generator: np.random.Generator
    asked: float = 0.0
    rows: int = 0


class Server:
    """One policy, several clients. An async context manager that is ready when entered."""

    def __init__(self, policy: ActingPolicy, identity: Identity, config: Config | None = None) -> None:
        """Prepare; nothing listens yet.

        Args:
            policy: What answers.
            identity: What the policy was trained in.
            config: Address and limits.

        Raises:
            MissingExtraError: If pyzmq is not installed.
        """
        require("zmq", "serve", "serving GR00T's clients")
        self.policy = policy
        self.identity = identity
        self.config = config or Config()
        self.ready = False
        self.stop_requested = asyncio.Event()
        self._limits = Limits(max_bytes=self.config.max_message_bytes)
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        reader_for(policy, identity)  # refuses wrong aliases and statistics now, not at the first client
        self.batcher = Batcher(
            policy,
            deterministic=self.config.deterministic,
            max_batch=self.config.max_batch,
            wait_s=self.config.batch_wait_s,
            clients=self._rows_expected,
        )
        self._socket: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._killed = False

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if not self._port:
            raise ProtocolError("The server is not listening yet.")
        return self._port

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        return address("tcp", self.config.host, self.port)

    def metadata(self) -> dict[str, Any]:
        """Return what is served, as the info of every ``reset``."""
        return describe(self.policy, self.identity, "gr00t")

    def modality_config(self) -> dict[str, Any]:
        """Return the answer to ``get_modality_config``: which keys the policy reads and writes, and for which steps."""
        spec = self.policy.spec
        keys = {
            "video": [key.removeprefix(IMAGE_PREFIX) for key, item in spec.observation.items() if item.is_image],
            "state": [key.removeprefix(_STATE_PREFIX) for key, item in spec.observation.items() if not item.is_image],
            "action": ["action"],
            "language": [TASK_KEY] if spec.reads_task else [],
        }
        steps = {name: list(range(spec.chunk_steps)) if name == "action" else [0] for name in keys}
        return {
            name: {
                "__ModalityConfig_class__": True,
                "as_json": {"delta_indices": steps[name], "modality_keys": keys[name]},
            }
            for name in keys
        }

    async def __aenter__(self) -> Self:
        """Listen, warm up, and return when ready.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        import zmq
        import zmq.asyncio

        config = self.config
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.MAXMSGSIZE, config.max_message_bytes)
        self._socket.set(zmq.RCVHWM, 2)
        self._socket.set(zmq.IPV6, ":" in config.host)
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            self._socket.bind(f"tcp://{'127.0.0.1' if host == 'localhost' else host}:{config.port or '*'}")
            self._port = int(self._socket.get(zmq.LAST_ENDPOINT).decode().rpartition(":")[2].rstrip("\0"))
            await asyncio.to_thread(self.batcher.warm_up, config.warm_up)
        except zmq.ZMQError as error:
            await self.__aexit__()
            raise cannot_listen(config.host, config.port, error) from error
        except BaseException:
            await self.__aexit__()
            raise
        self._start(self._receive())
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop answering, and close the socket."""
        self.ready = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close(_LINGER_MS)
            self._context.term()
            self._socket = None
        await asyncio.to_thread(self.batcher.close)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self) -> None:
        slots = asyncio.Semaphore(self.config.max_clients)
        while True:
            await slots.acquire()
            frames = await self._socket.recv_multipart()
            if len(frames) == 3 and not frames[1]:
                self._start(self._serve(frames[0], frames[2], slots))
            else:
                _LOG.warning("refused a message of %d frames; expected what a REQ socket sends", len(frames))
                slots.release()

    async def _serve(self, identity: bytes, message: bytes, slots: asyncio.Semaphore) -> None:
        try:
            answer = await self._answer(identity, message)
            await self._socket.send_multipart([identity, b"", answer])
            if self._killed:
                self.stop_requested.set()
        finally:
            slots.release()

    async def _answer(self, identity: bytes, message: bytes) -> bytes:
        encoding: Encoding | None = None
        try:
            request, encoding = unpack_and_tell(message, self._limits)
            answer = await self._call(identity, request)
        except BurnishError as error:
            answer = {"error": one_line(str(error))}
            _LOG.warning("client %s: %s", identity.hex(), answer["error"])
        except Exception:
            _LOG.exception("inference failed")
            answer = {"error": "The policy failed on this observation; the server's log says why."}
        return pack(answer, encoding or "npy")

    async def _call(self, identity: bytes, request: Any) -> Any:
        if not isinstance(request, Mapping):
            raise ProtocolError(f"A request is a map with an endpoint, found {type(request).__name__}.")
        key = self.config.api_key
        if key and not same_key(request.get("api_token"), key):
            raise ProtocolError("Unauthorized: send the right api_token.")
        endpoint, data = request.get("endpoint", "get_action"), request.get("data")
        if not isinstance(endpoint, str):
            raise ProtocolError("The endpoint must be a text.")
        client = self._client(identity)
        match endpoint:
            case "ping":
                return {"status": "ok", "message": "Server is running"}
            case "get_modality_config":
                return self.modality_config()
            case "reset":
                client.generator = self._stream()
                return self.metadata()
            case "kill":
                if not key:
                    raise ProtocolError("Refused: a server without an API token is not stopped over the network.")
                self._killed = True
                return {"status": "ok", "message": "Server stops"}
            case "get_action":
                return await self._act(client, data.get("observation") if isinstance(data, Mapping) else None)
        raise ProtocolError(
            f"There is no endpoint {endpoint[:40]!r}; there are ping, get_action, reset, get_modality_config and kill."
        )

    async def _act(self, client: _Client, observation: Any) -> list[Any]:
        rows, is_flat = split_rows(observation, client.reader.aliases)
        client.asked, client.rows = time.monotonic(), len(rows)
        read = [client.reader.read(row) for row in rows]
        warnings = [warning for _, found in read for warning in found]
        for warning in warnings:
            _LOG.warning("%s", one_line(warning))
        answers = [asyncio.wrap_future(self.batcher.submit(each, client.generator)) for each, _ in read]
        try:
            inferred: list[Inferred] = await asyncio.wait_for(asyncio.gather(*answers), self.config.inference_timeout_s)
        except TimeoutError:
            raise ProtocolError(f"Inference took longer than {self.config.inference_timeout_s} s.") from None
        info: dict[str, Any] = {"infer_ms": max(each.milliseconds for each in inferred)}
        if warnings:
            info["warnings"] = warnings
        return [{"action.action" if is_flat else "action": np.stack([each.chunk for each in inferred])}, info]

    def _client(self, identity: bytes) -> _Client:
        client = self._clients.pop(identity, None) or _Client(reader_for(self.policy, self.identity), self._stream())
        self._clients[identity] = client
        while len(self._clients) > self.config.max_clients:
            self._clients.popitem(last=False)
        return client

    def _stream(self) -> np.random.Generator:
        return stream(self.config.seed, "deploy")

    def _rows_expected(self) -> int:
        now = time.monotonic()
        return sum(client.rows for client in self._clients.copy().values() if now - client.asked < _ACTIVE_S)


def split_rows(observation: Any, aliases: Mapping[str, str]) -> tuple[list[dict[str, Any]], bool]:
    """Return (one message per row for an :class:`ObservationReader`, whether the keys were flat).

    Args:
        observation: Nested or flat; see the top of this file.
        aliases: Wire names that the reader knows.

    Raises:
        ProtocolError: If the arrays have no axes (B, T), T is not 1, or B differs between keys.
    """
    if not isinstance(observation, Mapping) or not observation:
        raise ProtocolError("data must hold an 'observation', a map of video, state and language.")
    nested = [name for name in ("video", "state", "language") if isinstance(observation.get(name), Mapping)]
    flat = {f"{name}.{key}": item for name in nested for key, item in observation[name].items()}
    flat |= {name: item for name, item in observation.items() if name not in nested}
    columns = {_policy_key(name, aliases): _column(name, item) for name, item in flat.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or len(columns) < len(flat) or not 1 <= min(sizes) <= _MAX_ROWS:
        described = ", ".join(f"{str(name)[:60]} ({len(column)})" for name, column in list(columns.items())[:16])
        raise ProtocolError(
            f"Every key must be given once, with as many rows as each other, 1 to {_MAX_ROWS}; found {described}."
        )
    return [{key: column[row] for key, column in columns.items()} for row in range(min(sizes))], not nested


def _policy_key(name: Any, aliases: Mapping[str, str]) -> str:
    kind, _, key = str(name).partition(".")
    if name in aliases or not key:
        return str(name)
    prefixes = {"video": IMAGE_PREFIX + key, "state": _STATE_PREFIX + key, "language": TASK_KEY, "annotation": TASK_KEY}
    return prefixes.get(kind, str(name))


def _column(name: Any, item: Any) -> list[Any]:
    """Return one entry per row of an array (B, 1, ...), or of texts as B lists of one, or as B texts."""
    if isinstance(item, np.ndarray):
        if item.ndim < 2 or item.shape[1] != 1:
            raise ProtocolError(
                f"'{str(name)[:60]}': expected axes (B, T, ...), T = 1, received {item.dtype.name}{list(item.shape)}."
            )
        return list(item[:, 0])
    if not isinstance(item, list):
        raise ProtocolError(
            f"'{str(name)[:60]}': expected an array or a list of texts, received {type(item).__name__}."
        )
    texts = [entry[0] if isinstance(entry, list) and len(entry) == 1 else entry for entry in item]
    if not all(isinstance(text, str) for text in texts):
        raise ProtocolError(f"'{str(name)[:60]}': expected one text per row.")
    return texts
