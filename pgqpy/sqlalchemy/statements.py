"""The statements that create queues and captures, as text: migrations print them, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psycopg import sql

from pgqpy._wire.statements import checked
from pgqpy.sqlalchemy.capture import Capture


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
