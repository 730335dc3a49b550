"""Results as tables of text: for the terminal here, and in `benchmarks._page` for the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks._result import PERCENTS, Cell, Contest, Delays, Figure, Part, Series, Table

SHOWN_PERCENTS = (50, 90, 99, 100)
WIDTH = 110
"""The minimum width of the terminal."""


@dataclass(frozen=True, slots=True)
class Text:
    """A table, ready to be shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_text(part: Part) -> Text:
    match part:
        case Contest():
            return contest(part)
        case Delays():
            return delays(part)
        case Series():
            return series(part)
        case Table():
            rows = [[number(cell) for cell in row] for row in part.rows]
            return Text(part.title, part.columns, rows)


def contest(part: Contest) -> Text:
    first = next(iter(part.seconds))
    rows = []
    for name, seconds in part.seconds.items():
        ratio = part.ratio(name, first)
        several = len(seconds) > 1
        rows.append(
            (
                name,
                f"{part.rate(name):,.0f}",
                number(1000 * statistics.median(seconds)),
                f"{max(seconds) / min(seconds):.2f}" if several else "",
                times(ratio.value),
                f"{times(ratio.low)} to {times(ratio.high)}" if several and name != first else "",
            )
        )
    columns = (
        *("", f"{part.unit} a second", "ms", "slowest / fastest"),
        *("x the first", "in single rounds"),
    )
    return Text(part.title, columns, rows)


def delays(part: Delays) -> Text:
    columns = ["", *("max" if p == 100 else f"p{p}" for p in SHOWN_PERCENTS), "of"]
    rows = [
        [
            name,
            *(number(values[PERCENTS.index(p)]) for p in SHOWN_PERCENTS),
            f"{part.counts[name]:,}",
        ]
        for name, values in part.percentiles.items()
    ]
    return Text(f"{part.title}, ms", columns, rows)


def series(part: Series) -> Text:
    """Only the beginning and the end of each line."""
    rows = [
        [name, number(points[0][1]), number(points[-1][1]), number(max(y for _, y in points))]
        for name, points in part.lines.items()
    ]
    return Text(f"{part.title}: {part.y}", ("", "at first", "at last", "at most"), rows)


def figures(these: Sequence[Figure]) -> Text:
    rows = [(each.number, *cells_of(each)) for each in these]
    return Text("Figures", ("", "what", "target", "value", "met"), rows)


def cells_of(figure: Figure) -> tuple[str, str, str, str]:
    """What it is, its target, its value, and whether it is met."""
    value = quantity(figure.value, figure.unit)
    if figure.spread is not None:
        low, high = figure.spread
        value = f"{value} ({low:.2f} to {high:.2f})"
    target = f"{figure.bound} {quantity(figure.target, figure.unit)}"
    return figure.what, target, value, "yes" if figure.met else "**no**"


def quantity(value: float, unit: str) -> str:
    return f"{value:.2f} x" if unit == "x" else f"{number(value)} {unit}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def number(cell: Cell) -> str:
    """The number with three digits."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"


def show(what: Part | Sequence[Figure]) -> None:
    text = as_text(what) if isinstance(what, Part) else figures(what)
    table = RichTable(title=text.title, title_justify="left")
    for place, column in enumerate(text.columns):
        table.add_column(column, justify="right" if place else "left")
    for row in text.rows:
        table.add_row(*(cell.strip("*") for cell in row))
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)
