"""The statements that create queues and captures, as text: migrations print them, too."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from psycopg import sql

from pgqpy._wire.statements import checked
from pgqpy.sqlalchemy._capture import Capture, captures_of
from pgqpy.sqlalchemy._session import translate_errors


def call(function: str, *arguments: object, **options: object) -> str:
    """Return the call of an SQL function, with options as ``name => value``."""
    values = [*map(literal, arguments)]
    values += [f"{name} => {literal(value)}" for name, value in options.items()]
    return f"select {function}({', '.join(values)})"


def capture_table(table: str, schema: str | None, capture: Capture, *, replace: bool) -> str:
    """Capture a table."""
    options = capture.options()
    if "operations" in options:
        options["operations"] = ",".join(options["operations"])
    if replace:
        options["replace"] = True
    return call("pgq.capture_table", quoted(table, schema), capture.queue, **options)


def literal(value: Any) -> str:
    """Return a value as an SQL literal. Raises InvalidPayload if no text can hold it."""
    checked([value])
    if isinstance(value, list):
        return f"array[{', '.join(map(literal, value))}]"
    return sql.Literal(value).as_string(None).strip()


def quoted(table: str, schema: str | None) -> str:
    """Return the name of a table as SQL writes it."""
    parts = (table,) if schema is None else (schema, table)
    return sql.Identifier(*parts).as_string(None)


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
                execute(connection, call("pgq.create_queue", capture.queue))
            execute(connection, capture_table(table.name, schema, capture, replace=False))


_QUEUE = sa.text("select true from pgq.queue where queue_name = :queue")


def execute(connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
    """Execute a statement exactly as it is."""
    return connection.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]
