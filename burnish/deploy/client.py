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

from burnish.core.errors import BurnishError, ProtocolError
from burnish.core.spec import TASK_KEY, Array, ArraySpec, array_spec_from_json
from burnish.deploy.codec import Limits, pack, unpack

_HISTOGRAM_ROWS = 8
_DTYPES = {"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"}


class ConnectionLostError(ProtocolError):
    """The connection broke, or could not be made; nothing was wrong with what was sent."""


class Client:
    """A connection to a policy server; a context manager."""

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = 60.0) -> None:
        """Connect and read the metadata.

        Args:
            url: For example ``ws://127.0.0.1:8000``.
            api_key: Sent as ``Authorization: Api-Key <key>``; "" sends none.
            timeout_s: How long to wait for the connection, and for each answer [s].

        Raises:
            ConnectionLostError: If the server cannot be reached.
            ProtocolError: If it speaks something else.
        """
        self.url = url
        self.timeout_s = timeout_s
        """How long to wait for an answer [s]; may be changed."""
        self.closed = False
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._stack = ExitStack()
        try:
            self._connection = self._stack.enter_context(
                connect(
                    url,
                    compression=None,
                    max_size=Limits().max_bytes,
                    additional_headers=headers,
                    open_timeout=timeout_s,
                    ping_timeout=None,
                    proxy=None,
                )
            )
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError, EOFError) as error:
            raise ConnectionLostError(f"Cannot connect to {url}: {_explain(error)}.") from error
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
            ConnectionLostError: If the connection broke.
            ProtocolError: With the server's message if it refused or failed, or if no answer came in time; a late
                answer would be taken for the next one, so the connection is closed.
        """
        with suppress(ConnectionClosed):  # the reason is waiting to be received
            self._connection.send(pack(dict(observation)))
        answer = self._receive("an answer")
        if not isinstance(answer.get("actions"), np.ndarray):
            raise ProtocolError(f"{self.url}: the answer holds no array 'actions'; it holds {sorted(answer)}.")
        return answer

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self.closed = True
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
            message = self._connection.recv(timeout=self.timeout_s)
        except TimeoutError as error:
            self.close()
            raise ProtocolError(f"{self.url}: no answer within {self.timeout_s} s.") from error
        except ConnectionClosed as error:
            self.close()
            raise ConnectionLostError(
                f"{self.url} closed the connection instead of sending {what}: {error}."
            ) from error
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
    """Check what a burnish server says of itself, ask it for actions on made-up observations, and measure.

    Args:
        url: Address of the server.
        api_key: Its key.
        requests: Round trips R to measure, after two that are not counted.
        seed: Seed of the observations.

    Raises:
        ProtocolError: If the server cannot be reached, does not say what it expects, or answers wrongly.
    """
    with Client(url, api_key=api_key) as client:
        meta = client.metadata
        problems = metadata_problems(meta)
        if problems:
            raise ProtocolError(f"{url} says things that cannot be right:\n  " + "\n  ".join(problems))
        specs = {key: array_spec_from_json(item) for key, item in meta["observation"].items()}
        action = array_spec_from_json(meta["action"])
        expected = (meta["chunk_steps"], *action.shape)
        ranges = meta.get("ranges") or {}
        generator = np.random.default_rng(seed)
        latency, warnings, outside = [], [], 0
        for number in range(requests + 2):
            observation = {key: _made_up(item, ranges.get(key), generator) for key, item in specs.items()}
            begin = time.perf_counter()
            answer = client.infer({**observation, TASK_KEY: "probe"})
            if number >= 2:
                latency.append((time.perf_counter() - begin) * 1e3)
            warnings.extend(answer.get("warnings", []))
            chunk = answer["actions"]
            if chunk.shape != expected or chunk.dtype.kind != "f" or not np.isfinite(chunk).all():
                raise ProtocolError(
                    f"{url} announced finite chunks of shape {expected} and answered {chunk.dtype}{list(chunk.shape)}"
                    f"{'' if chunk.dtype.kind != 'f' or np.isfinite(chunk).all() else ' with entries not finite'}."
                )
            low, high = action.bounds()
            outside += bool(((chunk < low) | (chunk > high)).any())
        if outside:
            warnings.append(
                f"{outside} of {requests + 2} answers leave the announced limits of the action; a runtime clips them."
            )
        period_ms = meta["control_dt"] * meta["replan_steps"] * 1e3
        if np.quantile(latency, 0.99) > period_ms:
            warnings.append(f"p99 is longer than the {period_ms:.0f} ms that an executed chunk lasts: expect pauses.")
        return ProbeReport(url, meta, np.asarray(latency), expected, tuple(warnings))


def metadata_problems(metadata: Mapping[str, Any]) -> list[str]:
    """Return what is missing or wrong in a server's metadata, one sentence each; [] for none.

    Looked at are keys, shapes, dtypes and limits of observation and action, the control step, and the chunk.
    """
    if not isinstance(metadata.get("observation"), Mapping) or not isinstance(metadata.get("action"), Mapping):
        return [
            "it does not say which observation and action it works with; it says "
            f"{sorted(map(str, metadata)) or 'nothing'}. A server that is not burnish's can be driven with burnish "
            "deploy --remote URL --remote-keys ..., which says what to send."
        ]
    problems = []
    for key, item in {**metadata["observation"], "action": metadata["action"]}.items():
        problems += [f"'{key}': {problem}" for problem in _array_problems(item)]
    if not metadata["observation"]:
        problems.append("its observation is empty")
    if isinstance(metadata["action"].get("shape"), (list, tuple)) and len(metadata["action"]["shape"]) != 1:
        problems.append(f"'action': expected a vector, found shape {metadata['action']['shape']}")
    dt, chunk, replan = (metadata.get(name) for name in ("control_dt", "chunk_steps", "replan_steps"))
    if not isinstance(dt, (int, float)) or not 0 < dt < 60:
        problems.append(f"control_dt must be seconds within (0, 60), found {dt!r}")
    if not isinstance(chunk, int) or chunk < 1:
        problems.append(f"chunk_steps must be at least 1, found {chunk!r}")
    elif not isinstance(replan, int) or not 1 <= replan <= chunk:
        problems.append(f"replan_steps must be within [1, {chunk}], found {replan!r}")
    known = {*metadata["observation"], TASK_KEY}
    aliases = metadata.get("aliases", {})
    wrong = [name for name, key in aliases.items() if key not in known] if isinstance(aliases, Mapping) else [aliases]
    if wrong:
        problems.append(f"aliases {wrong} lead to keys that it does not read")
    return problems


def _array_problems(item: Any) -> list[str]:
    if not isinstance(item, Mapping):
        return [f"expected a description with shape and dtype, found {type(item).__name__}"]
    shape, dtype = item.get("shape"), item.get("dtype")
    if not isinstance(shape, (list, tuple)) or not all(isinstance(size, int) and size > 0 for size in shape):
        return [f"the shape must be a list of sizes > 0, found {shape!r}"]
    if dtype not in _DTYPES:
        return [f"the dtype must be one of {', '.join(sorted(_DTYPES))}, found {dtype!r}"]
    try:
        low, high = array_spec_from_json(item).bounds()
    except (BurnishError, TypeError, ValueError) as error:
        return [str(error)]
    if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
        entry = int(np.flatnonzero(~(low <= high))[0])
        return [f"entry {entry} has limits [{low.flat[entry]:.4g}, {high.flat[entry]:.4g}]"]
    return []


def histogram(latency_ms: Array) -> list[str]:
    """Return one line per bin of a latency histogram, for a terminal."""
    counts, edges = np.histogram(latency_ms, bins=_HISTOGRAM_ROWS)
    widest = max(int(counts.max()), 1)
    return [
        f"{edges[i]:8.1f} - {edges[i + 1]:8.1f} ms {'#' * round(40 * count / widest):<40} {count}"
        for i, count in enumerate(counts)
    ]


def _made_up(spec: ArraySpec, trained: Mapping[str, Any] | None, generator: np.random.Generator) -> Array:
    """Return a reading that the spec allows, inside what was seen in training where the server tells that."""
    if np.dtype(spec.dtype).kind in "iu":
        return generator.integers(0, 256, spec.shape).astype(spec.dtype)
    low, high = spec.bounds() if trained is None else (np.asarray(trained[name], float) for name in ("min", "max"))
    bounded = np.isfinite(low) & np.isfinite(high)
    drawn = generator.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 0.0), spec.shape)
    return drawn.astype(spec.dtype)


def _explain(error: BaseException) -> str:
    if "401" in str(error):
        return "the API key is wrong or missing (HTTP 401)"
    if "503" in str(error):
        return "the server is full or warming up (HTTP 503)"
    return str(error) or type(error).__name__
