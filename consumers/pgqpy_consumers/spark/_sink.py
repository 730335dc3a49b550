"""Writing into a queue: ``df.write`` and ``df.writeStream`` with ``format("pgq")``.

Tasks stage their rows: each attempt of a task in a table of its own. A few rows travel in the
message to the driver instead, so that small micro-batches create no tables. The driver sends them
in one transaction when all tasks have succeeded. Rows of a task that failed, was repeated, or lost
against a speculative copy of itself are never sent, because only the messages that Spark accepted
name rows to send. A failed task needs no undo: its transaction takes the table with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, LiteralString, cast
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructType

import pgqpy
from pgqpy.errors import PayloadTooLarge, PgqError, translate_errors
from pgqpy.formats import HEADER, MAX_EVENT_BYTES, NEW_EVENT_COLUMNS, TRAILER, copy_in, event_table
from pgqpy_consumers.spark._options import Options, StreamWriteOptions, WriteOptions
from pgqpy_consumers.spark._ranges import conninfo

REQUIRED_COLUMNS = NEW_EVENT_COLUMNS[:2]

# Spark passes these to the tasks of a stream: the checkpoint's id, and the micro-batch's number.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class InvalidColumns(PgqError, ValueError):
    """The DataFrame's columns are not those of new events."""


class PgqWriter(DataSourceArrowWriter):
    """One ``df.write``. Its events become visible all at once, or not at all. Their order is the
    DataFrame's: partition after partition, each in the order of its rows."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check before Spark computes: raises InvalidColumns and the errors of sending."""
        check_columns(schema)
        self._options = options
        self._conninfo = checked_conninfo(options)
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition; runs on an executor."""
        return stage(self._conninfo, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send the staged rows of the tasks."""
        staged = cast("list[Staged]", messages)
        with self._options.connect("pgqpy spark sink") as conn:
            with translate_errors(), conn.transaction():
                send(conn, self._options.queue, staged)
            drop(conn, self._job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows of the tasks."""
        with self._options.connect("pgqpy spark sink") as conn:
            drop(conn, self._job)


class PgqStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of a ``df.writeStream``. Its events are sent once, even if it is repeated.

    The queue remembers, for each writer's name, the stream and its last micro-batch, in the
    transaction that sends the events.
    """

    def __init__(self, options: StreamWriteOptions, schema: StructType) -> None:
        """Check like `PgqWriter`. Spark makes one for each micro-batch, and another to end it."""
        check_columns(schema)
        self._options = options
        self._conninfo = checked_conninfo(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition; runs on an executor."""
        context = TaskContext.get()
        assert context is not None
        stream, batch = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        job = f"{UUID(stream).hex}_{batch}"
        return stage(self._conninfo, job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Send the micro-batch, unless it has been sent. Raises WriterInUse if another stream
        writes under the name, or this one was set back."""
        staged = cast("list[Staged]", messages)
        job = staged[0].job
        # Only the tasks know the stream; Spark runs at least one.
        stream = str(UUID(job.partition("_")[0]))
        with self._options.connect("pgqpy spark sink") as conn:
            with translate_errors(), conn.transaction():
                [(is_new,)] = conn.execute(
                    "select pgq.write_stream_batch(%s, %s, %s, %s)",
                    [self._options.queue, self._options.writer, stream, batchId],
                )
                if is_new:
                    send(conn, self._options.queue, staged)
            drop(conn, job)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard the staged rows of the tasks; the micro-batch is repeated."""
        for job in {part.job for part in messages if isinstance(part, Staged)}:
            with self._options.connect("pgqpy spark sink") as conn:
                drop(conn, job)


def check_columns(schema: StructType) -> None:
    """Raises InvalidColumns unless each column is a text of a new event."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in NEW_EVENT_COLUMNS]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if unknown:
        raise InvalidColumns(
            f"a new event has no column {', '.join(unknown)}",
            hint=f"It has {', '.join(NEW_EVENT_COLUMNS)}: select those, or put other columns into"
            ' ev_data with to_json(struct("*")).',
        )
    if missing:
        raise InvalidColumns(
            f"a new event needs column {', '.join(missing)}",
            hint=f'Add it, as in df.withColumn("{missing[0]}", lit("..."));'
            " a value in it may be null.",
        )
    for column in schema:
        if not isinstance(column.dataType, StringType):
            raise InvalidColumns(
                f"column {column.name} is {column.dataType.simpleString()}, must be string",
                hint=f'Cast it: df.withColumn("{column.name}",'
                f' col("{column.name}").cast("string")).',
            )


def checked_conninfo(options: Options) -> str:
    """The conninfo for executors; raises the errors of sending to the queue."""
    with options.connect("pgqpy spark sink") as conn:
        event_table(conn, options.queue)
        return conninfo(conn)


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


# --- staging, on executors, and sending


def stage(conninfo: str, job: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Store a partition's rows until `send`, in order; runs on an executor. Raises
    ConnectionFailed, PayloadTooLarge, and InvalidPayload, unless `send` does."""
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
    Raises StagedRowsLost, QueueNotFound, InsertDisabled, PermissionDenied and InvalidPayload."""
    with translate_errors(), conn.cursor() as cursor:
        # A scan must begin at the first row, even while another session scans the table.
        cursor.execute("set local synchronize_seqscans = off")
        target = event_table(conn, queue)
        [(relation,)] = cursor.execute("select pgq.queue_relation(%s)", [queue]).fetchall()
        for part in staged:
            if part.table is not None:
                _send_table(cursor, relation, part.table, part.count)
            elif part.rows:
                _copy(cursor, copy_in(target), [part.rows])


def drop(conn: pgqpy.Connection, job: str) -> None:
    """Drop the job's tables, including those of attempts that lost a race or are about to end.
    Tables that cannot be dropped now are left to pgq.maint_staging(): that is no reason to fail."""
    with suppress(psycopg.Error):
        tables = conn.execute("select pgq.staging_tables(%s)", [job]).fetchall()
        for (table,) in tables:
            with conn.transaction():
                # A dump of the database may hold a lock.
                conn.execute("set local lock_timeout = '1s'")
                # The table belongs to the queues' owner; only the job itself may truncate it.
                conn.execute(sql.SQL("truncate {}").format(_identifier(table)))
                conn.execute("select pgq.drop_staging(%s)", [table])


def _stage_in_table(conninfo: str, job: str, batches: Iterable[pa.RecordBatch]) -> Staged:
    count = 0

    def rows() -> Iterator[bytes]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield from copy_rows(batch)

    with translate_errors(), pgqpy.connect(conninfo) as conn, conn.cursor() as cursor:
        [(table,)] = conn.execute("select pgq.create_staging(%s)", [job])
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


def _send_table(cursor: psycopg.Cursor[Any], relation: str, table: str, count: int) -> None:
    insert = sql.SQL("insert into {relation} ({columns}) select {columns} from {table}").format(
        relation=sql.SQL(relation.replace("%", "%%")), table=_identifier(table), columns=_COLUMNS
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


# --- Arrow columns as rows of binary COPY, without a Python object for each value
#
# A row is its number of fields, then each field's length (-1: NULL) and bytes. So rows are built by
# joining the columns and their lengths as Arrow joins texts; COPY takes the joined column's buffer.

_COUNT = struct.pack(">h", len(NEW_EVENT_COLUMNS))
_NULL = struct.pack(">i", -1)


def copy_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows with all columns of a new event, in order; missing columns are NULL.

    Without COPY's header and trailer. Texts are not checked: the server refuses those that cannot
    be stored. Raises PayloadTooLarge.
    """
    rows, size = batch.num_rows, batch.nbytes
    if size > MAX_EVENT_BYTES:
        if rows == 1:
            raise PayloadTooLarge(f"an event of about {size:,} bytes is too large")
        # Joined texts have to fit into 2 GB.
        yield from copy_rows(batch.slice(0, rows // 2))
        yield from copy_rows(batch.slice(rows // 2))
    elif rows:
        present = set(batch.schema.names)
        fields: list[pa.Array | pa.Scalar] = [pa.scalar(_COUNT)]
        for name in NEW_EVENT_COLUMNS:
            fields += _field(batch.column(name)) if name in present else [pa.scalar(_NULL)]
        joined = pc.binary_join_element_wise(*fields, pa.scalar(b""))
        yield joined.buffers()[2].to_pybytes()


def _field(texts: pa.Array) -> list[pa.Array]:
    """Lengths, as COPY writes them, and contents."""
    data = texts.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(data), -1).to_numpy().astype(">i4")
    written = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(len(_NULL)), len(data), [None, pa.py_buffer(lengths)]
    )
    return [written.cast(pa.binary()), pc.fill_null(data, b"")]
