"""What every policy server shares: who may connect, TLS, what clients are told, and running until a signal."""

import asyncio
import hmac
import ipaddress
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self

from burnish.core.errors import ConfigError
from burnish.core.spec import to_json
from burnish.deploy.observations import ActingPolicy, ObservationReader, Statistics

_HELLO = "Api-Key "
"""What stands before the key in an ``Authorization`` header."""
MAX_REASON = 2000
"""Characters of an error message that a peer is sent."""


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


class Settings(Protocol):
    """Fields that the Config of every server has; they mean the same in each."""

    @property
    def host(self) -> str:
        """Address to listen on."""
        ...

    @property
    def port(self) -> int:
        """TCP port; 0 takes a free one."""
        ...

    @property
    def api_key(self) -> str:
        """Clients must send it; "" lets everybody in."""
        ...

    @property
    def insecure(self) -> bool:
        """Allow an address beyond loopback without a key."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """Larger messages are refused."""
        ...

    @property
    def max_clients(self) -> int:
        """Clients at a time."""
        ...

    @property
    def inference_timeout_s(self) -> float:
        """A client that waits longer for its answer gets an error [s]."""
        ...

    @property
    def warm_up(self) -> int:
        """Inferences before the server is ready."""
        ...

    @property
    def max_batch(self) -> int:
        """Observations that share a call of the policy."""
        ...

    @property
    def batch_wait_s(self) -> float:
        """How long the first of them waits for the others [s]."""
        ...


class Served(Protocol):
    """A policy server: an async context manager that is ready when entered."""

    stop_requested: asyncio.Event
    """Set when a signal or a client asks the server to stop."""

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        ...

    async def __aenter__(self) -> Self:
        """Listen, warm up, and return when ready."""
        ...

    async def __aexit__(self, *details: object) -> None:
        """Stop listening."""
        ...


def check_settings(config: Settings) -> None:
    """Refuse a server's configuration that would expose the policy, or cannot work.

    Raises:
        ConfigError: Says which field is wrong, and what to do.
    """
    if not is_loopback(config.host) and not (config.api_key or config.insecure):
        raise ConfigError(
            f"Refusing to listen on '{config.host}', which other machines reach, without a key. "
            "Set an API key, or say insecure explicitly, or listen on 127.0.0.1."
        )
    if config.api_key and (not config.api_key.isascii() or config.api_key.strip() != config.api_key):
        raise ConfigError("The API key must be ASCII text without spaces around it; HTTP headers carry no other.")
    if not 0 <= config.port < 65536 or config.max_clients < 1 or config.max_message_bytes < 1 or config.warm_up < 0:
        raise ConfigError(
            f"Expected port in [0, 65535], max_clients >= 1, max_message_bytes >= 1 and warm_up >= 0; found "
            f"{config.port}, {config.max_clients}, {config.max_message_bytes}, {config.warm_up}."
        )
    if config.inference_timeout_s <= 0:
        raise ConfigError(f"inference_timeout_s must be positive, found {config.inference_timeout_s}.")
    if config.max_batch < 1 or not 0 <= config.batch_wait_s < config.inference_timeout_s:
        raise ConfigError(
            f"Expected max_batch >= 1 and batch_wait_s in [0, inference_timeout_s); found {config.max_batch}, "
            f"{config.batch_wait_s}."
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listening address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address(scheme: str, host: str, port: int) -> str:
    """Return the URL for a client on this machine."""
    near = host if is_loopback(host) else "127.0.0.1"
    return f"{scheme}://{f'[{near}]' if ':' in near else near}:{port}"


def same_key(sent: object, key: str) -> bool:
    """Compare a key that a peer sent with ours, in a time that does not tell how much of it is right."""
    return isinstance(sent, str) and hmac.compare_digest(sent.encode("utf-8", "replace"), key.encode())


def authorised(header: object, key: str) -> bool:
    """Return whether the value of an ``Authorization`` header is ``Api-Key <key>``."""
    return isinstance(header, str) and header.startswith(_HELLO) and same_key(header.removeprefix(_HELLO), key)


def one_line(text: str) -> str:
    """Return a message that is fit for a log and for a peer: one line, printable, not too long."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_REASON])


def check_tls(certificate: str, private_key: str) -> None:
    """Refuse one of the two TLS files without the other.

    Raises:
        ConfigError: If only one is given.
    """
    if bool(certificate) != bool(private_key):
        raise ConfigError("TLS needs both certificate and private_key.")


def tls_context(certificate: str, private_key: str) -> ssl.SSLContext | None:
    """Return the context of a TLS server, or None without a certificate.

    Raises:
        ConfigError: If a file is missing, or the two do not belong together.
    """
    if not certificate:
        return None
    for path in (certificate, private_key):
        if not Path(path).is_file():
            raise ConfigError(f"TLS file '{path}' does not exist.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, private_key)
    except ssl.SSLError as error:
        raise ConfigError(f"TLS files '{certificate}' and '{private_key}': {error}.") from error
    return context


def cannot_listen(host: str, port: int, reason: object) -> ConfigError:
    """Return the error of an address that cannot be listened on."""
    return ConfigError(f"Cannot listen on {host}:{port}: {reason}. Choose another port (0 takes a free one).")


def reader_for(policy: ActingPolicy, identity: Identity) -> ObservationReader:
    """Return a fresh reader of one client's observations.

    Raises:
        ConfigError: If aliases or statistics do not fit the policy.
    """
    return ObservationReader(policy.spec, aliases=identity.aliases, statistics=identity.statistics)


def describe(policy: ActingPolicy, identity: Identity, protocol: str) -> dict[str, Any]:
    """Return what a client is told, as plain values: policy, what to send, what comes back, and how often."""
    spec = policy.spec
    ranges = identity.statistics or {}
    return {
        "server": f"burnish {version('burnish')}",
        "protocol": protocol,
        "policy": spec.id,
        "observation": {key: to_json(item) for key, item in spec.observation.items()},
        "ranges": {
            key: {name: [float(number) for number in ranges[key][name]] for name in ("min", "max")}
            for key in spec.observation
            if key in ranges and {"min", "max"} <= set(ranges[key])
        },
        "reads_task": spec.reads_task,
        "aliases": reader_for(policy, identity).aliases,
        "action": to_json(spec.action),
        "chunk_steps": spec.chunk_steps,
        "replan_steps": identity.replan_steps or spec.chunk_steps,
        "control_dt": float(identity.control_dt),
        "env": identity.env_id,
        "fingerprint": identity.fingerprint,
    }


@contextmanager
def running[S: Served](server: S) -> Iterator[S]:
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


def serve_forever[S: Served](server: S, on_ready: Callable[[S], None] | None = None) -> None:
    """Serve until SIGINT, SIGTERM or a client that may do so ends it; to be called on the main thread.

    Args:
        server: What to serve.
        on_ready: Called once the server is ready, for example to print its address.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, server.stop_requested.set)
        async with server:
            if on_ready is not None:
                on_ready(server)
            await server.stop_requested.wait()

    asyncio.run(main())
