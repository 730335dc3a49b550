"""What the tasks of a job have written, until its driver sends it: rows become events together.

A task's rows go into a table of its attempt's own; a few travel in the message to the driver
instead, so that small micro-batches create no tables. Nothing is to be undone when a task fails:
its transaction takes the table with it.
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
from pgqpy.calls import call, copy_in
from pgqpy.copy_format import HEADER, NEW_EVENT_COLUMNS, TRAILER
from pgqpy.errors import PgqError, translate_errors
from pgqpy_consumers.spark.copy_rows import copy_rows

if TYPE_CHECKING:
    import pyarrow as pa

# Up to so many bytes of a task travel with its message: no table, at the price of a driver that
# holds as much for each task.
INLINE_BYTES = 128 * 1024

# Frozen: nobody sees the table before it is committed, and who reads it then need not find out
# who wrote each row, nor write that down.
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
    """What one attempt of a task has written: into ``table``, or ``rows`` themselves."""

    job: str
    count: int
    rows: bytes = field(default=b"", repr=False)
    """As COPY takes them."""
    table: str | None = None


def stage(conninfo: str, job: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Keep a partition's rows until `send`, in their order; runs on an executor.

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
    """Make events of staged rows, in the order of the partitions, in the caller's transaction.

    Raises StagedRowsLost, QueueNotFound, InsertDisabled, PermissionDenied and InvalidPayload.
    """
    with translate_errors(), conn.cursor(row_factory=tuple_row) as cursor:
        # A scan begins at the first row, also when somebody else is reading the table.
        cursor.execute("set local synchronize_seqscans = off")
        # Asked for in the transaction that writes: so a rotation in between is noticed.
        cursor.execute(call("current_event_table", 1), [queue])
        target = str(cursor.fetchall()[0][0])
        for part in staged:
            if part.table is not None:
                _send_table(cursor, target, part.table, part.count)
            elif part.rows:
                _copy(cursor, copy_in(target), [part.rows])


def drop(conn: pgqpy.Connection, job: str) -> None:
    """Drop the job's tables, those of attempts that lost a race or are about to end included.

    What cannot be dropped now is left to pgq.maint_staging(): it is no reason to fail.
    """
    with suppress(psycopg.Error):
        tables = conn.execute("select pgq.staging_tables(%s)", [job]).fetchall()
        for (table,) in tables:
            with conn.transaction():
                # Somebody may be dumping the database.
                conn.execute("set local lock_timeout = '1s'")
                # It belongs to the queues; emptying it is what only the job may do.
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
