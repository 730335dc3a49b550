"""Looking at tasks without claiming them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import COUNT, TASK_ID, TASK_QUEUE
from pgqpy.cli._base.output import print_json_line, print_pairs, print_table, say
from pgqpy.cli._base.wording import printable
from pgqpy.cli._tasks.choice import distance, filter_options, no_such_task, read_filter
from pgqpy.cli._tasks.progress import how_far
from pgqpy.tasks import TaskProgress, Tasks

count_option = click.option(
    "-n",
    "--count",
    type=COUNT,
    default=20,
    show_default=True,
    metavar="N",
    help="The maximum number to show.",
)


@click.command(
    "list",
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy task list",
        "pgqpy task list mails --status available --status scheduled -n 100",
        "pgqpy task list mails.failed --error timeout --older-than '1 day'",
        """pgqpy task list mails --payload '{"to": "ann"}' --json | jq .id""",
    ),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE, required=False)
@filter_options
@count_option
@json_option
def list_tasks(dsn: str, queue: str | None, count: int, as_json: bool, **which: Any) -> None:
    """List tasks, in the order in which they are claimed.

    With --json each is an object on a line of its own, with the columns of pgq_task.tasks. When is
    the time at which it became or becomes available, and for claimed tasks the end of the lease.
    """
    with connect(dsn) as conn:
        given = read_filter(conn, which)
        tasks = Tasks(conn).list(queue, given, max_tasks=count + 1)
    more, tasks = len(tasks) > count, tasks[:count]
    if as_json:
        for each in tasks:
            print_json_line(each)
        return
    if not tasks:
        say("no such tasks" if given else "no tasks")
        return
    now = datetime.now(UTC)
    columns = ["Id", "Status", "When", "Attempts", "Payload"]
    rows = [
        [str(each.id), each.status, distance(each.at, now), each.attempts, _compact(each.payload)]
        for each in tasks
    ]
    if queue is None:
        columns.insert(1, "Queue")
        for row, each in zip(rows, tasks, strict=True):
            row.insert(1, each.queue)
    if any(each.error for each in tasks):
        columns.append("Error")
        for row, each in zip(rows, tasks, strict=True):
            row.append((each.error or "").partition("\n")[0])
    print_table(columns, rows, cut=True)
    if more:
        say("and more: -n shows them")


@click.command(
    "show",
    cls=Command,
    role="pgq_reader",
    examples=("pgqpy task show 17", "pgqpy task show 17 18 --json | jq .payload"),
)
@dsn_option
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=TASK_ID)
@json_option
def show(dsn: str, ids: tuple[int, ...], as_json: bool) -> None:
    """Show tasks in full, with payload, headers and the last error.

    `pgqpy task list` has the ids. With --json each is an object on a line of its own.
    """
    with connect(dsn) as conn:
        tasks = Tasks(conn).list(filter={"ids": ids}, max_tasks=None)
        work = {each.id: each for each in Tasks(conn).progress(ids=ids)}
    found = {each.id: each for each in tasks}
    for number, task_id in enumerate(dict.fromkeys(ids)):
        if task_id not in found:
            raise no_such_task(task_id)
        each = found[task_id]
        if as_json:
            print_json_line(each)
            continue
        if number:
            click.echo()
        reason, _, traceback = (each.error or "").partition("\n")
        print_pairs(
            ("task", str(each.id)),
            ("version", each.version),
            ("queue", each.queue),
            ("priority", each.priority),
            ("pushed at", each.created),
            ("status", each.status),
            ("lease ends" if each.status == "claimed" else "available", each.at),
            ("claimed by", each.claimant),
            ("attempts", each.attempts),
            ("last attempt", each.last_attempt),
            *(_at_work(work[task_id]) if task_id in work else ()),
            ("unique key", each.unique_key),
            ("order key", each.order_key),
            ("headers", None if each.headers is None else _compact(each.headers)),
            ("payload", _compact(each.payload)),
            ("error", reason or None),
        )
        if traceback.strip():
            click.echo()
            for line in traceback.strip().splitlines():
                click.echo(printable(line))


def _at_work(progress: TaskProgress) -> Iterator[tuple[str, str]]:
    if far := how_far(progress):
        yield "progress", " ".join(filter(None, (far, progress.note)))
    if progress.cancelled:
        yield "cancelled", progress.cancelled


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
