"""``pgqpy task``: the work queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
from psycopg.rows import dict_row

import pgqpy
from pgqpy.cli._base.command import Group, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import TASK_QUEUE, TEXT
from pgqpy.cli._base.output import print_json, print_pairs, print_table, say
from pgqpy.cli._base.wording import shown
from pgqpy.cli._events.queue_config import parse_value
from pgqpy.cli._tasks import (
    change,
    grant,
    history,
    limit,
    listing,
    periodic,
    progress,
    push,
    work,
)
from pgqpy.tasks import TaskQueueInfo, Tasks

#: The parameters of pgq_task.set_queue_config(), in the order of their display.
PARAMETERS = {
    "lease": "how long a claim holds",
    "max_attempts": "then a task goes to the error queue (null: never)",
    "error_queue": "its name (null: the queue's, with .failed)",
    "keep": "how long finished tasks are kept (0: not at all)",
}


@click.group(cls=Group)
def task() -> None:
    """Push tasks, work on them, look at them, and repair them."""


@task.command(
    "create",
    role="pgq_admin",
    examples=(
        "pgqpy task create mails",
        "pgqpy task create mails --set lease=5min --set max_attempts=8 --set keep='7 days'",
    ),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.option(
    "--set",
    "settings",
    multiple=True,
    type=TEXT,
    metavar="PARAMETER=VALUE",
    help="Configure it; may be given several times. See `pgqpy task config`.",
)
def create(dsn: str, queue: str, settings: tuple[str, ...]) -> None:
    """Create a task queue.

    It takes tasks at once. If the queue exists, only the settings of --set are changed. Task queues
    and event queues are independent: they may have the same name.
    """
    pairs = [_pair(setting) for setting in settings]
    with connect(dsn) as conn, conn.transaction():
        queues = Tasks(conn)
        created = queues.create_queue(queue)
        for parameter, value in pairs:
            queues.set_config(queue, parameter, value)
    say(f"created task queue {queue}" if created else f"task queue {queue} exists already")


def _pair(setting: str) -> tuple[str, str | None]:
    parameter, equals, value = setting.partition("=")
    if not equals:
        raise click.UsageError(f"'{setting}' is not PARAMETER=VALUE.")
    return parameter.strip(), parse_value(value.strip())


@task.command(
    "drop", role="pgq_admin", examples=("pgqpy task drop mails", "pgqpy task drop mails --force")
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.option("--force", is_flag=True, help="Also if it has tasks: they are lost.")
def drop(dsn: str, queue: str, force: bool) -> None:
    """Drop a task queue, with the finished tasks that it keeps.

    A queue that has tasks is dropped only with --force. Pushes into it fail from then on; its error
    queue is another queue, and stays.
    """
    with connect(dsn) as conn:
        Tasks(conn).drop_queue(queue, force=force)
    say(f"dropped task queue {queue}")


@task.command(
    "queues",
    role="pgq_reader",
    examples=("pgqpy task queues", "pgqpy task queues --json | jq '.[] | select(.paused)'"),
)
@dsn_option
@json_option
def list_queues(dsn: str, as_json: bool) -> None:
    """List the task queues, and how many tasks they have.

    Waiting is the time that the oldest task has waited. Large numbers are only counted up to
    10,000. The keys of the JSON objects are the columns of pgq_task.get_queue_info().
    """
    with connect(dsn) as conn:
        queues = Tasks(conn).queues()
    if as_json:
        print_json(queues)
    elif not queues:
        say("no task queues yet; make one: pgqpy task create NAME")
    else:
        print_table(
            ("Queue", "Available", "Waiting", "Claimed", "Scheduled", "Held", "Stopped"),
            [
                (
                    info.queue_name + (" (paused)" if info.paused else ""),
                    _size(info, info.available),
                    _since(info.oldest),
                    _size(info, info.claimed),
                    _size(info, info.scheduled),
                    _size(info, info.held),
                    _size(info, info.stopped),
                )
                for info in queues
            ],
        )


def _size(info: TaskQueueInfo, number: int | None) -> int | str | None:
    """Return a size; one that was not counted to the end is marked."""
    if number is None or info.exact or number < 10_000:
        return number
    return f"{number:,}+"


def _since(time: datetime | None) -> timedelta | None:
    return None if time is None else max(datetime.now(UTC) - time, timedelta())


@task.command(
    "config",
    role="pgq_admin",
    examples=(
        "pgqpy task config mails",
        "pgqpy task config mails max_attempts 8",
        "pgqpy task config mails keep '7 days'",
        "pgqpy task config mails error_queue null",
    ),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.argument("parameter", type=click.Choice([*PARAMETERS]), required=False)
@click.argument("value", type=TEXT, required=False)
@json_option
def config(dsn: str, queue: str, parameter: str | None, value: str | None, as_json: bool) -> None:
    """Show a task queue's parameters, show one, or set one to a value.

    Intervals are written like PostgreSQL's ('3 seconds', '2h'); null removes a limit. Claims made
    from then on obey.
    """
    with connect(dsn) as conn:
        queues = Tasks(conn)
        if parameter is not None and value is not None:
            queues.set_config(queue, parameter, parse_value(value))
        (info,) = queues.queues(queue, max_count=1)
    names = [parameter] if parameter is not None else [*PARAMETERS]
    parameters = {name: getattr(info, name) for name in names}
    if as_json:
        print_json(parameters)
    else:
        print_table(
            ("Parameter", "Value", "Meaning"),
            [(name, shown(each), PARAMETERS[name]) for name, each in parameters.items()],
        )


@task.command("pause", role="pgq_admin", examples=("pgqpy task pause mails",))
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
def pause(dsn: str, queue: str) -> None:
    """Stop claims of a queue's tasks until `pgqpy task resume`.

    Claimed tasks are finished as usual, and tasks are pushed as usual. It holds for all workers,
    including those that are started later.
    """
    with connect(dsn) as conn:
        Tasks(conn).pause(queue)
    say(f"paused task queue {queue}")


@task.command("resume", role="pgq_admin", examples=("pgqpy task resume mails",))
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
def resume(dsn: str, queue: str) -> None:
    """End a pause: tasks of the queue are claimed again.

    Waiting workers are notified at once. A queue that is not paused stays as it is.
    """
    with connect(dsn) as conn:
        Tasks(conn).resume(queue)
    say(f"resumed task queue {queue}")


@task.command(
    "stats",
    role="pgq_reader",
    examples=("pgqpy task stats", "pgqpy task stats mails --json"),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE, required=False)
@json_option
def stats(dsn: str, queue: str | None, as_json: bool) -> None:
    """Show how often each operation was done on tasks.

    The counts start when the queue is created. Buried tasks went to the error queue, released tasks
    were given back untried. The counters cost nearly nothing: they also count what was rolled back,
    and may jump when the server crashes.
    """
    with connect(dsn) as conn:
        rows = read_stats(conn, queue)
    if as_json:
        print_json(rows)
    elif queue is not None:
        print_pairs(*rows[0].items())
    elif not rows:
        say("no task queues yet; make one: pgqpy task create NAME")
    else:
        names = [name for name in rows[0] if name not in ("queue_name", "popped", "deleted")]
        print_table(
            ("Queue", *(name.capitalize() for name in names)),
            [(row["queue_name"], *(row[name] for name in names)) for row in rows],
        )


def read_stats(conn: pgqpy.Connection, queue: str | None) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("select * from pgq_task.get_statistics(%s)", [queue]).fetchall()


for command in (
    push.push,
    listing.list_tasks,
    listing.show,
    work.work,
    *change.COMMANDS,
    *progress.COMMANDS,
    *limit.COMMANDS,
    periodic.periodic,
    history.history,
    history.replay,
    *grant.COMMANDS,
):
    task.add_command(command)
