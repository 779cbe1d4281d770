"""Two-pass options: ids first, then the fields of the chosen configurations, so that help shows only what applies."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, get_args

import tyro

from burnish import registry
from burnish.core.errors import ConfigError, suggest


def take(arguments: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """Take one ``--name VALUE`` or ``--name=VALUE`` out of the arguments.

    Returns:
        (value or None, the other arguments in order)

    Raises:
        ConfigError: If the value is missing or given twice.
    """
    flag, value, rest = f"--{name}", None, []
    items = list(arguments)
    while items:
        item = items.pop(0)
        if item == flag or item.startswith(f"{flag}="):
            if value is not None:
                raise ConfigError(f"{flag} was given twice: {value!r} and again. Give it once.")
            if item == flag and not items:
                raise ConfigError(f"{flag} needs a value.")
            value = items.pop(0) if item == flag else item.removeprefix(f"{flag}=")
        else:
            rest.append(item)
    return value, rest


def parse[T](
    cls: type[T], arguments: Sequence[str], *, prog: str, default: T | None = None, description: str = ""
) -> T:
    """Parse arguments into a dataclass with tyro; wrong options end the process with a suggestion.

    Args:
        cls: Frozen dataclass with a docstring under each field.
        arguments: What is left after ids were taken.
        prog: How the command was called, for help.
        default: Values where the user gives none.
        description: First lines of the help; the class docstring when empty.
    """
    extra = {} if default is None else {"default": default}
    parsed: T = tyro.cli(
        cls,
        args=_with_dashes(arguments),
        prog=prog,
        description=description or (cls.__doc__ or ""),
        config=(tyro.conf.FlagConversionOff, tyro.conf.SuppressFixed),
        **extra,
    )
    return parsed


def with_components(cls: type[Any], **chosen: Any) -> type[Any]:
    """Return a subclass of a dataclass in which some fields have the type and value of a chosen configuration.

    Args:
        cls: Recipe or command dataclass with fields typed ``Any``.
        chosen: Field name to configuration object.
    """
    hints = typing.get_type_hints(cls)
    fields = []
    for name, config in chosen.items():
        if name not in hints:
            raise ConfigError(f"{cls.__qualname__} has no part '{name}'.{suggest(name, hints)}")
        fields.append((name, type(config), dataclasses.field(default=config)))
    made: type[Any] = dataclasses.make_dataclass(cls.__name__, fields, bases=(cls,), frozen=True, module=cls.__module__)
    made.__doc__ = cls.__doc__
    return made


def choose(kind: str, name: str | None, default: Any) -> Any:
    """Return the configuration for an id, or the recipe's own when the id is None or already that kind.

    Args:
        kind: Kind of component.
        name: Id the user gave, or None.
        default: The recipe's own configuration, or None where it has none.

    Raises:
        ConfigError: If neither names a component.
    """
    if name is None:
        if default is None:
            raise ConfigError(f"Say which {kind} to use: --{kind} ID.{suggest('', registry.names(kind))}")
        return default
    config = registry.load(kind, name)
    return default if type(default) is config else config()


def field_options(config: Any) -> list[str]:
    """Return the names of the fields of a configuration, for messages."""
    return [field.name for field in dataclasses.fields(config)]


def _with_dashes(arguments: Sequence[str]) -> list[str]:
    return [
        "--" + item[2:].replace("_", "-") if item.startswith("--") and "=" not in item else item for item in arguments
    ]


def literal_values(hint: Any) -> tuple[str, ...]:
    """Return the values of a ``Literal``."""
    return tuple(str(item) for item in get_args(hint))
