"""Merging several tables at once, in the order that their foreign keys require."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import LiteralString

import psycopg

import pgqpy
from pgqpy.errors import PgqError, from_psycopg
from pgqpy_consumers.apply.latest import Latest
from pgqpy_consumers.apply.merge import clear, delete, upsert
from pgqpy_consumers.apply.table import Table

#: Classes of SQLSTATEs about rows and tables: data, constraints, names, rights and errors raised
#: by triggers. All others are about the server.
_ABOUT_TABLES = ("21", "22", "23", "27", "42", "44", "P0")

_FOREIGN_KEYS: LiteralString = """
select conrelid, confrelid
  from pg_catalog.pg_constraint
 where contype = 'f' and not condeferrable and conrelid <> confrelid
   and conrelid = any (%(tables)s) and confrelid = any (%(tables)s)
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
                clear(conn, table, latest)
                delete(conn, table, latest)
                upsert(conn, table, latest, nested=nested)
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
    except (psycopg.Error, PgqError) as error:
        if isinstance(error, psycopg.Error):
            if not is_about_tables(error):
                raise
            said = from_psycopg(error)
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
