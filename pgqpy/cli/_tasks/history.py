"""Kept finished tasks: look at them, and push them again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
from psycopg.rows import dict_row

from pgqpy.cli._base.command import Command, Function, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import TASK_ID, TASK_QUEUE
from pgqpy.cli._base.output import print_json_line, print_table, say
from pgqpy.cli._base.position import Moment
from pgqpy.cli._base.wording import plural
from pgqpy.cli._tasks.choice import distance
from pgqpy.cli._tasks.listing import count_option
from pgqpy.cli._tasks.push import JSON

FINISHED = b"""
select %(queue)s as queue, id, priority, created, finished, outcome, claimant, attempts,
       last_attempt, result, error, payload, headers, unique_key, order_key
  from pgq_task.finished_tasks(%(queue)s, %(count)s, %(ids)s::bigint[], %(since)s::timestamptz,
                               %(before)s::timestamptz, %(payload)s::jsonb, %(outcome)s)
"""
REPLAY = b"""
select pgq_task.replay(%(queue)s, %(target)s, %(ids)s::bigint[], %(since)s::timestamptz,
                       %(before)s::timestamptz, %(payload)s::jsonb, %(outcome)s)
"""


def _which(function: Function) -> Function:
    for option in reversed(
        (
            click.argument("queue", type=TASK_QUEUE),
            click.argument("ids", metavar="[ID]...", nargs=-1, type=TASK_ID),
            click.option("--since", type=Moment(), metavar="TIME", help="Finished then or later."),
            click.option("--before", type=Moment(), metavar="TIME", help="Finished before."),
            click.option(
                "--payload", type=JSON, metavar="JSON", help="With a payload that contains this."
            ),
            click.option(
                "--outcome",
                type=click.Choice(["finished", "popped", "deleted"]),
                help="Done by a worker, popped, or deleted.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command(
    "history",
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy task history mails",
        'pgqpy task history mails --since 2026-11-21 --payload \'{"to": "ann"}\'',
        "pgqpy task history mails 17 --json | jq .result",
    ),
)
@dsn_option
@_which
@count_option
@json_option
def history(
    dsn: str, queue: str, ids: tuple[int, ...], count: int, as_json: bool, **which: Any
) -> None:
    """List finished tasks that a queue keeps, the last ones first.

    The parameter keep says how long they are kept: see `pgqpy task config`. With --json each is an
    object on a line of its own, with the columns of pgq_task.finished_tasks().
    """
    with connect(dsn) as conn, conn.cursor(row_factory=dict_row) as cursor:
        arguments = {"queue": queue, "count": count, "ids": list(ids) or None, **which}
        rows = cursor.execute(FINISHED, arguments).fetchall()
    if as_json:
        for row in rows:
            print_json_line(row)
        return
    if not rows:
        say(f"task queue {queue} has kept no such finished tasks")
        return
    now = datetime.now(UTC)
    print_table(
        ("Id", "When", "Outcome", "Attempts", "Result", "Payload"),
        [
            (
                str(row["id"]),
                distance(row["finished"], now),
                row["outcome"],
                row["attempts"],
                None if row["result"] is None else json.dumps(row["result"], ensure_ascii=False),
                json.dumps(row["payload"], ensure_ascii=False),
            )
            for row in rows
        ],
        cut=True,
    )


@click.command(
    "replay",
    cls=Command,
    role="pgq_admin",
    examples=(
        "pgqpy task replay mails 17",
        "pgqpy task replay mails --since 2026-11-21T08:00 --dry-run",
        "pgqpy task replay mails --all --to mails-again",
    ),
)
@dsn_option
@_which
@click.option("--all", "every", is_flag=True, help="All that are kept.")
@click.option("--to", "target", type=TASK_QUEUE, help="Push them into this queue instead.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
def replay(
    dsn: str,
    queue: str,
    ids: tuple[int, ...],
    every: bool,
    target: str | None,
    dry_run: bool,
    **which: Any,
) -> None:
    """Push finished tasks that a queue keeps again, as new tasks.

    They have the payload, the priority and the keys of the originals; their headers name these.
    `history` takes the same options.
    """
    if every == (bool(ids) or any(value is not None for value in which.values())):
        raise click.UsageError("Give ids, or options that say which, or --all.")
    with connect(dsn) as conn, conn.transaction(force_rollback=dry_run):
        arguments = {"queue": queue, "target": target, "ids": list(ids) or None, **which}
        number = len(conn.execute(REPLAY, arguments).fetchall())
    text = plural(number, "task")
    say(f"{text} would be pushed" if dry_run else f"pushed {text} into {target or queue}")
