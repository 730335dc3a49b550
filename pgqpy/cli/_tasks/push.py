"""Pushing tasks by hand, from files, and from the output of other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import IO, Any

import click

from pgqpy.cli._base.command import Command, dsn_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import PRIORITY, TASK_QUEUE, TEXT, is_unicode
from pgqpy.cli._base.output import say
from pgqpy.cli._base.position import Moment
from pgqpy.tasks import _statements as sql

#: A payload is JSON, and the quotes are easily forgotten.
HINT = """payloads are JSON: '{"to": "ann"}', 12, or '"a text"' with its quotes"""

#: The number of tasks pushed in one call, all in one transaction.
CHUNK = 1000


class Json(click.ParamType[str]):
    """A JSON document, unchanged: numbers keep their digits."""

    name = "json"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse text that is not JSON."""
        if value == "-":
            return value
        try:
            return json_text(value)
        except ValueError as error:
            self.fail(f"{error}; {HINT}", param, ctx)


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


JSON = Json()


@click.command(
    "push",
    cls=Command,
    role="pgq_writer",
    examples=(
        """pgqpy task push mails '{"to": "ann@example.com"}'""",
        "pgqpy task push reports --in '2 hours' --priority 5",
        "pgqpy task push reports 12 --at 2026-12-24T08:00 --key 'report 12'",
        "pgqpy task push mails --file mails.jsonl",
        "psql -Atc 'select to_json(c) from customer c' | pgqpy task push mails --file -",
    ),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.argument("payload", type=JSON, required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Push a task for each line, which is its payload; - is standard input.",
)
@click.option(
    "--at", type=Moment(), metavar="TIME", help="Not before this time; local if without offset."
)
@click.option("--in", "delay", type=TEXT, metavar="INTERVAL", help="Not before this time passed.")
@click.option(
    "--priority",
    type=PRIORITY,
    default=0,
    metavar="N",
    help="Higher ones are claimed first; default: 0.",
)
@click.option(
    "--key",
    type=TEXT,
    metavar="TEXT",
    help="Only if no task with this unique key waits in the queue.",
)
@click.option("--unique-running", is_flag=True, help="Or if a worker has one.")
@click.option(
    "--unique-for",
    type=TEXT,
    metavar="INTERVAL",
    help="Or if one was pushed so, less than this before, whatever has become of it.",
)
@click.option(
    "--replace", is_flag=True, help="The one that waits gets what is given here, time included."
)
@click.option(
    "--order-key",
    type=TEXT,
    metavar="TEXT",
    help="Tasks with the same order key are worked on one after the other.",
)
@click.option("--headers", type=JSON, metavar="JSON", help="An object with further data.")
def push(
    dsn: str,
    queue: str,
    payload: str | None,
    file: str | None,
    at: datetime | None,
    delay: str | None,
    priority: int,
    key: str | None,
    unique_running: bool,
    unique_for: str | None,
    replace: bool,
    order_key: str | None,
    headers: str | None,
) -> None:
    """Push one task, or one for each line of a file.

    PAYLOAD is JSON, null if it is omitted; - reads it from standard input. The lines of a file are
    JSON, too. All of them are pushed or, if there is an error in one, none.
    """
    if at is not None and delay is not None:
        raise click.UsageError("Give --at or --in, not both.")
    if headers is not None and not isinstance(json.loads(headers), dict):
        raise click.UsageError("--headers is no JSON object.")
    if key is None and (unique_running or unique_for is not None or replace):
        raise click.UsageError("--unique-running, --unique-for and --replace are for a --key.")
    if file is not None:
        if payload is not None or key is not None:
            raise click.UsageError("PAYLOAD and --key are for one task, not for --file.")
        count = 0
        lines = _payloads(file)
        with connect(dsn) as conn, conn.transaction():
            while chunk := list(islice(lines, CHUNK)):
                keys = None if order_key is None else [order_key] * len(chunk)
                conn.execute(sql.PUSH_MANY, [queue, chunk, at, delay, priority, headers, keys])
                count += len(chunk)
        say(f"pushed {count:,} task{'' if count == 1 else 's'} into {queue}")
        return
    if payload == "-":
        try:
            payload = json_text(sys.stdin.buffer.read().decode())
        except ValueError as error:
            raise CliError(f"standard input: {error}", HINT) from None
    if payload is None:
        payload = "null"
    inserted = True
    with connect(dsn) as conn:
        if key is None:
            arguments = [queue, payload, at, delay, priority, headers, None, order_key]
            ((task_id,),) = conn.execute(sql.PUSH, arguments).fetchall()
        else:
            unique = [key, "running" if unique_running else "waiting", unique_for, replace]
            arguments = [queue, payload, *unique, at, delay, priority, headers, order_key]
            ((task_id, inserted),) = conn.execute(sql.PUSH_UNIQUE, arguments).fetchall()
    if inserted:
        say(f"pushed 1 task into {queue}: {task_id}")
    else:
        say(f"a task with this key stands for it in {queue}: {task_id}")


def _payloads(path: str) -> Iterator[str]:
    name = "standard input" if path == "-" else path
    with click.open_file(path, "rb") as file:
        yield from _lines(file, name)


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                yield json_text(text)
        except ValueError as error:
            raise CliError(f"{name}, line {number}: {error}", HINT) from None
