"""A policy behind openpi's websocket protocol: the unmodified ``openpi-client`` talks to it.

After the handshake the server sends one binary message, the metadata. Then every binary message from the client is an
observation, and the answer is ``{"actions": (K, A), "policy_timing", "server_timing"}``. An error is one text message,
then the connection is closed with code 1011. A new connection is a reset. What differs from openpi's own server: keys
are checked, messages are bounded, inference does not block the event loop, and no traceback leaves the machine.
"""

import asyncio
import hmac
import ipaddress
import logging
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from websockets.asyncio.server import Server as Listener
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import MultipleValuesError
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from burnish.core.errors import BurnishError, ConfigError, ProtocolError
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, Observation, to_json
from burnish.deploy.codec import Limits, pack, unpack
from burnish.deploy.observations import ActingPolicy, ObservationReader, Statistics

_LOG = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Config:
    """Where and how a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs ``api_key`` or ``insecure``."""
    port: int = 8000
    """TCP port; 0 takes a free one."""
    api_key: str = ""
    """Clients must send ``Authorization: Api-Key <key>``; "" lets everybody in."""
    insecure: bool = False
    """Allow an address beyond loopback without a key: whoever reaches the port moves the robot's policy."""
    certificate: str = ""
    """PEM file with the certificate chain, for ``wss://``; "" for plain ``ws://``."""
    private_key: str = ""
    """PEM file with the private key of ``certificate``."""
    max_message_bytes: int = 64 << 20
    """Larger messages close the connection (code 1009)."""
    max_clients: int = 4
    """Connections at a time; more are answered with HTTP 503."""
    inference_timeout_s: float = 60.0
    """A client whose inference takes longer, waiting for others included, gets an error [s]."""
    warm_up: int = 2
    """Inferences on an empty observation before ``/readyz`` says yes."""
    deterministic: bool = True
    """Answer with the most likely chunk instead of a sample."""
    seed: int = 0
    """Seed of sampled answers; every connection begins the same stream."""

    def __post_init__(self) -> None:
        """Refuse what would expose the policy, or cannot work."""
        if not is_loopback(self.host) and not (self.api_key or self.insecure):
            raise ConfigError(
                f"Refusing to listen on '{self.host}', which other machines reach, without a key. "
                "Set an API key, or say insecure explicitly, or listen on 127.0.0.1."
            )
        if self.api_key and (not self.api_key.isascii() or self.api_key.strip() != self.api_key):
            raise ConfigError("The API key must be ASCII text without spaces around it; HTTP headers carry no other.")
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigError("TLS needs both certificate and private_key.")
        if not 0 <= self.port < 65536 or self.max_clients < 1 or self.max_message_bytes < 1 or self.warm_up < 0:
            raise ConfigError(
                f"Expected port in [0, 65535], max_clients >= 1, max_message_bytes >= 1 and warm_up >= 0; found "
                f"{self.port}, {self.max_clients}, {self.max_message_bytes}, {self.warm_up}."
            )
        if self.inference_timeout_s <= 0:
            raise ConfigError(f"inference_timeout_s must be positive, found {self.inference_timeout_s}.")


@dataclass(frozen=True)
class Identity:
    """What a client is told about the policy beyond its spec."""

    control_dt: float
    """Seconds between two actions of the chunk."""
    env_id: str = ""
    """Environment the policy was trained in."""
    fingerprint: str = ""
    """Fingerprint of the checkpoint."""
    replan_steps: int = 0
    """Actions of a chunk to execute before asking again, as in training; 0 for the whole chunk."""
    statistics: Statistics | None = None
    """Training statistics, for range warnings."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """More wire names of observation keys, name to key."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listening address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """One policy, several clients, one inference at a time. An async context manager that is ready when entered."""

    def __init__(self, policy: ActingPolicy, identity: Identity, config: Config | None = None) -> None:
        """Prepare; nothing listens yet.

        Args:
            policy: What answers.
            identity: What clients are told.
            config: Address and limits.
        """
        self.policy = policy
        self.identity = identity
        self.config = config or Config()
        self.ready = False
        self.inferences = 0
        self._limits = Limits(max_bytes=self.config.max_message_bytes)
        self._reader()  # refuses wrong aliases and statistics now, not at the first client
        self._clients: set[ServerConnection] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._listener: Listener | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._listener is None:
            raise ProtocolError("The server is not listening yet.")
        port: int = next(iter(self._listener.sockets)).getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        host = self.config.host if is_loopback(self.config.host) else "127.0.0.1"
        return f"{'wss' if self.config.certificate else 'ws'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def metadata(self) -> dict[str, Any]:
        """Return the first message: protocol, policy, what to send, what comes back."""
        spec, identity = self.policy.spec, self.identity
        reader = self._reader()
        observation = {key: to_json(item) for key, item in spec.observation.items()}
        return {
            "server": f"burnish {version('burnish')}",
            "protocol": "openpi",
            "policy": spec.id,
            "observation": observation,
            "reads_task": spec.reads_task,
            "aliases": reader.aliases,
            "action": to_json(spec.action),
            "chunk_steps": spec.chunk_steps,
            "replan_steps": identity.replan_steps or spec.chunk_steps,
            "control_dt": float(identity.control_dt),
            "env": identity.env_id,
            "fingerprint": identity.fingerprint,
        }

    async def __aenter__(self) -> Self:
        """Listen, warm up, and return when ready.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        config = self.config
        try:
            self._listener = await serve(
                self._handle,
                config.host,
                config.port,
                compression=None,
                max_size=config.max_message_bytes,
                max_queue=2,
                origins=[None],  # a web page that a browser on this machine shows must not reach the policy
                process_request=self._process_request,
                ssl=_tls(config),
                server_header=None,
                logger=_quiet_logger(),
            )
        except OSError as error:
            self._executor.shutdown()
            raise ConfigError(
                f"Cannot listen on {config.host}:{config.port}: {error.strerror or error}. "
                "Choose another port (0 takes a free one)."
            ) from error
        try:
            loop = asyncio.get_running_loop()
            for _ in range(config.warm_up):
                await loop.run_in_executor(
                    self._executor, self._infer, empty_observation(self.policy), stream(0, "warm_up")
                )
        except BaseException:
            await self.__aexit__()
            raise
        self.inferences = 0
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections and stop listening."""
        self.ready = False
        if self._listener is not None:
            self._listener.close()
            with suppress(TimeoutError):  # a policy that hangs must not keep the server from stopping
                await asyncio.wait_for(self._listener.wait_closed(), _CLOSE_TIMEOUT_S)
            self._listener = None
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        if path == "/readyz":
            if self.ready:
                return connection.respond(HTTPStatus.OK, "OK\n")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "warming up\n")
        if self.config.api_key and not _authorised(request, self.config.api_key):
            _LOG.warning("refused a client at %s: wrong or missing API key", _peer(connection))
            return connection.respond(HTTPStatus.UNAUTHORIZED, "Send the header 'Authorization: Api-Key <key>'.\n")
        if len(self._clients) >= self.config.max_clients:
            return connection.respond(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{len(self._clients)} clients are connected, which is the limit.\n"
            )
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        self._clients.add(connection)
        _LOG.info("client %s connected", _peer(connection))
        try:
            await self._converse(connection)
        except ConnectionClosed:
            pass
        except BurnishError as error:
            await _refuse(connection, str(error))
        except Exception:
            _LOG.exception("inference failed")
            await _refuse(connection, "The policy failed on this observation; the server's log says why.")
        finally:
            self._clients.discard(connection)
            _LOG.info("client %s left", _peer(connection))

    async def _converse(self, connection: ServerConnection) -> None:
        reader = self._reader()
        generator = stream(self.config.seed, "deploy")
        previous_ms: float | None = None
        await connection.send(pack(self.metadata()))
        async for message in connection:
            received = time.monotonic()
            if not isinstance(message, bytes):
                raise ProtocolError("Expected a binary msgpack message, received text.")
            observation, warnings = reader.read(unpack(message, self._limits))
            for warning in warnings:
                _LOG.warning("client %s: %s", _peer(connection), warning)
            actions, infer_ms = await self._infer_in_turn(observation, generator)
            answer: dict[str, Any] = {
                "actions": actions,
                "policy_timing": {"infer_ms": infer_ms},
                "server_timing": {"infer_ms": (time.monotonic() - received) * 1e3},
            }
            if previous_ms is not None:
                answer["server_timing"]["prev_total_ms"] = previous_ms
            if warnings:
                answer["warnings"] = warnings
            await connection.send(pack(answer))
            previous_ms = (time.monotonic() - received) * 1e3

    async def _infer_in_turn(self, observation: Observation, generator: np.random.Generator) -> tuple[Array, float]:
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._executor, self._infer, observation, generator)
        try:
            return await asyncio.wait_for(call, self.config.inference_timeout_s)
        except TimeoutError:
            raise ProtocolError(f"Inference took longer than {self.config.inference_timeout_s} s.") from None

    def _infer(self, observation: Observation, generator: np.random.Generator) -> tuple[Array, float]:
        begin = time.monotonic()
        sample = self.policy.act(observation, generator=generator, deterministic=self.config.deterministic)
        elapsed_ms = (time.monotonic() - begin) * 1e3
        chunk = np.asarray(sample.action_chunk, np.float32)
        spec = self.policy.spec
        if chunk.shape != (1, spec.chunk_steps, *spec.action.shape):
            raise ProtocolError(
                f"Policy '{spec.id}' answered with shape {chunk.shape}, expected "
                f"{(1, spec.chunk_steps, *spec.action.shape)}."
            )
        if not np.isfinite(chunk).all():
            raise ProtocolError(f"Policy '{spec.id}' answered with values that are not finite; nothing was sent.")
        self.inferences += 1
        return chunk[0], elapsed_ms

    def _reader(self) -> ObservationReader:
        identity = self.identity
        return ObservationReader(self.policy.spec, aliases=identity.aliases, statistics=identity.statistics)


def empty_observation(policy: ActingPolicy) -> Observation:
    """Return an observation (N = 1) of zeros, for warm-up."""
    observation: Observation = {
        key: np.zeros((1, *item.shape), item.dtype) for key, item in policy.spec.observation.items()
    }
    observation[TASK_KEY] = [""]
    return observation


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server in a thread of its own while the context lasts; entered when it is ready."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="policy server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def serve_forever(server: Server, on_ready: Callable[[Server], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; to be called on the main thread.

    Args:
        server: What to serve.
        on_ready: Called once the server is ready, for example to print its address.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        async with server:
            if on_ready is not None:
                on_ready(server)
            await stop.wait()

    asyncio.run(main())


async def _refuse(connection: ServerConnection, message: str) -> None:
    _LOG.warning("client %s: %s", _peer(connection), message)
    with suppress(ConnectionClosed):
        await connection.send(message[:2000])
        await connection.close(1011, "The text message before this says why.")


def _authorised(request: Request, key: str) -> bool:
    try:
        sent = request.headers.get("Authorization", "")
    except MultipleValuesError:
        return False
    return hmac.compare_digest(sent.encode("utf-8", "replace"), f"Api-Key {key}".encode())


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if address else "(gone)"


def _tls(config: Config) -> ssl.SSLContext | None:
    if not config.certificate:
        return None
    for path in (config.certificate, config.private_key):
        if not Path(path).is_file():
            raise ConfigError(f"TLS file '{path}' does not exist.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.certificate, config.private_key)
    except ssl.SSLError as error:
        raise ConfigError(f"TLS files '{config.certificate}' and '{config.private_key}': {error}.") from error
    return context


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.websockets")
    logger.setLevel(logging.CRITICAL)  # failed handshakes and probes are not news; ours are logged above
    return logger
