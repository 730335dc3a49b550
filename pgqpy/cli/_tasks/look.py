"""Looking at tasks without claiming them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from psycopg.types.json import Jsonb

from pgqpy.cli._base.arguments import TASK_ID, any_task_queue_argument, task_queue_argument
from pgqpy.cli._base.command import count_option, watch_options
from pgqpy.cli._base.database import dict_rows
from pgqpy.cli._base.errors import first_line
from pgqpy.cli._base.output import (
    json_option,
    make_table,
    print_in_full,
    print_items,
    say,
    shown,
    wants_json,
)
from pgqpy.cli._base.output import show as show_again
from pgqpy.cli._tasks.choice import (
    attempts_of,
    compact,
    distance,
    failed_of,
    filter_options,
    headers_of,
    no_such_task,
    read_filter,
    task,
)
from pgqpy.connection import Connection
from pgqpy.tasks import TaskInfo, TaskProgress, Tasks

if TYPE_CHECKING:
    from rich.console import RenderableType


@task.command("list", role="pgq_reader")
@any_task_queue_argument
@filter_options
@click.option("--failed", is_flag=True, help="Those of this queue that are in its error queue.")
@count_option(20)
@json_option
def list_tasks(conn: Connection, queue: str | None, count: int, failed: bool, **which: Any) -> None:
    """List tasks, in the order in which they are claimed.

    With --json each is an object on a line of its own, with the columns of pgq_task.tasks. When is
    the time at which it became or becomes available, and for claimed tasks the end of the lease.

    Examples:
      pgqpy task list mails --status available --status scheduled -n 100
      pgqpy task list mails --failed --error timeout --older-than '1 day'
      pgqpy task list mails --payload '{"to": "ann"}' --json | jq .id
    """
    given = read_filter(conn, which)
    if failed:
        queue, given = failed_of(conn, queue, given)
    tasks = Tasks(conn).list(queue, given, max_tasks=count + 1)
    more, tasks = len(tasks) > count, tasks[:count]
    now = datetime.now(UTC)
    columns: dict[str, Any] = {"Id": lambda each: str(each.id)}
    if queue is None or "*" in queue:
        columns["Queue"] = "queue"
    columns |= {
        "Status": "status",
        "When": lambda each: distance(each.at, now),
        "Attempts": attempts_of,
        "Payload": lambda each: compact(each.payload),
    }
    if any(each.error for each in tasks):
        columns["Error"] = lambda each: first_line(each.error or "")
    empty = "no such tasks" if given else "no tasks"
    print_items(tasks, columns, empty=empty, each_a_line=True)
    if more and not wants_json():
        say("and more: -n shows them")


@task.command("errors", role="pgq_reader")
@task_queue_argument
@count_option(20)
@json_option
def errors(conn: Connection, queue: str, count: int) -> None:
    """Show why tasks of a queue have failed, and how many.

    Errors that differ only in numbers are counted together, with N for the number.

    Examples:
      pgqpy task errors mails
    """
    error_queue, given = failed_of(conn, queue, {})
    found = dict_rows(conn, _ERRORS, [error_queue, Jsonb(given), count])
    now = datetime.now(UTC)
    columns: dict[str, Any] = {
        "Tasks": lambda each: str(each["tasks"]),
        "Error": "error",
        "First": lambda each: distance(each["first"], now),
        "Last": lambda each: distance(each["last"], now),
    }
    print_items(found, columns, empty="no task has failed", each_a_line=True)


_ERRORS = """
select count(*) as tasks, regexp_replace(split_part(error, e'\n', 1), '[0-9]+', 'N', 'g') as error,
       min((headers ->> 'failed_at')::timestamptz) as first,
       max((headers ->> 'failed_at')::timestamptz) as last
  from pgq_task.list_tasks(%s, %s, null)
 group by 2
 order by 1 desc, 2
 limit %s
"""


@task.command("show", role="pgq_reader")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=TASK_ID)
@json_option
def show(conn: Connection, ids: tuple[int, ...]) -> None:
    """Show tasks in full, with payload, headers and errors.

    `pgqpy task list` has the ids. With --json each is an object on a line of its own.

    Examples:
      pgqpy task show 17
      pgqpy task show 17 18 --json | jq .payload
    """
    tasks = Tasks(conn).list(filter={"ids": ids}, max_tasks=None)
    work = {each.id: each for each in Tasks(conn).progress(ids=ids)}
    found = {each.id: each for each in tasks}
    for task_id in ids:
        if task_id not in found:
            raise no_such_task(task_id)

    def describe(each: TaskInfo) -> tuple[list[tuple[str, Any]], str | None]:
        reason, _, traceback = (each.error or "").partition("\n")
        headers = each.headers
        if str(headers_of(each).get("reason")).startswith(f"{reason}\n"):
            headers = headers_of(each) | {"reason": reason}  # all of it is below
        return [
            ("task", str(each.id)),
            ("version", each.version),
            ("queue", each.queue),
            ("priority", each.priority),
            ("pushed at", each.created),
            ("status", each.status),
            ("lease ends" if each.status == "claimed" else "available", each.at),
            ("claimed by", each.claimant),
            ("attempts", attempts_of(each)),
            ("last attempt", each.last_attempt),
            *(_at_work(work[each.id]) if each.id in work else ()),
            ("unique key", each.unique_key),
            ("order key", each.order_key),
            ("headers", None if headers is None else compact(headers)),
            ("payload", compact(each.payload)),
            *((f"attempt {failed['attempt']}", _failed(failed)) for failed in each.failures or ()),
            ("error", reason or None),
        ], traceback

    print_in_full([found[each] for each in dict.fromkeys(ids)], describe)


def _failed(attempt: dict[str, Any]) -> str:
    at = datetime.fromisoformat(attempt["at"])
    return f"failed at {shown(at)}, by {attempt['claimant']}: {first_line(attempt['error'])}"


def _at_work(progress: TaskProgress) -> Iterator[tuple[str, str]]:
    if far := how_far(progress):
        yield "progress", " ".join(filter(None, (far, progress.note)))
    if progress.cancelled:
        yield "cancelled", progress.cancelled


@task.command("flows", role="pgq_reader")
@count_option(20)
@json_option
def flows(conn: Connection, count: int) -> None:
    """List the newest flows, with the numbers of their steps.

    A flow is known until a day after its end. `pgqpy task flow` shows the steps of one.

    Examples:
      pgqpy task flows
    """
    columns: dict[str, Any] = {
        "Flow": lambda each: str(each.flow),
        "Pushed": "created",
        "Ended": "ended",
        "First queue": "queue",
        "Steps": "steps",
        "Done": "ended_steps",
        "Failed": "failed",
    }
    print_items(Tasks(conn).flows(count), columns, empty="no flows")


@task.command("flow", role="pgq_reader")
@click.argument("number", type=TASK_ID)
@click.option("--mermaid", is_flag=True, help="Print a diagram for Mermaid.")
@json_option
def flow(conn: Connection, number: int, mermaid: bool) -> None:
    """Show the steps of a flow.

    Give its number, or the id of one of its tasks. If one has failed, `pgqpy task retry` continues
    the flow.

    Examples:
      pgqpy task flow 17
      pgqpy task flow 17 --mermaid > flow.mmd
    """
    steps = Tasks(conn).flow(number)
    if mermaid:
        say("flowchart LR")
        for step in steps:
            say(f'  {step.nr}["{(step.name or "").replace(chr(34), chr(39))}<br>{step.state}"]')
            for before in step.after:
                say(f"  {before} --> {step.nr}")
        return
    columns: dict[str, Any] = {
        "Step": lambda each: str(each.nr),
        "Name": "name",
        "Task": lambda each: str(each.id),
        "Queue": "queue",
        "After": lambda each: ", ".join(map(str, each.after)),
        "State": "state",
        "Error": lambda each: first_line(each.error or ""),
        "Result": lambda each: None if each.result is None else compact(each.result),
    }
    print_items(steps, columns, empty="no steps", each_a_line=True)


@task.command("progress", role="pgq_reader")
@any_task_queue_argument
@watch_options
@json_option
def progress(conn: Connection, queue: str | None, watch: bool, every: float) -> None:
    """Show the progress of claimed tasks.

    Only tasks that report it: see current_job().progress(). Reported is the time of the last
    report. Cancelled tasks are shown, too, with the reason, until they end.

    Examples:
      pgqpy task progress reports --watch
    """
    tasks = Tasks(conn)
    show_again(lambda: tasks.progress(queue), _draw_progress, every=every if watch else None)


def _draw_progress(found: Sequence[TaskProgress]) -> RenderableType:
    if not found:
        return "no claimed task has reported its progress"
    now = datetime.now(UTC)
    return make_table(
        found,
        {
            "Id": lambda each: str(each.id),
            "Queue": "queue",
            "Worker": "claimant",
            "Done": how_far,
            "Note": "note",
            "Reported": lambda each: distance(each.at, now),
            "Cancelled": "cancelled",
        },
    )


def how_far(progress: TaskProgress) -> str | None:
    """Return ``40 of 100 (40 %)``; None if there was no report."""
    if progress.done is None:
        return None
    if not progress.total:
        return _number(progress.done)
    share = min(progress.done / progress.total, 1)
    return f"{_number(progress.done)} of {_number(progress.total)} ({int(share * 100)} %)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
