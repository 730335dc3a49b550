"""Output of results: tables and JSON on standard output, problems on standard error.

Cells hold foreign text: none of it is interpreted as markup. Rich is imported only for tables and
problems, because its import takes longer than most commands.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgqpy.cli._base.wording import brief, printable, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

T = TypeVar("T")

#: The columns of a table: headings, with attributes (or keys) or functions of the items.
Columns = Mapping[str, str | Callable[[Any], Any]]

#: Texts up to this width are not folded or cut to make room for others; numbers never are.
KEPT = 12

#: Wide enough for any table: output piped to a program must not be cut to 80 columns.
_UNBOUNDED = 100_000


def say(message: str) -> None:
    """Print a result as one line, for a person."""
    click.echo(printable(message))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document: times in ISO 8601, intervals in seconds."""
    click.echo(json.dumps(value, default=_json_value, ensure_ascii=False, indent=indent))


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, for streams of them."""
    print_json(value, indent=None)


def _json_value(value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def print_items(
    items: Sequence[Any],
    columns: Columns,
    *,
    empty: str,
    as_json: bool = False,
    lines: bool = False,
    cut: bool = False,
) -> None:
    """Print items as a table, or as JSON: a list of them, or with `lines` each on a line.

    Args:
        items: dataclasses or dictionaries.
        columns: those of the table.
        empty: the text that stands for a table without rows.
        as_json: whether to print JSON.
        lines: the form of the JSON.
        cut: on a terminal, cut each row to one line instead of folding wide cells.
    """
    if as_json and lines:
        for item in items:
            print_json_line(item)
    elif as_json:
        print_json(items)
    elif items:
        rows = [[_cell(item, each) for each in columns.values()] for item in items]
        print_table([*columns], rows, cut=cut)
    else:
        say(empty)


def _cell(item: Any, column: str | Callable[[Any], Any]) -> Any:
    if callable(column):
        return column(item)
    return item[column] if isinstance(item, dict) else getattr(item, column)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False
) -> None:
    """Print rows under headings; see `print_items` for `cut`."""
    print_rich(make_table(headings, rows, cut=cut))


def print_pairs(*pairs: tuple[str, Any]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {shown(value)}")


def print_parameters(
    values: Mapping[str, Any], meanings: Mapping[str, str], *, as_json: bool
) -> None:
    """Print the parameters of a queue."""
    if as_json:
        print_json(values)
    else:
        rows = [(name, shown(value), meanings[name]) for name, value in values.items()]
        print_table(("Parameter", "Value", "Meaning"), rows)


def print_traceback(text: str | None) -> None:
    """Print a traceback, if there is one, after an empty line."""
    if text and text.strip():
        click.echo()
        for line in text.strip("\n").splitlines():
            click.echo(printable(line))


def print_problem(message: str, hint: str | None = None) -> None:
    """Print an error and its remedy to standard error."""
    from rich.text import Text

    screen = console(stderr=True)
    lines = [Text.assemble(("error:", "bold red"), f" {printable(message)}")]
    if hint:
        lines.append(Text.assemble(("hint:", "cyan"), f" {printable(hint)}"))
    for line in lines:
        # Hints are commands to copy: the terminal may wrap them, pgqpy may not.
        screen.print(line, soft_wrap=True)


def show(
    read: Callable[[], T],
    draw: Callable[[T], RenderableType],
    *,
    every: float | None,
    as_json: bool,
) -> None:
    """Print what is read: once, or until Ctrl-C with pauses of ``every`` seconds."""
    if every is None:
        now = read()
        print_json(now) if as_json else print_rich(draw(now))
        return
    if as_json or not console().is_terminal:
        while True:
            now = read()
            print_json_line(now) if as_json else print_rich(draw(now))
            # Readers want it at once.
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live

    with Live(console=console(), screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(draw(read()), refresh=True)
            time.sleep(every)


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False
) -> Table:
    """Make a table; words are set left, all else right, intervals in one unit."""
    from rich.text import Text

    cells = [
        [(each, brief(each) if isinstance(each, timedelta) else shown(each)) for each in row]
        for row in rows
    ]
    table = empty_table()
    for index, heading in enumerate(headings):
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


def empty_table() -> Table:
    """Make a table in the common style."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def print_rich(renderable: RenderableType) -> None:
    """Print tables and styled text; for programs, without padding at the ends of lines."""
    screen = console()
    if screen.is_terminal:
        screen.print(renderable)
        return
    with screen.capture() as captured:
        screen.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> Console:
    """Make a console on the current stream; without colours unless it is a terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made
