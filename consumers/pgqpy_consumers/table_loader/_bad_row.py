"""An error for a row that its table refuses, with the event and the column."""

from __future__ import annotations

import psycopg
from psycopg import sql

import pgqpy
from pgqpy.errors import PgqError
from pgqpy_consumers.apply import ApplyError, Change, Table

#: Data, constraints and errors raised by triggers; the rest is about tables, rights and the server.
_ABOUT_ROWS = ("22", "23", "P0")


class BadRow(PgqError):
    """A row does not fit into its table."""


def is_about_rows(error: ApplyError) -> bool:
    """Whether a row caused the error, so that the others can be applied without it."""
    return (error.sqlstate or "").startswith(_ABOUT_ROWS)


def bad_row(
    target: pgqpy.Connection, event_id: int, change: Change, error: ApplyError, *, nested: bool
) -> BadRow:
    """The error for the one change that is left; it names its event, table and column."""
    column = _refused(target, error.table, change, nested=nested)
    where = f'column "{column}" of table {error.table}' if column else f"table {error.table}"
    said = error.__cause__.diag if isinstance(error.__cause__, psycopg.Error) else None
    made = BadRow(
        f"event {event_id} ({change.operation}) does not fit into {where}:"
        f" {said.message_primary if said else error.message}",
        detail=error.detail,
        hint="Change the table, or the row, and replay the event.",
        sqlstate=error.sqlstate,
    )
    made.__cause__ = error
    return made


def _refused(target: pgqpy.Connection, table: Table, change: Change, *, nested: bool) -> str | None:
    """The column whose type refuses its value. PostgreSQL does not always name it, except for a
    column that must not be null."""
    if not (change.values and table.columns):
        return None
    shadow = sql.Identifier("pg_temp", "pgqpy_shadow")
    with target.transaction(force_rollback=True):
        target.execute(
            sql.SQL("create temp table pgqpy_shadow as select * from {} with no data").format(
                table.identifier
            )
        )
        for column in table.writable(tuple(change.values)):
            value = change.values[column.name]
            try:
                written = column.writer(nested=nested)(value)
                with target.transaction():
                    target.execute(
                        sql.SQL("insert into {} ({}) values ({})").format(
                            shadow, sql.Identifier(column.name), sql.Literal(written)
                        )
                    )
            except (psycopg.DataError, RecursionError):
                return column.name
    return None
