"""Versions of installed packages, as recorded beside results and checkpoints."""

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package, leaving out those that are not installed."""
    found: dict[str, str] = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
