"""A policy behind openpi's websocket protocol: the unmodified ``openpi-client`` talks to it.

After the handshake the server sends one binary message, the metadata. Then every binary message from the client is an
observation, and the answer is ``{"actions": (K, A), "policy_timing", "server_timing"}``. An error is one text message,
then the connection is closed with code 1011. A new connection is a reset. What differs from openpi's own server: keys
are checked, messages are bounded, inference does not block the event loop, clients that ask at the same time share a
call of the policy, and no traceback leaves the machine.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self

import numpy as np
from websockets.asyncio.server import Server as Listener
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import MultipleValuesError
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from burnish.core.errors import BurnishError, ProtocolError
from burnish.core.seeding import stream
from burnish.core.spec import Observation
from burnish.deploy.batching import Batcher, Inferred
from burnish.deploy.codec import Limits, pack, unpack
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.serving import (
    Identity,
    address,
    authorised,
    cannot_listen,
    check_settings,
    check_tls,
    describe,
    is_loopback,
    one_line,
    reader_for,
    running,
    serve_forever,
    tls_context,
)

__all__ = ["Config", "Identity", "Server", "is_loopback", "running", "serve_forever"]

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

    max_batch: int = 8
    """Observations of different clients that share a call of the policy; 1 for none. Sampled answers never share."""
    batch_wait_s: float = 0.003
    """How long an observation waits for those of other connected clients before its call [s]."""

    def __post_init__(self) -> None:
        """Refuse what would expose the policy, or cannot work."""
        check_settings(self)
        check_tls(self.certificate, self.private_key)


class Server:
    """One policy, several clients, one call of it at a time. An async context manager that is ready when entered."""

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
        self.stop_requested = asyncio.Event()
        self._limits = Limits(max_bytes=self.config.max_message_bytes)
        reader_for(policy, identity)  # refuses wrong aliases and statistics now, not at the first client
        self._clients: set[ServerConnection] = set()
        self.batcher = Batcher(
            policy,
            deterministic=self.config.deterministic,
            max_batch=self.config.max_batch,
            wait_s=self.config.batch_wait_s,
            clients=lambda: len(self._clients),
        )
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
        return address("wss" if self.config.certificate else "ws", self.config.host, self.port)

    def metadata(self) -> dict[str, Any]:
        """Return the first message: protocol, policy, what to send, what comes back."""
        return describe(self.policy, self.identity, "openpi")

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
                ssl=tls_context(config.certificate, config.private_key),
                server_header=None,
                logger=_quiet_logger(),
            )
        except OSError as error:
            raise cannot_listen(config.host, config.port, error.strerror or error) from error
        try:
            await asyncio.to_thread(self.batcher.warm_up, config.warm_up)
        except BaseException:
            await self.__aexit__()
            raise
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
        await asyncio.to_thread(self.batcher.close)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        if path == "/readyz":
            if self.ready:
                return connection.respond(HTTPStatus.OK, "OK\n")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "warming up\n")
        if self.config.api_key and not authorised(_authorization(request), self.config.api_key):
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
        reader = reader_for(self.policy, self.identity)
        generator = stream(self.config.seed, "deploy")
        previous_ms: float | None = None
        await connection.send(pack(self.metadata()))
        async for message in connection:
            received = time.monotonic()
            if not isinstance(message, bytes):
                raise ProtocolError("Expected a binary msgpack message, received text.")
            observation, warnings = reader.read(unpack(message, self._limits))
            for warning in warnings:
                _LOG.warning("client %s: %s", _peer(connection), one_line(warning))
            inferred = await self._infer(observation, generator)
            answer: dict[str, Any] = {
                "actions": inferred.chunk,
                "policy_timing": {"infer_ms": inferred.milliseconds},
                "server_timing": {"infer_ms": (time.monotonic() - received) * 1e3},
            }
            if previous_ms is not None:
                answer["server_timing"]["prev_total_ms"] = previous_ms
            if warnings:
                answer["warnings"] = warnings
            await connection.send(pack(answer))
            previous_ms = (time.monotonic() - received) * 1e3

    async def _infer(self, observation: Observation, generator: np.random.Generator) -> Inferred:
        answer = asyncio.wrap_future(self.batcher.submit(observation, generator))
        try:
            return await asyncio.wait_for(answer, self.config.inference_timeout_s)
        except TimeoutError:
            raise ProtocolError(f"Inference took longer than {self.config.inference_timeout_s} s.") from None


async def _refuse(connection: ServerConnection, message: str) -> None:
    message = one_line(message)
    _LOG.warning("client %s: %s", _peer(connection), message)
    with suppress(ConnectionClosed):
        await connection.send(message)
        await connection.close(1011, "The text message before this says why.")


def _authorization(request: Request) -> str:
    try:
        return request.headers.get("Authorization", "")
    except MultipleValuesError:
        return ""


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if address else "(gone)"


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.websockets")
    logger.setLevel(logging.CRITICAL)  # failed handshakes and probes are not news; ours are logged above
    return logger
