"""Types of arguments and options; a shell completes names from the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import psycopg
from click.shell_completion import CompletionItem

import pgqpy
from pgqpy._runtime.planted import refuse_planted
from pgqpy.admin import Admin
from pgqpy.cli._base.command import Exclusive, Function, options

#: The seconds to wait for completions: the shell's prompt is blocked meanwhile.
COMPLETION_TIMEOUT = 2

#: A payload is JSON, and the quotes are easily forgotten.
JSON_HINT = """payloads are JSON: '{"to": "ann"}', 12, or '"a text"' with its quotes"""

Names = Callable[[Admin, dict[str, str]], Iterable[str]]


def is_unicode(text: str) -> bool:
    """Whether it has no undecodable bytes, which a shell passes on unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Parsed(click.ParamType[Any]):
    """What a function returns for a text; it raises ValueError for one that does not fit."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _text(value: str) -> str:
    """Return a text that PostgreSQL can store; the server checks the rest."""
    if "\0" in value:
        raise ValueError("it holds a NUL character, which PostgreSQL cannot store")
    if not is_unicode(value):
        raise ValueError("it is no text: its bytes are not UTF-8")
    return value


class Name(Parsed):
    """The name of something in the database."""

    def __init__(self, what: str, names: Names) -> None:
        super().__init__(what, _text)
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the existing names with this prefix; none if no server answers in time."""
        settings = ctx.find_root().params
        try:
            with pgqpy.connect(
                ctx.params.get("dsn") or settings.get("dsn"),
                autocommit=True,
                connect_timeout=COMPLETION_TIMEOUT,
            ) as conn:
                refuse_planted(conn)
                names = sorted(set(self._names(Admin(conn), ctx.params)))
        except (psycopg.Error, pgqpy.PgqError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _json(value: str) -> str:
    """Return a JSON document, unchanged: numbers keep their digits. ``-`` passes."""
    try:
        return value if value == "-" else json_text(value)
    except ValueError as error:
        raise ValueError(f"{error}; {JSON_HINT}") from None


def json_text(text: str) -> str:
    """Return the text, if it is one JSON document. Raises ValueError."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None
    if not is_unicode(text):
        raise ValueError("this is no text: its bytes are not UTF-8")
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _moment(value: str) -> datetime:
    """Return a time in ISO 8601; without an offset it is local."""
    try:
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is no time such as 2026-11-21T08:30 or 2026-11-21") from None


def _setting(value: str) -> tuple[str, str | None]:
    """Return a parameter and its value."""
    parameter, equals, text = _text(value).partition("=")
    if not equals:
        raise click.UsageError(f"'{value}' is not PARAMETER=VALUE.")
    return parameter.strip(), parameter_value(text.strip())


def parameter_value(text: str) -> str | None:
    """Return a parameter's value as typed; the word null is SQL's null."""
    return None if text.lower() == "null" else text


def _task_queues(admin: Admin, _: dict[str, str]) -> Iterable[str]:
    from pgqpy.tasks import Tasks

    return [queue.queue_name for queue in Tasks(admin.conn).queues(max_count=1)]


FILE = click.Path(dir_okay=False, path_type=Path)
TEXT = Parsed("text", _text)
INTERVAL = Parsed("interval", _text)
JSON = Parsed("json", _json)
#: Names separated by commas.
LIST = Parsed("list", lambda value: [name.strip() for name in _text(value).split(",")])
MOMENT = Parsed("time", _moment)
#: Ids chosen by users are negative: `pgqpy task show -- -7`.
TASK_ID = click.IntRange(-(2**63), 2**63 - 1)
PRIORITY = click.IntRange(-(2**15), 2**15 - 1)
QUEUE = Name("queue", lambda admin, _: (q.queue_name for q in admin.get_queue_info()))
TASK_QUEUE = Name("queue", _task_queues)
CONSUMER = Name(
    "consumer",
    lambda admin, typed: (c.consumer_name for c in admin.get_consumer_info(typed.get("queue"))),
)

queue_argument = click.argument("queue", type=QUEUE)
any_queue_argument = click.argument("queue", type=QUEUE, required=False)
task_queue_argument = click.argument("queue", type=TASK_QUEUE)
any_task_queue_argument = click.argument("queue", type=TASK_QUEUE, required=False)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    type=Parsed("parameter=value", _setting),
    help="Configure it; may be given several times. The command config shows the parameters.",
)
off_option = click.option("--off", is_flag=True, help="Open it again; the grants are kept.")


def parameter_arguments(parameters: Iterable[str]) -> Callable[[Function], Function]:
    """Declare a parameter, and its new value; both may be left out."""
    return options(
        click.argument(
            "parameter", type=click.Choice([*parameters]), metavar="[PARAMETER]", required=False
        ),
        click.argument("value", type=TEXT, required=False),
    )


def grant_arguments(*actions: str) -> Callable[[Function], Function]:
    """Declare a role, and actions on a queue."""
    return options(
        click.argument("role", type=TEXT),
        click.argument("actions", nargs=-1, required=True, type=click.Choice(actions)),
    )


due_options = options(
    click.option(
        "--at", cls=Exclusive, type=MOMENT, help="Not now, but then; local time if without offset."
    ),
    click.option("--delay", cls=Exclusive, type=INTERVAL, help="Not now, but after this interval."),
)
