"""``burnish train RECIPE``: ids first, then the fields of what was chosen, then the recipe runs."""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import registry
from burnish.cli.console import say
from burnish.cli.options import choose_components, parse, take, with_components
from burnish.core.config import from_plain, to_plain
from burnish.core.errors import ConfigError

COMPONENTS = ("env", "policy", "teacher")
"""Fields of a recipe that an id on the command line may replace."""


@dataclass(frozen=True)
class Run:
    """Where a recipe runs, and whether it goes on from what is there."""

    directory: Path
    """Run folder."""
    resume: bool
    """Go on from the newest checkpoint."""


def run(arguments: list[str]) -> int:
    """Run a recipe."""
    if not arguments or arguments[0].startswith("-"):
        names = ", ".join(registry.names("recipe"))
        say(f"usage: burnish train RECIPE [--out DIR] [--resume DIR] [options]\n\nRecipes: {names}.")
        say("Options of a recipe: burnish train RECIPE --help")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    resume, arguments = take(arguments, "resume")
    out, arguments = take(arguments, "out")
    recipe = arguments[0]
    if resume is not None:
        config = read_config(Path(resume), recipe, arguments[1:])
        return int(config.run(Run(Path(resume), resume=True)) or 0)
    config = configure(recipe, arguments[1:])
    directory = Path(out) if out else _fresh_folder(recipe)
    write_config(directory, recipe, config)
    return int(config.run(Run(directory, resume=False)) or 0)


def configure(recipe: str, arguments: list[str]) -> Any:
    """Return the recipe's configuration with the chosen components and overrides."""
    cls = registry.load("recipe", recipe)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    components = {kind: defaults[kind] for kind in COMPONENTS if kind in defaults}
    chosen, rest = choose_components(arguments, components)
    return parse(with_components(cls, chosen), rest, prog=f"burnish train {recipe}")


def write_config(directory: Path, recipe: str, config: Any) -> None:
    """Write ``config.json``: the recipe's name, its components by id, and every number.

    Raises:
        ConfigError: If the folder already holds a run.
    """
    target = directory / "config.json"
    if target.exists():
        raise ConfigError(
            f"{directory} already holds a run. Go on with it: burnish train {recipe} --resume {directory}; "
            "or choose another folder with --out."
        )
    directory.mkdir(parents=True, exist_ok=True)
    components = {kind: registry.to_json(kind, getattr(config, kind)) for kind in COMPONENTS if hasattr(config, kind)}
    numbers = {
        field.name: to_plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name not in components
    }
    text = json.dumps({"recipe": recipe, "components": components, "config": numbers}, indent=2)
    part = target.with_suffix(".json.part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, target)


def read_config(directory: Path, recipe: str, overrides: list[str]) -> Any:
    """Return the configuration that a run folder was started with.

    Raises:
        ConfigError: If there is none, it is of another recipe, or options are given on top.
    """
    source = directory / "config.json"
    if not source.is_file():
        raise ConfigError(f"{directory} holds no config.json, so there is no run to go on with.")
    if overrides:
        raise ConfigError(f"A resumed run keeps its configuration; take out {' '.join(overrides)}.")
    try:
        plain = json.loads(source.read_text(encoding="utf-8"))
        found, components, numbers = plain["recipe"], plain["components"], plain["config"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{source} is not a run configuration: {error!r}.") from error
    if found != recipe:
        raise ConfigError(
            f"{directory} is a run of recipe '{found}', not '{recipe}': burnish train {found} --resume ..."
        )
    cls = registry.load("recipe", recipe)
    chosen = {kind: registry.from_json(kind, value) for kind, value in components.items()}
    made = with_components(cls, chosen)
    return from_plain(made, numbers, str(source))


def _fresh_folder(recipe: str) -> Path:
    root = Path("runs")
    number = 1
    while (root / f"{recipe}-{number:03d}").exists():
        number += 1
    return root / f"{recipe}-{number:03d}"
