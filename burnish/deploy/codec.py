"""numpy arrays in msgpack, decoded as if the peer were hostile: bounded, typed, and never pickle.

Three encodings of an array are read, and written on demand:

- ``openpi``: a map with bytes keys, ``{b"__ndarray__": True, b"data", b"dtype", b"shape"}``; a numpy scalar is
  ``{b"__npgeneric__": True, b"data", b"dtype"}``;
- ``msgpack_numpy``, what the PyPI package of that name writes: ``{b"nd", b"type", b"kind", b"shape", b"data"}``;
- ``npy``, what GR00T writes: ``{"__ndarray_class__": True, "as_npy"}`` with the bytes of a ``.npy`` file.
"""

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgpack
import numpy as np

from burnish.core.errors import ProtocolError
from burnish.core.spec import Array

type Encoding = Literal["openpi", "msgpack_numpy", "npy"]

_DTYPE = re.compile(r"[<>=|]?(?:\?|b1|[iu][1248]|f[248]|[SU]\d{1,6})")
_MAX_DIMENSIONS = 32
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(rb"\{'descr': '([^']{1,16})', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \}\s*")
_NPY_MAX_HEADER = 1024


@dataclass(frozen=True)
class Limits:
    """What a peer may make us allocate."""

    max_bytes: int = 64 << 20
    """Bytes of one message."""
    max_items: int = 1 << 20
    """Entries of all lists and maps of one message together, and containers; bounds the memory of nested ones."""


def pack(value: Any, encoding: Encoding = "openpi") -> bytes:
    """Return a value (dicts, lists, str, bytes, numbers, numpy arrays and scalars) as one message.

    Args:
        value: What to send.
        encoding: How arrays are written.

    Raises:
        ProtocolError: If an array has a dtype that the format does not carry, or a value is of another type.
    """
    try:
        message: bytes = msgpack.packb(value, default=partial(_encode, encoding))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"Cannot pack this value: {error}.") from error
    return message


def unpack(message: bytes, limits: Limits = Limits()) -> Any:
    """Return the value of one message; arrays are read-only views of it.

    Args:
        message: A msgpack message in any of the encodings of arrays.
        limits: Bounds on its size.

    Raises:
        ProtocolError: If it is too large, no msgpack, cut off, or holds an array whose description is wrong.
    """
    return unpack_and_tell(message, limits)[0]


def unpack_and_tell(message: bytes, limits: Limits = Limits()) -> tuple[Any, Encoding | None]:
    """Return (what :func:`unpack` returns, the encoding of its arrays); None where it holds no array.

    Raises:
        ProtocolError: As :func:`unpack`.
    """
    if len(message) > limits.max_bytes:
        raise ProtocolError(f"The message has {len(message)} bytes; the limit is {limits.max_bytes}.")
    decoder = _Decoder(limits.max_items)
    try:
        value = msgpack.unpackb(
            message,
            object_hook=decoder.map,
            list_hook=decoder.list,
            max_array_len=limits.max_items,
            max_map_len=limits.max_items,
            max_ext_len=0,
        )
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises ValueError, TypeError, UnicodeDecodeError and its own types
        detail = str(error) or type(error).__name__
        raise ProtocolError(f"The message is not valid msgpack ({detail[:200]}).") from error
    return value, decoder.encoding


class _Decoder:
    """Counts the entries of a message while it is decoded, and notes how its arrays are written."""

    def __init__(self, max_items: int) -> None:
        self.encoding: Encoding | None = None
        self._max = max_items
        self._left = max_items

    def map(self, value: dict[Any, Any]) -> Any:
        self._spend(len(value))
        if b"__ndarray__" in value or b"__npgeneric__" in value:
            self.encoding = "openpi"
            return _decode_openpi(value)
        if b"nd" in value:
            self.encoding = "msgpack_numpy"
            return _decode_msgpack_numpy(value)
        if "__ndarray_class__" in value:
            self.encoding = "npy"
            return _decode_npy(value.get("as_npy"))
        if b"complex" in value:
            raise ProtocolError("The message holds a complex number; only real numbers and text are accepted.")
        return value

    def list(self, value: list[Any]) -> list[Any]:
        self._spend(len(value))
        return value

    def _spend(self, count: int) -> None:
        self._left -= 1 + count
        if self._left < 0:
            raise ProtocolError(f"The message holds more than {self._max} entries; send numbers as numpy arrays.")


def _encode(encoding: Encoding, value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        check_dtype(value.dtype.str)
        if encoding == "npy":
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            return {"__ndarray_class__": True, "as_npy": file.getvalue()}
        if encoding == "msgpack_numpy":
            whole = {b"kind": b"", b"shape": value.shape} if isinstance(value, np.ndarray) else {}
            return {b"nd": bool(whole), b"type": value.dtype.str, **whole, b"data": value.tobytes()}
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    if isinstance(value, Mapping):
        return dict(value)
    raise ProtocolError(f"Cannot pack a {type(value).__name__}; send dicts, lists, strings, numbers and numpy arrays.")


def _decode_openpi(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return make_array(value.get(b"data"), value.get(b"dtype"), value.get(b"shape"))
    dtype = check_dtype(value.get(b"dtype"))
    try:
        return dtype.type(value.get(b"data"))
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"A numpy scalar of dtype {dtype.str} cannot be read: {error}.") from error


def _decode_msgpack_numpy(value: dict[Any, Any]) -> Any:
    if value.get(b"kind", b"") in (b"O", b"V", "O", "V"):
        raise ProtocolError("An array holds Python objects or records; only plain numbers and text are accepted.")
    array = make_array(value.get(b"data"), value.get(b"type"), value.get(b"shape") if value[b"nd"] else [])
    return array if value[b"nd"] else array[()]


def _decode_npy(file: Any) -> Array:
    """Read a ``.npy`` file: its header is matched, not evaluated, and nothing is allocated for what it claims."""
    if not isinstance(file, bytes) or not file.startswith(_NPY_MAGIC) or len(file) < 12:
        raise ProtocolError("The data of an array must be the bytes of a .npy file.")
    width = 2 if file[6] == 1 else 4
    begin = 8 + width
    end = begin + int.from_bytes(file[8:begin], "little")
    found = _NPY_HEADER.fullmatch(file, begin, end) if end - begin <= _NPY_MAX_HEADER else None
    if found is None:
        raise ProtocolError("The header of a .npy file is not one of an array of plain numbers or text.")
    dtype, columns_first, sizes = found.groups()
    shape = [int(size[:20]) for size in re.findall(rb"\d+", sizes)]
    return make_array(file[end:], dtype, shape, order="F" if columns_first == b"True" else "C")


def check_dtype(name: Any) -> np.dtype[Any]:
    """Return a dtype of plain numbers or text by its numpy name.

    Raises:
        ProtocolError: If it is any other, or no dtype.
    """
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ProtocolError(
            f"dtype {str(name)[:40]!r} is not accepted; only bool, integers, floats and text are "
            "(no objects, records, complex numbers or dates)."
        )
    return np.dtype(name)


def make_array(data: Any, dtype_name: Any, shape: Any, *, order: Literal["C", "F"] = "C") -> Array:
    """Return a read-only array over the bytes that a peer sent.

    Args:
        data: Its bytes.
        dtype_name: numpy dtype name.
        shape: Sizes of its axes.
        order: Which axis varies fastest: the last ("C") or the first ("F").

    Raises:
        ProtocolError: If the three do not fit each other, or the dtype is not accepted.
    """
    dtype = check_dtype(dtype_name)
    if not isinstance(shape, (list, tuple)) or not all(type(size) is int and size >= 0 for size in shape):
        raise ProtocolError(f"The shape of an array must be a list of sizes >= 0, found {str(shape)[:80]}.")
    if len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(f"An array has {len(shape)} axes; at most {_MAX_DIMENSIONS} are accepted.")
    if not isinstance(data, bytes):
        raise ProtocolError(f"The data of an array must be bytes, found {type(data).__name__}.")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ProtocolError(
            f"An array of shape {tuple(shape)} and dtype {dtype.str} needs {expected} bytes, found {len(data)}."
        )
    try:
        return np.ndarray(tuple(shape), dtype, buffer=data, order=order)
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"An array of shape {str(shape)[:80]} cannot be read: {error}.") from error
