"""Sequences: their positions are copied now and then, always some way ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql
from psycopg.rows import class_row

import pgqpy
from pgqpy_consumers.replicate._source import NO_VIEWS
from pgqpy_consumers.replicate._state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A sequence of the source and its copy."""

    source_schema: str
    source_sequence: str
    target_schema: str
    target_sequence: str

    @property
    def source(self) -> tuple[str, str]:
        return self.source_schema, self.source_sequence

    @property
    def target(self) -> tuple[str, str]:
        return self.target_schema, self.target_sequence

    def __str__(self) -> str:
        return f"{self.source_schema}.{self.source_sequence}"


_LIST: LiteralString = """
select rps_source_schema as source_schema, rps_source_sequence as source_sequence,
       rps_target_schema as target_schema, rps_target_sequence as target_sequence
  from pgq_ext.replica_sequence
 where rps_queue = %s and rps_consumer = %s
 order by 1, 2
"""

_LIMITS: LiteralString = """
select s.seqincrement, s.seqmin, s.seqmax
  from pg_catalog.pg_sequence s
  join pg_catalog.pg_class c on c.oid = s.seqrelid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s
"""

_OWNED: LiteralString = """
select pg_catalog.parse_ident(pg_catalog.pg_get_serial_sequence(%(table)s, a.attname)), a.attname
  from pg_catalog.pg_attribute a
 where a.attrelid = %(table)s::regclass and a.attnum > 0 and not a.attisdropped
   and pg_catalog.pg_get_serial_sequence(%(table)s, a.attname) is not null
"""


def sequences(state: State) -> list[Sequence]:
    """The sequences of a replication."""
    with state.conn.cursor(row_factory=class_row(Sequence)) as cursor:
        return cursor.execute(_LIST, state.names).fetchall()


def add(
    state: State, source: tuple[str, str], target: tuple[str, str], table: int | None = None
) -> bool:
    """Add a sequence; False if it is there already. ``table`` is the replica that it came with."""
    done = state.conn.execute(
        "insert into pgq_ext.replica_sequence values (%s, %s, %s, %s, %s, %s, %s)"
        " on conflict do nothing",
        [*state.names, *source, *target, table],
    )
    return done.rowcount == 1


def remove(state: State, source: tuple[str, str]) -> bool:
    """Remove a sequence; False if it was not there."""
    done = state.conn.execute(
        "delete from pgq_ext.replica_sequence where rps_queue = %s and rps_consumer = %s"
        " and rps_source_schema = %s and rps_source_sequence = %s",
        [*state.names, *source],
    )
    return done.rowcount == 1


def owned(conn: pgqpy.Connection, table: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """The sequences behind serial and identity columns, by column."""
    quoted = sql.Identifier(*table).as_string(conn)
    return {
        column: (names[0], names[1])
        for names, column in conn.execute(_OWNED, {"table": quoted}).fetchall()
    }


def carry_over(source: pgqpy.Connection, state: State, ahead: int) -> None:
    """Set each so that the next ``ahead`` values of the source's stay behind it. A sequence is left
    alone while half of that distance is left: nothing is written for an unused sequence."""
    for each in sequences(state):
        limits = source.execute(_LIMITS, each.source).fetchone()
        there = position(state.conn, each.target)
        if limits is None or there is None:
            continue
        increment, least, most = limits
        found = last_value(source, each.source)
        far_enough = found + increment * (ahead // 2)
        if (there - far_enough) * increment < 0 or (ahead == 0 and there != found):
            new = min(max(found + increment * ahead, least), most)
            state.conn.execute(
                "select pg_catalog.setval(pg_catalog.format('%%I.%%I', %s::text, %s::text), %s)",
                [*each.target, new],
            )


def position(conn: pgqpy.Connection, names: tuple[str, str]) -> int | None:
    """The last value; None if there is no such sequence."""
    if conn.execute(_LIMITS, names).fetchone() is None:
        return None
    return last_value(conn, names)


def last_value(conn: pgqpy.Connection, names: tuple[str, str]) -> int:
    """The last value of a sequence, and of nothing else."""
    # Both statements are one transaction.
    cursor = conn.execute(
        sql.SQL(NO_VIEWS) + sql.SQL("select last_value from {}").format(sql.Identifier(*names)),
        prepare=False,
    )
    cursor.nextset()
    [(value,)] = cursor
    return int(value)
