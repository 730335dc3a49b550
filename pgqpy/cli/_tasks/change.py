"""Repair of tasks: one, or all that a filter finds, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import JSON, PRIORITY, TASK_ID, TASK_QUEUE, TEXT, due_options
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import say
from pgqpy.cli._tasks.choice import (
    Choice,
    choice_options,
    choose,
    claimed_option,
    no_such_task,
    task,
)
from pgqpy.connection import Connection
from pgqpy.errors import TaskConflict
from pgqpy.tasks import Tasks
from pgqpy.tasks import _statements as sql


def _do(
    conn: Connection,
    past: str,
    what: Callable[[Tasks, Choice], int],
    *,
    dry_run: bool,
    claimed: bool = False,
    lost: str = "they are claimed, or were finished just now",
    **which: Any,
) -> None:
    """Change all chosen tasks, or none, and print their number."""
    number = 0
    with conn.transaction(force_rollback=dry_run):
        choices = choose(conn, claimed=claimed, **which)
        for choice in choices:
            done = what(Tasks(conn), choice)
            if choice.ids and done < len(choice.ids):
                few = len(choice.ids) - done
                raise CliError(f"{plural(few, 'task')} of {choice.queue} cannot be {past}", lost)
            number += done
    tasks = plural(number, "task")
    say(f"{tasks} would be {past}" if dry_run else f"{past} {tasks}")


@task.command("retry", role="pgq_reader")
@choice_options
@click.option("--set-payload", type=JSON, help="For tasks given by ids: with this payload.")
def retry(conn: Connection, set_payload: str | None, **which: Any) -> None:
    """Send failed tasks back to the queue where they failed.

    Give ids, or that queue; the name of an error queue stands for all tasks in it. They are
    available at once, with no attempts, and with their old headers and unique key. If another task
    has that key now, they stay.

    Examples:
      pgqpy task retry 17
      pgqpy task retry 17 --set-payload '{"to": "ann@example.com"}'
      pgqpy task retry --queue mails --error timeout --dry-run
      pgqpy task retry --queue mails --all
    """
    if set_payload is not None and not which["ids"]:
        # The filter may be about the payload, and would not find the task again.
        raise click.UsageError("--set-payload is for tasks given by ids.")

    def send_back(queues: Tasks, choice: Choice) -> int:
        if set_payload is not None:
            queues.change(choice.queue, choice.filter, {"payload": json.loads(set_payload)})
        return queues.requeue(choice.queue, choice.filter)

    _do(
        conn,
        "sent back",
        send_back,
        lost="they came from no other queue, or a task there has their unique key;"
        " `pgqpy task start` makes a task available where it is",
        failed=True,
        **which,
    )


@task.command("move", role="pgq_reader")
@click.argument("target", metavar="TO", type=TASK_QUEUE)
@choice_options
@claimed_option
def move(conn: Connection, target: str, **which: Any) -> None:
    """Move tasks to the queue TO.

    They begin there with no attempts; scheduled or stopped tasks stay so, the others are available
    at once.

    Examples:
      pgqpy task move slow 17 18
      pgqpy task move slow --queue mails --payload '{"size": "large"}' --dry-run
    """
    _change(conn, "moved", {"queue": target}, **which)


@task.command("stop", role="pgq_reader")
@choice_options
@claimed_option
def stop(conn: Connection, **which: Any) -> None:
    """Exclude these tasks from claims, until `pgqpy task start`.

    They stay in their queue. `pgqpy task pause` does it for a whole queue, including tasks that are
    pushed later.

    Examples:
      pgqpy task stop 17
      pgqpy task stop --queue mails --attempts 5
    """
    _change(conn, "stopped", {"stop": True}, **which)


@task.command("start", role="pgq_reader")
@choice_options
@claimed_option
@due_options
@click.option("--set-priority", type=PRIORITY, metavar="N", help="With this priority from now on.")
def start(
    conn: Connection, at: datetime | None, delay: str | None, set_priority: int | None, **which: Any
) -> None:
    """Make tasks available now, or at another time.

    For tasks that are stopped or scheduled, or wait for a retry. With --claimed it takes tasks
    from their workers, which cannot finish them then.

    Examples:
      pgqpy task start 17
      pgqpy task start --queue mails --status stopped --delay '1 hour'
      pgqpy task start --queue reports --status scheduled --set-priority 9
    """
    change: dict[str, Any] = {"delay": delay or "0"} if at is None else {"at": at.isoformat()}
    if set_priority is not None:
        change["priority"] = set_priority
    _change(conn, "started", change, **which)


@task.command("remove", role="pgq_reader")
@choice_options
@claimed_option
def remove(conn: Connection, claimed: bool, **which: Any) -> None:
    """Delete tasks. This cannot be undone, unless the queue keeps finished tasks.

    Choose them by ids, or by --queue with options or --all. `list` takes the same options, and
    --dry-run prints how many they find.

    Examples:
      pgqpy task remove 17
      pgqpy task remove --queue mails.failed --older-than '90 days' --dry-run
      pgqpy task remove --queue mails --all
    """
    _do(
        conn,
        "removed",
        lambda queues, choice: queues.remove(choice.queue, choice.filter, claimed=claimed),
        claimed=claimed,
        **which,
    )


@task.command("finish", role="pgq_reader")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=TASK_ID)
@click.option("--result", type=JSON, help="Kept with it, if the queue does that.")
def finish(conn: Connection, ids: tuple[int, ...], result: str | None) -> None:
    """Finish tasks that were done by other means.

    They must not be claimed. Tasks behind them by their order key become available, and the history
    shows them as finished, with the result.

    Examples:
      pgqpy task finish 17
      pgqpy task finish 17 --result '"by hand"'
    """
    with conn.transaction():
        for choice in choose(conn, ids=ids):
            for info in Tasks(conn).list(choice.queue, choice.filter, max_tasks=None):
                conn.execute(sql.FINISH, [conn.info.user, info.id, info.version, result])
    say(f"finished {plural(len(set(ids)), 'task')}")


def _change(
    conn: Connection, past: str, change: dict[str, Any], *, claimed: bool, **which: Any
) -> None:
    _do(
        conn,
        past,
        lambda queues, choice: queues.change(choice.queue, choice.filter, change, claimed=claimed),
        claimed=claimed,
        **which,
    )


@task.command("cancel", role="pgq_reader")
@choice_options
@click.option(
    "--reason", type=TEXT, default="cancelled", metavar="TEXT", help="Why; workers are told it."
)
def cancel(
    conn: Connection, dry_run: bool, reason: str, ids: tuple[int, ...], **which: Any
) -> None:
    """Cancel tasks, including claimed ones.

    Tasks that are not claimed are deleted. Jobs of a TaskApp are told within a second: asyncio jobs
    are interrupted, others at their next progress report or check; then the task goes to the error
    queue. Other workers are not told: `remove --claimed` takes a task from them.

    Examples:
      pgqpy task cancel 17
      pgqpy task cancel 17 18 --reason 'wrong customer'
      pgqpy task cancel --queue reports --payload '{"customer": 7}' --dry-run
    """
    with conn.transaction(force_rollback=dry_run):
        choices = choose(conn, ids=ids, claimed=True, **which)
        found = [
            info.id
            for choice in choices
            for info in Tasks(conn).list(choice.queue, choice.filter, max_tasks=None)
        ]
        deleted = [_cancel(conn, task_id, reason, named=bool(ids)) for task_id in found]
    gone, asked = (plural(deleted.count(each), "task") for each in (True, False))
    say(f"{gone} would be deleted" if dry_run else f"{gone} deleted")
    if False in deleted and dry_run:
        say(f"{asked} would be cancelled by the worker")
    elif False in deleted:
        say(f"{asked} will be cancelled by the worker: see `pgqpy task progress`")


def _cancel(conn: Connection, task_id: int, reason: str, *, named: bool) -> bool | None:
    """Return whether it is gone, or else still claimed; None if it has ended meanwhile."""
    try:
        with conn.transaction():
            return Tasks(conn).cancel(task_id, reason)
    except TaskConflict:
        if named:
            raise no_such_task(task_id) from None
        return None
