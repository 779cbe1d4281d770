"""From what a client sent to what the policy reads: key aliases, and checks that say expected against received."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.spec import IMAGE_PREFIX, TASK_KEY, Array, ArraySpec, Observation, PolicySpec
from burnish.core.step import ActionSample

type Statistics = Mapping[str, Mapping[str, list[float]]]
"""Per observation key {"q01", "q99", ...} or {"min", "max", ...}, one number per entry, as in a LeRobotDataset's
``meta/stats.json``."""

_OBSERVATION = "observation."
_RANGE_MARGIN = 0.25
"""Share of the training range by which a value may leave it before a warning."""
_RANGE_NAMES = (("q01", "q99"), ("min", "max"))
"""Figures that bound what was seen in training, the ones to prefer first."""
_MAX_IGNORED = 16
"""How many unknown keys are named in one message and remembered."""


class ActingPolicy(Protocol):
    """The part of a policy that deployment needs; every :class:`burnish.core.contracts.Policy` has it."""

    spec: PolicySpec

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Return chunks (N, K, A) as numpy arrays."""
        ...


def default_aliases(spec: PolicySpec) -> dict[str, str]:
    """Return the wire names that are accepted for each key the policy reads, alias to key.

    ``observation.state`` is also ``observation/state`` and ``state``; ``observation.images.wrist`` is also
    ``observation/images/wrist``, ``images/wrist`` and ``observation/wrist``; ``task`` is also ``prompt``.
    An alias that would stand for two keys is left out.
    """
    claims: dict[str, set[str]] = {"prompt": {TASK_KEY}}
    for key in spec.observation:
        names = [key.replace(".", "/")]
        if key.startswith(_OBSERVATION):
            names.append(key.removeprefix(_OBSERVATION).replace(".", "/"))
        if key.startswith(IMAGE_PREFIX):
            names.append("observation/" + key.removeprefix(IMAGE_PREFIX).replace(".", "/"))
        for name in names:
            claims.setdefault(name, set()).add(key)
    known = {*spec.observation, TASK_KEY}
    return {name: keys.copy().pop() for name, keys in claims.items() if len(keys) == 1 and name not in known}


class ObservationReader:
    """Checks one client message and turns it into a batch of one; keeps what has been warned about."""

    def __init__(
        self, spec: PolicySpec, *, aliases: Mapping[str, str] | None = None, statistics: Statistics | None = None
    ) -> None:
        """Prepare for the keys of a policy.

        Args:
            spec: What the policy reads.
            aliases: More wire names, name to key; they win over the default ones.
            statistics: Training statistics; values outside [q01, q99] of them, or [min, max] where there are no
                quantiles, are warned about.

        Raises:
            ConfigError: If an alias names a key that the policy does not read, or hides one.
        """
        known = {*spec.observation, TASK_KEY}
        for name, key in (aliases or {}).items():
            if key not in known or (name in known and name != key):
                raise ConfigError(
                    f"Alias '{name}' -> '{key}' does not work: it must lead from a new name to one of "
                    f"{', '.join(sorted(known))}."
                )
        self.spec = spec
        self.aliases = {**default_aliases(spec), **(aliases or {})}
        self._ranges = {key: _range(key, spec.observation[key], statistics) for key in spec.observation}
        self._ignored: set[str] = set()
        self._outside: set[str] = set()

    def read(self, message: Any) -> tuple[Observation, list[str]]:
        """Return (observation with N = 1, new warnings).

        Args:
            message: What the client sent, decoded: a map of keys to arrays without batch axis, and the instruction.

        Raises:
            ProtocolError: Names the key, what was expected and what came.
        """
        if not isinstance(message, Mapping):
            raise ProtocolError(f"An observation is a map of keys to arrays, found {type(message).__name__}.")
        found = self._rename(message)
        missing = [key for key in self.spec.observation if key not in found]
        if self.spec.reads_task and TASK_KEY not in found:
            missing.append(TASK_KEY)
        if missing:
            raise ProtocolError(
                f"The observation lacks {', '.join(missing)}. Expected: {self.expected()}. "
                f"Received: {_received(message)}.{self._table(found)}"
            )
        try:
            observation: Observation = {
                key: _check(key, item, found[key])[None] for key, item in self.spec.observation.items()
            }
        except ProtocolError as error:
            raise ProtocolError(f"{error}{self._table(found)}") from error
        task = found.get(TASK_KEY, "")
        if not isinstance(task, str):
            raise ProtocolError(f"'{TASK_KEY}' must be text, found {_describe(task)}.")
        observation[TASK_KEY] = [task]
        return observation, [*self._warn_ignored(found), *self._warn_outside(observation)]

    def _table(self, found: Mapping[str, Any]) -> str:
        return "\n" + Handshake(tuple(_rows(self.spec, found, self._ranges))).text()

    def expected(self) -> str:
        """Return what a message must hold, in one line."""
        items = [f"{key} {item.dtype}{list(item.shape)}" for key, item in self.spec.observation.items()]
        return ", ".join([*items, f"{TASK_KEY} text"] if self.spec.reads_task else items)

    def _rename(self, message: Mapping[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, item in message.items():
            text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
            key = self.aliases.get(text, text)
            if key in found:
                raise ProtocolError(f"The observation gives '{key}' twice, once as '{text}'; send it once.")
            found[key] = item
        return found

    def _warn_ignored(self, found: Mapping[str, Any]) -> list[str]:
        if len(self._ignored) >= _MAX_IGNORED:
            return []
        extra = sorted(set(found) - set(self.spec.observation) - {TASK_KEY} - self._ignored)[:_MAX_IGNORED]
        self._ignored.update(extra)
        return [f"The policy does not read {', '.join(extra)}."] if extra else []

    def _warn_outside(self, observation: Observation) -> list[str]:
        warnings = []
        for key, bounds in self._ranges.items():
            if key in self._outside:
                continue
            problem = _outside_text(key, observation[key][0], bounds)
            if problem:
                self._outside.add(key)
                warnings.append(f"{problem}; check order, units and normalisation.")
        return warnings


@dataclass(frozen=True)
class HandshakeRow:
    """One key, as expected and as received."""

    key: str
    expected: str
    received: str
    range: str
    """Where the values lie."""
    problem: str
    """Why the policy cannot read it; "" if it can."""
    warning: str
    """Why it is suspicious; "" if it is not."""


@dataclass(frozen=True)
class Handshake:
    """What a policy expects against what a robot or client gives."""

    rows: tuple[HandshakeRow, ...]

    def text(self) -> str:
        """Return a table for a terminal."""
        head = ("key", "expected", "received", "values")
        cells = [head, *((row.key, row.expected, row.received, row.range) for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
        lines = []
        for number, line in enumerate(cells):
            row = self.rows[number - 1] if number else None
            verdict = "" if row is None else "REFUSED" if row.problem else "warning" if row.warning else "ok"
            padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
            lines.append("  ".join([*padded, verdict]).rstrip())
        return "\n".join([*lines, *(f"warning: {row.warning}" for row in self.rows if row.warning)])

    def check(self) -> None:
        """Refuse what cannot be right.

        Raises:
            ProtocolError: Says what is wrong with each key.
        """
        problems = [row.problem for row in self.rows if row.problem]
        if problems:
            raise ProtocolError("The policy cannot read this observation:\n  " + "\n  ".join(problems))


def handshake(spec: PolicySpec, observation: Observation, statistics: Statistics | None = None) -> Handshake:
    """Compare a policy's spec with a first observation.

    Args:
        spec: What is read.
        observation: N = 1; more keys than the policy reads do not matter.
        statistics: Training statistics, for ranges.
    """
    ranges = {key: _range(key, item, statistics) for key, item in spec.observation.items()}
    found = {key: item[0] if isinstance(item, (np.ndarray, list)) else item for key, item in observation.items()}
    return Handshake(tuple(_rows(spec, found, ranges)))


def _rows(
    spec: PolicySpec, found: Mapping[str, Any], ranges: Mapping[str, tuple[Array, Array] | None]
) -> list[HandshakeRow]:
    rows = []
    for key, item in spec.observation.items():
        expected = f"{item.dtype}{list(item.shape)}" + (f" {item.unit}" if item.unit else "")
        if key not in found:
            rows.append(HandshakeRow(key, expected, "nothing", "", f"'{key}' is missing.", ""))
            continue
        value, problem = found[key], ""
        try:
            value = _check(key, item, value)
        except ProtocolError as error:
            problem = str(error)
        outside = "" if problem else _outside_text(key, value, ranges.get(key))
        rows.append(HandshakeRow(key, expected, _describe(found[key]), _values(value), problem, outside))
    if spec.reads_task:
        task = found.get(TASK_KEY)
        problem = "" if isinstance(task, str) else f"'{TASK_KEY}' must be text, found {_describe(task)}."
        warning = f"'{TASK_KEY}' is empty, and the policy reads it" if task == "" else ""
        rows.append(HandshakeRow(TASK_KEY, "text", _describe(task), "", problem, warning))
    return rows


def _values(value: Any) -> str:
    if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "fiub":
        return ""
    return f"{float(value.min()):.4g} .. {float(value.max()):.4g}"


def _outside_text(key: str, value: Array, bounds: tuple[Array, Array] | None) -> str:
    if bounds is None:
        return ""
    low, high = bounds
    outside = np.flatnonzero((value < low) | (value > high))
    if not outside.size:
        return ""
    entry = int(outside[0])
    return (
        f"{key}[{entry}] is {value.flat[entry]:.4g}, outside the training range [{low[entry]:.4g}, {high[entry]:.4g}] "
        f"({outside.size} of {value.size} entries are)"
    )


def _range(key: str, spec: ArraySpec, statistics: Statistics | None) -> tuple[Array, Array] | None:
    entry = (statistics or {}).get(key)
    names = next((pair for pair in _RANGE_NAMES if entry is not None and set(pair) <= set(entry)), None)
    if entry is None or names is None or len(spec.shape) != 1:
        return None
    low, high = (np.asarray(entry[name], float).reshape(-1) for name in names)
    if low.shape != spec.shape or high.shape != spec.shape:
        raise ConfigError(f"The statistics of '{key}' have {low.size} entries; the policy reads {spec.shape}.")
    margin = _RANGE_MARGIN * (high - low) + 1e-6
    return low - margin, high + margin


def _check(key: str, spec: ArraySpec, value: Any) -> Array:
    wanted = f"{spec.dtype}{list(spec.shape)}"
    if not isinstance(value, (np.ndarray, np.generic)):
        raise ProtocolError(f"'{key}': expected a numpy array {wanted}, received {_describe(value)}.")
    array = np.asarray(value)
    if array.shape != spec.shape:
        raise ProtocolError(f"'{key}': expected {wanted}, received {_describe(array)}.{_shape_hint(spec, array)}")
    kind = np.dtype(spec.dtype).kind
    if array.dtype != np.dtype(spec.dtype) and not (kind == "f" and array.dtype.kind == "f"):
        hint = " Send images as uint8 in 0..255." if spec.is_image else ""
        raise ProtocolError(f"'{key}': expected {wanted}, received {_describe(array)}.{hint}")
    with np.errstate(over="ignore"):
        cast = array.astype(spec.dtype, copy=True)
    if kind == "f" and not np.isfinite(cast).all():
        entry = np.argwhere(~np.isfinite(cast))[0].tolist()
        raise ProtocolError(f"'{key}': entry {entry} is {cast[tuple(entry)]}; every entry must be finite.")
    return cast


def _shape_hint(spec: ArraySpec, array: Array) -> str:
    if array.shape == (1, *spec.shape):
        return " Send one observation, without a batch axis."
    if spec.is_image and array.ndim == 3 and array.shape[0] == 3 and array.shape[1:] == spec.shape[:2]:
        return " This looks like (channel, height, width); send (height, width, channel)."
    if spec.is_image and array.ndim == 3 and array.shape[2] == 3:
        return f" Resize the image to {spec.shape[0]} x {spec.shape[1]} first."
    return ""


def _describe(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype.name}{list(np.shape(value))}"
    return type(value).__name__


def _received(message: Mapping[Any, Any]) -> str:
    items = [f"{str(name)[:60]} {_describe(item)}" for name, item in list(message.items())[:16]]
    more = len(message) - len(items)
    return (", ".join(items) or "nothing") + (f" and {more} more" if more else "")
