"""All shards of a logical queue as one DataFrame: a span a shard, slices of all servers.

Each shard is read by the reader of a single database, which knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Self, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pgqpy.errors import ConnectionFailed, InvalidShardMap, PgqError
from pgqpy.shards import ShardMap
from pgqpy_consumers.spark._events import (
    DEFAULT_PARTITIONS,
    EVENT_SCHEMA,
    EventPartition,
    EventSource,
    patiently,
    slices_between,
)
from pgqpy_consumers.spark._options import EventOptions, InvalidOption, ReadOptions
from pgqpy_consumers.spark._reader import PgqReader, Plain, Span, decoding, event_schema, pin

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pgqpy_consumers.spark.payload import Decoder

O = TypeVar("O", bound=EventOptions)  # noqa: E741
T = TypeVar("T")

SHARD = StructField("shard", StringType())
"""The column with the name of an event's shard."""


def of_shard(options: O, dsn: str) -> O:
    """The options to read one shard with."""
    columns = options.columns and tuple(name for name in options.columns if name != SHARD.name)
    if columns == ():
        raise InvalidOption(
            "option columns names only shard", hint="Add a column of the events, such as ev_id."
        )
    return options.with_values(dsn=dsn, columns=columns)


def of_shards(options: O) -> dict[str, O]:
    """The options to read each of the shards with, by name."""
    assert options.shards is not None
    shard_map = ShardMap.load(options.shards)
    shard_map.check_queue(options.queue)
    return {name: of_shard(options, each.dsn) for name, each in sorted(shard_map.shards.items())}


@contextmanager
def named(shard: str) -> Iterator[None]:
    """Errors name the shard."""
    try:
        yield
    except PgqError as error:
        error.message = f"shard {shard!r}: {error.message}"
        raise


def for_each(
    calls: Mapping[str, Callable[[], T]], pool: ThreadPoolExecutor | None = None
) -> dict[str, T]:
    """Call the function of each shard at the same time. Raises the error of one of them."""
    if pool is None:
        with ThreadPoolExecutor(max(len(calls), 1)) as pool:
            return for_each(calls, pool)

    def call(shard: str) -> T:
        with named(shard):
            return calls[shard]()

    return dict(zip(calls, pool.map(call, calls), strict=True))


def waiting(
    options: EventOptions, calls: Mapping[str, Callable[[], T]]
) -> Mapping[str, Callable[[], T]]:
    """The calls, which by option wait for a shard that cannot be reached."""
    if options.on_shard_down == "fail":
        return calls
    return {shard: partial(patiently, call) for shard, call in calls.items()}


def shares(events: Mapping[str, int], most: int) -> dict[str, int]:
    """The slices of each shard, at least one, in proportion to its events."""
    total = max(sum(events.values()), 1)
    return {shard: max(round(most * each / total), 1) for shard, each in events.items()}


def schema_of_shards(options: EventOptions) -> StructType:
    """The default schema: that of the events, and the name of their shard."""
    *others, last = of_shards(options).values()
    for each in others:
        try:
            events = event_schema(each)
            break
        except ConnectionFailed:
            # The contract of events is in each of the databases.
            continue
    else:
        events = event_schema(last)
    if SHARD.name in events.names:
        raise InvalidOption(
            "the payload has a member shard, which is the name of the shard's column",
            hint="Write the schema by hand, without it: it cannot be decoded.",
        )
    if options.columns is None or options.contract is not None:
        return StructType([*events, SHARD])
    columns = {field.name: field for field in [*events, SHARD]}
    return StructType([columns[name] for name in options.columns])


SHARDS_SCHEMA = StructType([*EVENT_SCHEMA, SHARD])
"""The schema of events of several shards."""


@dataclass(frozen=True)
class ShardPartition(EventPartition):
    """A slice of a shard's events."""

    shard: str


@dataclass(frozen=True)
class ShardDecoding:
    """Decodes the events of any shard, and adds the name of the shard if the schema has it."""

    events: Plain | Decoder
    schema: pa.Schema

    @classmethod
    def of(cls, options: EventOptions, schema: StructType) -> Self:
        """The decoding for the schema. Raises InvalidOption if events cannot have it."""
        columns = [field for field in schema if field.name != SHARD.name]
        for field in schema:
            if field.name == SHARD.name and field.dataType != SHARD.dataType:
                raise InvalidOption(
                    f"column shard is of type {field.dataType.simpleString()}",
                    hint="It must be of type string.",
                )
        if options.columns is not None and list(options.columns) != schema.names:
            raise InvalidOption(
                "option columns and .schema(...) disagree", hint="Give one of them."
            )
        events = decoding(options.with_values(columns=None), StructType(columns))
        return cls(events, to_arrow_schema(schema, timezone="UTC"))

    def rows(self, partition: ShardPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice."""
        import pyarrow as pa

        shard = pa.scalar(partition.shard, pa.string())
        for events in partition.source.read(partition.part):
            rows = self.events.decode(events)
            columns = [
                pa.repeat(shard, rows.num_rows) if name == SHARD.name else rows.column(name)
                for name in self.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def partitions_of(
    options: EventOptions, slices: Mapping[str, list[EventPartition]]
) -> list[InputPartition]:
    """The slices of all shards; those that tasks read at the same time are of different servers."""
    patient = options.on_shard_down == "wait"
    return [
        ShardPartition(replace(each.source, patient=patient), each.part, shard)
        for group in zip_longest(*([(shard, each) for each in of] for shard, of in slices.items()))
        for shard, each in filter(None, group)
    ]


def pin_shards(options: ReadOptions) -> dict[str, Span]:
    """The span of each shard that the options mean now. Raises InvalidShardMap, and the errors of
    `pin` that name the shard; if it is to wait for shards, not ConnectionFailed."""
    calls = {shard: partial(pin, each) for shard, each in of_shards(options).items()}
    return for_each(waiting(options, calls))


def shards_frame(
    spark: SparkSession,
    sources: Mapping[str, EventSource],
    ends: Mapping[str, tuple[int, int]],
    most: int,
) -> DataFrame:
    """The events of sources by shard, with a column ``shard``; like `events_frame`. ``ends`` are
    the event sequences between which they are, ``most`` is the number of slices."""
    number = shares({shard: end - start for shard, (start, end) in ends.items()}, most)
    parts = [
        ShardPartition(source, each, shard)
        for shard, source in sources.items()
        for each in slices_between(*ends[shard], number[shard])
    ]
    decoding = ShardDecoding.of(EventOptions(queue="-"), SHARDS_SCHEMA)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from decoding.rows(parts[number])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, SHARDS_SCHEMA)


class ShardsReader(DataSourceReader):
    """Reads a span of each shard, like `PgqReader` one of a queue."""

    def __init__(self, options: ReadOptions, schema: StructType, spans: dict[str, Span]) -> None:
        self._options = options
        self._spans = spans
        self._decoding = ShardDecoding.of(options, schema)
        self._columns = StructType([field for field in schema if field.name != SHARD.name])

    def partitions(self) -> list[InputPartition]:
        """Ask the shards that were there when the range was pinned, where the map has them now."""
        options, now = self._options, of_shards(self._options)
        for shard in self._spans:
            if shard not in now:
                raise InvalidShardMap(
                    f"shard {shard!r} has left the map {options.shards} since this DataFrame was"
                    " made",
                    hint="Make the DataFrame again, or put the shard back.",
                )
        events = {shard: end.seq - start.seq for shard, (start, end) in self._spans.items()}
        most = shares(events, options.num_partitions or DEFAULT_PARTITIONS)
        readers = {
            shard: PgqReader(
                now[shard].with_values(num_partitions=most[shard]), self._columns, span
            )
            for shard, span in self._spans.items()
        }
        calls = {shard: reader.partitions for shard, reader in readers.items()}
        return partitions_of(options, for_each(waiting(options, calls)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in no order; runs on an executor."""
        assert isinstance(partition, ShardPartition)
        return self._decoding.rows(partition)
