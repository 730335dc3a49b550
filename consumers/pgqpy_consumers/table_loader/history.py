"""Every change as a row of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from psycopg import sql

import pgqpy
from pgqpy_consumers.apply import Change, Table
from pgqpy_consumers.apply._change import Value

Source = Literal["operation", "event_id", "event_time", "txid"]
SOURCES: tuple[Source, ...] = ("operation", "event_id", "event_time", "txid")

Loaded = tuple[pgqpy.Event, Change]


def history_row(
    event: pgqpy.Event, change: Change, extra: Mapping[str, Source]
) -> dict[str, Value]:
    """The row to add; ``extra`` maps columns to fields of the event."""
    known = {
        "operation": change.operation,
        "event_id": str(event.id),
        "event_time": event.time.isoformat(),
        "txid": str(change.txid),
    }
    return change.values | {column: known[source] for column, source in extra.items()}


def append(
    target: pgqpy.Connection,
    table: Table,
    rows: Iterable[Mapping[str, Value]],
    *,
    nested: bool,
) -> None:
    """Add rows by COPY. Raises ColumnMissing, and psycopg.Error if the table refuses a row."""
    # Columns may have been added between two events of a batch.
    shapes: dict[tuple[str, ...], list[Mapping[str, Value]]] = {}
    for row in rows:
        shapes.setdefault(tuple(row), []).append(row)
    for names, alike in shapes.items():
        columns = table.writable(names)
        writers = [(each.name, each.writer(nested=nested)) for each in columns]
        statement = sql.SQL("copy {} ({}) from stdin").format(
            sql.Identifier(table.schema, table.name), _list([each.name for each in columns])
        )
        with target.cursor() as cursor, cursor.copy(statement) as copy:
            for row in alike:
                copy.write_row([write(row[column]) for column, write in writers])


def _list(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
