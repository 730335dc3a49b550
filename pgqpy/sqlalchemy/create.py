"""``metadata.create_all()`` and ``Table.create()`` capture the tables that they create."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from pgqpy.sqlalchemy import statements
from pgqpy.sqlalchemy.declared import captures_of
from pgqpy.sqlalchemy.errors import translate_errors


def listen() -> None:
    """Listen for the creation of all tables from now on."""
    sa.event.listen(sa.Table, "after_create", _capture)


def _capture(table: sa.Table, connection: sa.Connection, **_: Any) -> None:
    captures = captures_of(table)
    if not captures or connection.dialect.name != "postgresql":
        return
    # A connection that prints statements instead of executing them is no Connection.
    executes = isinstance(connection, sa.Connection)
    schema = connection.schema_for_object(table) if executes else table.schema
    with translate_errors():
        for capture in captures:
            # A role that may not create queues may capture into an existing one.
            if not (executes and connection.scalar(_QUEUE, {"queue": capture.queue})):
                execute(connection, statements.create_queue(capture.queue))
            capture_table = statements.capture_table(table.name, schema, capture, replace=False)
            execute(connection, capture_table)


_QUEUE = sa.text("select true from pgq.queue where queue_name = :queue")


def execute(connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
    """Execute a statement exactly as it is."""
    return connection.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]
