"""What the tasks of a job have written, until its driver sends it: rows become events together.

A task's rows go into a table of its attempt's own; a few travel in the message to the driver
instead, so that small micro-batches create no tables. Nothing is to be undone when a task fails:
its transaction takes the table with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row
from pyspark.sql.datasource import WriterCommitMessage

import pgqpy
from pgqpy.calls import call, copy_in
from pgqpy.copy_format import NEW_EVENT_COLUMNS
from pgqpy.errors import InvalidPayload, PgqError, translate_errors

if TYPE_CHECKING:
    import pyarrow as pa

Row: TypeAlias = Sequence[str | None]
"""A new event: ev_type, ev_data, ev_extra1 to ev_extra4."""

# Up to so many bytes of a task travel with its message: no table, at the price of a driver that
# holds as much for each task.
INLINE_BYTES = 128 * 1024


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
    rows: Sequence[Row] = field(default=(), repr=False)
    table: str | None = None


def stage(conninfo: str, job: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Keep a partition's rows until `send`, in their order; runs on an executor.

    Raises ConnectionFailed, and for the rows InvalidPayload or PayloadTooLarge.
    """
    few: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        few.append(batch)
        size += batch.nbytes
        if size > INLINE_BYTES:
            return _stage_in_table(conninfo, job, _rows(chain(few, batches)))
    rows = list(_rows(few))
    return Staged(job, len(rows), rows=rows)


def send(conn: pgqpy.Connection, queue: str, staged: Sequence[Staged]) -> None:
    """Make events of staged rows, in the order of the partitions, in the caller's transaction.

    Raises StagedRowsLost, and what `pgqpy.Producer.insert_events` raises.
    """
    producer = pgqpy.Producer(queue)
    # A scan begins at the first row, also when somebody else is reading the table.
    conn.execute("set local synchronize_seqscans = off")
    for part in staged:
        if part.table is None:
            producer.insert_events(conn, part.rows)
        else:
            _send_table(conn, queue, part.table, part.count)


def drop(conn: pgqpy.Connection, job: str) -> None:
    """Drop the job's tables, those of attempts that lost a race included.

    What cannot be dropped now is left to pgq.maint_staging(): it is no reason to fail.
    """
    with suppress(psycopg.Error):
        tables = conn.execute("select pgq.staging_tables(%s)", [job]).fetchall()
        for (table,) in tables:
            with conn.transaction():
                # Somebody may be dumping the database.
                conn.execute("set local lock_timeout = '1s'")
                conn.execute(sql.SQL("drop table if exists {}").format(_identifier(table)))


def _stage_in_table(conninfo: str, job: str, rows: Iterable[Row]) -> Staged:
    count = 0
    with (
        translate_errors(),
        pgqpy.connect(conninfo) as conn,
        conn.cursor(row_factory=tuple_row) as cursor,
    ):
        cursor.execute(call("create_staging", 1), [job])
        table = str(cursor.fetchall()[0][0])
        with cursor.copy(copy_in(table)) as copy:
            copy.set_types(["text"] * len(NEW_EVENT_COLUMNS))
            for row in rows:
                copy.write_row(row)
                count += 1
    return Staged(job, count, table=table)


def _send_table(conn: pgqpy.Connection, queue: str, table: str, count: int) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, NEW_EVENT_COLUMNS))
    with translate_errors(), conn.cursor(row_factory=tuple_row) as cursor:
        # Asked for in the transaction that writes: so a rotation in between is noticed.
        cursor.execute(call("current_event_table", 1), [queue])
        target = str(cursor.fetchall()[0][0])
        insert = sql.SQL("insert into {target} ({columns}) select {columns} from {table}").format(
            target=_identifier(target), table=_identifier(table), columns=columns
        )
        try:
            cursor.execute(insert)
        except psycopg.errors.UndefinedTable:
            raise StagedRowsLost(f"staging table {table} with {count:,} rows is gone") from None
        if cursor.rowcount != count:
            raise StagedRowsLost(
                f"staging table {table} has {cursor.rowcount:,} rows of the {count:,} written"
            )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """The rows with all columns of a new event, in their order; those that are missing NULL."""
    for batch in batches:
        present = set(batch.schema.names)
        try:
            yield from zip(
                *(
                    batch.column(name).to_pylist()
                    if name in present
                    else repeat(None, batch.num_rows)
                    for name in NEW_EVENT_COLUMNS
                ),
                strict=True,
            )
        except UnicodeDecodeError as error:
            raise InvalidPayload(f"a text is not valid UTF-8: {error.reason}") from error


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split(".", 1))
