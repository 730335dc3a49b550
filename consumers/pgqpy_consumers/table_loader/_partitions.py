"""Partitions by time, created when rows need them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, LiteralString

from psycopg import sql

import pgqpy
from pgqpy.errors import InvalidParameter
from pgqpy_consumers.apply import Table
from pgqpy_consumers.apply._change import Value, text

Every = Literal["hour", "day", "month", "year"]

#: In UTC, like the names; the zone of a session may change.
_TIMES = {"timestamp with time zone": "timestamptz", "timestamp without time zone": "timestamp"}
_TIMES |= {"date": "date"}
_NAMES = {"hour": "YYYY_MM_DD_HH24", "day": "YYYY_MM_DD", "month": "YYYY_MM", "year": "YYYY"}

_COLUMN: LiteralString = """
select p.partstrat::text, array(
       select a.attname::text
         from pg_catalog.unnest(p.partattrs::int2[]) k
         left join pg_catalog.pg_attribute a on a.attrelid = p.partrelid and a.attnum = k)
  from pg_catalog.pg_partitioned_table p
 where p.partrelid = %s::oid
"""

#: Times with a zone are cut in UTC, those without as they are.
_NEEDED: LiteralString = """
with wanted as (
    select distinct date_trunc(%(every)s, {moment}) as start
      from pg_catalog.unnest(%(values)s::text[]) v
     where v is not null and isfinite(v::{type}))
select to_char(start, %(name)s),
       (start::text || {zone})::{type}::text,
       ((start + ('1 ' || %(every)s)::interval)::text || {zone})::{type}::text
  from wanted
 order by start
"""


def partition_column(target: pgqpy.Connection, table: Table) -> str | None:
    """The column by whose ranges a table is partitioned; None if it is not partitioned. Raises
    InvalidParameter if it is partitioned in another way."""
    row = target.execute(_COLUMN, [table.oid]).fetchone()
    if row is None:
        return None
    strategy, columns = row
    column: str | None = columns[0] if strategy == "r" and len(columns) == 1 else None
    if column is None or table.columns[column].type not in _TIMES:
        raise InvalidParameter(
            f"table {table} is not partitioned by ranges of one column of time",
            hint="Partitions can be made for PARTITION BY RANGE (column), the column being a date"
            " or a timestamp. For this table make them yourself, and leave out `partitions`.",
        )
    return column


def make_partitions(
    target: pgqpy.Connection, table: Table, column: str, every: Every, values: Iterable[Value]
) -> None:
    """Create the partitions that rows with these values need, in the caller's transaction. They are
    named ``table_2026_11_21``, in UTC. Readers and writers of the table are not blocked."""
    kind = _TIMES[table.columns[column].type]
    in_utc = kind == "timestamptz"
    statement = sql.SQL(_NEEDED).format(
        moment=sql.SQL("v::timestamptz at time zone 'UTC'" if in_utc else "v::timestamp"),
        type=sql.SQL(kind),
        zone=sql.Literal("+00" if in_utc else ""),
    )
    parameters = {
        "every": every,
        "name": _NAMES[every],
        "values": list({text(value) for value in values}),
    }
    for suffix, start, end in target.execute(statement, parameters).fetchall():
        name = f"{table.name}_{suffix}"
        if len(name.encode()) > 63:
            raise InvalidParameter(
                f"the partition's name {name} is too long",
                hint="A name has up to 63 bytes: give the table a shorter one.",
            )
        _make(target, table, name, start, end)


def _make(target: pgqpy.Connection, table: Table, name: str, start: str, end: str) -> None:
    there = target.execute(
        "select from pg_catalog.pg_class c"
        " where relname = %s and relnamespace = (select relnamespace from pg_catalog.pg_class"
        " where oid = %s::oid)",
        [name, table.oid],
    ).fetchone()
    if there is not None:
        return
    partition = sql.Identifier(table.schema, name)
    parent = table.identifier
    # Attaching blocks no readers or writers; CREATE TABLE .. PARTITION OF locks out all sessions.
    target.execute(
        sql.SQL(
            "create table {} (like {} including defaults including constraints including generated"
            " including storage including comments)"
        ).format(partition, parent)
    )
    target.execute(
        sql.SQL("alter table {} attach partition {} for values from ({}) to ({})").format(
            parent, partition, sql.Literal(start), sql.Literal(end)
        )
    )
