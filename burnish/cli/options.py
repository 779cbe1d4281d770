"""Two-pass options: ids first, then the fields of the chosen configurations, so that help shows only what applies."""

import dataclasses
import typing
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import tyro

from burnish import registry
from burnish.core.errors import ConfigError, suggest

Component = tyro.conf.Fixed[Any]
"""Type of a field that holds the configuration of a component chosen by id; hidden until one is."""


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


def choose_components(
    arguments: Sequence[str], defaults: dict[str, Any], required: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """First pass: take ids such as ``--env contact/contour`` and return the configurations they name.

    Args:
        arguments: Command line.
        defaults: Kind of component to the configuration used when no id is given, or None for no component.
        required: Kinds without which the command cannot run.

    Returns:
        (kind to configuration, the other arguments)

    Raises:
        ConfigError: If a required id is missing; help asked for counts as given.
    """
    chosen: dict[str, Any] = {}
    rest = list(arguments)
    for kind, default in defaults.items():
        name, rest = take(rest, kind)
        if name is not None:
            cls = registry.load(kind, name)
            chosen[kind] = default if type(default) is cls else cls()
        elif default is not None:
            chosen[kind] = default
        elif kind in required and not wants_help(rest):
            raise ConfigError(f"Say which {kind} to use: --{kind} ID.{suggest('', registry.names(kind))}")
    return chosen, rest


def wants_help(arguments: Sequence[str]) -> bool:
    """Return whether help is asked for."""
    return "-h" in arguments or "--help" in arguments


def with_components(cls: type[Any], chosen: dict[str, Any]) -> type[Any]:
    """Return a subclass of a dataclass in which some fields have the type and value of a chosen configuration.

    Args:
        cls: Recipe or command dataclass.
        chosen: Field name to configuration object.
    """
    hints = typing.get_type_hints(cls)
    fields = []
    for name, config in chosen.items():
        if name not in hints:
            raise ConfigError(f"{cls.__module__} has no component '{name}'.{suggest(name, hints)}")
        fields.append((name, type(config), dataclasses.field(default=config)))
    made: type[Any] = dataclasses.make_dataclass(cls.__name__, fields, bases=(cls,), frozen=True, module=cls.__module__)
    made.__doc__ = cls.__doc__
    return made


def parse[T](cls: type[T], arguments: Sequence[str], *, prog: str) -> T:
    """Second pass: parse options into a dataclass; wrong ones end the process with a suggestion.

    Args:
        cls: Frozen dataclass with a docstring under each field.
        arguments: What is left after ids were taken.
        prog: How the command was called, for help.
    """
    parsed: T = tyro.cli(
        cls,
        args=_with_true(arguments, _switches(cls)),
        prog=prog,
        description=cls.__doc__ or "",
        config=(tyro.conf.FlagConversionOff, tyro.conf.SuppressFixed),
    )
    return parsed


def _switches(cls: type[Any], prefix: str = "") -> set[str]:
    """Return the options of a dataclass that are true or false."""
    hints = typing.get_type_hints(cls)
    found = set()
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if hint is bool:
            found.add(f"--{prefix}{field.name}")
        elif dataclasses.is_dataclass(hint):
            found |= _switches(typing.cast("type[Any]", hint), f"{prefix}{field.name}.")
    return found


def _with_true(arguments: Sequence[str], switches: set[str]) -> list[str]:
    """Return the arguments with ``True`` after each switch that stands alone."""
    completed = []
    for item, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        completed.append(item)
        if "--" + item[2:].replace("-", "_") in switches and following.startswith("-"):
            completed.append("True")
    return completed


def command[T](
    cls: type[T],
    arguments: Sequence[str],
    *,
    prog: str,
    defaults: dict[str, Any] | None = None,
    required: Sequence[str] = (),
) -> T:
    """Do both passes for a command whose dataclass has :data:`Component` fields."""
    chosen, rest = choose_components(arguments, defaults or {}, required)
    return parse(with_components(cls, chosen) if chosen else cls, rest, prog=prog)
