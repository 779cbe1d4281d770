"""``burnish train RECIPE``: ids first, then the fields of what was chosen, then the recipe runs."""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish import registry
from burnish.cli.console import say
from burnish.cli.folders import next_folder
from burnish.cli.options import choose_components, parse, take, with_components
from burnish.core.config import from_plain, to_plain
from burnish.core.errors import BurnishError, ConfigError
from burnish.data.durable import durable_text

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
    resume, arguments = take(arguments, "resume")
    if resume is not None and (not arguments or arguments[0].startswith("-")):
        arguments = [recipe_of(Path(resume)), *arguments]
    if not arguments or arguments[0].startswith("-"):
        names = ", ".join(registry.names("recipe"))
        say("usage: burnish train RECIPE \\[--out DIR] \\[options]\n       burnish train --resume DIR")
        say(f"\nRecipes: {names}.")
        say("Options of a recipe: burnish train RECIPE --help")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    out, arguments = take(arguments, "out")
    recipe = arguments[0]
    if resume is not None:
        if out is not None:
            raise ConfigError("A resumed run stays in its folder; take out --out.")
        config = read_config(Path(resume), recipe, arguments[1:])
        return int(config.run(Run(Path(resume), resume=True)) or 0)
    config = configure(recipe, arguments[1:])
    directory = Path(out) if out else next_folder(Path("runs"), f"{recipe}-")
    write_config(directory, recipe, config)
    say(f"Run folder: {directory}")
    try:
        return int(config.run(Run(directory, resume=False)) or 0)
    except BurnishError:
        if not (directory / "metrics.jsonl").exists():  # it never began: leave the name free for the next try
            (directory / "config.json").unlink()
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise


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
    components = {kind: registry.to_json(kind, getattr(config, kind)) for kind in COMPONENTS if hasattr(config, kind)}
    numbers = {
        field.name: to_plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
        if field.name not in components
    }
    text = json.dumps({"recipe": recipe, "components": components, "config": numbers}, indent=2)
    durable_text(target, text + "\n")


def read_config(directory: Path, recipe: str, overrides: list[str]) -> Any:
    """Return the configuration that a run folder was started with.

    Raises:
        ConfigError: If there is none, it is of another recipe, or options are given on top.
    """
    source, plain = _read_plain(directory)
    if overrides:
        raise ConfigError(f"A resumed run keeps its configuration; take out {' '.join(overrides)}.")
    found, components, numbers = plain["recipe"], plain["components"], plain["config"]
    if found != recipe:
        raise ConfigError(
            f"{directory} is a run of recipe '{found}', not '{recipe}': burnish train {found} --resume ..."
        )
    cls = registry.load("recipe", recipe)
    chosen = {kind: registry.from_json(kind, value) for kind, value in components.items()}
    made = with_components(cls, chosen)
    return from_plain(made, numbers, str(source))


def recipe_of(directory: Path) -> str:
    """Return the recipe of a run folder.

    Raises:
        ConfigError: If it holds no run.
    """
    return str(_read_plain(directory)[1]["recipe"])


def _read_plain(directory: Path) -> tuple[Path, dict[str, Any]]:
    source = directory / "config.json"
    if not source.is_file():
        raise ConfigError(f"{directory} holds no config.json, so there is no run to go on with.")
    try:
        plain: Any = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{source} is damaged: {error}. Begin a new run.") from error
    wanted = {"recipe": str, "components": dict, "config": dict}
    for name, kind in wanted.items():
        found = plain.get(name) if isinstance(plain, dict) else None
        if not isinstance(found, kind):
            raise ConfigError(f"{source} is not a run configuration: '{name}' is {found!r}. Begin a new run.")
    return source, plain
