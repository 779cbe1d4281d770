"""Names of folders that a command makes when none is given."""

from pathlib import Path


def next_folder(root: Path, prefix: str = "") -> Path:
    """Return the first of ``root/<prefix>001``, ``root/<prefix>002``, ... that does not exist; makes nothing."""
    number = 1
    while (root / f"{prefix}{number:03d}").exists():
        number += 1
    return root / f"{prefix}{number:03d}"
