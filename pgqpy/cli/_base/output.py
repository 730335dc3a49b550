"""Output of results: tables and JSON on standard output, problems on standard error.

Cells hold foreign text: none of it is interpreted as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pgqpy.cli._base.wording import brief, printable, shown

if TYPE_CHECKING:
    from pgqpy.cli._base.errors import Problem

#: Texts up to this width are not folded or cut to make room for others; numbers never are.
KEPT = 12

#: Wide enough for any table: output piped to a program must not be cut to 80 columns.
_UNBOUNDED = 100_000


def console(*, stderr: bool = False) -> Console:
    """Make a console on the current stream; without colours unless it is a terminal."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def say(message: str) -> None:
    """Print a result as one line, for a person."""
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
    screen = console(stderr=True)
    lines = [Text.assemble(("error:", "bold red"), f" {printable(problem.message)}")]
    if problem.hint:
        lines.append(Text.assemble(("hint:", "cyan"), f" {printable(problem.hint)}"))
    for line in lines:
        # Hints are commands to copy: the terminal may wrap them, pgqpy may not.
        screen.print(line, soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False
) -> None:
    """Print rows under headings.

    On a terminal wide cells are folded, or with `cut` each row is cut to one line.
    """
    print_rich(make_table(columns, rows, cut=cut))


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False
) -> Table:
    """Make a table; words are set left, all else right, intervals in one unit."""
    cells = [
        [(each, brief(each) if isinstance(each, timedelta) else shown(each)) for each in row]
        for row in rows
    ]
    table = empty_table()
    for index, heading in enumerate(columns):
        column = [row[index] for row in cells]
        words = any(isinstance(value, str | datetime) for value, _ in column)
        long = any(isinstance(value, str) and len(text) > KEPT for value, text in column)
        # Columns that may not wrap keep their width when others must shrink.
        table.add_column(
            heading, justify="left" if words else "right", overflow="fold", no_wrap=not long
        )
    for row in cells:
        table.add_row(
            *(Text(text, no_wrap=cut, overflow="ellipsis" if cut else "fold") for _, text in row)
        )
    return table


def print_rich(renderable: RenderableType) -> None:
    """Print tables and styled text; for programs, without padding at the ends of lines."""
    screen = console()
    if screen.is_terminal:
        screen.print(renderable)
        return
    with screen.capture() as captured:
        screen.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def empty_table() -> Table:
    """Make a table in the common style."""
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def print_pairs(*pairs: tuple[str, Any]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {shown(value)}")
