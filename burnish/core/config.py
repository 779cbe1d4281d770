"""Frozen dataclass configurations to and from plain JSON values, with errors that name the field."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from burnish.core.errors import ConfigError, suggest


def to_plain(value: Any) -> Any:
    """Return a configuration (nested frozen dataclasses, tuples, plain values) as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"A configuration holds plain values only, found {type(value).__name__}: {value!r}.")


def from_plain[T](cls: type[T], value: Mapping[str, Any], where: str = "") -> T:
    """Build the dataclass ``cls`` from :func:`to_plain`.

    Args:
        cls: A dataclass type.
        value: Field names to JSON values; fields that are absent keep their defaults.
        where: Path for error messages, for example ``"config.json: env"``.

    Raises:
        ConfigError: If a field does not exist, or its value is of another type.
    """
    where = where or cls.__qualname__
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a JSON object, found {type(value).__name__}.")
    hints = typing.get_type_hints(cls)
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise ConfigError(f"{where}: unknown field '{key}'.{suggest(key, known)}")
    arguments = {key: _convert(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}.") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(get_args(hint), value, where)
    if origin is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where}: found {value!r}.{suggest(str(value), map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        return _convert_tuple(get_args(hint), value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a JSON object, found {value!r}.")
        return {key: _convert(get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(hint):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ConfigError(f"{where}: expected {hint.__name__}, found {type(value).__name__} {value!r}.")
    return value


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    problem: ConfigError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except ConfigError as error:
            problem = error
    raise problem if problem else ConfigError(f"{where}: found {value!r}, which fits none of {options}.")


def _convert_tuple(items: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: expected a list, found {value!r}.")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_convert(items[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(items) != len(value):
        raise ConfigError(f"{where}: expected {len(items)} entries, found {len(value)}.")
    return tuple(_convert(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(items, value, strict=True)))
