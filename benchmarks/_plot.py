"""The plots of docs/benchmarks.md: bars for contests, dots for delays."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks._result import Contest, Delays
from benchmarks._show import number

OURS, OTHERS, INK, FAINT = "#1f6f8b", "#a9b4bd", "#333b42", "#dfe4e8"

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "axes.axisbelow": True,
    # Makes the file reproducible.
    "svg.hashsalt": "pgqpy",
    "svg.fonttype": "none",
}
WIDTH = 7.2


def plot(part: Contest | Delays, file: Path) -> None:
    """Draw a part into a file, ``.svg``."""
    with mpl.rc_context(STYLE):
        figure = contest(part) if isinstance(part, Contest) else delays(part)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
    # A picture changes as a whole: in one line it is one line of a diff.
    file.write_text(" ".join(file.read_text(encoding="utf-8").split()) + "\n", encoding="utf-8")


def contest(part: Contest) -> Any:
    """Draw a bar as long as the median, and a dot for each round."""
    figure, axes = rows_of(list(part.seconds), part.title)
    end = max(part.items / min(seconds) for seconds in part.seconds.values())
    for row, (name, seconds) in enumerate(part.seconds.items()):
        median = part.items / statistics.median(seconds)
        axes.barh(row, median, height=0.6, color=colour(name))
        if len(seconds) > 1:
            rates = [part.items / each for each in seconds]
            axes.plot(rates, [row] * len(rates), ".", color=INK, markersize=3, alpha=0.6)
        axes.text(1.02 * end, row, f"{median:,.0f}", va="center")
    axes.set_xlim(0, 1.15 * end)
    axes.set_xlabel(f"{part.unit} a second: median, and single rounds as dots")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure


def delays(part: Delays) -> Any:
    """Draw a line from the median over p99 to the slowest, on a logarithmic scale."""
    figure, axes = rows_of(list(part.percentiles), part.title)
    for row, name in enumerate(part.percentiles):
        p50, p99, most = (part.ms(name, percent) for percent in (50, 99, 100))
        axes.plot([p50, most], [row, row], color=colour(name), linewidth=2)
        for value, marker in ((p50, "o"), (p99, "D"), (most, "|")):
            axes.plot(value, row, marker, color=colour(name), markersize=7 if marker != "D" else 5)
        for value in (p50, p99):
            axes.annotate(
                number(value), (value, row), (0, 7), textcoords="offset points", ha="center"
            )
    axes.set_xscale("log")
    axes.set_xlabel("ms: median (dot), p99 (diamond), slowest (end of the line)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(len(part.percentiles) - 0.5, -0.7)
    return figure


def rows_of(names: list[str], title: str) -> tuple[Any, Any]:
    """Axes with a row for each name, the first on top."""
    figure, axes = plt.subplots(figsize=(WIDTH, 0.85 + 0.32 * len(names)), layout="constrained")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.grid(visible=True, axis="x")
    axes.set_title(title, loc="left", fontsize=10)
    return figure, axes


def colour(name: str) -> str:
    """The colour of a bar: pgqpy's stand out."""
    return OURS if "pgqpy" in name or name.startswith("to ") else OTHERS
