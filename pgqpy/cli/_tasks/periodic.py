"""Schedules of tasks."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from pgqpy.cli._base.arguments import TEXT
from pgqpy.cli._base.command import Group
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import attributes, json_option, print_items, say
from pgqpy.cli._tasks.choice import distance, task
from pgqpy.connection import Connection
from pgqpy.errors import InvalidTask
from pgqpy.tasks import PeriodicInfo, Tasks


@task.group("periodic", cls=Group)
def periodic() -> None:
    """Look at schedules, pause them, and push a run now.

    Programs create them: a worker stores the schedules of its TaskApp in the database.
    """


@periodic.command("list", role="pgq_reader")
@json_option
def list_periodic(conn: Connection) -> None:
    """List schedules, and when they are due.

    Last is the last run that was pushed or skipped. Workers push a run within a second of its time:
    if next is past, no worker is running, or all are busy.

    Examples:
      pgqpy task periodic list --json | jq '.[].next'
    """
    found = [attributes(each) | {"next": _next(each)} for each in Tasks(conn).periodic()]
    now = datetime.now(UTC)
    print_items(
        found,
        {
            "Name": "name",
            "Queue": "queue",
            "Cron": "cron",
            "Time zone": "time_zone",
            "Last": lambda each: distance(each["last_run"], now),
            "Next": lambda each: "paused" if each["paused"] else distance(each["next"], now),
            "Missed": "missed",
        },
        empty="there are no schedules; see @app.periodic in docs/tasks-jobs.md",
    )


def _next(task: PeriodicInfo) -> datetime | None:
    """Return the time of the next run; None if it is unknown, or the schedule is paused."""
    if task.paused:
        return None
    try:
        from pgqpy.tasks._jobs.periodic import Cron

        return next(Cron(task.cron, task.time_zone).after(task.last_due), None)
    except (ImportError, InvalidTask):
        return None


def _require(tasks: Tasks, name: str) -> Tasks:
    """Raise CliError if there is no such schedule."""
    if all(each.name != name for each in tasks.periodic()):
        raise CliError(
            f"there is no schedule {name}", "`pgqpy task periodic list` shows those there are"
        )
    return tasks


name_argument = click.argument("name", type=TEXT)


@periodic.command("run", role="pgq_writer")
@name_argument
def run(conn: Connection, name: str) -> None:
    """Push a run now, in addition to the due ones.

    It has the same payload, priority and keys; a paused schedule is pushed, too.

    Examples:
      pgqpy task periodic run clean_up
    """
    task_id = _require(Tasks(conn), name).run_periodic(name)
    say(f"pushed a run of {name}: {task_id}")


@periodic.command("pause", role="pgq_admin")
@name_argument
def pause(conn: Connection, name: str) -> None:
    """Push no runs until `pgqpy task periodic resume`.

    Runs that were pushed are worked on as usual. The pause survives restarts of workers.

    Examples:
      pgqpy task periodic pause clean_up
    """
    _require(Tasks(conn), name).pause_periodic(name)
    say(f"paused {name}")


@periodic.command("resume", role="pgq_admin")
@name_argument
def resume(conn: Connection, name: str) -> None:
    """Push runs again, after `pgqpy task periodic pause`.

    Runs that were due during the pause are not made up for.

    Examples:
      pgqpy task periodic resume clean_up
    """
    _require(Tasks(conn), name).resume_periodic(name)
    say(f"resumed {name}")


@periodic.command("drop", role="pgq_admin")
@name_argument
def drop(conn: Connection, name: str) -> None:
    """Delete a schedule; tasks that were pushed stay.

    Use it for jobs that were removed from their program: a worker whose program still has the
    schedule creates it again when it starts.

    Examples:
      pgqpy task periodic drop clean_up
    """
    _require(Tasks(conn), name).drop_periodic(name)
    say(f"dropped {name}")
