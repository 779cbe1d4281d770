"""``burnish list``: what there is, read from the files without importing any."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from burnish import registry
from burnish.cli.console import plain, table
from burnish.cli.options import parse

Kind = Literal[
    "all",
    "env",
    "policy",
    "teacher",
    "world_model",
    "sampler",
    "labeler",
    "objective",
    "controller",
    "recipe",
]


@dataclass(frozen=True)
class Options:
    """List components and the first line of what each says of itself."""

    kind: Kind = "all"
    """Kind of component."""


def summary(module: str) -> str:
    """Return the first line of a module's docstring, without importing the module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return "(cannot be found)"
    if spec is None or spec.origin is None:
        return "(cannot be found)"
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.split("\n", 1)[0]


def rows(kinds: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return (kind, id, summary) of all components of some kinds."""
    return [(kind, name, summary(module)) for kind in kinds for name, module in sorted(registry.modules(kind).items())]


def run(arguments: list[str]) -> int:
    """Print the list."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--kind", *arguments]
    options = parse(Options, arguments, prog="burnish list")
    kinds = list(registry.FOLDERS) if options.kind == "all" else [options.kind]
    for kind in kinds:
        found = rows([kind])
        if found:
            table(f"\n{kind}", ("id", "what it is"), [(row[1], plain(row[2])) for row in found])
    return 0
