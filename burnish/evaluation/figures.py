"""Plots as inline SVG whose colours are the page's CSS variables, so that they follow a light or dark theme."""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from burnish.core.spec import Array
from burnish.evaluation.compare import TaskComparison
from burnish.evaluation.curves import Curve

INK, MUTED, GRID, BEFORE, AFTER = "#010101", "#020202", "#030303", "#040404", "#050505"
"""Stand-ins that become CSS variables when a figure is written."""
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", BEFORE: "--before", AFTER: "--after"}
WIDTH = 9.8
"""Of a full figure, in inches of 96 px, which is about the width of the page."""
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def curves_figure(curves: Sequence[Curve]) -> str:
    """Return learning curves side by side, each with its band."""
    short = len({curve.name.rsplit("/", 1)[-1] for curve in curves}) == len(curves)

    def draw(figure: Figure, axes: Sequence[Any]) -> None:
        for axis, curve in zip(axes, curves, strict=False):
            axis.fill_between(curve.x, curve.low, curve.high, color=AFTER, alpha=0.18, linewidth=0)
            axis.plot(curve.x, curve.middle, color=AFTER, linewidth=1.8)
            axis.set_title(curve.name.rsplit("/", 1)[-1].replace("_", " ") if short else curve.name)
            axis.set_xlabel(curve.progress.rsplit("/", 1)[-1].replace("_", " "))
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))
            axis.set_xlim(curve.x[0], curve.x[-1])

    return _grid_of(len(curves), draw, "Learning curves: " + ", ".join(curve.name for curve in curves))


def histograms_figure(rows: Sequence[tuple[str, str, Array | None, Array]]) -> str:
    """Return histograms before and after.

    Args:
        rows: (name, unit, readings before (E,) or None, readings after (E,)); readings are finite.
    """

    def draw(figure: Figure, axes: Sequence[Any]) -> None:
        for axis, (name, unit, before, after) in zip(axes, rows, strict=False):
            sides = [(before, BEFORE, "before"), (after, AFTER, "after")]
            edges = bin_edges(np.concatenate([item for item, _, _ in sides if item is not None]))
            for sample, colour, label in sides:
                if sample is None:
                    continue
                weights = np.full(len(sample), 100 / max(1, len(sample)))
                style = {"weights": weights, "color": colour, "zorder": 3}
                axis.hist(sample, edges, histtype="stepfilled", alpha=0.28, label=label, **style)
                axis.hist(sample, edges, histtype="step", linewidth=1.4, **style)
                axis.axvline(np.median(sample), color=colour, linewidth=1.2, linestyle=(0, (3, 2)), zorder=4)
            axis.set_title(name.replace("_", " ") + (f" [{unit}]" if unit else ""))
            axis.set_ylabel("episodes [%]")
            axis.grid(visible=False, axis="x")
            if before is not None:
                _legend(axis, "lower right", (1, 1))

    return _grid_of(len(rows), draw, "Histograms of " + ", ".join(row[0] for row in rows))


def tasks_figure(tasks: Sequence[TaskComparison]) -> str:
    """Return success by task, before and after, with 95 % intervals."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.46 * len(tasks)))
        axis = figure.add_subplot()
        for side, colour, shift in (("before", BEFORE, -0.13), ("after", AFTER, 0.13)):
            estimates = [getattr(task, side) for task in tasks]
            place = np.arange(len(tasks)) + shift
            axis.hlines(place, [100 * e.low for e in estimates], [100 * e.high for e in estimates], color=colour, lw=2)
            axis.plot([100 * e.value for e in estimates], place, "o", color=colour, markersize=6, label=side)
        axis.set_yticks(range(len(tasks)), [task.task for task in tasks])
        axis.tick_params(axis="y", labelcolor=INK, length=0)
        axis.set_ylim(len(tasks) - 0.5, -0.5)
        axis.set_xlim(-2, 102)
        axis.set_xlabel("success [%]")
        axis.grid(visible=False, axis="y")
        _legend(axis, "lower left", (0, 1))
        return _svg(figure, "Success by task, before and after")


def _legend(axis: Any, place: str, anchor: tuple[float, float]) -> None:
    axis.legend(
        loc=place, bbox_to_anchor=anchor, ncols=2, fontsize=9, labelcolor=MUTED, borderaxespad=0.2, handlelength=1.2
    )


def bin_edges(sample: Array) -> Array:
    """Return 16 to 40 equal bins over all readings."""
    span = np.ptp(sample)
    automatic = len(np.histogram_bin_edges(sample, "fd")) - 1 if span > 0 else 16
    low, high = (float(sample.min()), float(sample.max())) if span > 0 else (sample[0] - 0.5, sample[0] + 0.5)
    return np.linspace(low, high, min(40, max(16, automatic)) + 1)


def thousands(value: float) -> str:
    """Return a large count in short: 12k, 3.4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _grid_of(count: int, draw: Any, label: str) -> str:
    columns = min(count, 2)
    rows = -(-count // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH if columns == 2 else 0.62 * WIDTH, 2.8 * rows))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes[count:]:
            axis.set_axis_off()
        draw(figure, axes)
        return _svg(figure, label)


def _svg(figure: Figure, label: str) -> str:
    target = io.StringIO()
    figure.patch.set_alpha(0)
    for axis in figure.axes:
        axis.patch.set_alpha(0)
    with mpl.rc_context({"svg.hashsalt": label}):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(target, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    width = re.search(r'viewBox="0 0 ([\d.]+)', text)
    limit = f"{1.333 * float(width.group(1)):.0f}px" if width else "100%"
    opening = f'<svg role="img" aria-label="{escape(label)}" style="max-width:{limit}" '
    text = re.sub(r"<svg .*?(?=viewBox)", opening, text, count=1, flags=re.DOTALL)
    text = re.sub(r'\sversion="1.1"', "", text, count=1)
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, f"var({variable})")
    return text.strip()
