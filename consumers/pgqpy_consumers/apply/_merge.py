"""Merging the last states of many keys into tables: COPY, then one statement for all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import LiteralString

import psycopg
from psycopg import sql

import pgqpy
from pgqpy.errors import NoPrimaryKey, PgqError, from_psycopg
from pgqpy_consumers.apply._change import Latest, Row
from pgqpy_consumers.apply._table import Column, Table

#: Another row has the value now: rows of a batch can exchange unique values.
_CONFLICTS = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)


def merge(conn: pgqpy.Connection, table: Table, latest: Latest, *, nested: bool = False) -> None:
    """Bring a table to its last state, in the caller's transaction.

    ``nested``: whether the values have the format ``row_json``. Raises ColumnMissing, NoPrimaryKey,
    and psycopg.Error if the table refuses a row.
    """
    clear(conn, table, latest)
    delete(conn, table, latest)
    upsert(conn, table, latest, nested=nested)


def clear(conn: pgqpy.Connection, table: Table, latest: Latest) -> None:
    """Execute the TRUNCATE, if there was one."""
    if latest.truncated:
        statement = "delete from {}" if table.referenced else "truncate {}"
        conn.execute(sql.SQL(statement).format(table.identifier))


def delete(
    conn: pgqpy.Connection, table: Table, latest: Latest, *, after_upsert: bool = False
) -> None:
    """Remove the rows that were deleted.

    ``after_upsert``: keep rows whose key equals that of a new one. Equal keys may be written
    differently: 1.0 and 1.00, or 'a' and 'A' in a case-insensitive text.
    """
    if not latest.gone:
        return
    columns = table.writable(_key(table, latest))
    gone = stage(conn, columns, latest.gone.values(), nested=False)
    statement = sql.SQL("delete from {} t using {} s where {}").format(
        table.identifier, gone, _equal(columns)
    )
    if after_upsert and latest.rows:
        there = stage(conn, columns, latest.rows.values(), nested=False, what="there")
        statement += sql.SQL(" and not exists (select from {} s where {})").format(
            there, _equal(columns)
        )
    conn.execute(statement)


def upsert(conn: pgqpy.Connection, table: Table, latest: Latest, *, nested: bool = False) -> None:
    """Insert the new rows and update the existing ones."""
    if not latest.rows:
        return
    key = _key(table, latest)
    for names, rows in by_columns(latest.rows.values()).items():
        columns = table.writable(names)
        staged = stage(conn, columns, rows, nested=nested)
        try:
            # A single row cannot conflict with another one of the batch.
            if len(latest.rows) + len(latest.gone) == 1:
                conn.execute(_insert_or_update(table, columns, key, staged))
            else:
                with conn.transaction():
                    conn.execute(_insert_or_update(table, columns, key, staged))
        except _CONFLICTS:
            if len(latest.rows) + len(latest.gone) == 1:
                raise
            conn.execute(_replace(table, columns, key, staged))


def _insert_or_update(
    table: Table, columns: Sequence[Column], key: Sequence[str], staged: sql.Identifier
) -> sql.Composed:
    changed = [each for each in columns if not each.always_identity]
    action = (
        sql.SQL("update set {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(each.name)) for each in changed
            )
        )
        if len(columns) > len(key) and changed
        else sql.SQL("nothing")
    )
    return sql.SQL("{} on conflict ({}) do {}").format(
        _insert(table, columns, staged), identifiers(key), action
    )


def _replace(
    table: Table, columns: Sequence[Column], key: Sequence[str], staged: sql.Identifier
) -> sql.Composed:
    """The upsert for rows that have exchanged unique values: delete all, insert all. In one
    statement, so that foreign keys are checked when all rows are back."""
    keys = [each for each in columns if each.name in key]
    return sql.SQL(
        "with gone as (delete from {} t using {} s where {} returning 1)"
        " {} where (select count(*) from gone) is not null"
    ).format(table.identifier, staged, _equal(keys), _insert(table, columns, staged))


def _insert(table: Table, columns: Sequence[Column], staged: sql.Identifier) -> sql.Composed:
    names = identifiers([each.name for each in columns])
    return sql.SQL("insert into {} ({}) overriding system value select {} from {}").format(
        table.identifier, names, names, staged
    )


def stage(
    conn: pgqpy.Connection,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    nested: bool = False,
    what: str = "",
) -> sql.Identifier:
    """A temporary table with the rows. It is kept for the session: creating it for each batch would
    leave dead rows in the catalog."""
    shape = repr((what, [(each.name, each.type) for each in columns]))
    name = sql.Identifier(
        "pg_temp", "pgqpy_" + hashlib.md5(shape.encode(), usedforsecurity=False).hexdigest()
    )
    conn.execute(
        sql.SQL(
            "create temp table if not exists {0} ({1}) on commit delete rows; delete from {0}"
        ).format(
            name,
            sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type))
                for each in columns
            ),
        ),
        # Two statements cannot be prepared as one.
        prepare=False,
    )
    copy_rows(conn, name, columns, rows, nested=nested)
    return name


def by_columns(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The rows by their columns: some may have been added between two events of a batch."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row), []).append(row)
    return found


def copy_rows(
    conn: pgqpy.Connection,
    table: sql.Identifier,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    nested: bool,
) -> None:
    """Append rows by COPY; ``nested`` as for `merge`."""
    writers = [(each.name, each.writer(nested=nested)) for each in columns]
    names = identifiers([each.name for each in columns])
    statement = sql.SQL("copy {} ({}) from stdin").format(table, names)
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row([write(row[column]) for column, write in writers])


def _key(table: Table, latest: Latest) -> tuple[str, ...]:
    if frozenset(latest.key_columns) not in table.keys:
        wanted = ", ".join(latest.key_columns)
        raise NoPrimaryKey(
            f"table {table} has no unique index on ({wanted}), the key of the changes"
            if wanted
            else f"changes for table {table} have no key",
            hint=f"Create one in the target: ALTER TABLE {table} ADD PRIMARY KEY ({wanted}).",
        )
    return latest.key_columns


def _equal(keys: Sequence[Column]) -> sql.Composed:
    return sql.SQL(" and ").join(
        sql.SQL("t.{0} {1} s.{0}").format(sql.Identifier(each.name), sql.SQL(each.equals))
        for each in keys
    )


def identifiers(names: Iterable[str]) -> sql.Composed:
    """Names in a statement, with commas between them."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


# --- several tables, in the order that their foreign keys require

#: Classes of SQLSTATEs about rows and tables: data, constraints, names, rights and errors raised
#: by triggers. All others are about the server.
_ABOUT_TABLES = ("21", "22", "23", "27", "42", "44", "P0")

#: What a value is that is not valid for its type.
_NESTED = "22023"

_FOREIGN_KEYS: LiteralString = """
select conrelid, confrelid
  from pg_catalog.pg_constraint
 where contype = 'f' and not condeferrable and conrelid <> confrelid
   and conrelid = any (%(tables)s::oid[]) and confrelid = any (%(tables)s::oid[])
"""


class ApplyError(PgqError):
    """A table refuses its changes, or lacks something that they need."""

    table: Table


def is_about_tables(error: psycopg.Error) -> bool:
    """Whether the table or its rows caused the error, and not the server or the connection."""
    return (error.sqlstate or "").startswith(_ABOUT_TABLES)


def apply_all(
    conn: pgqpy.Connection,
    work: Sequence[tuple[Table, Latest]],
    *,
    nested: bool = False,
    foreign_keys: bool = True,
) -> None:
    """Merge the changes of several tables, in the caller's transaction.

    Use ``foreign_keys=False`` if the session's ``session_replication_role`` is ``replica``, which
    enforces none. Raises ApplyError, which names the table.
    """
    order = _parents_first(conn, [table for table, _ in work]) if foreign_keys else None
    if order is None:
        for table, latest in work:
            with naming(table):
                merge(conn, table, latest, nested=nested)
        return
    sorted_work = sorted(work, key=lambda each: order[each[0].oid])
    # Referencing rows are inserted after the referenced ones and deleted before them.
    for table, latest in reversed(sorted_work):
        with naming(table):
            clear(conn, table, latest)
    for table, latest in sorted_work:
        with naming(table):
            upsert(conn, table, latest, nested=nested)
    for table, latest in reversed(sorted_work):
        with naming(table):
            delete(conn, table, latest, after_upsert=True)


def _parents_first(conn: pgqpy.Connection, tables: Iterable[Table]) -> Mapping[int, int] | None:
    """The place of each table; None if no foreign key is checked before the commit."""
    oids = [table.oid for table in tables]
    conn.execute("set constraints all deferred")
    parents: dict[int, set[int]] = {oid: set() for oid in oids}
    if len(oids) > 1:
        for child, parent in conn.execute(_FOREIGN_KEYS, {"tables": oids}):
            parents[child].add(parent)
    if not any(parents.values()):
        return None
    try:
        return {oid: at for at, oid in enumerate(TopologicalSorter(parents).static_order())}
    except CycleError as error:
        raise PgqError(
            "foreign keys of the target's tables form a circle that no order satisfies",
            hint="Make one of them deferrable: ALTER TABLE ... ALTER CONSTRAINT ... DEFERRABLE.",
        ) from error


@contextmanager
def naming(table: Table) -> Iterator[None]:
    """Add the table's name to errors inside the block that are about the table."""
    try:
        yield
    except (psycopg.Error, PgqError, RecursionError) as error:
        if isinstance(error, psycopg.Error):
            if not is_about_tables(error):
                raise
            said = from_psycopg(error)
        elif isinstance(error, RecursionError):
            said = PgqError("a value is nested too deeply", sqlstate=_NESTED)
        else:
            said = error
        named = ApplyError(
            f"table {table} cannot be changed: {said.message}",
            hint=said.hint,
            detail=said.detail,
            sqlstate=said.sqlstate,
        )
        named.table = table
        raise named from error
