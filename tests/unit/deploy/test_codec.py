import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burnish.core.errors import ProtocolError
from burnish.deploy.codec import Limits, pack, unpack

DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64))
)


def test_array_bytes_are_openpis() -> None:
    array = np.array([[1, 2, 3]], "<i2")
    expected = {b"__ndarray__": True, b"data": b"\x01\x00\x02\x00\x03\x00", b"dtype": "<i2", b"shape": [1, 3]}
    assert msgpack.unpackb(pack({"a": array})) == {"a": expected}
    scalar = {b"__npgeneric__": True, b"data": 0.5, b"dtype": "<f4"}
    assert msgpack.unpackb(pack(np.float32(0.5))) == scalar


@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
@settings(max_examples=60, deadline=None)
def test_arrays_round_trip(array: np.ndarray) -> None:
    back = unpack(pack({"a": array}))["a"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_noise_is_refused_or_decoded_but_never_crashes(message: bytes) -> None:
    try:
        unpack(message, Limits(max_items=64))
    except ProtocolError:
        return


def test_scalars_text_and_nesting_round_trip() -> None:
    value = {"text": "naïve", "list": [1, 2.5, None, True], "inner": {"deep": np.uint8(7), "name": np.str_("x")}}
    back = unpack(pack(value))
    assert back == value
    assert isinstance(back["inner"]["deep"], np.uint8)


def test_non_contiguous_and_big_endian_arrays_keep_their_values() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(unpack(pack(array)), array)


def test_msgpack_numpy_encoding_is_read_too() -> None:
    array = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": np.array([1, 2], "<f4").tobytes()}
    scalar = {b"nd": False, b"type": "<i8", b"data": np.int64(5).tobytes()}
    back = unpack(msgpack.packb({"a": array, "s": scalar}))
    np.testing.assert_array_equal(back["a"], [1, 2])
    assert back["s"] == 5


def _array(**changes: object) -> bytes:
    fields = {"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2]}
    return msgpack.packb({key.encode(): value for key, value in {**fields, **changes}.items()})


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (b"", "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (b"\x92\x01", "not valid msgpack"),
        (pack(1) + b"\x01", "not valid msgpack"),
        (msgpack.packb({3: 4}), "not valid msgpack"),
        (msgpack.packb(msgpack.ExtType(5, b"abc")), "not valid msgpack"),
        (b"\x91" * 5000 + b"\x01", "not valid msgpack"),
        (_array(dtype="|O"), "dtype '|O' is not accepted"),
        (_array(dtype="|V8"), "not accepted"),
        (_array(dtype="<c8"), "not accepted"),
        (_array(dtype="<M8[s]"), "not accepted"),
        (_array(dtype="f4,f4"), "not accepted"),
        (_array(dtype=7), "not accepted"),
        (_array(shape=[3]), "needs 12 bytes, found 8"),
        (_array(shape=[1]), "needs 4 bytes, found 8"),
        (_array(shape=[-1]), "sizes >= 0"),
        (_array(shape=[True, 2]), "sizes >= 0"),
        (_array(shape="2"), "sizes >= 0"),
        (_array(shape=[1] * 33 + [2]), "33|34 axes"),
        (_array(shape=[2**62, 2**62]), "bytes, found 8"),
        (_array(shape=[0, 2**62, 2**62], data=b""), "cannot be read"),
        (_array(data="text"), "must be bytes"),
        (msgpack.packb({b"__ndarray__": True}), "not accepted"),
        (msgpack.packb({b"__npgeneric__": True, b"data": "x", b"dtype": "<f4"}), "cannot be read"),
        (msgpack.packb({b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"x"}), "Python objects"),
        (msgpack.packb({b"complex": True, b"data": "1j"}), "complex"),
    ],
)
def test_malformed_messages_are_refused(message: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match.replace("|O'", r"\|O'")):
        unpack(message)


def test_sizes_are_bounded() -> None:
    with pytest.raises(ProtocolError, match="has 101 bytes; the limit is 100"):
        unpack(b"\0" * 101, Limits(max_bytes=100))
    with pytest.raises(ProtocolError, match="more than 50 entries"):
        unpack(msgpack.packb([[{}] * 10] * 10), Limits(max_items=50))
    with pytest.raises(ProtocolError, match="not valid msgpack"):
        unpack(msgpack.packb([0] * 60), Limits(max_items=50))


@pytest.mark.parametrize(
    "value", [np.array([None]), np.array([1j]), np.zeros(1, "f4,f4"), np.datetime64("2020"), object(), {"a": {1, 2}}]
)
def test_values_that_the_format_does_not_carry_are_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        pack(value)
