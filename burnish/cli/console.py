"""What the commands print with: one console, plain sentences, tables and progress bars."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""

console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console.width = PLAIN_WIDTH


def say(text: str) -> None:
    """Print one line, with rich markup."""
    console.print(text)


def plain(text: object) -> str:
    """Return text that is printed as it is, brackets included, where markup is read."""
    return escape(str(text))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; the first column is a name."""
    view = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        view.add_column(column, style="cyan" if i == 0 else None, overflow="fold")
    for row in rows:
        view.add_row(*(str(item) for item in row))
    console.print(view)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show a progress bar with counts, elapsed time and time left."""
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=False,
    ) as bar:
        yield bar
