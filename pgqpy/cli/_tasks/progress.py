"""Progress of claimed tasks, and their cancellation."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

import click
from rich.live import Live

import pgqpy
from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import TASK_QUEUE, TEXT
from pgqpy.cli._base.output import (
    console,
    make_table,
    print_json,
    print_json_line,
    print_table,
    say,
)
from pgqpy.cli._base.wording import plural
from pgqpy.cli._tasks.choice import choice_options, choose, distance, no_such_task
from pgqpy.errors import TaskConflict
from pgqpy.tasks import TaskProgress, Tasks

COLUMNS = ("Id", "Queue", "Worker", "Done", "Note", "Said", "Cancelled")


@click.command(
    "progress",
    cls=Command,
    role="pgq_reader",
    examples=("pgqpy task progress", "pgqpy task progress reports --watch"),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE, required=False)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: how often.",
)
@json_option
def progress(dsn: str, queue: str | None, watch: bool, every: float, as_json: bool) -> None:
    """Show the progress of claimed tasks.

    Only tasks that report it: see current_job().progress(). Said is the time of the last report.
    Cancelled tasks are shown, too, with the reason, until they end.
    """
    with connect(dsn) as conn:
        tasks = Tasks(conn)
        if not watch:
            found = tasks.progress(queue)
            if as_json:
                print_json(found)
            elif found:
                print_table(COLUMNS, _rows(found))
            else:
                say("no task that is being worked on has said how far it is")
        elif as_json or not console().is_terminal:
            while True:
                _print(tasks.progress(queue), as_json=as_json)
                time.sleep(every)
        else:
            with Live(console=console(), screen=True, auto_refresh=False) as screen:
                while True:
                    screen.update(make_table(COLUMNS, _rows(tasks.progress(queue))), refresh=True)
                    time.sleep(every)


def _print(found: list[TaskProgress], *, as_json: bool) -> None:
    if as_json:
        print_json_line(found)
    else:
        print_table(COLUMNS, _rows(found))
    sys.stdout.flush()


def _rows(found: list[TaskProgress]) -> list[tuple[Any, ...]]:
    now = datetime.now(UTC)
    return [
        (
            str(each.id),
            each.queue,
            each.claimant,
            how_far(each),
            each.note,
            distance(each.at, now),
            each.cancelled,
        )
        for each in found
    ]


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


@click.command(
    "cancel",
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy task cancel 17",
        "pgqpy task cancel 17 18 --reason 'wrong customer'",
        """pgqpy task cancel --queue reports --payload '{"customer": 7}' --dry-run""",
    ),
)
@dsn_option
@choice_options
@click.option(
    "--reason", type=TEXT, default="cancelled", metavar="TEXT", help="Why; workers are told it."
)
def cancel(dsn: str, dry_run: bool, reason: str, ids: tuple[int, ...], **which: Any) -> None:
    """Cancel tasks, including claimed ones.

    Tasks that are not claimed are deleted. Jobs of a TaskApp are told within a second: asyncio jobs
    are interrupted, others at their next progress report or check; then the task goes to the error
    queue. Other workers are not told: `remove --claimed` takes a task from them.
    """
    with connect(dsn) as conn, conn.transaction(force_rollback=dry_run):
        choices = choose(conn, ids=ids, claimed=True, **which)
        found = [
            info.id
            for choice in choices
            for info in Tasks(conn).list(choice.queue, choice.filter, max_tasks=None)
        ]
        deleted = [_cancel(conn, task_id, reason, named=bool(ids)) for task_id in found]
    asked = deleted.count(False)
    say(f"{plural(deleted.count(True), 'task')} " + ("would be deleted" if dry_run else "deleted"))
    if asked:
        say(
            f"{plural(asked, 'task')} "
            + (
                "would be cancelled by the worker"
                if dry_run
                else "will be cancelled by the worker: see `pgqpy task progress`"
            )
        )


def _cancel(conn: pgqpy.Connection, task_id: int, reason: str, *, named: bool) -> bool | None:
    """Return whether it is gone, or else still claimed; None if it has ended meanwhile."""
    try:
        with conn.transaction():
            return Tasks(conn).cancel(task_id, reason)
    except TaskConflict:
        if named:
            raise no_such_task(task_id) from None
        return None


COMMANDS = (progress, cancel)
