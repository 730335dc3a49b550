"""The statements that create queues and captures, as text: migrations print them, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from psycopg import sql

from pgqpy._wire.statements import checked
from pgqpy.sqlalchemy._capture import Capture, captures_of
from pgqpy.sqlalchemy._session import translate_errors


def create_queue(queue: str) -> str:
    """Create a queue, if it does not exist."""
    return f"select pgq.create_queue({literal(queue)})"


def set_queue_config(queue: str, parameter: str, value: object) -> str:
    """Set one setting of a queue."""
    text = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"select pgq.set_queue_config({literal(queue)}, {literal(parameter)}, {literal(text)})"


def drop_queue(queue: str, *, force: bool) -> str:
    """Drop a queue; with ``force`` also if it is in use."""
    return f"select pgq.drop_queue({literal(queue)}{', true' if force else ''})"


def capture_table(table: str, schema: str | None, capture: Capture, *, replace: bool) -> str:
    """Capture a table."""
    options = capture.options()
    if "operations" in options:
        options["operations"] = ",".join(options["operations"])
    if replace:
        options["replace"] = True
    arguments = [_table(table, schema), literal(capture.queue)]
    arguments += [f"{name} => {literal(value)}" for name, value in options.items()]
    return f"select pgq.capture_table({', '.join(arguments)})"


def release_table(table: str, schema: str | None, queue: str) -> str:
    """End a capture."""
    return f"select pgq.release_table({_table(table, schema)}, {literal(queue)})"


def add_task_columns(
    table: str, schema: str | None, names: Mapping[str, str], options: Mapping[str, bool]
) -> str:
    """Make the rows of a table tasks."""
    arguments = [_table(table, schema), literal(json.dumps(dict(names)))]
    arguments += [f"{name} => {literal(value)}" for name, value in options.items()]
    return f"select pgq_task.add_columns({', '.join(arguments)})"


def notify_workers(table: str, schema: str | None, names: Mapping[str, str]) -> str:
    """Notify workers of the rows of a table."""
    arguments = [_table(table, schema), literal(json.dumps(dict(names)))]
    return f"select pgq_task.notify_workers({', '.join(arguments)})"


def remove_task_columns(
    table: str, schema: str | None, names: Mapping[str, str], *, force: bool
) -> str:
    """Remove the task columns and the triggers; with ``force`` also if rows wait."""
    arguments = [_table(table, schema), literal(json.dumps(dict(names)))]
    return f"select pgq_task.remove_columns({', '.join(arguments)}{', true' if force else ''})"


def literal(value: Any) -> str:
    """Return a value as an SQL literal. Raises InvalidPayload if no text can hold it."""
    checked([value])
    if isinstance(value, list):
        return f"array[{', '.join(map(literal, value))}]"
    return sql.Literal(value).as_string(None).strip()


def _table(name: str, schema: str | None) -> str:
    parts = (name,) if schema is None else (schema, name)
    return literal(sql.Identifier(*parts).as_string(None))


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
                execute(connection, create_queue(capture.queue))
            execute(connection, capture_table(table.name, schema, capture, replace=False))


_QUEUE = sa.text("select true from pgq.queue where queue_name = :queue")


def execute(connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
    """Execute a statement exactly as it is."""
    return connection.execute(sa.DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]
