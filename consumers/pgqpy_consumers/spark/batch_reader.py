"""Reading a range of ticks as one DataFrame: the same events at each action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgqpy_consumers.spark import ranges
from pgqpy_consumers.spark.event_rows import decoding
from pgqpy_consumers.spark.offset import Offset
from pgqpy_consumers.spark.options import ReadOptions
from pgqpy_consumers.spark.reader import EventPartition
from pgqpy_consumers.spark.slices import DEFAULT_PARTITIONS, slices_between

if TYPE_CHECKING:
    import pyarrow as pa

Span: TypeAlias = tuple[Offset, Offset]
"""The events after one tick up to another."""


def pin(options: ReadOptions) -> Span:
    """The span that the options mean now; later, the newest tick or the consumer's differs.

    Raises the errors of `ranges` and of connecting.
    """
    with options.connect("pgqpy spark read") as conn:
        queue = options.queue
        if options.consumer is not None:
            return ranges.position(conn, queue, options.consumer), ranges.newest(conn, queue)
        if options.start_tick is not None:
            start = ranges.offset_at(conn, queue, options.start_tick)
        elif options.start_time is not None:
            start = ranges.before(conn, queue, options.start_time)
        else:
            start = ranges.earliest(conn, queue)
        if options.end_tick is not None:
            end = ranges.offset_at(conn, queue, options.end_tick)
        elif options.end_time is not None:
            end = ranges.after(conn, queue, options.end_time)
        else:
            end = ranges.newest(conn, queue)
        return start, end


class PgqReader(DataSourceReader):
    """Reads a span of a queue in slices, each in a task and on a connection of its own.

    It does not take filters from Spark, which would keep those of one action for the next.
    """

    def __init__(self, options: ReadOptions, schema: StructType, span: Span) -> None:
        self._options = options
        self._start, self._end = span
        self._decoding = decoding(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Ask for the query now: rotation may have gone on since the range was pinned."""
        options = self._options
        with options.connect("pgqpy spark read") as conn:
            ranges.check(conn, options.queue, self._end)
            source = ranges.range_source(
                conn,
                options.queue,
                self._start,
                self._end,
                columns=self._decoding.columns,
                where=options.where,
                consumer=options.consumer,
            )
        most = options.num_partitions or DEFAULT_PARTITIONS
        slices = slices_between(self._start.seq, self._end.seq, most)
        return [EventPartition(source, part) for part in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, EventPartition)
        return map(self._decoding.decode, partition.read())
