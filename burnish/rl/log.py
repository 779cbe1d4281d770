"""The log of a run: ``metrics.jsonl``, TensorBoard events, and a progress line with the time left."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

METRICS_FILE = "metrics.jsonl"
SHOWN = ("loss", "loss/validation", "return", "success", "clipped_ratio/kl", "degenerate_share", "env_steps_per_second")
"""Figures of the progress line, where a run has them."""


class RunLog:
    """Append one row per iteration to a run folder; a resumed run drops rows after its checkpoint."""

    def __init__(self, run: Path, *, after: int = 0, tensorboard: bool = True) -> None:
        """Open the log.

        Args:
            run: Run folder.
            after: Rows of later iterations are removed; they were written after the checkpoint that is resumed.
            tensorboard: Also write ``tensorboard/``.
        """
        run.mkdir(parents=True, exist_ok=True)
        file = run / METRICS_FILE
        if file.exists():
            kept = [row for row in read_metrics(run) if row["iteration"] <= after]
            temporary = run / f".{METRICS_FILE}.part"
            temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            temporary.replace(file)
        self._stream = file.open("a", encoding="utf-8")
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=after + 1)

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write the row of one iteration; ``metrics`` holds ``iteration``."""
        self._stream.write(json.dumps(dict(metrics)) + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        if self._writer is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

            # One event for all figures: the writer's thread opens the file once for each.
            named = {key if "/" in key else f"run/{key}": figure for key, figure in metrics.items()}
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=figure) for tag, figure in named.items()])
            self._writer.file_writer.add_summary(summary, int(metrics["iteration"]))

    def close(self) -> None:
        """Flush and close."""
        self._stream.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(run: Path) -> list[dict[str, float]]:
    """Return the rows of a run's ``metrics.jsonl``; a last line cut off by a kill is left out."""
    rows: list[dict[str, float]] = []
    for line in (run / METRICS_FILE).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


@contextlib.contextmanager
def progress(iterations: int, console: Console | None = None) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Yield a ``report`` for :func:`burnish.rl.train.train` that shows a bar, key figures and the time left.

    Where the output is no terminal, one line is printed per tenth of the run.
    """
    console = console or Console()
    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    every = max(1, iterations // 10)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=iterations, figures="")

        def report(metrics: Mapping[str, float]) -> None:
            iteration = int(metrics["iteration"])
            figures = "  ".join(f"{key} {metrics[key]:.3g}" for key in SHOWN if key in metrics)
            bar.update(task, completed=iteration, figures=figures)
            if not console.is_terminal and (iteration % every == 0 or iteration == iterations):
                left = metrics["seconds"] / iteration * (iterations - iteration)
                console.print(
                    f"iteration {iteration}/{iterations}  about {left:.0f} s left  {figures}",
                    soft_wrap=True,
                    highlight=False,
                )

        yield report
