"""Files and folders that exist whole or not at all, also after a power cut or ``kill -9``."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"
"""Names that begin so are unfinished; every reader skips them."""


@contextmanager
def durable_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; on success flush it to the disk and rename it to ``path``.

    Args:
        path: Where the file shall be; an existing one is replaced in one step.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def durable_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with durable_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def durable_folder(path: Path, *, create: bool = True) -> Iterator[Path]:
    """Give a temporary folder to fill; on success flush its files and rename it to ``path``.

    A folder that is already there is replaced: for a moment it carries a temporary name, then it is deleted.

    Args:
        path: Where the folder shall be.
        create: Whether to make the temporary folder, or leave that to the caller.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    if create:
        temporary.mkdir()
    try:
        yield temporary
        for found in sorted(temporary.rglob("*")):
            flush(found)
        flush(temporary)
        if path.exists():
            old = temporary_path(path)
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.rename(path)
        flush(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_path(path: Path) -> Path:
    """Return a fresh name beside ``path`` that readers skip."""
    return path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex[:12]}-{path.name}")


def is_temporary(path: Path) -> bool:
    """Whether a name marks an unfinished file or folder."""
    return path.name.startswith(TEMPORARY_PREFIX)


def flush(path: Path) -> None:
    """Force a file or the entries of a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
