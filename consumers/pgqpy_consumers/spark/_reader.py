"""Reading a range of ticks with ``spark.read``: the same events at each action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pgqpy.errors import ConnectionFailed, InvalidShardMap
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._events import (
    DEFAULT_PARTITIONS,
    EVENT_SCHEMA,
    SHARD,
    SHARDS_SCHEMA,
    EventPartition,
    slices_between,
)
from pgqpy_consumers.spark._options import EventOptions, InvalidOption, ReadOptions
from pgqpy_consumers.spark._shards import databases, dealt, for_each, shares, waiting

if TYPE_CHECKING:
    import pyarrow as pa

    from pgqpy_consumers.spark.payload import Decoder

Span: TypeAlias = tuple[ranges.Offset, ranges.Offset]
"""The events after one tick up to another."""

Spans: TypeAlias = Mapping[str | None, Span]
"""The span of each shard, or that of the only database."""


def pin(options: ReadOptions) -> Spans:
    """The spans that the options mean now; later, the newest tick or the consumer's differs. Raises
    InvalidShardMap, and the errors of `ranges` and of connecting."""
    calls = {shard: partial(_pin, each) for shard, each in databases(options).items()}
    return for_each(waiting(options, calls))


def _pin(options: ReadOptions) -> Span:
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
    """Reads a span of a queue, or of each shard, in slices, each in a task and on a connection of
    its own. It does not take filters from Spark, which would keep those of one action for the next.
    """

    def __init__(self, options: ReadOptions, schema: StructType, spans: Spans) -> None:
        self._options = options
        self._spans = spans
        self._decoding = decoding(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Ask for the queries now: rotation may have gone on since the ranges were pinned. Shards
        are those that were there then, where the map has them now."""
        options, now = self._options, databases(self._options)
        for shard in self._spans:
            if shard not in now:
                raise InvalidShardMap(
                    f"shard {shard!r} has left the map {options.shards} since this DataFrame was"
                    " made",
                    hint="Make the DataFrame again, or put the shard back.",
                )
        events = {shard: end.seq - start.seq for shard, (start, end) in self._spans.items()}
        most = shares(events, options.num_partitions or DEFAULT_PARTITIONS)
        calls = {
            shard: partial(self._slices, now[shard], span, most[shard])
            for shard, span in self._spans.items()
        }
        return dealt(options, for_each(waiting(options, calls)))

    def _slices(self, options: ReadOptions, span: Span, most: int) -> list[EventPartition]:
        start, end = span
        name = "pgqpy spark read"
        with options.connect(name) as conn, options.standby(name) as standby:
            ranges.check(conn, options.queue, end)
            source = ranges.range_source(
                conn,
                options.queue,
                start,
                end,
                columns=self._decoding.columns,
                where=options.where,
                consumer=options.consumer,
                standby=standby,
            )
        return [EventPartition(source, part) for part in slices_between(start.seq, end.seq, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, EventPartition)
        return map(self._decoding.decode, partition.read())


@dataclass(frozen=True)
class Plain:
    """Returns the events themselves as rows."""

    schema: StructType

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of events that it needs."""
        return tuple(name for name in self.schema.names if name != SHARD.name)

    def decode(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The rows unchanged; Spark also requires equal nullability of columns."""
        rows = events.select(self.schema.names)
        return rows.cast(to_arrow_schema(self.schema, timezone="UTC"))


def decoding(options: EventOptions, schema: StructType) -> Plain | Decoder:
    """The decoding that the options ask for. Raises InvalidOption if events cannot have the
    schema."""
    if options.columns is not None and list(options.columns) != schema.names:
        raise InvalidOption("option columns and .schema(...) disagree", hint="Give one of them.")
    if options.payload is not None:
        from pgqpy_consumers.spark.payload import Decoder

        return Decoder.for_options(options, schema)
    known = _known(options)
    for field in schema:
        if field.name not in known.names or field.dataType != known[field.name].dataType:
            raise InvalidOption(
                f"events have no column {field.simpleString()}",
                hint=f"They have {', '.join(f.simpleString() for f in known)}. Others"
                " come out of ev_data with option payload.",
            )
    if schema.names == [SHARD.name]:
        raise InvalidOption(
            "option columns names only shard", hint="Add a column of the events, such as ev_id."
        )
    return Plain(schema)


def _known(options: EventOptions) -> StructType:
    return EVENT_SCHEMA if options.shards is None else SHARDS_SCHEMA


def event_schema(options: EventOptions) -> StructType:
    """The default schema: the columns of events, or those named in option columns. Raises
    InvalidOption if there is no such column, or if option payload needs other columns; and
    InvalidShardMap, which a stream would not notice before it starts."""
    places = [*databases(options).values()]
    if options.contract is not None:
        return _contract_schema(options, places)
    if options.payload is not None:
        raise InvalidOption(
            "option payload needs .schema(...): the columns to decode from ev_data",
            hint="table_schema(dsn, table) has those of a table, option contract those of a"
            " contract.",
        )
    known = _known(options)
    columns = options.columns or known.names
    unknown = [name for name in columns if name not in known.names]
    if unknown:
        raise InvalidOption(
            f"option columns names {unknown[0]!r}", hint=f"Events have {', '.join(known.names)}."
        )
    return StructType([known[name] for name in columns])


def _contract_schema(options: EventOptions, places: Sequence[EventOptions]) -> StructType:
    """By the contract in the first database that can be reached: each of them has it."""
    from pgqpy_consumers.spark._contract import contract_schema

    assert options.contract is not None
    for each in places:
        try:
            with each.connect("pgqpy spark read") as conn:
                schema = contract_schema(
                    conn, options.queue, options.contract, options.contract_version
                )
            break
        except ConnectionFailed:
            if each is places[-1]:
                raise
    if options.shards is None:
        return schema
    if SHARD.name in schema.names:
        raise InvalidOption(
            "the payload has a member shard, which is the name of the shard's column",
            hint="Write the schema by hand, without it: it cannot be decoded.",
        )
    return schema.add(SHARD)
