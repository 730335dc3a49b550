"""Restrictions of task queues: their limits, and the rights of roles."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from pgqpy._runtime.words import duration
from pgqpy.cli._base.arguments import (
    INTERVAL,
    Parsed,
    any_task_queue_argument,
    grant_arguments,
    off_option,
    task_queue_argument,
)
from pgqpy.cli._base.command import options
from pgqpy.cli._base.database import dict_rows
from pgqpy.cli._base.output import json_option, print_items, say
from pgqpy.cli._tasks.choice import task
from pgqpy.connection import Connection
from pgqpy.tasks import TaskLimits, Tasks
from pgqpy.tasks import _statements as sql

#: The parameters of pgq_task.set_limits(), in words.
LIMITS = {
    "max_running": "at a time",
    "max_running_per_key": "at a time per key",
    "rate": "in {period}",
    "rate_per_key": "in {period} per key",
}


def _limit(value: str) -> int:
    """Return a number of tasks; ``none`` is 0."""
    number = int(value) if value.isdecimal() else 0
    if value != "none" and not 1 <= number < 2**31:
        raise ValueError(f"{value!r} is no number of tasks from 1 on, nor none")
    return number


LIMIT = Parsed("n", _limit)


@task.command("limit", role="pgq_admin")
@task_queue_argument
@click.option("--running", "max_running", type=LIMIT, help="Tasks claimed at a time.")
@click.option(
    "--running-per-key",
    "max_running_per_key",
    type=LIMIT,
    help="Tasks claimed at a time with the same limit_key in their headers.",
)
@click.option("--rate", type=LIMIT, help="Tasks claimed in any period.")
@click.option("--rate-per-key", type=LIMIT, help="The same per limit_key.")
@click.option("--period", "rate_period", type=INTERVAL, help="Its length; 1 minute.")
@click.option("--off", is_flag=True, help="Take all limits away.")
def limit(
    conn: Connection, queue: str, off: bool, rate_period: str | None, **given: int | None
) -> None:
    """Limit how many tasks of a queue all workers claim together.

    Limits that are not named stay as they are; none removes a limit. The change holds at once:
    tasks that waited for the old limits are claimed as soon as the new ones allow it. `pgqpy task
    pause` stops a queue.

    Examples:
      pgqpy task limit mails --running 20
      pgqpy task limit api --rate-per-key 100 --period '1 minute'
      pgqpy task limit mails --running none
      pgqpy task limit mails --off
    """
    changes = {name: value for name, value in given.items() if value is not None}
    if off == bool(changes or rate_period):
        raise click.UsageError("Say which limits, or --off.")
    with conn.transaction():
        tasks = Tasks(conn)
        known = tasks.limits(queue)
        wanted: dict[str, Any] = {
            name: getattr(known[0], name) if known else None for name in LIMITS
        }
        wanted |= {name: value or None for name, value in changes.items()}
        if off:
            wanted = dict.fromkeys(LIMITS)
        elif rate_period and wanted["rate"] is None and wanted["rate_per_key"] is None:
            raise click.UsageError("--period is for --rate and --rate-per-key.")
        period = rate_period or (known[0].rate_period if known else timedelta(minutes=1))
        conn.execute(sql.SET_LIMITS, [queue, *wanted.values(), period])
        now = tasks.limits(queue)
    if now:
        say(f"task queue {queue}: at most {', '.join(_said(now[0]))}")
    else:
        say(f"task queue {queue} has no limits")


def _said(limits: TaskLimits) -> list[str]:
    period = duration(limits.rate_period)
    return [
        f"{getattr(limits, name):,} {what.format(period=period)}"
        for name, what in LIMITS.items()
        if getattr(limits, name) is not None
    ]


@task.command("limits", role="pgq_admin")
@any_task_queue_argument
@json_option
def limits(conn: Connection, queue: str | None) -> None:
    """Show the limits of queues, and their use.

    Running and rate are of the whole queue, the columns per key of tasks with the same limit_key in
    their headers. Tasks that wait for a limit are held, or scheduled for their turn.

    Examples:
      pgqpy task limits mails --json
    """
    found = Tasks(conn).limits(queue)
    whose = "no task queue has" if queue is None else f"task queue {queue} has no"
    print_items(
        found,
        {
            "Queue": "queue",
            "Running": lambda each: _used(each.running, each.max_running),
            "Per key": "max_running_per_key",
            "Rate": lambda each: _rate(each.rate and _used(each.recent, each.rate), each),
            "Rate per key": lambda each: _rate(each.rate_per_key, each),
        },
        empty=f"{whose} limits; set some: pgqpy task limit {queue or 'QUEUE'} --running 20",
    )


def _used(number: int | None, most: int | None) -> str | int | None:
    return number if most is None else f"{number:,} of {most:,}"


def _rate(number: str | int | None, limits: TaskLimits) -> str | None:
    return f"{number} in {duration(limits.rate_period)}" if number else None


which_grants = options(
    task_queue_argument, grant_arguments("insert", "claim", "change", "delete", "read")
)


@task.command("restrict", role="pgq_admin")
@task_queue_argument
@off_option
def restrict(conn: Connection, queue: str, off: bool) -> None:
    """Restrict the tasks of a queue to roles with a grant.

    Other queues are open: members of pgq_writer push, members of pgq_reader do the rest. Members of
    pgq_admin may do everything everywhere.

    Examples:
      pgqpy task restrict payments
      pgqpy task restrict payments --off
    """
    conn.execute("select pgq_task.restrict_queue(%s, %s)", [queue, not off])
    say(f"task queue {queue} is {'open' if off else 'restricted'}")


@task.command("grant", role="pgq_admin")
@which_grants
def grant(conn: Connection, queue: str, role: str, actions: tuple[str, ...]) -> None:
    """Grant a role actions on the tasks of a restricted queue.

    To call the functions at all, the role must also be a member of pgq_writer (insert) or of
    pgq_reader (the rest).

    Examples:
      pgqpy task grant payments shop insert
      pgqpy task grant payments cashier claim read
    """
    conn.execute("select pgq_task.grant_queue(%s, %s, %s)", [queue, list(actions), role])
    say(f"granted {', '.join(actions)} on task queue {queue} to {role}")


@task.command("revoke", role="pgq_admin")
@which_grants
def revoke(conn: Connection, queue: str, role: str, actions: tuple[str, ...]) -> None:
    """Revoke grants of a role.

    Rights that it has as a member of another role are not changed. `pgqpy task grants` lists the
    grants.

    Examples:
      pgqpy task revoke payments shop insert
    """
    conn.execute("select pgq_task.revoke_queue(%s, %s, %s)", [queue, list(actions), role])
    say(f"revoked {', '.join(actions)} on task queue {queue} from {role}")


@task.command("grants", role="pgq_admin")
@any_task_queue_argument
@json_option
def grants(conn: Connection, queue: str | None) -> None:
    """Show the grants on the tasks of restricted queues.

    The keys of the JSON objects are the columns of pgq_task.get_queue_grants(). On a queue that is
    not restricted, grants have no effect.

    Examples:
      pgqpy task grants payments --json
    """
    print_items(
        dict_rows(conn, "select * from pgq_task.get_queue_grants(%s)", [queue]),
        {
            "Queue": "queue_name",
            "Restricted": "restricted",
            "Role": "role",
            "May": lambda row: ", ".join(row["actions"] or ()),
        },
        empty=f"task queue {queue} is open to all" if queue else "no task queue is restricted",
    )
