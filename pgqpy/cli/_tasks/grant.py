"""Rights on the tasks of a queue."""

from __future__ import annotations

import click

from pgqpy.cli._base.arguments import TEXT, any_task_queue_argument, task_queue_argument
from pgqpy.cli._base.command import options
from pgqpy.cli._base.database import dict_rows
from pgqpy.cli._base.output import json_option, print_items, say
from pgqpy.cli._tasks.group import task
from pgqpy.connection import Connection

ACTIONS = ("insert", "claim", "change", "delete", "read")
grant_arguments = options(
    task_queue_argument,
    click.argument("role", type=TEXT),
    click.argument("actions", nargs=-1, required=True, type=click.Choice(ACTIONS)),
)


@task.command("restrict", role="pgq_admin")
@task_queue_argument
@click.option("--off", is_flag=True, help="Open it again; the grants are kept.")
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
@grant_arguments
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
@grant_arguments
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
      pgqpy task grants
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
