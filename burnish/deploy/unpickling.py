"""Pickles from a peer, read without Python's ``pickle``: nothing that they name is imported, and nothing is called.

A pickle is a program for a small stack machine. Python's own machine calls what the program names, so whoever sends a
pickle runs code here. This one knows only the operations that build numbers, text, bytes, lists, tuples and dicts,
numpy arrays of plain numbers, and records of named types that the caller lists. A name that is not listed ends it.
"""

import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ProtocolError
from burnish.core.spec import Array
from burnish.deploy.codec import check_dtype, make_array

_MAX_NAME = 200
"""Bytes of a module's or a type's name."""
_MAX_INT_BYTES = 8


@dataclass(frozen=True)
class Limits:
    """What a peer may make us allocate and compute."""

    max_bytes: int = 64 << 20
    """Bytes of one pickle."""
    max_operations: int = 20_000
    """Steps of the program; bounds the memo, too."""
    max_containers: int = 2_000
    """Lists, tuples and dicts; bounds how deep they are nested, too."""


@dataclass(frozen=True)
class RecordType:
    """A type whose instances are accepted, as plain fields."""

    name: str
    fields: tuple[str, ...]
    """What an instance may hold; other fields are refused."""


@dataclass(frozen=True)
class Record:
    """An instance of a :class:`RecordType`."""

    type: RecordType
    fields: Mapping[str, Any]


@dataclass
class _Unbuilt:
    """What a program has created and not yet filled."""

    finish: Callable[[Any], Any]
    keys: list[int] = field(default_factory=list)
    """Where the memo refers to it."""


@dataclass(frozen=True)
class _Function:
    """What a program may call."""

    make: Callable[[tuple[Any, ...]], Any]


class _ArrayType:
    """Stands for the type ``numpy.ndarray``, which is only ever an argument."""


_NDARRAY = _ArrayType()


def read_pickle(message: bytes, records: Mapping[str, RecordType], limits: Limits = Limits()) -> Any:
    """Return the value of one pickle of protocol 2 to 5.

    Args:
        message: The pickle.
        records: Accepted types by their full name, ``module.name``.
        limits: Bounds on its size.

    Returns:
        Numbers, text, bytes, lists, tuples, dicts with text keys, numpy arrays and scalars, and :class:`Record`.

    Raises:
        ProtocolError: If it is too large, cut off, no pickle, or holds anything else.
    """
    if len(message) > limits.max_bytes:
        raise ProtocolError(f"The pickle has {len(message)} bytes; the limit is {limits.max_bytes}.")
    return _Machine(message, records, limits).run()


class _Machine:
    def __init__(self, message: bytes, records: Mapping[str, RecordType], limits: Limits) -> None:
        self._message = message
        self._at = 0
        self._records = records
        self._limits = limits
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def run(self) -> Any:
        for _ in range(self._limits.max_operations):
            code = self._take(1)
            if code == pickle.STOP:
                value = self._pop()
                if self._stack or self._marks or self._at != len(self._message) or isinstance(value, _Unbuilt):
                    raise _broken("it does not end where its program ends")
                return value
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise _broken(f"operation {code.hex()} is not accepted")
            operation(self)
        raise ProtocolError(f"The pickle has more than {self._limits.max_operations} operations.")

    # Reading

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._message):
            raise _broken("it is cut off")
        taken = self._message[self._at : end]
        self._at = end
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self) -> str:
        end = self._message.find(b"\n", self._at, self._at + _MAX_NAME)
        if end < 0:
            raise _broken("a name has no end")
        line = self._take(end - self._at)
        self._take(1)
        return line.decode("utf-8", "replace")

    # Stack

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise _broken("its stack is empty")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise _broken("a mark is missing")
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def _push(self, value: Any) -> None:
        if isinstance(value, (list, tuple, dict)):
            self._containers += 1
            if self._containers > self._limits.max_containers:
                raise ProtocolError(f"The pickle holds more than {self._limits.max_containers} lists and dicts.")
        self._stack.append(value)

    # Operations

    def proto(self) -> None:
        version = self._take(1)[0]
        if not 2 <= version <= 5:
            raise _broken(f"protocol {version} is not accepted")

    def frame(self) -> None:
        self._take(8)  # only tells a reader how much to buffer

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def long1(self) -> None:
        size = self._take(1)[0]
        if size > _MAX_INT_BYTES:
            raise _broken(f"an integer has {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def text(self, form: str) -> None:
        try:
            self._push(self._take(self._number(form)).decode("utf-8"))
        except UnicodeDecodeError:
            raise _broken("a text is not UTF-8") from None

    def tuple_of(self, count: int) -> None:
        self._push(tuple(reversed([self._pop() for _ in range(count)])))

    def tuple_to_mark(self) -> None:
        self._push(tuple(self._pop_to_mark()))

    def append(self) -> None:
        self._extend([self._pop()])

    def appends(self) -> None:
        self._extend(self._pop_to_mark())

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._update([key, value])

    def set_items(self) -> None:
        self._update(self._pop_to_mark())

    def global_line(self) -> None:
        module = self._line()
        self._push(self._named(module, self._line()))

    def global_stack(self) -> None:
        name, module = self._pop(), self._pop()
        self._push(self._named(module, name))

    def reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if type(function) is not _Function or type(arguments) is not tuple:
            raise _broken("it calls something that is no function of numpy")
        self._push(function.make(arguments))

    def new_object(self) -> None:
        arguments, kind = self._pop(), self._pop()
        if not isinstance(kind, RecordType) or type(arguments) is not tuple or arguments:
            raise _broken("it creates something that is no record")
        self._push(_Unbuilt(lambda state: _record(kind, state)))

    def build(self) -> None:
        state, target = self._pop(), self._pop()
        if not isinstance(target, _Unbuilt):
            raise _broken("it fills something that is full or cannot be filled")
        built = target.finish(state)
        for key in target.keys:
            self._memo[key] = built
        self._push(built)

    def put(self, key: int) -> None:
        if key >= self._limits.max_operations:
            raise _broken(f"memo entry {key} is beyond {self._limits.max_operations}")
        value = self._pop()
        self._stack.append(value)
        self._memo[key] = value
        if isinstance(value, _Unbuilt):
            value.keys.append(key)

    def memoise(self) -> None:
        self.put(len(self._memo))

    def get(self, key: int) -> None:
        if key not in self._memo:
            raise _broken(f"memo entry {key} is empty")
        self._stack.append(self._memo[key])

    def _extend(self, values: list[Any]) -> None:
        target = self._pop()
        if type(target) is not list:
            raise _broken("it appends to something that is no list")
        target.extend(values)
        self._stack.append(target)

    def _update(self, pairs: list[Any]) -> None:
        target = self._pop()
        if type(target) is not dict or len(pairs) % 2 or not all(type(key) is str for key in pairs[::2]):
            raise _broken("it sets something else than text keys of a dict")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._stack.append(target)

    def _named(self, module: Any, name: Any) -> Any:
        full = f"{module}.{name}" if type(module) is str and type(name) is str else "?"
        if full in self._records:
            return self._records[full]
        if full == "numpy.ndarray":
            return _NDARRAY
        if full in _NUMPY:
            return _NUMPY[full]
        raise ProtocolError(
            f"The pickle names {full[:_MAX_NAME]!r}, which is not accepted; accepted are "
            f"{', '.join(sorted(self._records))} and numpy arrays of plain numbers."
        )


def _record(kind: RecordType, state: Any) -> Record:
    if type(state) is not dict or not set(state) <= set(kind.fields):
        raise _broken(f"a {kind.name} has other fields than {', '.join(kind.fields)}")
    return Record(kind, state)


def _dtype(arguments: tuple[Any, ...]) -> _Unbuilt:
    dtype = check_dtype(arguments[0] if arguments else None)

    def finish(state: Any) -> np.dtype[Any]:
        order = state[1] if type(state) is tuple and len(state) > 1 else None
        if type(order) is not str or order not in ("<", ">", "|", "="):
            raise _broken("a dtype has no byte order")
        return dtype.newbyteorder(order)  # type: ignore[arg-type]

    return _Unbuilt(finish)


def _reconstruct(arguments: tuple[Any, ...]) -> _Unbuilt:
    if len(arguments) != 3 or arguments[0] is not _NDARRAY:
        raise _broken("it holds an array that is no numpy.ndarray")

    def finish(state: Any) -> Array:
        if type(state) is not tuple or len(state) != 5:
            raise _broken("an array is not described by five values")
        _, shape, dtype, columns_first, data = state
        return _array(data, dtype, shape, "F" if columns_first is True else "C")

    return _Unbuilt(finish)


def _frombuffer(arguments: tuple[Any, ...]) -> Array:
    if len(arguments) != 4 or type(arguments[3]) is not str or arguments[3] not in ("C", "F"):
        raise _broken("an array is not described by bytes, dtype, shape and order")
    data, dtype, shape, order = arguments
    return _array(data, dtype, shape, "F" if order == "F" else "C")


def _scalar(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 2:
        raise _broken("a number is not described by dtype and bytes")
    return _array(arguments[1], arguments[0], (), "C")[()]


def _array(data: Any, dtype: Any, shape: Any, order: Literal["C", "F"]) -> Array:
    return make_array(data, dtype.str if isinstance(dtype, np.dtype) else None, shape, order=order)


def _broken(what: str) -> ProtocolError:
    return ProtocolError(f"The message is not a pickle that is accepted: {what}.")


_NUMPY = {
    "numpy.dtype": _Function(_dtype),
    **{f"numpy.{core}.multiarray._reconstruct": _Function(_reconstruct) for core in ("_core", "core")},
    **{f"numpy.{core}.multiarray.scalar": _Function(_scalar) for core in ("_core", "core")},
    **{f"numpy.{core}.numeric._frombuffer": _Function(_frombuffer) for core in ("_core", "core")},
}
"""What stands for the functions of numpy that its pickles name, in the spelling of numpy 2 and 1."""

_OPERATIONS: dict[bytes, Callable[[_Machine], None]] = {
    pickle.PROTO: _Machine.proto,
    pickle.FRAME: _Machine.frame,
    pickle.MARK: _Machine.mark,
    pickle.NONE: lambda machine: machine._push(None),
    pickle.NEWTRUE: lambda machine: machine._push(True),
    pickle.NEWFALSE: lambda machine: machine._push(False),
    pickle.BININT: lambda machine: machine._push(machine._number("<i")),
    pickle.BININT1: lambda machine: machine._push(machine._number("<B")),
    pickle.BININT2: lambda machine: machine._push(machine._number("<H")),
    pickle.LONG1: _Machine.long1,
    pickle.BINFLOAT: lambda machine: machine._push(machine._number(">d")),
    pickle.SHORT_BINUNICODE: lambda machine: machine.text("<B"),
    pickle.BINUNICODE: lambda machine: machine.text("<I"),
    pickle.BINUNICODE8: lambda machine: machine.text("<Q"),
    pickle.SHORT_BINBYTES: lambda machine: machine._push(machine._take(machine._number("<B"))),
    pickle.BINBYTES: lambda machine: machine._push(machine._take(machine._number("<I"))),
    pickle.BINBYTES8: lambda machine: machine._push(machine._take(machine._number("<Q"))),
    pickle.BYTEARRAY8: lambda machine: machine._push(machine._take(machine._number("<Q"))),
    pickle.EMPTY_LIST: lambda machine: machine._push([]),
    pickle.EMPTY_DICT: lambda machine: machine._push({}),
    pickle.EMPTY_TUPLE: lambda machine: machine._push(()),
    pickle.TUPLE1: lambda machine: machine.tuple_of(1),
    pickle.TUPLE2: lambda machine: machine.tuple_of(2),
    pickle.TUPLE3: lambda machine: machine.tuple_of(3),
    pickle.TUPLE: _Machine.tuple_to_mark,
    pickle.APPEND: _Machine.append,
    pickle.APPENDS: _Machine.appends,
    pickle.SETITEM: _Machine.set_item,
    pickle.SETITEMS: _Machine.set_items,
    pickle.GLOBAL: _Machine.global_line,
    pickle.STACK_GLOBAL: _Machine.global_stack,
    pickle.REDUCE: _Machine.reduce,
    pickle.NEWOBJ: _Machine.new_object,
    pickle.BUILD: _Machine.build,
    pickle.BINPUT: lambda machine: machine.put(machine._number("<B")),
    pickle.LONG_BINPUT: lambda machine: machine.put(machine._number("<I")),
    pickle.MEMOIZE: _Machine.memoise,
    pickle.BINGET: lambda machine: machine.get(machine._number("<B")),
    pickle.LONG_BINGET: lambda machine: machine.get(machine._number("<I")),
}
