"""Schedules of tasks."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

import pgqpy
from pgqpy.cli._base.command import Group, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import TEXT
from pgqpy.cli._base.output import print_json, print_table, say
from pgqpy.cli._tasks.choice import distance
from pgqpy.errors import InvalidTask
from pgqpy.tasks import PeriodicInfo, Tasks


@click.group("periodic", cls=Group)
def periodic() -> None:
    """Look at schedules, pause them, and push a run now.

    Programs create them: a worker stores the schedules of its TaskApp in the database.
    """


@periodic.command(
    "list",
    role="pgq_reader",
    examples=("pgqpy task periodic list", "pgqpy task periodic list --json | jq '.[].next'"),
)
@dsn_option
@json_option
def list_periodic(dsn: str, as_json: bool) -> None:
    """List schedules, and when they are due.

    Last is the last run that was pushed or skipped. Workers push a run within a second of its time:
    if next is past, no worker is running, or all are busy.
    """
    with connect(dsn) as conn:
        found = [(each, _next(each)) for each in Tasks(conn).periodic()]
    if as_json:
        print_json([asdict(each) | {"next": due} for each, due in found])
        return
    if not found:
        say("nothing is pushed by itself; see @app.periodic in docs/tasks-jobs.md")
        return
    now = datetime.now(UTC)
    print_table(
        ("Name", "Queue", "Cron", "Time zone", "Last", "Next", "Missed"),
        [
            (
                each.name,
                each.queue,
                each.cron,
                each.time_zone,
                distance(each.last_due, now),
                "paused" if each.paused else distance(due, now),
                each.missed,
            )
            for each, due in found
        ],
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


def _known(conn: pgqpy.Connection, name: str) -> Tasks:
    """Return the tasks of a database that has this schedule. Raises CliError."""
    tasks = Tasks(conn)
    if all(each.name != name for each in tasks.periodic()):
        raise CliError(
            f"there is no schedule {name}", "`pgqpy task periodic list` shows those there are"
        )
    return tasks


@periodic.command("run", role="pgq_writer", examples=("pgqpy task periodic run clean_up",))
@dsn_option
@click.argument("name", type=TEXT)
def run(dsn: str, name: str) -> None:
    """Push a run now, in addition to the due ones.

    It has the same payload, priority and keys; a paused schedule is pushed, too.
    """
    with connect(dsn) as conn:
        task_id = _known(conn, name).run_periodic(name)
    say(f"pushed a run of {name}: {task_id}")


@periodic.command("pause", role="pgq_admin", examples=("pgqpy task periodic pause clean_up",))
@dsn_option
@click.argument("name", type=TEXT)
def pause(dsn: str, name: str) -> None:
    """Push no runs until `pgqpy task periodic resume`.

    Runs that were pushed are worked on as usual. The pause survives restarts of workers.
    """
    with connect(dsn) as conn:
        _known(conn, name).pause_periodic(name)
    say(f"paused {name}")


@periodic.command("resume", role="pgq_admin", examples=("pgqpy task periodic resume clean_up",))
@dsn_option
@click.argument("name", type=TEXT)
def resume(dsn: str, name: str) -> None:
    """Push runs again, after `pgqpy task periodic pause`.

    Runs that were due during the pause are not made up for.
    """
    with connect(dsn) as conn:
        _known(conn, name).resume_periodic(name)
    say(f"resumed {name}")


@periodic.command("drop", role="pgq_admin", examples=("pgqpy task periodic drop clean_up",))
@dsn_option
@click.argument("name", type=TEXT)
def drop(dsn: str, name: str) -> None:
    """Delete a schedule; tasks that were pushed stay.

    Use it for jobs that were removed from their program: a worker whose program still has the
    schedule creates it again when it starts.
    """
    with connect(dsn) as conn:
        _known(conn, name).drop_periodic(name)
    say(f"dropped {name}")
