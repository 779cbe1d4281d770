"""A policy behind lerobot's AsyncInference service: the unmodified ``RobotClient`` of lerobot talks to it.

The client says ``Ready``, which is a reset, then what its robot observes, then sends observations and asks for actions
in turn. The newest observation is answered; action k of the answer has the observation's timestep + k. What differs
from lerobot's own server: no pickle is loaded (:mod:`burnish.deploy.unpickling`), the model that the client names is
not, each client has a state of its own, and what is wrong comes back as a gRPC status with a sentence. The unmodified
client can send neither a key nor TLS; beyond one machine, put an SSH tunnel or a proxy that adds them in between.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from burnish.core.errors import BurnishError, ConfigError, ProtocolError, require
from burnish.core.seeding import stream
from burnish.core.spec import Array, Observation
from burnish.deploy.batching import Batcher
from burnish.deploy.lerobot_wire import (
    assemble,
    decode_fields,
    encode_bytes,
    read_observation,
    read_setup,
    write_actions,
)
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.robot_keys import RobotKeys
from burnish.deploy.robot_session import RobotSession
from burnish.deploy.serving import (
    Identity,
    address,
    authorised,
    cannot_listen,
    check_settings,
    check_tls,
    describe,
    one_line,
    reader_for,
    serve_forever,
    tls_context,
)
from burnish.deploy.unpickling import Limits

__all__ = ["Config", "Server", "serve_forever"]

_LOG = logging.getLogger(__name__)
_SERVICE = "transport.AsyncInference"
_MAX_PIECE_BYTES = 4 << 20
"""lerobot sends pieces of 2 MiB, and allows 4."""
_MAX_SETUP_BYTES = 1 << 20
_KEEPALIVE_MS = 10_000
_STOP_GRACE_S = 0.5
_QUIET_S = 3.0
"""A robot of which nothing is heard for so long may have lost its connection, and come back over another."""
_FORGET_S = 10.0
"""A robot of which nothing is heard for so long makes place for another."""


@dataclass(frozen=True)
class Config:
    """Where and how a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs ``api_key`` or ``insecure``."""
    port: int = 8080
    """TCP port; 0 takes a free one."""
    api_key: str = ""
    """Clients must send the metadata ``authorization: Api-Key <key>``; "" lets everybody in."""
    insecure: bool = False
    """Allow an address beyond loopback without a key: whoever reaches the port moves the robot's policy."""
    certificate: str = ""
    """PEM file with the certificate chain; "" for a connection in the clear."""
    private_key: str = ""
    """PEM file with the private key of ``certificate``."""
    max_message_bytes: int = 64 << 20
    """Larger observations are refused, however many pieces they come in."""
    max_clients: int = 4
    """Robots at a time; one more is refused unless another has gone."""
    inference_timeout_s: float = 60.0
    """A client whose inference takes longer, waiting for others included, gets an error [s]."""
    warm_up: int = 2
    """Inferences on an empty observation before the server answers."""
    deterministic: bool = True
    """Answer with the most likely chunk instead of a sample."""
    seed: int = 0
    """Seed of sampled answers; every ``Ready`` begins the same stream."""
    max_batch: int = 8
    """Observations of different clients that share a call of the policy; 1 for none. Sampled answers never share."""
    batch_wait_s: float = 0.003
    """How long an observation waits for those of other clients before its call [s]."""
    observation_wait_s: float = 2.0
    """How long a request for actions waits for an observation before its answer is empty [s]."""
    upload_timeout_s: float = 10.0
    """How long the pieces of one observation may take [s]."""
    resize: bool = True
    """Scale pictures to the size that the policy reads, as lerobot's own server does, instead of refusing them."""

    def __post_init__(self) -> None:
        """Refuse what would expose the policy, or cannot work."""
        check_settings(self)
        check_tls(self.certificate, self.private_key)
        if self.observation_wait_s <= 0 or self.upload_timeout_s <= 0:
            raise ConfigError(
                f"observation_wait_s and upload_timeout_s must be positive, found {self.observation_wait_s} and "
                f"{self.upload_timeout_s}."
            )


class _Refusal(Exception):  # noqa: N818
    """A status that is not INVALID_ARGUMENT, with its reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Server:
    """One policy, several robots. An async context manager that is ready when entered."""

    def __init__(self, policy: ActingPolicy, identity: Identity, config: Config | None = None) -> None:
        """Prepare; nothing listens yet.

        Args:
            policy: What answers.
            identity: What the policy was trained in.
            config: Address and limits.

        Raises:
            MissingExtraError: If grpcio is not installed.
        """
        require("grpc", "serve", "serving lerobot's robot client")
        self.policy = policy
        self.identity = identity
        self.config = config or Config()
        self.ready = False
        self.stop_requested = asyncio.Event()
        reader_for(policy, identity)  # refuses wrong aliases and statistics now, not at the first client
        self._sessions: dict[str, RobotSession] = {}
        self._lock = threading.Lock()
        self.batcher = Batcher(
            policy,
            deterministic=self.config.deterministic,
            max_batch=self.config.max_batch,
            wait_s=self.config.batch_wait_s,
            clients=lambda: len(self._sessions),
        )
        self._grpc: Any = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if not self._port:
            raise ProtocolError("The server is not listening yet.")
        return self._port

    @property
    def url(self) -> str:
        """The address for a client on this machine; lerobot's ``server_address`` is what follows ``//``."""
        return address("grpcs" if self.config.certificate else "grpc", self.config.host, self.port)

    def metadata(self) -> dict[str, Any]:
        """Return what is served, for logs; the protocol has no message for it."""
        return describe(self.policy, self.identity, "lerobot")

    async def __aenter__(self) -> Self:
        """Bind the address, warm up, listen, and return when ready.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        try:
            self._bind()
            await asyncio.to_thread(self.batcher.warm_up, self.config.warm_up)
            self._grpc.start()
        except BaseException:
            await self.__aexit__()
            raise
        self.ready = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all calls and stop listening."""
        self.ready = False
        for session in self._sessions.copy().values():
            session.end()
        if self._grpc is not None:
            await asyncio.to_thread(self._grpc.stop(_STOP_GRACE_S).wait)
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._grpc = None
        await asyncio.to_thread(self.batcher.close)

    def _bind(self) -> None:
        import grpc

        config = self.config
        context = tls_context(config.certificate, config.private_key)  # says what is wrong with the files
        threads = 2 * config.max_clients + 2  # a client waits for actions while it sends observations
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="lerobot")
        handlers = {
            "Ready": grpc.unary_unary_rpc_method_handler(self._guarded(self._ready)),
            "SendPolicyInstructions": grpc.unary_unary_rpc_method_handler(self._guarded(self._set_up)),
            "SendObservations": grpc.stream_unary_rpc_method_handler(self._guarded(self._observe)),
            "GetActions": grpc.unary_unary_rpc_method_handler(self._guarded(self._act)),
        }
        self._grpc = grpc.server(
            self._workers,
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, handlers)],
            maximum_concurrent_rpcs=threads,
            options=[
                ("grpc.max_receive_message_length", _MAX_PIECE_BYTES),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
            ],
        )
        where = f"[{config.host}]:{config.port}" if ":" in config.host else f"{config.host}:{config.port}"
        try:
            if context is None:
                self._port = self._grpc.add_insecure_port(where)
            else:
                pair = (Path(config.private_key).read_bytes(), Path(config.certificate).read_bytes())
                self._port = self._grpc.add_secure_port(where, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise cannot_listen(config.host, config.port, "the address is taken, or not of this machine") from error
        if not self._port:
            raise cannot_listen(config.host, config.port, "the address is taken, or not of this machine")

    def _guarded(self, handler: Callable[[Any, Any], bytes]) -> Callable[[Any, Any], bytes]:
        """Return a handler that admits who may ask, and turns errors into statuses without tracebacks."""
        import grpc

        def call(request: Any, context: Any) -> bytes:
            try:
                self._admit(context)
                return handler(request, context)
            except _Refusal as error:
                code, reason = getattr(grpc.StatusCode, error.code), str(error)
            except BurnishError as error:
                code, reason = grpc.StatusCode.INVALID_ARGUMENT, str(error)
            except grpc.RpcError:  # the peer went away in the middle of its message
                code, reason = grpc.StatusCode.CANCELLED, "The call ended."
            except Exception:
                _LOG.exception("serving a robot failed")
                code, reason = grpc.StatusCode.INTERNAL, "The policy failed; the server's log says why."
            reason = one_line(reason)
            _LOG.warning("robot %s: %s", context.peer(), reason)
            context.abort(code, reason)
            raise AssertionError  # abort raises

        return call

    def _admit(self, context: Any) -> None:
        sent = [value for key, value in context.invocation_metadata() if key == "authorization"]
        if self.config.api_key and not (len(sent) == 1 and authorised(sent[0], self.config.api_key)):
            raise _Refusal("UNAUTHENTICATED", "Send the metadata 'authorization: Api-Key <key>'.")

    def _ready(self, _: bytes, context: Any) -> bytes:
        peer = context.peer()
        session = RobotSession(reader_for(self.policy, self.identity), stream(self.config.seed, "deploy"))
        with self._lock:
            old = self._sessions.pop(peer, None)
            for name in [name for name, each in self._sessions.items() if each.is_gone(_FORGET_S)]:
                if len(self._sessions) >= self.config.max_clients:
                    self._sessions.pop(name)
            if len(self._sessions) >= self.config.max_clients:
                raise _Refusal("RESOURCE_EXHAUSTED", f"{len(self._sessions)} robots are served, which is the limit.")
            self._sessions[peer] = session
        if old is not None:
            old.end()
        _LOG.info("robot %s is ready", peer)
        return b""

    def _set_up(self, request: bytes, context: Any) -> bytes:
        with self._session(context) as session:
            setup = read_setup(decode_fields(request, data=1)[1], Limits(max_bytes=_MAX_SETUP_BYTES))
            spec = self.policy.spec
            keys = RobotKeys(spec, setup.features, session.reader, resize=self.config.resize)
            _LOG.info("robot %s asks for %r; served is '%s' all the same", context.peer(), setup.path, spec.id)
            warnings = list(keys.warnings)
            if setup.policy_type != spec.id:
                warnings.append(f"it asks for a policy of type '{setup.policy_type}', and gets '{spec.id}'.")
            if setup.actions_per_chunk > spec.chunk_steps:
                warnings.append(
                    f"it asks for {setup.actions_per_chunk} actions at a time, and gets {spec.chunk_steps}."
                )
            self._warn(context, warnings)
            session.actions_per_chunk = setup.actions_per_chunk
            session.keys = keys
        return b""

    def _observe(self, pieces: Iterator[bytes], context: Any) -> bytes:
        with self._session(context) as session:
            if session.keys is None:
                raise _Refusal("FAILED_PRECONDITION", "Send the policy instructions before observations.")
            data = self._receive(pieces, context)
            seen = read_observation(data, Limits(max_bytes=self.config.max_message_bytes))
            observation, warnings = session.reader.read(session.keys.message(seen.values))
            self._warn(context, warnings)
            if not session.offer(seen, observation):
                _LOG.debug("robot %s: observation %d is answered or out of date", context.peer(), seen.timestep)
        return b""

    def _act(self, _: bytes, context: Any) -> bytes:
        with self._session(context) as session:
            taken = session.take(self.config.observation_wait_s)
            if taken is None:
                return b""
            seen, observation = taken
            chunk = self._infer(session, observation)[: session.actions_per_chunk]
            session.answered(seen.timestep)
            return encode_bytes(1, write_actions(chunk, seen, self.identity.control_dt))

    def _receive(self, pieces: Iterator[bytes], context: Any) -> bytes:
        overdue = threading.Timer(self.config.upload_timeout_s, context.cancel)
        overdue.daemon = True
        overdue.start()
        try:
            return assemble(pieces, self.config.max_message_bytes)
        finally:
            overdue.cancel()

    def _infer(self, session: RobotSession, observation: Observation) -> Array:
        answer = self.batcher.submit(observation, session.generator)
        try:
            return answer.result(self.config.inference_timeout_s).chunk
        except TimeoutError:
            if answer.done():  # the policy itself raised it
                raise
            answer.cancel()
            reason = f"Inference took longer than {self.config.inference_timeout_s} s."
            raise _Refusal("DEADLINE_EXCEEDED", reason) from None

    @contextmanager
    def _session(self, context: Any) -> Iterator[RobotSession]:
        """Give the state of the robot that calls; one that connects again, without saying so, finds its own."""
        peer = context.peer()
        with self._lock:
            if peer not in self._sessions:
                host = peer.rpartition(":")[0]
                near = [name for name in self._sessions if name.rpartition(":")[0] == host]
                gone = [name for name in near if self._sessions[name].is_gone(_QUIET_S)]
                if not gone:
                    raise _Refusal("FAILED_PRECONDITION", "Call Ready first.")
                self._sessions[peer] = self._sessions.pop(gone[-1])
                _LOG.info("robot %s is back as %s", gone[-1], peer)
            session = self._sessions[peer]
        session.begin_call()
        try:
            yield session
        finally:
            session.end_call(broken=not context.is_active())

    def _warn(self, context: Any, warnings: list[str]) -> None:
        for warning in warnings:
            _LOG.warning("robot %s: %s", context.peer(), one_line(warning))
