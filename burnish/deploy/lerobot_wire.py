"""lerobot's AsyncInference messages, without lerobot, torch or protobuf.

On the wire are four protobuf messages (package ``transport``): ``Observation{transfer_state = 1; data = 2}``,
``Actions{data = 1}``, ``PolicySetup{data = 1}`` and ``Empty``. Every ``data`` is a pickle: of a ``RemotePolicyConfig``
and of ``TimedObservation`` from the client, of ``list[TimedAction]`` to it. The first two are read by
:mod:`burnish.deploy.unpickling`; the last is written here operation by operation, so that the peer's own classes, and
its torch, come to life there without being needed here.
"""

import math
import pickle
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from burnish.core.errors import ProtocolError
from burnish.core.spec import IMAGE_PREFIX, Array
from burnish.deploy.unpickling import Limits, Record, RecordType, read_pickle

_HELPERS = "lerobot.async_inference.helpers"
SETUP = RecordType(
    "RemotePolicyConfig",
    ("policy_type", "pretrained_name_or_path", "lerobot_features", "actions_per_chunk", "device", "rename_map"),
)
OBSERVATION = RecordType("TimedObservation", ("timestamp", "timestep", "observation", "must_go"))
RECORDS = {f"{_HELPERS}.{kind.name}": kind for kind in (SETUP, OBSERVATION)}
_MAX_FEATURES = 64
_MAX_NAMES = 512
_MAX_ACTIONS = 1 << 16
_MAX_TIMESTEP = 1 << 40
_PICTURES = ("image", "video")


class Transfer(IntEnum):
    """Which part of a message a piece is."""

    UNKNOWN = 0
    BEGIN = 1
    MIDDLE = 2
    END = 3


@dataclass(frozen=True)
class Feature:
    """What the robot says of one of its observation keys."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    """Robot keys of the entries of a vector, in order; of a picture its single robot key."""
    is_image: bool


@dataclass(frozen=True)
class Setup:
    """What the client asks for; the model it names is never loaded."""

    policy_type: str
    path: str
    features: Mapping[str, Feature]
    """By the key that the policy reads, renamed as the client asks."""
    actions_per_chunk: int


@dataclass(frozen=True)
class Seen:
    """One observation of a robot."""

    timestamp: float
    """Unix time on the robot's clock [s]."""
    timestep: int
    """Number of the last action that ran."""
    must_go: bool
    """Whether the robot has nothing to do until this is answered."""
    values: Mapping[str, Any]
    """By robot key."""


def decode_fields(message: bytes, integer: int = 0, data: int = 0) -> tuple[int, bytes]:
    """Return (integer field, bytes field) of a protobuf message; other fields are skipped.

    Args:
        message: The message.
        integer: Number of the integer field; 0 for none.
        data: Number of the bytes field; 0 for none.

    Raises:
        ProtocolError: If it is no protobuf message, or a field is of another type.
    """
    number, content, at = 0, b"", 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if (kind == 2) != (field == data) and field in (integer, data):
            raise _bad_message(f"field {field} is of type {kind}")
        if kind == 0:
            value, at = _varint(message, at)
            number = value if field == integer else number
            continue
        size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or field == 0:
            raise _bad_message(f"a field is of type {kind}")
        if at + size > len(message):
            raise _bad_message("it is cut off")
        content = message[at : at + size] if kind == 2 and field == data else content
        at += size
    return number, content


def encode_bytes(field: int, data: bytes) -> bytes:
    """Return a protobuf message with one bytes field; an empty one is left out, as protobuf does."""
    if not data:
        return b""
    size, head = len(data), bytearray([field << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + data


def assemble(pieces: Iterable[bytes], max_bytes: int) -> bytes:
    """Return the data of an observation that was sent in pieces.

    Args:
        pieces: ``Observation`` messages.
        max_bytes: Limit of their data together.

    Raises:
        ProtocolError: If they are too large, end early, or do not follow each other.
    """
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        state, data = decode_fields(piece, integer=1, data=2)
        if state == Transfer.BEGIN:
            parts, size = [], 0
        elif state not in (Transfer.MIDDLE, Transfer.END):
            raise _bad_message(f"transfer state {state} is unknown")
        size += len(data)
        if size > max_bytes:
            raise ProtocolError(f"The observation has more than {max_bytes} bytes, which is the limit.")
        parts.append(data)
        if state == Transfer.END:
            return b"".join(parts)
    raise _bad_message("the observation ended without its last piece")


def read_setup(data: bytes, limits: Limits) -> Setup:
    """Return what a ``RemotePolicyConfig`` says.

    Raises:
        ProtocolError: If it is anything else.
    """
    fields = _fields(read_pickle(data, RECORDS, limits), SETUP)
    steps = fields.get("actions_per_chunk")
    if type(steps) is not int or not 1 <= steps <= _MAX_ACTIONS:
        raise ProtocolError(f"actions_per_chunk must be an integer in [1, {_MAX_ACTIONS}], found {_short(steps)}.")
    names = [fields.get(name) for name in ("policy_type", "pretrained_name_or_path")]
    features, renames = fields.get("lerobot_features"), fields.get("rename_map", {})
    if not all(type(name) is str for name in names) or type(features) is not dict or type(renames) is not dict:
        raise ProtocolError("RemotePolicyConfig must hold policy_type, pretrained_name_or_path and lerobot_features.")
    if len(features) > _MAX_FEATURES or not all(type(name) is str for name in renames.values()):
        raise ProtocolError(f"lerobot_features must be at most {_MAX_FEATURES}, and rename_map from text to text.")
    read = {str(renames.get(key, key)): _feature(key, item) for key, item in features.items()}
    if len(read) < len(features):
        raise ProtocolError("rename_map gives two observation keys the same name.")
    return Setup(str(names[0]), str(names[1]), read, steps)


def read_observation(data: bytes, limits: Limits) -> Seen:
    """Return what a ``TimedObservation`` says.

    Raises:
        ProtocolError: If it is anything else.
    """
    fields = _fields(read_pickle(data, RECORDS, limits), OBSERVATION)
    timestamp, timestep, values = fields.get("timestamp"), fields.get("timestep"), fields.get("observation")
    if type(timestamp) is not float or not math.isfinite(timestamp):
        raise ProtocolError(f"The timestamp must be a finite number of seconds, found {_short(timestamp)}.")
    if type(timestep) is not int or not 0 <= timestep < _MAX_TIMESTEP:
        raise ProtocolError(f"The timestep must be an integer >= 0, found {_short(timestep)}.")
    if type(values) is not dict or type(fields.get("must_go", False)) is not bool:
        raise ProtocolError("A TimedObservation must hold a dict 'observation' and a truth value 'must_go'.")
    return Seen(timestamp, timestep, fields.get("must_go", False), values)


def write_actions(chunk: Array, seen: Seen, control_dt: float) -> bytes:
    """Return the pickle of ``list[TimedAction]``: action k has timestep ``seen.timestep + k``, as a torch tensor there.

    Args:
        chunk: (K, A) float32.
        seen: The observation that is answered.
        control_dt: Seconds between two actions.
    """
    stream = [pickle.PROTO, b"\x02", pickle.EMPTY_LIST]
    for key, name in enumerate((f"{_HELPERS}\nTimedAction", "torch\ntensor")):
        stream += [pickle.GLOBAL, name.encode(), b"\n", pickle.BINPUT, bytes([key]), b"0"]
    stream.append(pickle.MARK)
    for k, action in enumerate(np.asarray(chunk, float)):
        when = struct.pack(">d", seen.timestamp + k * control_dt)
        stream += [pickle.BINGET, b"\0", pickle.MARK, pickle.BINFLOAT, when, _integer(seen.timestep + k)]
        numbers = [pickle.BINFLOAT + struct.pack(">d", number) for number in action]
        stream += [pickle.BINGET, b"\1", pickle.EMPTY_LIST, pickle.MARK, *numbers, pickle.APPENDS]
        stream += [pickle.TUPLE1, pickle.REDUCE, pickle.TUPLE, pickle.REDUCE]
    return b"".join([*stream, pickle.APPENDS, pickle.STOP])


def _integer(value: int) -> bytes:
    return pickle.LONG1 + b"\x08" + struct.pack("<q", value)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _bad_message("it is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _bad_message("a number is longer than 64 bits")


def _fields(value: Any, kind: RecordType) -> Mapping[str, Any]:
    if not isinstance(value, Record) or value.type is not kind:
        raise ProtocolError(f"Expected a {kind.name}, received {_short(value)}.")
    return value.fields


def _feature(key: str, item: Any) -> Feature:
    if not isinstance(item, dict):
        raise ProtocolError(f"Feature '{key[:60]}' must be a dict of dtype, shape and names, found {_short(item)}.")
    dtype = item.get("dtype")
    parts = item.get("shape"), item.get("names")
    sizes, names = (tuple(part) if isinstance(part, (tuple, list)) else () for part in parts)
    if not sizes or not all(type(size) is int and 0 < size < 1 << 16 for size in sizes):
        raise ProtocolError(f"Feature '{key[:60]}': the shape must be a tuple of sizes.")
    if isinstance(dtype, str) and dtype in _PICTURES and len(sizes) == 3:
        return Feature(sizes, (key.removeprefix(IMAGE_PREFIX),), True)
    if dtype != "float32" or sizes != (len(names),) or len(names) > _MAX_NAMES:
        raise ProtocolError(
            f"Feature '{key[:60]}': expected a picture, or at most {_MAX_NAMES} float32 entries with names."
        )
    if not all(type(name) is str for name in names):
        raise ProtocolError(f"Feature '{key[:60]}': the names of its entries must be texts.")
    return Feature(sizes, names, False)


def _short(value: Any) -> str:
    return repr(value)[:40] if type(value) in (int, float, bool, str) else type(value).__name__


def _bad_message(what: str) -> ProtocolError:
    return ProtocolError(f"The message is not one of lerobot's AsyncInference: {what}.")
