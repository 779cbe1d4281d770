"""Hostile messages for every decoder that faces a network: valid ones with edits, grammar without sense, and noise.

A decoder may return, or raise :class:`ProtocolError`; anything else is a finding. ``test_fuzz.py`` sends a few in the
unit tests, ``benchmarks/fuzz_decoders.py`` as many as one likes.
"""

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st

from burnish.core.errors import ProtocolError
from burnish.deploy.codec import pack, unpack, unpack_and_tell
from burnish.deploy.gr00t import Config as Gr00tConfig
from burnish.deploy.gr00t import Server as Gr00tServer
from burnish.deploy.gr00t import split_rows
from burnish.deploy.lerobot_wire import (
    RECORDS,
    Transfer,
    assemble,
    decode_fields,
    encode_bytes,
    read_observation,
    read_setup,
    write_actions,
)
from burnish.deploy.observations import ObservationReader
from burnish.deploy.robot_keys import RobotKeys
from burnish.deploy.serving import Identity
from burnish.deploy.unpickling import Limits, read_pickle
from tests.unit.deploy.affine import STATE, WRIST, AffinePolicy, make_observation, make_spec
from tests.unit.deploy.lerobot_peer import HELPERS, observation, setup

SPEC = make_spec()
LIMITS = Limits(max_bytes=1 << 20)
NESTED = {
    "video": {"wrist": np.zeros((1, 1, 8, 6, 3), np.uint8)},
    "state": {"state": np.zeros((1, 1, 3), np.float32)},
    "language": {"task": [["press"]]},
}
REQUESTS = [{"endpoint": name, "data": {"observation": NESTED}} for name in ("get_action", "ping", "reset", "kill")]
MSGPACK = [
    pack(value, encoding)
    for encoding in ("openpi", "msgpack_numpy", "npy")
    for value in (make_observation(), make_observation(**{STATE: np.float32(3)}), *REQUESTS)  # type: ignore[arg-type]
]
PICKLES = [
    *(observation(3, protocol=protocol, **{"a.pos": np.float32(1)}) for protocol in (2, 3, 4, 5)),
    setup(),
    pickle.dumps([1, "a", (None, {"b": 2.5}), np.arange(6).reshape(2, 3)]),
]
PROTOBUF = [
    *(encode_bytes(1, message) for message in PICKLES),
    *(bytes([8, Transfer.END]) + encode_bytes(2, message) for message in PICKLES),
]

NAMES = st.sampled_from(
    (
        "numpy dtype",
        "numpy ndarray",
        "numpy._core.multiarray _reconstruct",
        "numpy._core.multiarray scalar",
        "numpy._core.numeric _frombuffer",
        f"{HELPERS} TimedObservation",
        f"{HELPERS} RemotePolicyConfig",
        "builtins eval",
        "posix system",
        "numpy load",
    )
)
TEXTS = st.sampled_from(["f4", "<", "C", "", "observation", "timestep", "timestamp", "must_go", "a.pos"]) | st.text(
    max_size=4
)


def edit(message: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    """Return a message after some edits, each at a share of its length."""
    for kind, where, data in edits:
        at = int(where * len(message))
        match kind:
            case "overwrite":
                message = message[:at] + data + message[at + len(data) :]
            case "insert":
                message = message[:at] + data + message[at:]
            case "delete":
                message = message[:at] + message[at + len(data) :]
            case "cut":
                message = message[:at]
            case "repeat":
                message = message[:at] + message[at : at + 40 * len(data)] + message[at:]
    return message


EDIT = st.tuples(
    st.sampled_from(["overwrite", "insert", "delete", "cut", "repeat"]),
    st.integers(0, 1000).map(lambda thousandth: thousandth / 1000),
    st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 8]),
)


def edited(corpus: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Return all messages of a corpus after the same edits."""
    edits = st.lists(EDIT, min_size=1, max_size=1) | st.lists(EDIT, min_size=1, max_size=4)
    return edits.map(lambda drawn: [edit(message, drawn) for message in corpus])


def single(messages: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Return messages one by one."""
    return messages.map(lambda message: [message])


def _binary_text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


OPERATIONS = st.one_of(
    st.sampled_from(
        (
            *(pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE),
            *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE, pickle.APPEND, pickle.APPENDS),
            *(pickle.SETITEM, pickle.SETITEMS, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.MEMOIZE),
            *(pickle.STACK_GLOBAL, pickle.STOP, pickle.POP, pickle.DUP, pickle.INST, pickle.OBJ, pickle.PERSID),
            pickle.NEWOBJ_EX,
        )
    ),
    st.integers(0, 3).map(lambda key: pickle.BINPUT + bytes([key])),
    st.integers(0, 3).map(lambda key: pickle.BINGET + bytes([key])),
    st.integers(-3, 70).map(lambda number: pickle.BININT + struct.pack("<i", number)),
    st.floats(allow_nan=True).map(lambda number: pickle.BINFLOAT + struct.pack(">d", number)),
    st.binary(max_size=8).map(lambda data: pickle.SHORT_BINBYTES + bytes([len(data)]) + data),
    TEXTS.map(_binary_text),
    NAMES.map(lambda name: pickle.GLOBAL + name.replace(" ", "\n").encode() + b"\n"),
)
PROGRAMS = st.lists(OPERATIONS, max_size=30).map(lambda parts: b"\x80\x04" + b"".join(parts) + pickle.STOP)

KEYS = st.sampled_from(
    (
        *(b"__ndarray__", b"__npgeneric__", b"data", b"dtype", b"shape", b"nd", b"type", b"kind", b"complex"),
        *("__ndarray_class__", "as_npy", STATE, WRIST, "task", "prompt", "endpoint", "data", "observation", "video"),
        *("state", "language", "wrist", "api_token"),
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=12)
    | st.sampled_from(["<f4", "|u1", "|O", "<c8", "<U9", "get_action", "ping", "reset", b"\x93NUMPY\x01\x00"])
)
MAPS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
).map(msgpack.packb)
NOISE = st.binary(max_size=64)


def read_openpi(message: bytes) -> None:
    """Do what the openpi server does with a message."""
    ObservationReader(SPEC).read(unpack(message))


def read_lerobot(message: bytes) -> None:
    """Do what the lerobot server does with a message of either kind."""
    try:
        told = read_setup(decode_fields(message, data=1)[1], LIMITS)
        RobotKeys(SPEC, told.features, ObservationReader(SPEC), resize=True)
    except ProtocolError:
        pass
    seen = read_observation(assemble([message], 1 << 20), LIMITS)
    ROBOT_READER.read(ROBOT.message(seen.values))
    write_actions(np.zeros((2, 2), np.float32), seen, 0.1)


def read_gr00t(message: bytes) -> None:
    """Do what the GR00T server does with a message, up to the policy."""
    request, _ = unpack_and_tell(message)
    data = request.get("data") if isinstance(request, dict) else None
    reader = ObservationReader(SPEC)
    for row in split_rows(data.get("observation") if isinstance(data, dict) else None, reader.aliases)[0]:
        reader.read(row)


def answer_gr00t(message: bytes) -> None:
    """Let a GR00T server answer a message; whatever it is, there is an answer, without a traceback."""
    answer = unpack(asyncio.run(GR00T._answer(b"peer", message)))
    assert "Traceback" not in str(answer)
    assert "log says why" not in str(answer), "an exception that is no refusal"


ROBOT_READER = ObservationReader(SPEC)
ROBOT = RobotKeys(SPEC, read_setup(setup(), LIMITS).features, ROBOT_READER, resize=True)
GR00T = Gr00tServer(AffinePolicy(), Identity(0.05), Gr00tConfig(batch_wait_s=0.0))

MADE_UP = single(MAPS | NOISE)
TARGETS: dict[str, tuple[Callable[[bytes], Any], st.SearchStrategy[list[bytes]]]] = {
    "openpi": (read_openpi, edited(MSGPACK) | MADE_UP),
    "pickle": (lambda message: read_pickle(message, RECORDS, LIMITS), edited(PICKLES) | single(PROGRAMS | NOISE)),
    "lerobot": (
        read_lerobot,
        edited(PROTOBUF) | single(PROGRAMS.map(lambda data: b"\x08\x03" + encode_bytes(2, data)) | NOISE),
    ),
    "gr00t": (read_gr00t, edited(MSGPACK) | MADE_UP),
    "gr00t server": (answer_gr00t, edited(MSGPACK) | MADE_UP),
}
"""What decodes, and what it is sent."""


def survives(decode: Callable[[bytes], Any], message: bytes) -> bool:
    """Return whether a message was accepted; a refusal is fine, any other exception goes on."""
    try:
        decode(message)
    except ProtocolError as error:
        refusal = str(error)
    else:
        return True
    assert "Traceback" not in refusal
    return False
