"""A small client for any openpi policy server, and a probe that says whether a server is fit for a robot."""

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import connect

from burnish.core.errors import ProtocolError
from burnish.core.spec import TASK_KEY, Array, ArraySpec, array_spec_from_json
from burnish.deploy.codec import pack, unpack

_HISTOGRAM_ROWS = 8


class Client:
    """A connection to a policy server; a context manager."""

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = 60.0) -> None:
        """Connect and read the metadata.

        Args:
            url: For example ``ws://127.0.0.1:8000``.
            api_key: Sent as ``Authorization: Api-Key <key>``; "" sends none.
            timeout_s: How long to wait for the connection, and for each answer [s].

        Raises:
            ProtocolError: If the server cannot be reached, refuses, or speaks something else.
        """
        self.url = url
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._stack = ExitStack()
        try:
            self._connection = self._stack.enter_context(
                connect(
                    url,
                    compression=None,
                    max_size=None,
                    additional_headers=headers,
                    open_timeout=timeout_s,
                    ping_timeout=None,
                    proxy=None,
                )
            )
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError, EOFError) as error:
            raise ProtocolError(f"Cannot connect to {url}: {_explain(error)}.") from error
        try:
            self.metadata: dict[str, Any] = self._receive("the metadata")
        except ProtocolError:
            self.close()
            raise

    def infer(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's answer; ``actions`` is (K, A).

        Args:
            observation: Arrays without batch axis, and the instruction under ``task`` or ``prompt``.

        Raises:
            ProtocolError: With the server's message, if it refused or failed.
        """
        with suppress(ConnectionClosed):  # the reason is waiting to be received
            self._connection.send(pack(dict(observation)))
        answer = self._receive("an answer")
        if not isinstance(answer.get("actions"), np.ndarray):
            raise ProtocolError(f"{self.url}: the answer holds no array 'actions'; it holds {sorted(answer)}.")
        return answer

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._stack.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def _receive(self, what: str) -> dict[str, Any]:
        try:
            message = self._connection.recv(timeout=self._timeout_s)
        except TimeoutError as error:
            raise ProtocolError(f"{self.url}: no answer within {self._timeout_s} s.") from error
        except ConnectionClosed as error:
            raise ProtocolError(f"{self.url} closed the connection instead of sending {what}: {error}.") from error
        if isinstance(message, str):
            self.close()
            raise ProtocolError(f"The server at {self.url} refused: {message}")
        value = unpack(message)
        if not isinstance(value, dict):
            raise ProtocolError(f"{self.url}: expected a map as {what}, received {type(value).__name__}.")
        return value


@dataclass(frozen=True)
class ProbeReport:
    """What :func:`probe` found."""

    url: str
    metadata: Mapping[str, Any]
    latency_ms: Array
    """(R,) float64, round trips."""
    chunk_shape: tuple[int, ...]
    warnings: tuple[str, ...]

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of the round trips [ms]."""
        return float(np.quantile(self.latency_ms, share))

    def text(self) -> str:
        """Return the report for a terminal: metadata, keys, latency histogram, verdict."""
        meta = self.metadata
        lines = [f"{self.url}: {meta.get('server', 'unknown server')}, policy {meta.get('policy', '?')}"]
        labels = ("env", "fingerprint", "control_dt", "chunk_steps", "replan_steps")
        lines.extend(f"  {label:<13}{meta.get(label, '(not told)')}" for label in labels)
        lines.append("  keys to send")
        for key, item in meta.get("observation", {}).items():
            unit = f" [{item['unit']}]" if item.get("unit") else ""
            lines.append(f"    {key}: {item['dtype']} {list(item['shape'])}{unit}")
        if meta.get("reads_task"):
            lines.append(f"    {TASK_KEY}: text")
        lines.append(f"  actions      {self.chunk_shape}")
        lines.append(f"  round trip   p50 {self.quantile_ms(0.5):.1f} ms, p99 {self.quantile_ms(0.99):.1f} ms")
        lines.extend(f"    {row}" for row in histogram(self.latency_ms))
        lines.extend(f"  warning: {warning}" for warning in self.warnings)
        return "\n".join(lines)


def probe(url: str, *, api_key: str = "", requests: int = 50, seed: int = 0) -> ProbeReport:
    """Ask a burnish server for actions on made-up observations, and measure.

    Args:
        url: Address of the server.
        api_key: Its key.
        requests: Round trips R to measure, after two that are not counted.
        seed: Seed of the observations.

    Raises:
        ProtocolError: If the server cannot be reached, does not say what it expects, or answers wrongly.
    """
    with Client(url, api_key=api_key) as client:
        if "observation" not in client.metadata:
            raise ProtocolError(f"{url} does not say which observation it expects; it says {sorted(client.metadata)}.")
        specs = {key: array_spec_from_json(item) for key, item in client.metadata["observation"].items()}
        generator = np.random.default_rng(seed)
        latency, warnings = [], []
        for number in range(requests + 2):
            observation = {key: _made_up(item, generator) for key, item in specs.items()}
            begin = time.perf_counter()
            answer = client.infer({**observation, TASK_KEY: "probe"})
            if number >= 2:
                latency.append((time.perf_counter() - begin) * 1e3)
            warnings.extend(answer.get("warnings", []))
        shape = tuple(answer["actions"].shape)
        expected = (client.metadata.get("chunk_steps"), *client.metadata["action"]["shape"])
        if shape != expected or not np.isfinite(answer["actions"]).all():
            raise ProtocolError(f"{url} announced finite chunks of shape {expected} and answered {shape}.")
        period_ms = client.metadata["control_dt"] * client.metadata["replan_steps"] * 1e3
        if np.quantile(latency, 0.99) > period_ms:
            warnings.append(f"p99 is longer than the {period_ms:.0f} ms that an executed chunk lasts: expect pauses.")
        return ProbeReport(url, client.metadata, np.asarray(latency), shape, tuple(warnings))


def histogram(latency_ms: Array) -> list[str]:
    """Return one line per bin of a latency histogram, for a terminal."""
    counts, edges = np.histogram(latency_ms, bins=_HISTOGRAM_ROWS)
    widest = max(int(counts.max()), 1)
    return [
        f"{edges[i]:8.1f} - {edges[i + 1]:8.1f} ms {'#' * round(40 * count / widest):<40} {count}"
        for i, count in enumerate(counts)
    ]


def _made_up(spec: ArraySpec, generator: np.random.Generator) -> Array:
    if np.dtype(spec.dtype).kind in "iu":
        return generator.integers(0, 256, spec.shape).astype(spec.dtype)
    return np.zeros(spec.shape, spec.dtype)


def _explain(error: BaseException) -> str:
    if "401" in str(error):
        return "the API key is wrong or missing (HTTP 401)"
    if "503" in str(error):
        return "the server is full or warming up (HTTP 503)"
    return str(error) or type(error).__name__
