"""Rights on the tasks of a queue."""

from __future__ import annotations

import click
from psycopg.rows import dict_row

from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import TASK_QUEUE, TEXT
from pgqpy.cli._base.output import print_json, print_table, say

ACTIONS = ("insert", "claim", "change", "delete", "read")


@click.command(
    "restrict",
    cls=Command,
    role="pgq_admin",
    examples=("pgqpy task restrict payments", "pgqpy task restrict payments --off"),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.option("--off", is_flag=True, help="Open it again; the grants are kept.")
def restrict(dsn: str, queue: str, off: bool) -> None:
    """Restrict the tasks of a queue to roles with a grant.

    Other queues are open: members of pgq_writer push, members of pgq_reader do the rest. Members of
    pgq_admin may do everything everywhere.
    """
    with connect(dsn) as conn:
        conn.execute("select pgq_task.restrict_queue(%s, %s)", [queue, not off])
    say(f"task queue {queue} is {'open' if off else 'restricted'}")


@click.command(
    "grant",
    cls=Command,
    role="pgq_admin",
    examples=(
        "pgqpy task grant payments shop insert",
        "pgqpy task grant payments cashier claim read",
    ),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.argument("role", type=TEXT)
@click.argument("actions", nargs=-1, required=True, type=click.Choice(ACTIONS))
def grant(dsn: str, queue: str, role: str, actions: tuple[str, ...]) -> None:
    """Grant a role actions on the tasks of a restricted queue.

    To call the functions at all, the role must also be a member of pgq_writer (insert) or of
    pgq_reader (the rest).
    """
    with connect(dsn) as conn:
        conn.execute("select pgq_task.grant_queue(%s, %s, %s)", [queue, list(actions), role])
    say(f"granted {', '.join(actions)} on task queue {queue} to {role}")


@click.command(
    "revoke",
    cls=Command,
    role="pgq_admin",
    examples=("pgqpy task revoke payments shop insert",),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE)
@click.argument("role", type=TEXT)
@click.argument("actions", nargs=-1, required=True, type=click.Choice(ACTIONS))
def revoke(dsn: str, queue: str, role: str, actions: tuple[str, ...]) -> None:
    """Revoke grants of a role.

    Rights that it has as a member of another role are not changed. `pgqpy task grants` lists the
    grants.
    """
    with connect(dsn) as conn:
        conn.execute("select pgq_task.revoke_queue(%s, %s, %s)", [queue, list(actions), role])
    say(f"revoked {', '.join(actions)} on task queue {queue} from {role}")


@click.command(
    "grants",
    cls=Command,
    role="pgq_admin",
    examples=("pgqpy task grants", "pgqpy task grants payments --json"),
)
@dsn_option
@click.argument("queue", type=TASK_QUEUE, required=False)
@json_option
def grants(dsn: str, queue: str | None, as_json: bool) -> None:
    """Show the grants on the tasks of restricted queues.

    The keys of the JSON objects are the columns of pgq_task.get_queue_grants(). On a queue that is
    not restricted, grants have no effect.
    """
    with connect(dsn) as conn, conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("select * from pgq_task.get_queue_grants(%s)", [queue]).fetchall()
    if as_json:
        print_json(rows)
    elif not rows:
        say(
            "no task queue is restricted" if queue is None else f"task queue {queue} is open to all"
        )
    else:
        print_table(
            ("Queue", "Restricted", "Role", "May"),
            [
                (row["queue_name"], row["restricted"], row["role"], ", ".join(row["actions"] or ()))
                for row in rows
            ],
        )


COMMANDS = (restrict, grant, revoke, grants)
