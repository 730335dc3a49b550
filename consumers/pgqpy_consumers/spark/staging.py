"""Staged rows: rows that tasks have written, until the driver sends them all together.

The rows of a task's attempt go into a table of its own. A few rows travel in the message to the
driver instead, so that small micro-batches create no tables. A failed task needs no undo: its
transaction takes the table with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from pyspark.sql.datasource import WriterCommitMessage

import pgqpy
from pgqpy._wire.copy_format import HEADER, NEW_EVENT_COLUMNS, TRAILER
from pgqpy._wire.statements import call, copy_in
from pgqpy.errors import PgqError, translate_errors
from pgqpy_consumers.spark.copy_rows import copy_rows

if TYPE_CHECKING:
    import pyarrow as pa

# The most bytes of a task that travel with its message: this saves a table, but the driver holds
# the bytes of all tasks.
INLINE_BYTES = 128 * 1024

# Frozen: the table is invisible until it is committed, so readers need not check the transaction
# of each row, nor write hint bits.
_COPY: LiteralString = "copy {} ({}) from stdin (format binary, freeze)"
_COLUMNS = sql.SQL(", ").join(map(sql.Identifier, NEW_EVENT_COLUMNS))


class StagedRowsLost(PgqError):
    """Rows that a task had written were gone when they should have been sent."""

    default_hint = (
        "Nothing was sent: write again. Staging tables are unlogged, so a crash of the server or"
        " a failover empties them; maintenance drops those of jobs that have paused for a day."
    )


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The rows that one attempt of a task has written: in ``table``, or in ``rows``."""

    job: str
    count: int
    rows: bytes = field(default=b"", repr=False)
    """The rows in COPY's format."""
    table: str | None = None


def stage(conninfo: str, job: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Store a partition's rows until `send`, in order; runs on an executor.

    Raises ConnectionFailed, PayloadTooLarge, and InvalidPayload, unless `send` does.
    """
    few: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        few.append(batch)
        size += batch.nbytes
        if size > INLINE_BYTES:
            return _stage_in_table(conninfo, job, chain(few, batches))
    rows = b"".join(part for batch in few for part in copy_rows(batch))
    return Staged(job, sum(batch.num_rows for batch in few), rows=rows)


def send(conn: pgqpy.Connection, queue: str, staged: Sequence[Staged]) -> None:
    """Send staged rows as events, in the order of the partitions, in the caller's transaction.

    Raises StagedRowsLost, QueueNotFound, InsertDisabled, PermissionDenied and InvalidPayload.
    """
    with translate_errors(), conn.cursor(row_factory=tuple_row) as cursor:
        # A scan must begin at the first row, even while another session scans the table.
        cursor.execute("set local synchronize_seqscans = off")
        # Called in the transaction that writes, so that a rotation in between is detected.
        cursor.execute(call("current_event_table", 1), [queue])
        target = str(cursor.fetchall()[0][0])
        for part in staged:
            if part.table is not None:
                _send_table(cursor, target, part.table, part.count)
            elif part.rows:
                _copy(cursor, copy_in(target), [part.rows])


def drop(conn: pgqpy.Connection, job: str) -> None:
    """Drop the job's tables, including those of attempts that lost a race or are about to end.

    Tables that cannot be dropped now are left to pgq.maint_staging(): that is no reason to fail.
    """
    with suppress(psycopg.Error):
        tables = conn.execute("select pgq.staging_tables(%s)", [job]).fetchall()
        for (table,) in tables:
            with conn.transaction():
                # A dump of the database may hold a lock.
                conn.execute("set local lock_timeout = '1s'")
                # The table belongs to the queues' owner; only the job itself may truncate it.
                conn.execute(sql.SQL("truncate {}").format(_identifier(table)))
                conn.execute(call("drop_staging", 1), [table])


def _stage_in_table(conninfo: str, job: str, batches: Iterable[pa.RecordBatch]) -> Staged:
    count = 0

    def rows() -> Iterator[bytes]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield from copy_rows(batch)

    with (
        translate_errors(),
        pgqpy.connect(conninfo) as conn,
        conn.cursor(row_factory=tuple_row) as cursor,
    ):
        cursor.execute(call("create_staging", 1), [job])
        table = str(cursor.fetchall()[0][0])
        _copy(cursor, sql.SQL(_COPY).format(_identifier(table), _COLUMNS), rows())
    return Staged(job, count, table=table)


def _copy(
    cursor: psycopg.Cursor[Any], statement: bytes | sql.Composed, rows: Iterable[bytes]
) -> None:
    with cursor.copy(statement) as copy:
        copy.write(HEADER)
        for some in rows:
            copy.write(some)
        copy.write(TRAILER)


def _send_table(cursor: psycopg.Cursor[Any], target: str, table: str, count: int) -> None:
    insert = sql.SQL("insert into {target} ({columns}) select {columns} from {table}").format(
        target=_identifier(target), table=_identifier(table), columns=_COLUMNS
    )
    try:
        cursor.execute(insert)
    except psycopg.errors.UndefinedTable:
        raise StagedRowsLost(f"staging table {table} with {count:,} rows is gone") from None
    if cursor.rowcount != count:
        raise StagedRowsLost(
            f"staging table {table} has {cursor.rowcount:,} rows of the {count:,} written"
        )


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))
