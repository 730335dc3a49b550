"""The group of the commands about tasks, and the options by which they choose some."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

import pgqpy
from pgqpy._runtime.words import brief
from pgqpy.cli._base.arguments import INTERVAL, JSON, PRIORITY, TASK_ID, TEXT
from pgqpy.cli._base.command import Group, dry_run_option, options
from pgqpy.cli._base.errors import CliError
from pgqpy.tasks import TaskInfo, Tasks, Unreadable


@click.group(cls=Group)
def task() -> None:
    """Push tasks, work on them, look at them, and repair them."""


def no_such_task(task_id: int) -> CliError:
    """Return the error for a task that is not waiting."""
    return CliError(
        f"there is no task {task_id} (any more)",
        "`pgqpy task list` shows those there are, `pgqpy task history` the finished ones",
    )


def distance(time: datetime | None, now: datetime) -> str | None:
    """Return the distance to a time: ``in 3 s``, ``5 min ago``."""
    if time is None:
        return None
    return f"in {brief(time - now)}" if time > now else f"{brief(now - time)} ago"


def attempts_of(info: TaskInfo) -> int:
    """Return the attempts at a task; for one that waits in an error queue, before it failed."""
    headers = headers_of(info)
    before: int = headers.get("attempts", 0) if "failed_at" in headers else 0
    return info.attempts or before


def headers_of(info: TaskInfo) -> dict[str, Any]:
    """Return its headers, none if Python cannot read them."""
    return info.headers if isinstance(info.headers, dict) else {}


def compact(value: Any) -> str:
    """Return a JSON document on one line."""
    return value.text if isinstance(value, Unreadable) else json.dumps(value, ensure_ascii=False)


STATUSES = ("available", "claimed", "scheduled", "held", "stopped")

payload_option = click.option("--payload", type=JSON, help="With a payload that contains this.")

#: The conditions of pgq_task.list_tasks(), passed on by their names.
filter_options = options(
    click.option(
        "--status",
        type=click.Choice(STATUSES),
        multiple=True,
        help="In this state; may be given several times.",
    ),
    payload_option,
    click.option("--headers", type=JSON, help="With these headers."),
    click.option("--error", type=TEXT, help="With this in the error."),
    click.option("--claimant", type=TEXT, metavar="NAME", help="Claimed by this worker."),
    click.option(
        "--attempts",
        type=click.IntRange(1, 2**31 - 1),
        metavar="N",
        help="With this number of attempts, or more.",
    ),
    click.option("--priority", type=PRIORITY, metavar="N", help="With this priority."),
    click.option("--key", type=TEXT, help="With this unique key."),
    click.option("--order-key", type=TEXT, help="With this order key."),
    click.option(
        "--older-than", type=INTERVAL, help="Pushed longer ago than that: '30 days', '2h'."
    ),
)
#: The tasks to change: ids, or a queue with a filter, or all of it.
choice_options = options(
    click.argument("ids", metavar="[ID]...", nargs=-1, type=TASK_ID),
    click.option("--queue", type=TEXT, metavar="QUEUE", help="Of this queue."),
    filter_options,
    click.option("--all", "every", is_flag=True, help="All tasks of the queue."),
    dry_run_option,
)
claimed_option = click.option(
    "--claimed", is_flag=True, help="Also claimed ones: their workers lose them."
)


def read_filter(conn: pgqpy.Connection, which: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the server's form."""
    given = {name: value for name, value in which.items() if value not in (None, ())}
    if "status" in given:
        given["status"] = list(given["status"])
    for name in ("payload", "headers"):
        if name in given:
            given[name] = json.loads(given[name])
    if "key" in given:
        given["unique_key"] = given.pop("key")
    if "older_than" in given:
        ((time,),) = conn.execute(
            "select (now() - %s::interval)::text", [given.pop("older_than")]
        ).fetchall()
        given["created_before"] = time
    return given


def failed_of(
    conn: pgqpy.Connection, queue: str | None, given: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the error queue of a queue, and the filter for the tasks in it that come from it.

    An error queue stands for itself, with all tasks in it.
    """
    if queue is None or "*" in queue:
        raise CliError("failed tasks are those of one queue", "name it, without an asterisk")
    tasks = Tasks(conn)
    if queue.endswith(".failed") or any(
        queue == each.error_queue for each in tasks.queues(max_count=1)
    ):
        return queue, given
    (info,) = tasks.queues(queue, max_count=1)
    return info.error_queue, given | {"headers": given.get("headers", {}) | {"origin": queue}}


@dataclass(frozen=True, slots=True)
class Choice:
    """Tasks of one queue: the filter that finds them."""

    queue: str
    filter: dict[str, Any]
    ids: tuple[int, ...] = ()


def choose(
    conn: pgqpy.Connection,
    *,
    ids: tuple[int, ...],
    queue: str | None = None,
    every: bool = False,
    claimed: bool = False,
    failed: bool = False,
    **which: Any,
) -> list[Choice]:
    """Return the chosen tasks, queue by queue. Raises CliError for ids that do not exist.

    Without ``claimed``, claimed tasks are refused if they are named by their ids. With ``failed``
    the tasks of a queue are those that are in its error queue.
    """
    given = read_filter(conn, which)
    if ids:
        if queue is not None or every or given:
            raise click.UsageError("Give ids, or --queue with options that say which.")
        return _by_ids(conn, ids, claimed=claimed)
    if queue is None or every == bool(given):
        raise click.UsageError("Give ids, or --queue with options that say which, or with --all.")
    return [Choice(*failed_of(conn, queue, given)) if failed else Choice(queue, given)]


def _by_ids(conn: pgqpy.Connection, ids: tuple[int, ...], *, claimed: bool) -> list[Choice]:
    found = {info.id: info for info in Tasks(conn).list(filter={"ids": ids}, max_tasks=None)}
    queues: defaultdict[str, list[int]] = defaultdict(list)
    for task_id in dict.fromkeys(ids):
        if task_id not in found:
            raise no_such_task(task_id)
        info = found[task_id]
        if info.status == "claimed" and not claimed:
            raise CliError(
                f"task {task_id} is claimed by {info.claimant}",
                "wait until it is done; where there is --claimed, that takes it from its worker",
            )
        queues[info.queue].append(task_id)
    return [Choice(name, {"ids": some}, tuple(some)) for name, some in queues.items()]
