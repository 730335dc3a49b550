"""Output of results: tables and JSON on standard output, problems on standard error.

Cells hold foreign text: none of it is interpreted as markup, or as a control sequence. Rich is
imported only for tables and problems, because its import takes longer than most commands.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgqpy._runtime.words import brief, duration, printable, printable_json, rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

T = TypeVar("T")

_JSON = "pgqpy.json"


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_JSON] = value


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_set_json,
    help="Print JSON, for scripts, instead of text.",
)


def wants_json() -> bool:
    """Whether --json was given; `print_items`, `print_parameters` and `show` obey it."""
    return bool(click.get_current_context().meta.get(_JSON))


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
    text = json.dumps(value, default=_json_value, ensure_ascii=False, indent=indent)
    click.echo(printable_json(text))


def _json_value(value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return attributes(value)
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def attributes(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; they may be nested deeply, so they are not copied."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def print_items(
    items: Sequence[Any], columns: Columns, *, empty: str, each_a_line: bool = False
) -> None:
    """Print items, dataclasses or dictionaries, as a table, or as a JSON list.

    ``empty`` is printed instead of a table without rows. With ``each_a_line`` an item is a line:
    JSON is printed without a list around it, and wide cells of tables are cut on a terminal.
    """
    if wants_json():
        for each in items if each_a_line else [items]:
            print_json(each, indent=None if each_a_line else 2)
    elif items:
        print_table(items, columns, cut=each_a_line)
    else:
        say(empty)


def _cell(item: Any, column: str | Callable[[Any], Any]) -> tuple[Any, str]:
    """Return a value, and its text."""
    if callable(column):
        value = column(item)
    else:
        value = item.get(column) if isinstance(item, dict) else getattr(item, column)
    return value, brief(value) if isinstance(value, timedelta) else shown(value)


def print_table(items: Sequence[Any], columns: Columns, *, cut: bool = False) -> None:
    print_rich(make_table(items, columns, cut=cut))


def print_pairs(*pairs: tuple[str, Any]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {shown(value)}")


def print_parameters(
    values: Mapping[str, Any], meanings: Mapping[str, str], only: str | None
) -> None:
    if only is not None:
        values = {only: values[only]}
    if wants_json():
        print_json(values)
    else:
        value, meaning = (lambda name: shown(values[name])), meanings.__getitem__
        print_table([*values], {"Parameter": str, "Value": value, "Meaning": meaning})


def print_in_full(
    items: Iterable[T], describe: Callable[[T], tuple[Iterable[tuple[str, Any]], str | None]]
) -> None:
    """Print each item as its names and values and its traceback, or as JSON on a line."""
    for number, item in enumerate(items):
        if wants_json():
            print_json(item, indent=None)
            continue
        if number:
            click.echo()
        pairs, traceback = describe(item)
        print_pairs(*pairs)
        if traceback and traceback.strip():
            click.echo()
            for line in traceback.strip("\n").splitlines():
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
    read: Callable[[], T], draw: Callable[[T], RenderableType], *, every: float | None = None
) -> T:
    """Print what is read: once, and return it, or until Ctrl-C with pauses of ``every`` seconds."""
    if every is None:
        now = read()
        print_json(now) if wants_json() else print_rich(draw(now))
        return now
    if wants_json() or not console().is_terminal:
        while True:
            now = read()
            print_json(now, indent=None) if wants_json() else print_rich(draw(now))
            # Readers want it at once.
            sys.stdout.flush()
            time.sleep(every)
    from rich.live import Live

    with Live(console=console(), screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(draw(read()), refresh=True)
            time.sleep(every)


def make_table(items: Sequence[Any], columns: Columns, *, cut: bool = False) -> Table:
    """Make a table; words are set left, all else right, intervals in one unit."""
    from rich.text import Text

    cells = [[_cell(item, each) for each in columns.values()] for item in items]
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


def empty_table() -> Table:
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


# --- single values as text


def shown(value: object) -> str:
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
