"""The class to subclass for consumers that compute in Spark."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString, NoReturn, Unpack

from psycopg import sql
from psycopg.conninfo import make_conninfo

import pgqpy
from pgqpy.consumer import RunOptions, check_names
from pgqpy.errors import InvalidConsumer
from pgqpy.models import Start
from pgqpy_consumers._shared import watch_events
from pgqpy_consumers.spark._collect import Bounds, Collector
from pgqpy_consumers.spark._events import (
    DEFAULT_PARTITIONS,
    EventPartition,
    EventSource,
    events_frame,
    slices_between,
)
from pgqpy_consumers.spark._ranges import conninfo, newest
from pgqpy_consumers.spark._shards import shares
from pgqpy_consumers.spark.session import get_session, run_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pgqpy_consumers.spark._shards_consumer import ShardLoops

logger = logging.getLogger("pgqpy")

# For a transaction whose session waits while Spark computes. Not a query: the first query fixes
# the isolation level, which is the program's choice.
_NO_TIMEOUT: LiteralString = "set local idle_in_transaction_session_timeout = 0"
_NO_TIMEOUTS: LiteralString = f"{_NO_TIMEOUT}; set local transaction_timeout = 0"
_TRANSACTION_TIMEOUT_SINCE = 170000


# Long: settings, each with its own name and description.
class SparkConsumer:
    """A consumer that gets each batch, a whole range of ticks, as one DataFrame.

    Subclass it and say what to do with the events::

        class DelaysByMonth(SparkConsumer):
            queue = "flights"
            consumer = "delays_by_month"

            def process_batch(self, spark, batch, df):
                df.groupBy("ev_type").count().show()

        DelaysByMonth(dsn).run()

    The DataFrame has the columns of ``pgq.get_batch_events`` (`EVENT_SCHEMA`). Executors read it
    in slices, in parallel, each on a connection of its own. They see exactly the batch, however
    often it is read and whatever is committed meanwhile. It is lazy: each action reads again, so
    use ``df.persist()`` for data used twice. It can be read until ``process_batch`` returns; then
    the batch is finished, and reading fails. Executors need pgqpy with its extra ``spark``, too.

    Registration, waiting, failures and stopping are those of `pgqpy.Consumer`, and so are the
    attributes and hooks with the same names.
    """

    queue: str = ""
    consumer: str = ""
    start: Start = "now"

    collect_for: timedelta | None = None
    """The age of the first waiting event at which a batch is taken. None: take events at once."""
    collect_events: int | None = None
    """The approximate number of waiting events that ends the waiting; with ``collect_for``."""
    collect_bytes: int | None = None
    """The number of waiting bytes, of types, data and extras, that ends the waiting; with
    ``collect_for``."""

    batch_size: int | None = 1_000_000
    """The approximate number of events that ticks are combined up to. None: one tick at a time."""
    batch_bytes: int | None = None
    """The approximate number of bytes that ticks are combined up to, but at least one tick."""
    event_types: Collection[str] | None = None
    min_lag: timedelta | None = None
    max_lag: timedelta | None = None
    poll_interval: float = pgqpy.Consumer.poll_interval
    read_patience: float | None = pgqpy.Consumer.read_patience
    backoff_first: float = pgqpy.Consumer.backoff_first
    backoff_cap: float = pgqpy.Consumer.backoff_cap

    num_partitions: ClassVar[int | None] = None
    """The maximum number of slices of a batch. None: the number of tasks Spark runs at a time."""
    show_progress: ClassVar[bool | None] = None
    """Show a progress line for the current batch. None: if standard error is a terminal."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        spark: SparkSession | None = None,
        queue: str | None = None,
        consumer: str | None = None,
        shards: str | None = None,
        read_dsn: str | None = None,
    ) -> None:
        """Names given here win over the class's.

        ``dsn`` is as for `pgqpy.dsn.resolve`; executors connect as this process does, so the names
        in it must mean the same on their machines. ``spark`` is the session to compute in: by
        default the active one, that of spark-submit, or else a local one, made when it is needed.
        ``shards`` is the file of a shard map, instead of a DSN: then `process_batches` is called.
        ``read_dsn`` is a standby of the queue's server, on which executors read.
        """
        self.queue = queue or self.queue
        self.consumer = consumer or self.consumer
        self._spark = spark
        self._conns: Mapping[Any, pgqpy.Connection] = {}
        self.failed_batch: pgqpy.Batch | None = None
        """The batch that made `run` or `run_once` raise; None for any other error."""
        if shards is None:
            self._loop: _Loop | ShardLoops = _Loop(
                self, dsn, lambda conn, batch: self._deliver({None: conn}, {None: batch}), read_dsn
            )
            return
        from pgqpy_consumers.spark._shards_consumer import ShardLoops

        if dsn is not None:
            raise TypeError("give a dsn, or shards")
        if read_dsn is not None:
            raise TypeError("give shards without read_dsn, which is a standby of one server")
        if type(self).process_batches is SparkConsumer.process_batches:
            raise InvalidConsumer(f"{type(self).__name__} has shards and no process_batches")
        self._loop = ShardLoops(
            shards,
            lambda _, dsn, deliver: _Loop(self, dsn, deliver, alone=False),
            self._deliver,
        )

    # --- to be overridden

    def process_batch(self, spark: SparkSession, batch: pgqpy.Batch, df: DataFrame) -> None:
        """Process a batch; also called for one without events.

        ``batch`` has its ticks and times, ``df`` all its events. Statements on `conn` commit
        exactly when the batch is finished: effects in this database happen once. Effects elsewhere
        happen at least once: if it raises, the same batch, with the same ``batch.id`` and the same
        rows, is processed again.
        """
        raise NotImplementedError(f"{type(self).__name__} must override process_batch")

    def process_batches(
        self, spark: SparkSession, batches: Mapping[str, pgqpy.Batch], df: DataFrame
    ) -> None:
        """Process batches of several shards, by the shard's name; called instead if there are
        ``shards``.

        ``df`` has the events of all of them, and a column ``shard``. Statements on ``conns[shard]``
        commit exactly when that shard's batch is finished. Shards commit one after the other: if it
        raises, all these batches come again, and if a server goes down meanwhile, its own; they may
        come together with others then.
        """
        raise NotImplementedError(f"{type(self).__name__} must override process_batches")

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        """Called when a batch is committed. ``stats.events`` does not count reads of ``df``."""

    def on_error(self, error: Exception, batch: pgqpy.Batch | None) -> None:
        """Called when a batch failed, or the database is away; raise here to leave `run`."""

    # --- the life of a consumer

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register like `pgqpy.Consumer.register`."""
        return self._loop.register(at_tick=at_tick)

    def unregister(self) -> bool:
        """Unregister like `pgqpy.Consumer.unregister`."""
        return self._loop.unregister()

    def run_once(self) -> bool:
        """Run like `pgqpy.Consumer.run_once`, without waiting for more events to collect."""
        return self._loop.run_once()

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Process batches until `stop`, like `pgqpy.Consumer.run`, except:

        Spark is started first, if it is not running. With ``until_empty`` it processes the events
        of the ticks that exist now, without waiting for more to collect, and returns; later
        events are left for the next run.
        """
        # Spark installs a handler for SIGINT when it starts: it must not replace ours.
        _ = self.spark
        self._loop.run(**options)

    def stop(self) -> None:
        """Stop like `pgqpy.Consumer.stop`."""
        self._loop.stop()

    @classmethod
    def main(cls) -> NoReturn:
        """Run as a program: ``--once``, ``--master``, ``--dsn``; ``--help`` lists all options.

        Ends the process: with 0 if it was stopped or is done, 1 if it failed, 2 for wrong
        usage. For ``spark-submit`` and schedulers, under ``if __name__ == "__main__":``.
        """

        sys.exit(run_program(cls))

    # --- session and connection

    @property
    def spark(self) -> SparkSession:
        """The session; created now if there is none.

        Raises `JavaMissingError` if that needs a Java that is missing.
        """
        if self._spark is None:
            self._spark = get_session()
        return self._spark

    @property
    def conn(self) -> pgqpy.Connection:
        """The connection that will finish the batch; inside ``process_batch`` only."""
        if None not in self._conns:
            raise RuntimeError("conn is there only while process_batch runs")
        return self._conns[None]

    @property
    def conns(self) -> Mapping[str, pgqpy.Connection]:
        """The connections that will finish the batches, by shard; inside ``process_batches``."""
        return self._conns

    def _begin(self) -> None:
        """Called at the beginning of `run`, in each shard."""

    def _work(self) -> str:
        """What to say in the names of its sessions, after that of the consumer."""
        return ""

    def _deliver(
        self, conns: Mapping[Any, pgqpy.Connection], batches: Mapping[Any, pgqpy.Batch]
    ) -> None:
        """Process a batch of each of these shards, or of the only database, which is None."""
        self.failed_batch = None
        self._conns = conns
        try:
            df = self._frame(conns, batches)
            if None in batches:
                self.process_batch(self.spark, batches[None], df)
            else:
                self.process_batches(self.spark, batches, df)
        except Exception:
            self.failed_batch = next(iter(batches.values()))
            raise
        finally:
            self._conns = {}

    def _frame(
        self, conns: Mapping[Any, pgqpy.Connection], batches: Mapping[Any, pgqpy.Batch]
    ) -> DataFrame:
        context = getattr(self.spark, "sparkContext", None)
        tasks = DEFAULT_PARTITIONS if context is None else int(context.defaultParallelism)
        events = {shard: batch.seq_end - batch.seq_start for shard, batch in batches.items()}
        most = shares(events, self.num_partitions or tasks)
        sources = {shard: _source(conns[shard], batch) for shard, batch in batches.items()}
        partitions = [
            EventPartition(sources[shard], each, shard)
            for shard, batch in batches.items()
            for each in slices_between(batch.seq_start, batch.seq_end, most[shard])
        ]
        return events_frame(self.spark, partitions)


_SHARED = (
    *("start", "event_types", "min_lag", "max_lag", "poll_interval", "read_patience"),
    *("backoff_first", "backoff_cap"),
)


class _Loop(pgqpy.Consumer):
    """Does all that is not Spark's. A part, not a base: its process_batch has another signature."""

    def __init__(
        self,
        owner: SparkConsumer,
        dsn: str | None,
        deliver: Callable[[pgqpy.Connection, pgqpy.Batch], None],
        read_dsn: str | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """``alone``: it is not the loop of one shard of several."""
        check_names(type(owner))
        bounds = Bounds(**{each.name: getattr(owner, each.name) for each in fields(Bounds)})
        for name in _SHARED:
            setattr(self, name, getattr(owner, name))
        # If events are collected, notifications of single ticks are not needed.
        self.listen = not bounds.collecting
        self._owner = owner
        self._deliver = deliver
        self._alone = alone
        super().__init__(dsn, queue=owner.queue, consumer=owner.consumer, read_dsn=read_dsn)
        self._collector = Collector(self.queue, self.consumer, bounds)
        self._collects = False
        self._until_empty = False
        self._goal: int | None = None
        self._done = 0
        self._events = 0
        self._seconds = 0.0

    def run(self, **options: Unpack[RunOptions]) -> None:
        self._owner._begin()
        self._until_empty = options.get("until_empty", False)
        self._collects = not self._until_empty and not self.listen
        self._goal = None
        try:
            super().run(**options)
        finally:
            self._collects = self._until_empty = False

    def session_name(self) -> str:
        return f"{super().session_name()}{self._owner._work()}"[:63]

    def wants_batch(self, conn: pgqpy.Connection) -> bool:
        """Whether enough events are there, and not more than were to be processed."""
        if self._collects and not self._collector.is_enough(conn):
            return False
        if self._until_empty:
            if self._goal is None:
                self._goal = newest(conn, self.queue).tick
            elif self._done >= self._goal:
                return False
        self.batch_size = self._collector.most_events(conn)
        return True

    @contextmanager
    def around_batch(
        self, batch: pgqpy.Batch, idle: Callable[[], pgqpy.Connection]
    ) -> Iterator[None]:
        """Show the progress of a batch, and log its end."""
        from pgqpy_consumers.spark._progress import Progress

        started = monotonic()
        speed = self._events / self._seconds if self._seconds else None
        # Tasks are those of all shards, and so would be the terminal's line.
        spark = self._owner.spark if self._alone else None
        show = self._owner.show_progress if self._alone else False
        # The session to read events with: executors read them, so it is free.
        with Progress(spark, idle(), batch, speed).reported(show=show):
            yield
        seconds = monotonic() - started
        self._done = batch.tick
        events = batch.seq_end - batch.seq_start
        self._events += events
        self._seconds += seconds
        logger.info(
            "batch %s of %s: %s events in %.1f s, %.1f s behind",
            batch.id,
            batch.consumer,
            f"{events:,}",
            seconds,
            batch.lag.total_seconds() + seconds,
            extra=self.log_fields(batch) | {"events": events, "seconds": seconds},
        )

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        is_new = conn.info.server_version >= _TRANSACTION_TIMEOUT_SINCE
        conn.execute(_NO_TIMEOUTS if is_new else _NO_TIMEOUT)
        watch_events(conn, batch)
        self._deliver(conn, batch)

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self._owner.on_batch(stats)

    def on_error(self, error: Exception, batch: pgqpy.Batch | None) -> None:
        self._owner.on_error(error, batch)
        self._owner.failed_batch = None


def _source(conn: pgqpy.Connection, batch: pgqpy.Batch) -> EventSource:
    """The events of the batch; executors connect as ``conn`` did, or as the standby's connection,
    if the batch is read there."""
    source = None
    if batch.elsewhere is not None:
        source = batch.elsewhere.use(batch, partial(_source_on_standby, batch))
    if source is None:
        still_there = f"select 1 from pgq.get_batch_info({batch.id:d}) where tick_id is not null"
        source = replace(_source_of(batch, conn, batch.sql), still_there=still_there)
    return source


def _source_on_standby(batch: pgqpy.Batch, conn: pgqpy.Connection, query: str) -> EventSource:
    # No look whether the batch is finished, which it would learn late; truncated tables it knows.
    place = map(sql.Literal, (batch.queue, batch.tick, batch.tick_time))
    replayed = sql.SQL("select pgq.has_replayed({}, {}, {})").format(*place).as_string(conn)
    return replace(_source_of(batch, conn, query), replayed=replayed)


def _source_of(batch: pgqpy.Batch, conn: pgqpy.Connection, query: str) -> EventSource:
    condition = "true"
    if batch.event_types is not None:
        types = sql.Literal(list(batch.event_types)).as_string(conn)
        condition = f"ev_type = any({types}::text[])"
    return EventSource(
        conninfo=make_conninfo(
            conninfo(conn), application_name=f"pgqpy {batch.consumer} slice"[:63]
        ),
        query=query,
        description=f"Batch {batch.id} of {batch.consumer} on queue {batch.queue}",
        condition=condition,
    )
