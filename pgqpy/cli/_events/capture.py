"""``pgqpy capture``: tables whose changes become events."""

from __future__ import annotations

from typing import Any

import click
from psycopg import DataError, ProgrammingError, sql
from psycopg.errors import InvalidName

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import LIST, QUEUE, TEXT, queue_argument
from pgqpy.cli._base.command import Group
from pgqpy.cli._base.database import dict_rows
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_items, say
from pgqpy.connection import Connection


@click.group(cls=Group)
def capture() -> None:
    """Turn the changes of tables into events."""


@capture.command("add", role="pgq_writer", names_of_users=True)
@click.argument("table", type=TEXT)
@queue_argument
@click.option(
    "--operations",
    type=TEXT,
    metavar="LIST",
    help="Which of insert,update,delete,truncate; all of them unless given.",
)
@click.option("--columns", type=LIST, help="Only these, and the key.")
@click.option("--exclude", type=LIST, help="All columns but these.")
@click.option("--key", type=LIST, help="The key, if not the primary key.")
@click.option(
    "--old-values",
    type=click.Choice(["none", "row", "changed"]),
    help="What an update stores of the old row, in ev_extra2.",
)
@click.option("--condition", type=TEXT, metavar="SQL", help="Only rows for which this is true.")
@click.option(
    "--format",
    type=click.Choice(["row_json", "jsontriga", "logutriga"]),
    help="PostgreSQL's own JSON, or exactly what PgQ's triggers write.",
)
@click.option(
    "--key-changes",
    type=click.Choice(["split", "error"]),
    help="A changed key is a delete and an insert, or an error.",
)
@click.option("--replace", is_flag=True, help="Replace the capture of this table into this queue.")
def add(conn: Connection, table: str, queue: str, replace: bool, **chosen: Any) -> None:
    """Make the changes of a table events in a queue.

    Events are written in the same transaction: an event exists if and only if its change does. A
    statement's events are written at once, by a trigger that runs as the table's owner: the role
    that changes the table needs no right on the queue. Partitions are captured with their table.

    Examples:
      pgqpy capture add public.flight flights
      pgqpy capture add flight flights --operations insert,update --exclude notes
      pgqpy capture add flight delays --condition 'new.delay > 60' --old-values changed
      pgqpy capture add flight flights --format logutriga --replace
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    if replace:
        given["replace"] = True
    statement = sql.SQL("select pgq.capture_table(%(table)s::regclass, %(queue)s{})").format(
        sql.SQL("").join(
            sql.SQL(", {} => {}").format(sql.Identifier(name), sql.Placeholder(name))
            for name in given
        )
    )
    _require_table(conn, table)
    try:
        conn.execute(statement, {"table": table, "queue": queue, **given})
    except (ProgrammingError, DataError) as error:
        # SQL of the user's is the condition alone; what the function itself says has its own codes.
        if error.diag.context is None or str(error.sqlstate).startswith(("PQ", "42501")):
            raise
        raise CliError(str(error.diag.message_primary), error.diag.message_hint) from error
    say(f"changes of table {table} are events in queue {queue} from now on")


@capture.command("remove", role="pgq_writer", names_of_users=True)
@click.argument("table", type=TEXT)
@click.argument("queue", type=QUEUE, required=False)
def remove(conn: Connection, table: str, queue: str | None) -> None:
    """End the capture of a table.

    From one queue, or from all queues if none is named. The events captured so far stay in the
    queue.

    Examples:
      pgqpy capture remove public.flight
      pgqpy capture remove flight delays
    """
    _require_table(conn, table)
    conn.execute("select pgq.release_table(%s::regclass, %s)", [table, queue])
    say(f"table {table} is not captured any more" + (f" into queue {queue}" if queue else ""))


@capture.command("list", role="pgq_reader", names_of_users=True)
@click.argument("table", type=TEXT, required=False)
@json_option
def list_captures(conn: Connection, table: str | None) -> None:
    """List the tables that are captured, and how.

    The keys of the JSON objects are the columns of pgq.capture_info().

    Examples:
      pgqpy capture list public.flight --json
    """
    _require_table(conn, table)
    print_items(
        dict_rows(conn, "select * from pgq.capture_info(%s::regclass)", [table]),
        {
            "Table": "table_name",
            "Queue": "queue_name",
            "Operations": lambda each: ", ".join(each["operations"]),
            "Key": lambda each: ", ".join(each["key"]),
            "Format": "format",
            "State": _state,
        },
        empty="no table is captured; capture one: pgqpy capture add TABLE QUEUE",
    )


@capture.command("partitions", role="pgq_writer", names_of_users=True)
@click.argument("table", type=TEXT, required=False)
def partitions(conn: Connection, table: str | None) -> None:
    """Capture partitions that were added to captured tables since.

    Only rows written directly to such a partition were missed; rows written through its table are
    captured anyway.

    Examples:
      pgqpy capture partitions
      pgqpy capture partitions public.flight
    """
    _require_table(conn, table)
    [row] = conn.execute("select pgq.capture_new_partitions(%s::regclass)", [table])
    say(f"captured {plural(row[0], 'new partition')}")


def _state(capture_info: dict[str, Any]) -> str:
    if not capture_info["enabled"]:
        return "disabled"
    missing = capture_info["partitions_missing"]
    return f"{missing} new partitions" if missing else "on"


def _require_table(conn: Connection, table: str | None) -> None:
    """Check a table, if one is named: the server's error is that of a schema not installed."""
    if table is None:
        return
    try:
        row = conn.execute("select to_regclass(%s)", [table]).fetchone()
    except InvalidName:
        # Servers before 16 raise an error if it is not a valid name.
        row = None
    if row is None or row[0] is None:
        raise CliError(
            f"there is no table {table}",
            "write it as in SQL, with schema, and quotes if it needs them: 'shop.\"Order\"'",
        )
