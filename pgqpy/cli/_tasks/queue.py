"""``pgqpy task``: the work queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from pgqpy.cli._base.arguments import (
    any_task_queue_argument,
    parameter_arguments,
    parameter_value,
    set_option,
    task_queue_argument,
)
from pgqpy.cli._base.command import Settings
from pgqpy.cli._base.database import dict_rows
from pgqpy.cli._base.output import (
    json_option,
    print_items,
    print_pairs,
    print_parameters,
    say,
    wants_json,
)
from pgqpy.cli._tasks.choice import task
from pgqpy.connection import Connection
from pgqpy.tasks import TaskQueueInfo, Tasks

_NONE = "no task queues yet; make one: pgqpy task create NAME"

#: The parameters of pgq_task.set_queue_config(), in the order of their display.
PARAMETERS = {
    "lease": "how long a claim holds",
    "time_limit": "an attempt loses its lease then (null: never)",
    "max_attempts": "then a task goes to the error queue (null: never)",
    "error_queue": "its name (null: the queue's, with .failed)",
    "keep": "how long finished tasks are kept (0: not at all)",
    "weight": "its share of claims from several queues (1 to 1000)",
    "keep_tenants": "how long empty tenants are kept (null: no tenants)",
}


@task.command("create", role="pgq_admin")
@task_queue_argument
@set_option
def create(conn: Connection, queue: str, settings: tuple[tuple[str, str | None], ...]) -> None:
    """Create a task queue.

    It takes tasks at once. If the queue exists, only the settings of --set are changed. Task queues
    and event queues are independent: they may have the same name.

    Examples:
      pgqpy task create mails
      pgqpy task create mails --set lease=5min --set max_attempts=8 --set keep='7 days'
    """
    with conn.transaction():
        queues = Tasks(conn)
        created = queues.create_queue(queue)
        for parameter, value in settings:
            queues.set_config(queue, parameter, value)
    say(f"created task queue {queue}" if created else f"task queue {queue} exists already")


@task.command("drop", role="pgq_admin")
@task_queue_argument
@click.option("--force", is_flag=True, help="Also if it has tasks: they are lost.")
def drop(conn: Connection, queue: str, force: bool) -> None:
    """Drop a task queue, with the finished tasks that it keeps.

    A queue that has tasks is dropped only with --force. Pushes into it fail from then on; its error
    queue is another queue, and stays.

    Examples:
      pgqpy task drop mails
      pgqpy task drop mails --force
    """
    Tasks(conn).drop_queue(queue, force=force)
    say(f"dropped task queue {queue}")


@task.command("queues", role="pgq_reader")
@any_task_queue_argument
@json_option
def list_queues(conn: Connection, queue: str | None) -> None:
    """List the task queues, and how many tasks they have.

    In QUEUE an asterisk stands for any characters. Waiting is the time that the oldest task has
    waited. Large numbers are only counted up to 10,000. The keys of the JSON objects are the
    columns of pgq_task.get_queue_info().

    Examples:
      pgqpy task queues 'tenant.*'
      pgqpy task queues --json | jq '.[] | select(.paused)'
    """
    print_items(
        Tasks(conn).queues(queue),
        {
            "Queue": lambda info: info.queue_name + (" (paused)" if info.paused else ""),
            "Available": lambda info: _size(info, info.available),
            "Waiting": lambda info: _since(info.oldest),
            "Claimed": lambda info: _size(info, info.claimed),
            "Scheduled": lambda info: _size(info, info.scheduled),
            "Held": lambda info: _size(info, info.held),
            "Stopped": lambda info: _size(info, info.stopped),
        },
        empty="no such task queues" if queue else _NONE,
    )


def _size(info: TaskQueueInfo, number: int | None) -> object:
    """Return a size; one that was not counted to the end is marked."""
    from rich.text import Text

    if number is None or info.exact or number < 10_000:
        return number
    return Text(f"{number:,}+")  # a str would be set left


def _since(time: datetime | None) -> timedelta | None:
    return None if time is None else max(datetime.now(UTC) - time, timedelta())


@task.command("config", role="pgq_admin")
@task_queue_argument
@parameter_arguments(PARAMETERS)
@json_option
def config(conn: Connection, queue: str, parameter: str | None, value: str | None) -> None:
    """Show a task queue's parameters, show one, or set one to a value.

    Intervals are written like PostgreSQL's ('3 seconds', '2h'); null removes a limit. Claims made
    from then on obey.

    Examples:
      pgqpy task config mails
      pgqpy task config mails max_attempts 8
      pgqpy task config mails keep '7 days'
      pgqpy task config mails error_queue null
    """
    queues = Tasks(conn)
    if parameter is not None and value is not None:
        queues.set_config(queue, parameter, parameter_value(value))
    (info,) = queues.queues(queue, max_count=1)
    parameters = {name: getattr(info, name) for name in PARAMETERS}
    print_parameters(parameters, PARAMETERS, parameter)


@task.command("pause", role="pgq_admin")
@task_queue_argument
def pause(conn: Connection, queue: str) -> None:
    """Stop claims of a queue's tasks until `pgqpy task resume`.

    Claimed tasks are finished as usual, and tasks are pushed as usual. It holds for all workers,
    including those that are started later.

    Examples:
      pgqpy task pause mails
    """
    Tasks(conn).pause(queue)
    say(f"paused task queue {queue}")


@task.command("resume", role="pgq_admin")
@task_queue_argument
def resume(conn: Connection, queue: str) -> None:
    """End a pause: tasks of the queue are claimed again.

    Waiting workers are notified at once. A queue that is not paused stays as it is.

    Examples:
      pgqpy task resume mails
    """
    Tasks(conn).resume(queue)
    say(f"resumed task queue {queue}")


@task.command("stats", role="pgq_reader")
@any_task_queue_argument
@click.option("--reset", is_flag=True, help="Let them begin at 0 again; needs pgq_admin.")
@json_option
def stats(conn: Connection, queue: str | None, reset: bool) -> None:
    """Show how often each operation was done on tasks.

    The counts start when the queue is created, or at --reset, which shows them a last time. Failed
    tasks went to the error queue, released tasks ended an attempt untried. What is rolled back does
    not count, except a push without options. A crash of the server loses the counts of the last
    minute.

    In QUEUE an asterisk stands for any characters.

    Examples:
      pgqpy task stats 'tenant.*'
      pgqpy task stats mails --json
    """
    rows = dict_rows(conn, "select * from pgq_task.get_statistics(%s)", [queue])
    if reset:
        click.get_current_context().ensure_object(Settings).role = "pgq_admin"
        Tasks(conn).reset_statistics(queue)
    if queue is not None and "*" not in queue and not wants_json():
        print_pairs(*rows[0].items())
        return
    columns: dict[str, Any] = {"Queue": "queue_name"}
    hidden = ("queue_name", "popped", "deleted")
    for name in rows[0] if rows else ():
        if name not in hidden:
            columns[name.replace("_", " ").capitalize()] = name
    print_items(rows, columns, empty="no such task queues" if queue else _NONE)
