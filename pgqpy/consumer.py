# WARNING: this file is generated from pgqpy/consumer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from time import monotonic
from typing import Any

from psycopg import IsolationLevel
from psycopg.rows import dict_row

from pgqpy import dsn as dsns
from pgqpy.acompat import Waker, on_stop_signals
from pgqpy.admin import Admin
from pgqpy.backoff import Backoff
from pgqpy.batch import Batch
from pgqpy.calls import next_batch
from pgqpy.connection import Connection, connect
from pgqpy.errors import PERMANENT, PgqError, translate_errors
from pgqpy.event import Event
from pgqpy.listener import Subscription
from pgqpy.log import logger
from pgqpy.session import Session
from pgqpy.values import BatchStats


class Consumer:
    """Takes a queue's events in batches and remembers how far it has come.

    Subclass it, name the queue and the consumer, and say what to do with events::

        class DelayCounter(Consumer):
            queue_name = "flights"
            consumer_name = "delay_counter"

            def process_event(self, conn, event):
                ...

    Each batch is processed and finished in one transaction: what ``process_batch`` writes on
    ``conn`` commits exactly when the batch counts as done, so effects in this database happen
    exactly once. If it raises, all is rolled back and the same batch comes again, after pauses
    that double up to ``backoff_cap``. Effects elsewhere happen at least once.

    The batch is opened in a transaction of its own before, so that it stays the same batch, with
    the same id, across failures; while ``process_batch`` has not used ``conn`` that holds no
    snapshot.
    """

    queue_name: str = ""
    """The queue to read."""
    consumer_name: str = ""
    """The name under which the position in it is kept."""

    batch_size: int | None = 10_000
    """Take as many ticks at once as hold about so many events. None: one tick at a time."""
    event_types: Collection[str] | None = None
    """Only events of these types; the server does not send the others. None: all."""
    min_lag: timedelta | None = None
    """Keep so far behind: only events that have been there for so long."""
    max_lag: timedelta | None = None
    """Call `on_lag` for batches that are older than this when they are opened."""

    listen: bool = True
    """Hear of new ticks by LISTEN, where that is possible."""
    poll_interval: float = 1.0
    """Seconds between looks for a batch; a hundred times that while LISTEN is known to work."""

    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """Of the transactions in which batches are processed."""

    backoff_first: float = 0.5
    """Seconds before a failed batch is tried again, the first time."""
    backoff_cap: float = 60.0
    """The most seconds before a failed batch is tried again."""
    reconnect_cap: float = 5.0
    """The most seconds between attempts to connect again."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue_name: str | None = None,
        consumer_name: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` as for `pgqpy.dsn.resolve`; the names here win over the class's.

        Behind a PgBouncer in transaction mode, ``listen_dsn`` goes around it, and
        ``prepare_threshold=None`` if it does not know prepared statements.
        """
        self.dsn = dsns.resolve(dsn)
        self.queue_name = queue_name or self.queue_name
        self.consumer_name = consumer_name or self.consumer_name
        if not (self.queue_name and self.consumer_name):
            raise TypeError(f"{type(self).__name__} needs a queue_name and a consumer_name")
        self._listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self._prepare_threshold = prepare_threshold
        self._stopping = False
        self._waker: Waker | None = None

    #: Pauses after the loss of the database, and after a failed batch.
    _lost: Backoff
    _failed: Backoff

    # --- to be overridden

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process a batch inside the transaction that is open on ``conn``.

        A batch may be without events, if others' were rolled back; heartbeats of an idle queue
        are no batches. The transaction must be left open; ``conn.transaction()`` gives savepoints.
        The default calls `process_event` for each event.
        """
        for event in batch:
            self.process_event(conn, event)

    def process_event(self, conn: Connection, event: Event) -> None:
        """Process an event inside the batch's transaction."""
        raise NotImplementedError

    def on_batch(self, stats: BatchStats) -> None:
        """A batch is committed: the place for metrics."""

    def on_error(self, error: Exception, batch: Batch | None) -> None:
        """A batch failed and was rolled back, or (without a batch) the database is away.

        It will be tried again; raise here to leave `run` instead. The log knows already.
        """

    def on_lag(self, lag: timedelta, batch: Batch) -> None:
        """A batch is older than ``max_lag``. The default logs a warning; raise to leave `run`."""
        logger.warning(
            "consumer %s lags %s behind", self.consumer_name, lag, extra=self._fields(batch)
        )

    # --- the life of a consumer

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register, to get all events after the newest tick, or after ``at_tick``.

        False if it was registered already: without ``at_tick`` it then stays where it is.
        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        with connect(self.dsn) as conn:
            admin = Admin(conn)
            if at_tick is None:
                return admin.register_consumer(self.queue_name, self.consumer_name)
            return admin.register_consumer_at(self.queue_name, self.consumer_name, at_tick)

    def unregister(self) -> bool:
        """Give up the position, and what waits to be retried; False if there was none."""
        with connect(self.dsn) as conn:
            return bool(Admin(conn).unregister_consumer(self.queue_name, self.consumer_name))

    def run_once(self) -> bool:
        """Process one batch, if there is one; False if not. Raises whatever went wrong."""
        with self._session() as session:
            return self._next(session, tolerant=False)

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Process batches until `stop`, or with ``until_empty`` until there are no more.

        Registers the consumer first if it is not: it then gets what comes from now on.

        Survives errors of `process_batch` and the loss of the database. Raises ConnectionFailed
        if it cannot connect and QueueNotFound if there is no queue to begin with, and later only
        what waiting does not mend, for instance ConsumerNotRegistered when somebody has
        unregistered it; with ``until_empty`` any error.

        In the main thread SIGTERM and SIGINT stop it after the batch (a second one, at once),
        unless ``handle_signals`` is false; handlers are as before when it returns.
        """
        signals = on_stop_signals(self.stop) if handle_signals else nullcontext()
        with signals, self._session() as session:
            admin = Admin(session.working())
            new = admin.register_consumer(self.queue_name, self.consumer_name)
            logger.info(
                "consumer %s %s",
                self.consumer_name,
                "registered and started" if new else "started",
                extra=self._fields(),
            )
            while not self._stopping:
                if self._next(session, tolerant=not until_empty):
                    continue
                if until_empty:
                    break
                # What came before the first LISTEN was not heard: look once more.
                if not session.listen():
                    assert self._waker is not None
                    session.wait(self._waker, self.poll_interval, for_tick=self.min_lag is None)
            logger.info("consumer %s stopped", self.consumer_name, extra=self._fields())

    def stop(self) -> None:
        """Make `run` return after the batch it is at, or now if it waits.

        From any thread (asyncio: in the event loop's), also before `run`.
        """
        self._stopping = True
        if self._waker is not None:
            self._waker.wake()

    # --- how

    @contextmanager
    def _session(self) -> Iterator[Session]:
        if (
            type(self).process_batch is Consumer.process_batch
            and type(self).process_event is Consumer.process_event
        ):
            raise TypeError(f"{type(self).__name__} must override process_batch or process_event")
        session = Session(
            self.dsn,
            Subscription(self._listen_dsn, self.queue_name) if self.listen else None,
            application_name=f"pgqpy {self.consumer_name}"[:63],
            prepare_threshold=self._prepare_threshold,
            isolation_level=self.isolation_level,
        )
        self._lost = Backoff(0.1, self.reconnect_cap)
        self._failed = Backoff(self.backoff_first, self.backoff_cap)
        self._waker = Waker()
        try:
            yield session
        finally:
            self._stopping = False
            waker, self._waker = self._waker, None
            waker.close()
            session.close()

    def _next(self, session: Session, *, tolerant: bool) -> bool:
        """Process a batch if there is one. False if it is time to wait for the next."""
        try:
            batch = self._open(session)
        except PgqError as error:
            if not tolerant or isinstance(error, PERMANENT):
                raise
            self._database_away(session, error)
            return True
        self._lost.reset()
        if batch is None:
            return False
        if self.max_lag is not None and batch.lag > self.max_lag:
            self.on_lag(batch.lag, batch)
        try:
            stats = self._process(session, batch)
        except Exception as error:
            if not tolerant:
                raise
            self._batch_failed(session, batch, error)
            return True
        self._failed.reset()
        logger.debug(
            "batch %s done: %s events in %.3f s",
            batch.id,
            stats.events,
            stats.seconds,
            extra=self._fields(batch)
            | {"events": stats.events, "retried": stats.retried, "seconds": stats.seconds},
        )
        self.on_batch(stats)
        # Asking in vain is a fifth of what a small batch costs.
        return not session.up_to_date(batch.tick)

    def _open(self, session: Session) -> Batch | None:
        """Open the next batch, or the one that is open from before, and commit that."""
        conn = session.asking()
        statement = next_batch(
            self.queue_name, self.consumer_name, self.batch_size, self.min_lag, self.event_types
        )
        with translate_errors(), conn.cursor(row_factory=dict_row, binary=True) as cursor:
            cursor.execute(*statement)
            (row,) = cursor.fetchall()
        if row["batch_id"] is None:
            return None
        rows = row["events"]
        return Batch(
            id=row["batch_id"],
            queue=self.queue_name,
            consumer=self.consumer_name,
            prev_tick=row["prev_tick_id"],
            tick=row["cur_tick_id"],
            prev_tick_time=row["prev_tick_time"],
            tick_time=row["cur_tick_time"],
            seq_start=row["prev_tick_event_seq"],
            seq_end=row["cur_tick_event_seq"],
            lag=row["lag"],
            sql=row["batch_sql"],
            event_types=self.event_types,
            source=session.reading() if rows is None else rows,
        )

    def _process(self, session: Session, batch: Batch) -> BatchStats:
        """Effects and finish, in one transaction."""
        started = monotonic()
        conn = session.working()
        try:
            with conn.transaction():
                self.process_batch(conn, batch)
                batch.finish(conn)
        finally:
            batch.close()
        return BatchStats(
            queue=batch.queue,
            consumer=batch.consumer,
            batch_id=batch.id,
            tick_id=batch.tick,
            events=batch.events_read,
            retried=len(batch.retries),
            seconds=monotonic() - started,
            lag=batch.lag,
        )

    def _batch_failed(self, session: Session, batch: Batch, error: Exception) -> None:
        if session.lost:
            self._database_away(session, error, batch)
            return
        pause = self._failed.pause()
        logger.error(
            "batch %s failed and was rolled back; again in %.1f s",
            batch.id,
            pause,
            exc_info=error,
            extra=self._fields(batch) | {"pause": pause},
        )
        self.on_error(error, batch)
        self._sleep(pause)

    def _database_away(
        self, session: Session, error: Exception, batch: Batch | None = None
    ) -> None:
        """Start over with new connections, after a pause."""
        session.close()
        pause = self._lost.pause()
        logger.warning(
            "consumer %s lost the database: %s; again in %.1f s",
            self.consumer_name,
            str(error).partition("\n")[0],
            pause,
            extra=self._fields(batch) | {"pause": pause},
        )
        self.on_error(error, batch)
        self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        """Wait, unless stopped."""
        if not self._stopping and self._waker is not None:
            self._waker.wait(seconds)

    def _fields(self, batch: Batch | None = None) -> dict[str, Any]:
        """What every log line carries."""
        fields: dict[str, Any] = {"queue": self.queue_name, "consumer": self.consumer_name}
        if batch is not None:
            fields |= {
                "batch_id": batch.id,
                "tick_id": batch.tick,
                "lag": batch.lag.total_seconds(),
            }
        return fields
