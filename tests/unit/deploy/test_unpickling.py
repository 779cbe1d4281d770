import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burnish.core.errors import ProtocolError
from burnish.deploy.lerobot_wire import RECORDS
from burnish.deploy.unpickling import Limits, Record, read_pickle
from tests.unit.deploy.lerobot_peer import HELPERS, RemotePolicyConfig, TimedObservation, dumps, setup

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ARRAYS = hnp.arrays(
    st.one_of(hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.floating_dtypes()),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@given(PLAIN, st.integers(3, 5))
@settings(max_examples=200, deadline=None)
def test_plain_values_are_what_pickle_makes_of_them(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), {}) == value


@given(ARRAYS, st.integers(3, 5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_arrays_are_what_pickle_makes_of_them(array: np.ndarray, protocol: int, columns_first: bool) -> None:
    array = np.asfortranarray(array) if columns_first else array
    shared = {"a": array, "b": array, "entry": array.ravel()[0] if array.size else 0}
    back = read_pickle(pickle.dumps(shared, protocol), {})
    assert back["a"].dtype == array.dtype
    assert back["a"].shape == array.shape
    np.testing.assert_array_equal(back["a"], array)
    np.testing.assert_array_equal(back["b"], array)
    np.testing.assert_array_equal(back["entry"], shared["entry"])


def test_numpy_1_names_its_functions_otherwise() -> None:
    message = pickle.dumps(np.arange(3), 4).replace(b"numpy._core.", b"numpy.core.")
    message = message.replace(struct.pack("<B", 22) + b"numpy.core.", struct.pack("<B", 21) + b"numpy.core.")
    frame = len(message) - 11
    np.testing.assert_array_equal(read_pickle(message[:3] + struct.pack("<Q", frame) + message[11:], {}), [0, 1, 2])


def test_records_are_their_fields() -> None:
    back = read_pickle(dumps([TimedObservation(timestep=3), TimedObservation(timestep=4)]), RECORDS)
    assert all(isinstance(item, Record) for item in back)
    assert [item.fields for item in back] == [{"timestep": 3}, {"timestep": 4}]


class Malicious:
    """What the published attack on lerobot's server sends: unpickling it calls what it names."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def test_nothing_that_a_pickle_names_is_called(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    payload = pickle.dumps(Malicious(Path.touch, marker))
    assert pickle.loads(payload) is None
    assert marker.exists()  # the payload works on a stock server
    marker.unlink()
    for wrapped in (payload, dumps(RemotePolicyConfig(policy_type=Malicious(Path.touch, marker)))):
        with pytest.raises(ProtocolError, match="names 'pathlib"):
            read_pickle(wrapped, RECORDS)
    assert not marker.exists()


def program(*operations: bytes) -> bytes:
    return b"\x80\x04" + b"".join(operations) + pickle.STOP


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


DTYPE = pickle.GLOBAL + b"numpy\ndtype\n"
RECONSTRUCT = pickle.GLOBAL + b"numpy._core.multiarray\n_reconstruct\n"
SCALAR = pickle.GLOBAL + b"numpy._core.multiarray\nscalar\n"
RECORD = pickle.GLOBAL + HELPERS.encode() + b"\nTimedObservation\n"


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (b"", "cut off"),
        (pickle.dumps({"a": 1})[:-1], "cut off"),
        (pickle.dumps([1, 2]) + b"x", "does not end where"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x00.", "protocol 0"),
        (pickle.dumps({"a": 1}, 0), "not accepted"),
        (pickle.dumps(2**80), "an integer has 11 bytes"),
        (pickle.dumps({1: 2}), "text keys"),
        (pickle.dumps({(1, 2): 2}), "text keys"),
        (pickle.dumps({1, 2}), "not accepted"),
        (pickle.dumps(1j), "names 'builtins.complex'"),
        (pickle.dumps(np.array([None])), "not accepted"),
        (pickle.dumps(np.array([1j])), "not accepted"),
        (pickle.dumps(np.zeros(1, "f4,f4")), "not accepted"),
        (pickle.dumps(np.zeros(2).view(np.recarray)), "names 'numpy.*recarray'"),
        (program(b"."), "stack is empty"),
        (program(pickle.BINFLOAT, b"1"), "cut off"),
        (program(pickle.BINBYTES8, b"\xff" * 8), "cut off"),
        (program(pickle.TUPLE), "mark is missing"),
        (program(pickle.MARK, pickle.APPENDS), "stack is empty"),
        (program(pickle.NONE, pickle.NONE, pickle.APPEND), "no list"),
        (program(pickle.EMPTY_DICT, pickle.MARK, text("a"), pickle.SETITEMS), "text keys"),
        (program(pickle.BINGET, b"\x07"), "memo entry 7 is empty"),
        (program(pickle.NONE, pickle.LONG_BINPUT, b"\xff\xff\xff\xff"), "memo entry 4294967295"),
        (program(pickle.BINUNICODE, b"\x01\0\0\0\xff"), "not UTF-8"),
        (program(pickle.GLOBAL, b"numpy"), "a name has no end"),
        (program(pickle.GLOBAL, b"x" * 300, b"\n"), "a name has no end"),
        (program(text("numpy.dtype"), pickle.EMPTY_TUPLE, pickle.REDUCE), "no function of numpy"),
        (program(DTYPE, pickle.NONE, pickle.REDUCE), "no function of numpy"),
        (program(DTYPE, pickle.EMPTY_TUPLE, pickle.REDUCE), "not accepted"),
        (program(DTYPE, text("f4"), pickle.TUPLE1, pickle.REDUCE), "does not end where"),
        (program(DTYPE, text("f4"), pickle.TUPLE1, pickle.REDUCE, pickle.NONE, pickle.BUILD), "no byte order"),
        (program(RECONSTRUCT, DTYPE, pickle.NONE, pickle.NONE, pickle.TUPLE3, pickle.REDUCE), "no numpy.ndarray"),
        (program(SCALAR, pickle.NONE, pickle.NONE, pickle.TUPLE2, pickle.REDUCE), "not accepted"),
        (program(RECORD, pickle.NONE, pickle.TUPLE1, pickle.NEWOBJ), "no record"),
        (program(DTYPE, pickle.EMPTY_TUPLE, pickle.NEWOBJ), "no record"),
        (program(RECORD, pickle.EMPTY_TUPLE, pickle.NEWOBJ, pickle.NONE, pickle.BUILD), "has other fields"),
        (program(pickle.EMPTY_LIST, pickle.NONE, pickle.BUILD), "cannot be filled"),
        (program(text("a"), text("b"), pickle.STACK_GLOBAL), "names 'a.b'"),
        (dumps(TimedObservation(timestep=1, other=2)), "has other fields"),
        (program(pickle.NONE, pickle.NONE, pickle.STACK_GLOBAL), r"names '\?'"),
        (b"\x80\x04Pposix\n.", "not accepted"),
    ],
)
def test_other_programs_are_refused(message: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        read_pickle(message, RECORDS)


def test_sizes_are_bounded() -> None:
    with pytest.raises(ProtocolError, match="limit is 10"):
        read_pickle(pickle.dumps("x" * 20), {}, Limits(max_bytes=10))
    with pytest.raises(ProtocolError, match="more than 20000 operations"):
        read_pickle(pickle.dumps(list(range(30_000))), {})
    with pytest.raises(ProtocolError, match="more than 2000 lists"):
        read_pickle(b"\x80\x04" + pickle.EMPTY_LIST * 3000, {})


def test_deep_nesting_and_shared_parts_cost_no_more_than_their_operations() -> None:
    deep = program(pickle.EMPTY_TUPLE, pickle.TUPLE1 * 1900)
    assert isinstance(read_pickle(deep, {}), tuple)
    doubled = b"".join(pickle.MEMOIZE + pickle.BINGET + bytes([n]) + pickle.TUPLE2 for n in range(40))
    assert isinstance(read_pickle(program(pickle.EMPTY_TUPLE, doubled), {}), tuple)  # 2 ** 40 parts, if walked
    with pytest.raises(ProtocolError, match="text keys"):
        read_pickle(program(pickle.EMPTY_DICT, pickle.EMPTY_TUPLE, doubled, pickle.NONE, pickle.SETITEM), {})


def test_the_setup_of_a_large_robot_is_within_the_limits() -> None:
    from tests.unit.deploy.lerobot_peer import features

    names = tuple(f"joint_{n}.pos" for n in range(120))
    cameras = {f"camera_{n}": (480, 640, 3) for n in range(12)}
    assert isinstance(read_pickle(setup(lerobot_features=features(names, **cameras)), RECORDS), Record)
