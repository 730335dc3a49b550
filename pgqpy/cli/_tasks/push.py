"""Pushing tasks by hand, from files, and from the output of other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

import click

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import (
    INTERVAL,
    JSON,
    JSON_HINT,
    PRIORITY,
    TEXT,
    due_options,
    json_text,
    task_queue_argument,
)
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import say
from pgqpy.cli._tasks.choice import task
from pgqpy.tasks import _statements as sql

#: The number of tasks pushed in one call, all in one transaction.
CHUNK = 1000


@task.command("push", role="pgq_writer")
@task_queue_argument
@click.argument("payload", type=JSON, required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Push a task for each line, which is its payload; - is standard input.",
)
@due_options
@click.option(
    "--priority",
    type=PRIORITY,
    default=0,
    metavar="N",
    help="Higher ones are claimed first; default: 0.",
)
@click.option("--key", type=TEXT, help="Only if no task with this unique key waits in the queue.")
@click.option("--unique-running", is_flag=True, help="Or if a worker has one.")
@click.option(
    "--unique-for",
    type=INTERVAL,
    help="Or if one was pushed so less than this time ago, even if it is finished.",
)
@click.option(
    "--replace", is_flag=True, help="The one that waits gets what is given here, time included."
)
@click.option("--order-key", type=TEXT, help="Tasks with the same order key run one after another.")
@click.option("--headers", type=JSON, help="An object with further data.")
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

    Examples:
      pgqpy task push mails '{"to": "ann@example.com"}'
      pgqpy task push reports --delay '2 hours' --priority 5
      pgqpy task push reports 12 --at 2026-12-24T08:00 --key 'report 12'
      pgqpy task push mails --file mails.jsonl
      psql -Atc 'select to_json(c) from customer c' | pgqpy task push mails --file -
    """
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
                options = [at, delay, priority, headers, keys, None, None, None, None]
                conn.execute(sql.PUSH_MANY, [queue, chunk, *options])
                count += len(chunk)
        say(f"pushed {plural(count, 'task')} into {queue}")
        return
    if payload == "-":
        try:
            payload = json_text(sys.stdin.buffer.read().decode())
        except ValueError as error:
            raise CliError(f"standard input: {error}", JSON_HINT) from None
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
        for number, line in enumerate(file, 1):
            try:
                if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                    yield json_text(text)
            except ValueError as error:
                raise CliError(f"{name}, line {number}: {error}", JSON_HINT) from None
