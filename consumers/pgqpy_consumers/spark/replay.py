"""Sending a part of an archive into a queue again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from pgqpy import dsn as dsns
from pgqpy.errors import PgqError
from pgqpy.formats import NEW_EVENT_COLUMNS
from pgqpy_consumers.spark._archive_log import (
    SHARD,
    ArchiveError,
    Directory,
    partitions,
    queues,
    shards,
)
from pgqpy_consumers.spark._events import EVENT_COLUMNS, EVENT_SCHEMA
from pgqpy_consumers.spark.source import PgqDataSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# The day in UTC, whatever the session's time zone is.
_DAY = """
string(date_from_unix_date(int(
    (unix_micros(ev_time) - pmod(unix_micros(ev_time), 86400000000)) div 86400000000)))
"""


# Not from DDL, which needs a session.
_BINARY_FILE = (
    StructType()
    .add("path", "string")
    .add("modificationTime", "timestamp")
    .add("length", "long")
    .add("content", "binary")
)


class InvalidCondition(PgqError, ValueError):
    """The condition in a selection is invalid."""

    default_hint = f"Write Spark's SQL over {', '.join(EVENT_COLUMNS)}."


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The events of an archive that meet all given conditions."""

    queue: str | None = None
    """The queue that they were in. None: the only one in the archive."""
    shard: str | None = None
    """The shard that they were in, if it is an archive of shards. None: all of them."""
    from_time: datetime | None = None
    """The earliest ev_time, inclusive."""
    to_time: datetime | None = None
    """The latest ev_time, exclusive."""
    first_id: int | None = None
    last_id: int | None = None
    types: Sequence[str] = ()
    """The event types; empty: any."""
    where: str | None = None
    """A condition in Spark's SQL over the columns of events; in the session's time zone."""


@dataclass(frozen=True)
class Count:
    """The number of events of a day and a type."""

    day: str | None
    """UTC; None for times at infinity."""
    type: str | None
    events: int


class Replay:
    """Sends the selected events of an archive into a queue, in the order of ev_id, all at once;
    those of shards one shard after the other."""

    def __init__(self, spark: SparkSession, path: str, selection: Selection) -> None:
        """List the archive's files; files that come later are not read.

        Raises ArchiveError if ``path`` is no archive, or the selection names no queue of it;
        InvalidCondition, FileSystemError.
        """
        self._spark = spark
        self._directory = Directory(spark, path)
        self._partition_by, self._files = partitions(self._directory)
        self.queue = self._source_queue(selection.queue)
        self._place = (SHARD,) if SHARD in self._partition_by else ()
        self._events = self._selected(selection)

    def counts(self) -> list[Count]:
        """The numbers of selected events, by day and type."""
        rows = (
            self._events.groupBy(sf.expr(_DAY).alias("day"), "ev_type")
            .count()
            .orderBy("day", "ev_type")
            .collect()
        )
        return [Count(*row) for row in rows]

    def send(self, dsn: str | None, queue: str, *, mark: str | None = None) -> None:
        """Send the selected events, all or none.

        ``dsn`` is as for `pgqpy.dsn.resolve`. ``mark`` is a column, ``ev_extra1`` to ``ev_extra4``,
        for the origin of each event:
        ``{"queue": "orders", "ev_id": 17, "ev_time": "2026-11-21T08:30:00.123Z"}``.

        Raises ArchiveError if some of the events have a value in the mark's column, and the errors
        of writing with ``format("pgq")``.
        """
        events = self._events.orderBy(*self._place, "ev_id")
        if mark is not None:
            self._check_free(mark)
            events = events.withColumn(mark, self._mark())
        _register(self._spark)
        options = {"queue": queue}
        settings = conninfo_to_dict(dsns.resolve(dsn))
        # Passed separately, because plans show every option but this one.
        password = settings.pop("password", None)
        if password is not None:
            options["password"] = str(password)
        options["dsn"] = make_conninfo("", **settings)
        writer = events.select(*NEW_EVENT_COLUMNS).write.format("pgq").mode("append")
        writer.options(**options).save()

    def _source_queue(self, named: str | None) -> str:
        there = queues(self._directory)
        if named is None and len(there) == 1:
            return there[0]
        if named is None or named not in there:
            raise ArchiveError(
                f"{self._directory} has {'no queue ' + named if named else 'several queues'}",
                hint=f"Say which: {', '.join(there)}." if there else "It is empty.",
            )
        return named

    def _selected(self, selection: Selection) -> DataFrame:
        avro = self._files == "avro"
        schema = StructType([*(_BINARY_FILE if avro else EVENT_SCHEMA)]).add("queue", "string")
        for name in self._place:
            schema = schema.add(name, "string")
        days = "day" in self._partition_by
        if days:
            schema = schema.add("day", "date")
        reader = self._spark.read.schema(schema).format("binaryFile" if avro else "parquet")
        events = reader.load(str(self._directory)).where(sf.col("queue") == self.queue)
        if selection.shard is not None:
            self._check_shard(selection.shard)
            events = events.where(sf.col(SHARD) == selection.shard)
        from_time, to_time = (
            each and each.astimezone(UTC) for each in (selection.from_time, selection.to_time)
        )
        if from_time is not None and days:
            events = events.where(sf.col("day") >= sf.lit(from_time.date()))
        if to_time is not None and days:
            events = events.where(sf.col("day") <= sf.lit(to_time.date()))
        if avro:
            events = self._of_avro(events)
        if from_time is not None:
            events = events.where(sf.col("ev_time") >= sf.lit(from_time))
        if to_time is not None:
            events = events.where(sf.col("ev_time") < sf.lit(to_time))
        if selection.first_id is not None:
            events = events.where(sf.col("ev_id") >= selection.first_id)
        if selection.last_id is not None:
            events = events.where(sf.col("ev_id") <= selection.last_id)
        if selection.types:
            events = events.where(sf.col("ev_type").isin(*selection.types))
        events = events.select(*EVENT_COLUMNS, *self._place)
        if selection.where is None:
            return events
        try:
            return events.where(selection.where)
        except AnalysisException as error:
            raise InvalidCondition(str(error).partition("\n")[0]) from error

    def _of_avro(self, files: DataFrame) -> DataFrame:
        from pgqpy_consumers.spark._archive_avro import read

        if not self._place:
            return read(files)
        parts = [
            read(files.where(sf.col(SHARD) == sf.lit(shard))).withColumn(SHARD, sf.lit(shard))
            for shard in shards(self._directory, self.queue)
        ]
        return reduce(lambda one, other: one.unionAll(other), parts)

    def _check_shard(self, shard: str) -> None:
        there = [each for each in shards(self._directory, self.queue) if each is not None]
        if shard not in there:
            raise ArchiveError(
                f"{self._directory} has no shard {shard} of queue {self.queue}",
                hint=f"It has {', '.join(there)}." if there else "It is not one of shards.",
            )

    def _check_free(self, column: str) -> None:
        taken = self._events.where(sf.col(column).isNotNull()).select("ev_id").first()
        if taken is not None:
            raise ArchiveError(
                f"event {taken.ev_id} has a value in {column}, which a mark would replace",
                hint="Mark in another column, or do not mark.",
            )

    def _mark(self) -> Column:
        place = [sf.lit(self.queue).alias("queue"), *map(sf.col, self._place)]
        fields = (*place, sf.col("ev_id"), sf.col("ev_time"))
        return sf.to_json(
            sf.struct(*fields),
            {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"},
        )


def _register(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(PgqDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
