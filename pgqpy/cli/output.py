"""How results look: tables and JSON on standard output, problems and progress on standard error.

Names and payloads come from other people, so nothing here lets them act as markup or as terminal
control sequences.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from pgqpy.cli.errors import Problem

#: Texts up to this width are not folded or cut to make room for others; numbers never are.
KEPT = 12

#: Wide enough for any table: what is piped into another program must not be cut to 80 columns.
_UNBOUNDED = 100_000


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; without colours unless it is a terminal."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def say(message: str) -> None:
    """Print what was done: one line, for a person."""
    click.echo(printable(message))


def print_json(value: Any) -> None:
    """Print one JSON document: times in ISO 8601, intervals in seconds."""
    click.echo(json.dumps(value, default=_json_value, ensure_ascii=False, indent=2))


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, for streams of them."""
    click.echo(json.dumps(value, default=_json_value, ensure_ascii=False))


def _json_value(value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def print_problem(problem: Problem) -> None:
    """Print an error and its remedy to standard error."""
    label = click.style("error:", fg="red", bold=True)
    click.echo(f"{label} {printable(problem.message)}", err=True)
    if problem.hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {printable(problem.hint)}", err=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False
) -> None:
    """Print rows under headings; all but words is set right, and nothing is shown as `-`.

    On a terminal what is too wide is folded, or with `cut` each row cut to one line.
    """
    cells = [[(value, shown(value)) for value in row] for row in rows]
    table = empty_table()
    for index, heading in enumerate(columns):
        column = [row[index] for row in cells]
        words = any(isinstance(value, str | datetime) for value, _ in column)
        long = any(isinstance(value, str) and len(text) > KEPT for value, text in column)
        # Columns that may not wrap keep their width when others have to give way.
        table.add_column(
            heading, justify="left" if words else "right", overflow="fold", no_wrap=not long
        )
    for row in cells:
        table.add_row(
            *(Text(text, no_wrap=cut, overflow="ellipsis" if cut else "fold") for _, text in row)
        )
    print_rich(table)


def print_rich(renderable: RenderableType) -> None:
    """Print tables and styled text; without the padding at the ends of lines, for programs."""
    screen = console()
    if screen.is_terminal:
        screen.print(renderable)
        return
    with screen.capture() as captured:
        screen.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def empty_table() -> Table:
    """A table in the style of all our tables."""
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def print_pairs(*pairs: tuple[str, Any]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {shown(value)}")


def shown(value: object) -> str:
    """A cell's text."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return rate(value)
        case timedelta():
            return duration(value)
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return printable(str(value))


def duration(value: timedelta) -> str:
    """An interval in at most two units: ``12 ms``, ``3.4 s``, ``5 min 10 s``, ``3 d 4 h``."""
    seconds = value.total_seconds()
    if seconds < 0:
        return f"-{duration(-value)}"
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 3600:
        size, unit, smaller, below = 60, "min", 1, "s"
    elif whole < 86400:
        size, unit, smaller, below = 3600, "h", 60, "min"
    else:
        size, unit, smaller, below = 86400, "d", 3600, "h"
    rest = whole % size // smaller
    return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")


def brief(value: timedelta) -> str:
    """An interval in one unit, for narrow columns: ``12 ms``, ``3.4 s``, ``5 min``, ``3 d``."""
    number, unit = duration(value).split(" ")[:2]
    return f"{number} {unit}"


def ago(value: timedelta | None) -> str:
    """How long ago something was."""
    return "never" if value is None else f"{duration(value)} ago"


def rate(value: float) -> str:
    """Something a second, with as many digits as tell anything."""
    return f"{value:,.0f}" if round(value, 1) >= 10 or value == 0 else f"{value:.1f}"


def printable(text: str) -> str:
    """The text with control characters written as escapes, so that a terminal obeys none."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


#: Says that so much more has been done.
Advance = Callable[[int], None]


@contextmanager
def progress(description: str, total_bytes: int | None) -> Iterator[Advance]:
    """A progress bar on standard error; it stays away when that is no terminal."""
    screen = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total_bytes)
        yield lambda count: bar.advance(task, count)
