"""Find components by name: a file with a top-level ``Config`` is one, and its path below its folder is its id.

Listing imports nothing. Third parties add components with an entry point in the group ``burnish.<kind>`` whose value
is a module, or name a module path such as ``my_package.my_env`` where an id is asked for.
"""

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from burnish.core.config import from_plain, to_plain
from burnish.core.errors import UnknownNameError, suggest

FOLDERS = {
    "env": "envs",
    "policy": "policies",
    "teacher": "teachers",
    "world_model": "world_models",
    "sampler": "rl/samplers",
    "labeler": "rl/labelers",
    "objective": "rl/objectives",
    "controller": "rl/controllers",
    "recipe": "cli/recipes",
}
"""Kind of component to the folder that holds it."""


def modules(kind: str) -> dict[str, str]:
    """Return component ids of a kind and the modules that hold them, without importing any.

    Raises:
        UnknownNameError: If there is no such kind.
    """
    if kind not in FOLDERS:
        raise UnknownNameError(f"There is no kind of component '{kind}'.{suggest(kind, FOLDERS)}")
    root = Path(__file__).parent
    folder = root / FOLDERS[kind]
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        if "\nclass Config" in file.read_text(encoding="utf-8"):
            relative = file.relative_to(folder).with_suffix("")
            found[relative.as_posix()] = ".".join(("burnish", *file.relative_to(root).with_suffix("").parts))
    for point in entry_points(group=f"burnish.{kind}"):
        found.setdefault(point.name, point.value)
    return found


def names(kind: str) -> list[str]:
    """Return the ids of a kind, sorted."""
    return sorted(modules(kind))


def load(kind: str, name: str) -> type[Any]:
    """Import a component and return its ``Config`` class.

    Args:
        kind: A key of ``FOLDERS``.
        name: An id, or the dotted path of a module that has a ``Config``.

    Raises:
        UnknownNameError: If there is no such component, or the module has no ``Config``.
    """
    known = modules(kind)
    module = known.get(name, name if "." in name and "/" not in name else "")
    if not module:
        raise UnknownNameError(f"There is no {kind} '{name}'.{suggest(name, known)}")
    try:
        config: type[Any] = importlib.import_module(module).Config
    except (ModuleNotFoundError, AttributeError) as error:
        if module in known.values():
            raise
        raise UnknownNameError(f"Cannot use module '{module}' as {kind}: {error}.{suggest(name, known)}") from error
    return config


def name_of(kind: str, config: Any) -> str:
    """Return the id under which a configuration's class is registered."""
    module = type(config).__module__
    return next((name for name, path in modules(kind).items() if path == module), module)


def to_json(kind: str, config: Any) -> dict[str, Any]:
    """Return ``{"id", "config"}``: how a component is written into a checkpoint."""
    return {"id": name_of(kind, config), "config": to_plain(config)}


def from_json(kind: str, value: dict[str, Any]) -> Any:
    """Rebuild a configuration from :func:`to_json`."""
    return from_plain(load(kind, value["id"]), value["config"], f"{kind} '{value['id']}'")


def register_envs() -> list[str]:
    """Make every environment known to Gymnasium, as ``burnish/<id, "/" written "-">-v0``, and return those ids."""
    from burnish.envs.registration import register

    return register(modules("env"))
