"""Reading a range of ticks with ``spark.read``: the same events at each action."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import (
    DEFAULT_PARTITIONS,
    EVENT_COLUMNS,
    EVENT_SCHEMA,
    EventPartition,
    slices_between,
)
from pgqpy_consumers.spark._options import EventOptions, InvalidOption, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from pgqpy_consumers.spark.payload import Decoder

Span: TypeAlias = tuple[ranges.Offset, ranges.Offset]
"""The events after one tick up to another."""


def pin(options: ReadOptions) -> Span:
    """The span that the options mean now; later, the newest tick or the consumer's differs. Raises
    the errors of `ranges` and of connecting."""
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
    """Reads a span of a queue in slices, each in a task and on a connection of its own. It does not
    take filters from Spark, which would keep those of one action for the next."""

    def __init__(self, options: ReadOptions, schema: StructType, span: Span) -> None:
        self._options = options
        self._start, self._end = span
        self._decoding = decoding(options, schema)

    def partitions(self) -> list[EventPartition]:
        """Ask for the query now: rotation may have gone on since the range was pinned."""
        options = self._options
        name = "pgqpy spark read"
        with options.connect(name) as conn, options.standby(name) as standby:
            ranges.check(conn, options.queue, self._end)
            source = ranges.range_source(
                conn,
                options.queue,
                self._start,
                self._end,
                columns=self._decoding.columns,
                where=options.where,
                consumer=options.consumer,
                standby=standby,
            )
        most = options.num_partitions or DEFAULT_PARTITIONS
        slices = slices_between(self._start.seq, self._end.seq, most)
        return [EventPartition(source, part) for part in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, EventPartition)
        return map(self._decoding.decode, partition.source.read(partition.part))


@dataclass(frozen=True)
class Plain:
    """Returns the events themselves as rows."""

    schema: StructType

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the schema."""
        return tuple(self.schema.names)

    def decode(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The rows unchanged; Spark also requires equal nullability of columns."""
        return events.cast(to_arrow_schema(self.schema, timezone="UTC"))


def decoding(options: EventOptions, schema: StructType) -> Plain | Decoder:
    """The decoding that the options ask for. Raises InvalidOption if events cannot have the
    schema."""
    if options.columns is not None and list(options.columns) != schema.names:
        raise InvalidOption("option columns and .schema(...) disagree", hint="Give one of them.")
    if options.payload is not None:
        from pgqpy_consumers.spark.payload import Decoder

        return Decoder.for_options(options, schema)
    for field in schema:
        if field.name not in EVENT_COLUMNS or field.dataType != EVENT_SCHEMA[field.name].dataType:
            raise InvalidOption(
                f"events have no column {field.simpleString()}",
                hint=f"They have {', '.join(f.simpleString() for f in EVENT_SCHEMA)}. Others"
                " come out of ev_data with option payload.",
            )
    return Plain(schema)


def event_schema(options: EventOptions) -> StructType:
    """The default schema: the columns of events, or those named in option columns. Raises
    InvalidOption if there is no such column, or if option payload needs other columns."""
    if options.contract is not None:
        from pgqpy_consumers.spark._contract import contract_schema

        with options.connect("pgqpy spark read") as conn:
            return contract_schema(conn, options.queue, options.contract, options.contract_version)
    if options.payload is not None:
        raise InvalidOption(
            "option payload needs .schema(...): the columns to decode from ev_data",
            hint="table_schema(dsn, table) has those of a table, option contract those of a"
            " contract.",
        )
    columns = options.columns or EVENT_COLUMNS
    unknown = [name for name in columns if name not in EVENT_COLUMNS]
    if unknown:
        raise InvalidOption(
            f"option columns names {unknown[0]!r}", hint=f"Events have {', '.join(EVENT_COLUMNS)}."
        )
    return StructType([EVENT_SCHEMA[name] for name in columns])
