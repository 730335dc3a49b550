"""A queue's history as partitioned Parquet, each event once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, LiteralString, Unpack

import psycopg
from psycopg import sql
from pyspark.sql import functions as sf

import pgqpy
from pgqpy.admin import Admin
from pgqpy.consumer import RunOptions
from pgqpy.errors import ConsumerInUse, TickNotFound, translate_errors
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.spark._archive_log import (
    HEADER,
    PARTITIONS,
    SHARD,
    ArchiveError,
    ArchiveLog,
    Commit,
    Directory,
    FileFormat,
    create_archive,
)
from pgqpy_consumers.spark._events import EventPartition, cut, events_frame
from pgqpy_consumers.spark._ranges import ForeignOffset, Offset
from pgqpy_consumers.spark.consumer import SparkConsumer
from pgqpy_consumers.spark.session import get_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Archive", "ArchiveError", "ArchiveGap", "Commit"]

LOCK = 0x70677161
"""In pg_locks: classid 1885827425 (the letters pgqa), objsubid 2; objid is a hash of the names."""

#: In a URL, such as s3a://key:secret@bucket.
_PASSWORD = re.compile(r"(?<=//)([^/@:]*):[^@]*@")
_WAIT: LiteralString = "set local lock_timeout = '10s'"
_TAKE: LiteralString = "select pg_catalog.pg_advisory_xact_lock(%s, pg_catalog.hashtext(%s))"


class ArchiveGap(ArchiveError):
    """Events after the archived ones, and before the ones still in the queue, are gone."""


class Archive(SparkConsumer):
    """Writes a queue's events into Parquet files, partitioned by queue and day::

        class Orders(Archive):
            queue = "orders"
            path = "s3a://lake/events"

        Orders(dsn).run()

    The archive's own log, not the consumer's position, records what has been written: each batch
    begins after the last range in the log. So no event is written twice or left out, even if
    processes are killed or the consumer is moved. The consumer keeps rotation from removing events
    that are not written yet. `_archive_log` describes the files. Does not work with Spark Connect,
    which cannot move files.
    """

    consumer = "archive"
    # Each batch makes files, so let there be something to write.
    collect_for: timedelta | None = timedelta(minutes=10)
    collect_events: int | None = 1_000_000

    path: str = ""
    """A directory on any file system that Spark knows; it need not exist."""
    partition_by: Sequence[str] | None = None
    """Names of `PARTITIONS`, below the queue. None: as the archive has them; a new one by day."""
    events_per_file: int = 500_000
    """The approximate number of events in a part of a batch. Each part makes a file a partition."""
    file_format: FileFormat | None = None
    """parquet, or avro with payloads typed by their contracts. None: as the archive has them; a new
    one parquet."""
    accept_gap: bool = False
    """Continue after a gap of lost events, instead of raising `ArchiveGap`."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        path: str | None = None,
        spark: SparkSession | None = None,
        queue: str | None = None,
        consumer: str | None = None,
        shard: str | None = None,
        read_dsn: str | None = None,
    ) -> None:
        """Parameters are as for `SparkConsumer`; ``path`` too wins over the class's. ``shard`` is
        the name of the database in an archive of shards; see `run_shards`."""
        super().__init__(dsn, spark=spark, queue=queue, consumer=consumer, read_dsn=read_dsn)
        self.path = path or self.path
        if not self.path:
            raise TypeError(f"{type(self).__name__} needs a path")
        self.shard = shard
        self._dsn = dsn

    def on_commit(self, commit: Commit) -> None:
        """Called when a range is archived: the place for metrics."""

    # --- the life of a consumer

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register where the archive ends; if it is empty, at the oldest events there are
        (``start`` means nothing here).

        False if it was registered already: it stays where it is. Raises ForeignOffset if the
        archive is of another queue, ArchiveError, FileSystemError, and the errors of
        `SparkConsumer.register`.
        """
        with pgqpy.connect(self._dsn, autocommit=True) as conn:
            # Checked before a directory is created for a misspelt name.
            ranges.fingerprint(conn, self.queue)
            last = self._log()[0].newest()
            if last is not None:
                self._check(conn, last)
            if Admin(conn).get_consumer_info(self.queue, self.consumer):
                return False
            if at_tick is None:
                first = ranges.earliest(conn, self.queue).tick
                at_tick = max(first, last.end.tick if last else first)
            with translate_errors():
                # Unlike register_consumer_at() it accepts a tick that the log has forgotten.
                conn.execute(
                    "select pgq.advance_consumer(%s, %s, %s)", (self.queue, self.consumer, at_tick)
                )
        return True

    def _begin(self) -> None:
        self.register()

    def _work(self) -> str:
        # All roles see it.
        path = _PASSWORD.sub(r"\1@", self.path)
        return f": {self.queue} to {path}"

    @classmethod
    def run_shards(
        cls,
        shards: str,
        *,
        path: str | None = None,
        spark: SparkSession | None = None,
        queue: str | None = None,
        consumer: str | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """Archive all shards of a map, given by its file, each by an archiver in a thread.

        The archive has a column ``shard``, below the queue. Each shard has a log of its own, and is
        archived exactly, whatever happens to the others: one that is down stops none.
        """
        from pgqpy_consumers.spark._shards_consumer import ShardLoops

        session = spark or get_session()

        def make(shard: str, dsn: str, _: object) -> pgqpy.Consumer:
            made = cls(dsn, path=path, spark=session, queue=queue, consumer=consumer, shard=shard)
            # Now, before threads do it at the same time.
            made._log()
            assert isinstance(made._loop, pgqpy.Consumer)
            return made._loop

        ShardLoops(shards, make).run(**options)

    def on_error(self, error: Exception, batch: pgqpy.Batch | None) -> None:
        """Leave `run` if a retry does not help."""
        if isinstance(error, (ForeignOffset, ArchiveError)):
            raise error

    # --- a batch

    def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
        """Archive everything that is not archived yet, up to the end of the batch."""
        log, columns, files = self._log()
        self._take_turn(log)
        last = log.newest()
        if last is not None:
            self._check(self.conn, last)
            log.publish(last)
        log.tidy()
        end = ranges.offset_at(self.conn, self.queue, batch.tick)
        if last is not None and end.tick <= last.end.tick:
            return
        start = self._start(last, batch)
        staging = log.stage()
        events = self._partitioned(self._events(start, end, batch), columns)
        if files == "avro":
            from pgqpy_consumers.spark import _archive_avro as avro

            contracts = avro.Contracts.of(self.conn, self.queue)
            avro.write(events, ["queue", *columns], contracts, log.directory, staging)
        else:
            events.write.partitionBy("queue", *columns).parquet(log.path(staging))
        # The lock ends with the transaction: check that it is still open.
        self.conn.execute("select 1")
        commit = log.commit(last, start, end, staging)
        log.publish(commit)
        self.on_commit(commit)

    def _take_turn(self, log: ArchiveLog) -> None:
        """Lock the log for this process until the transaction ends."""
        self.conn.execute(_WAIT)
        try:
            self.conn.execute(_TAKE, (LOCK, str(log)))
        except psycopg.errors.LockNotAvailable:
            raise ConsumerInUse(
                f"another process is archiving queue {self.queue!r} into {self.path}",
                hint="One is enough: stop this one, or let it stand by for when that one ends.",
            ) from None

    def _log(self) -> tuple[ArchiveLog, tuple[str, ...], FileFormat]:
        """The queue's log, the partitioning of the archive, and the format of its files."""
        directory = Directory(self.spark, self.path)
        wanted = self.partition_by
        if self.shard is not None:
            wanted = wanted and (SHARD, *wanted)
            if wanted is None and not directory.exists(HEADER):
                wanted = (SHARD, "day")
        columns, files = create_archive(directory, wanted, self.file_format)
        if (SHARD in columns) != (self.shard is not None):
            raise ArchiveError(
                f"{directory} is {'' if SHARD in columns else 'not '}an archive of shards",
                hint="Archive into another directory.",
            )
        if files == "avro":
            # An error now, not in the first batch, if fastavro is not installed.
            import pgqpy_consumers.spark._archive_avro  # noqa: F401
        return ArchiveLog(directory, self.queue, self.shard), columns, files

    def _check(self, conn: pgqpy.Connection, last: Commit) -> None:
        try:
            ranges.check(conn, self.queue, last.end)
        except ForeignOffset as error:
            raise ForeignOffset(
                f"{self.path} archives another history of queue {self.queue!r}: {error.message}",
                hint="Archive into another directory; spark.read.parquet(old, new) reads both.",
            ) from error

    def _start(self, last: Commit | None, batch: pgqpy.Batch) -> Offset:
        """The end of the log, even if the consumer is somewhere else."""
        conn, queue = self.conn, self.queue
        if last is None:
            return ranges.offset_at(conn, queue, batch.prev_tick)
        if batch.prev_tick <= last.end.tick:
            return last.end
        before = ranges.offset_at(conn, queue, batch.prev_tick)
        try:
            with conn.transaction():
                ranges.range_source(conn, queue, last.end, before)
        except TickNotFound:
            # A consumer passes over heartbeats of an idle queue, which use no ids.
            if before.seq == last.end.seq or self.accept_gap:
                return before
            raise ArchiveGap(
                f"events of queue {queue!r} after tick {last.end.tick}, where its archive ends,"
                f" are gone; consumer {self.consumer!r} stands at tick {before.tick}",
                hint="It was moved or unregistered. Archive into another directory, or go on"
                " without them: --accept-gap.",
            ) from None
        return last.end

    def _events(self, start: Offset, end: Offset, batch: pgqpy.Batch) -> DataFrame:
        types = self.event_types
        where = None
        if types is not None:
            wanted = sql.Literal(list(types))
            where = sql.SQL("ev_type = any({}::text[])").format(wanted).as_string(self.conn)
        read = partial(ranges.range_source, self.conn, self.queue, start, end, where=where)
        # The range ends where the batch does.
        there = batch.elsewhere
        found = there and there.use(batch, lambda standby, _: read(standby=standby))
        source = found or read()
        spark = self._utc_session
        parts = min(
            -(-(end.seq - start.seq) // self.events_per_file),
            self.num_partitions or spark.sparkContext.defaultParallelism,
        )
        slices = cut(start.seq + 1, end.seq, max(parts, 1))
        return events_frame(spark, [EventPartition(source, each) for each in slices])

    def _partitioned(self, events: DataFrame, partition_by: Sequence[str]) -> DataFrame:
        """The events with the columns that partition them, in order: so files are ordered by
        ev_id, and reading a range of ids reads little."""
        partitions = [
            (sf.lit(self.shard) if name == SHARD else sf.expr(PARTITIONS[name])).alias(name)
            for name in partition_by
        ]
        with_columns = events.select("*", sf.lit(self.queue).alias("queue"), *partitions)
        return with_columns.sortWithinPartitions("queue", *partition_by, "ev_id")

    @cached_property
    def _utc_session(self) -> SparkSession:
        """A session with days in UTC, and with times in a format that all programs read."""
        session = self.spark.newSession()
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        return session


_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
