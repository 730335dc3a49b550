"""Writing into a queue: ``df.write`` and ``df.writeStream`` with ``format("pgq")``.

Tasks stage their rows (staging.py); the driver sends them in one transaction when all tasks have
succeeded. Rows of a task that failed, was repeated, or lost against a speculative copy of
itself are never sent, because only the messages that Spark accepted name rows to send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructType

from pgqpy._wire.copy_format import NEW_EVENT_COLUMNS
from pgqpy._wire.statements import call
from pgqpy.errors import PgqError, translate_errors
from pgqpy_consumers.spark import staging
from pgqpy_consumers.spark.options import Options, StreamWriteOptions, WriteOptions
from pgqpy_consumers.spark.ranges import conninfo

if TYPE_CHECKING:
    import pyarrow as pa

REQUIRED_COLUMNS = NEW_EVENT_COLUMNS[:2]

# Spark passes these to the tasks of a stream: the checkpoint's id, and the micro-batch's number.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class InvalidColumns(PgqError, ValueError):
    """The DataFrame's columns are not those of new events."""


class PgqWriter(DataSourceArrowWriter):
    """One ``df.write``. Its events become visible all at once, or not at all.

    Their order is the DataFrame's: partition after partition, each in the order of its rows.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check everything possible before Spark computes anything; runs on the driver.

        Raises InvalidColumns, QueueNotFound, InsertDisabled, ConnectionFailed.
        """
        check_columns(schema)
        self._options = options
        self._conninfo = checked_conninfo(options)
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> staging.Staged:
        """Stage one partition; runs on an executor."""
        return staging.stage(self._conninfo, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send the staged rows of the tasks."""
        staged = cast("list[staging.Staged]", messages)
        with self._options.connect("pgqpy spark sink") as conn:
            with translate_errors(), conn.transaction():
                staging.send(conn, self._options.queue, staged)
            staging.drop(conn, self._job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows of the tasks."""
        with self._options.connect("pgqpy spark sink") as conn:
            staging.drop(conn, self._job)


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> staging.Staged:
        """Stage one partition; runs on an executor."""
        context = TaskContext.get()
        assert context is not None
        stream, batch = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        job = f"{UUID(stream).hex}_{batch}"
        return staging.stage(self._conninfo, job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Send the micro-batch, unless it has been sent.

        Raises WriterInUse if another stream writes under the name, or this one was set back.
        """
        staged = cast("list[staging.Staged]", messages)
        job = staged[0].job
        # Only the tasks know the stream; Spark runs at least one.
        stream = str(UUID(job.partition("_")[0]))
        with self._options.connect("pgqpy spark sink") as conn:
            with translate_errors(), conn.transaction(), conn.cursor() as cursor:
                cursor.execute(
                    call("write_stream_batch", 4),
                    [self._options.queue, self._options.writer, stream, batchId],
                )
                if cursor.fetchall()[0][0]:
                    staging.send(conn, self._options.queue, staged)
            staging.drop(conn, job)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Discard the staged rows of the tasks; the micro-batch is repeated."""
        for job in {part.job for part in messages if isinstance(part, staging.Staged)}:
            with self._options.connect("pgqpy spark sink") as conn:
                staging.drop(conn, job)


def check_columns(schema: StructType) -> None:
    """Raises InvalidColumns unless each column is a text of a new event."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in NEW_EVENT_COLUMNS]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if unknown:
        raise InvalidColumns(
            f"a new event has no column {_listed(unknown)}",
            hint=f"It has {_listed(NEW_EVENT_COLUMNS)}: select those, or put other columns into"
            ' ev_data with to_json(struct("*")).',
        )
    if missing:
        raise InvalidColumns(
            f"a new event needs column {_listed(missing)}",
            hint=f'Add it, as in df.withColumn("{missing[0]}", lit("..."));'
            " a value in it may be null.",
        )
    for field in schema:
        if not isinstance(field.dataType, StringType):
            raise InvalidColumns(
                f"column {field.name} is {field.dataType.simpleString()}, must be string",
                hint=f'Cast it: df.withColumn("{field.name}", col("{field.name}").cast("string")).',
            )


def checked_conninfo(options: Options) -> str:
    """The conninfo for executors; raises the errors of sending to the queue."""
    with options.connect("pgqpy spark sink") as conn, translate_errors():
        conn.execute(call("current_event_table", 1), [options.queue])
        return conninfo(conn)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
