# WARNING: generated from pgqpy/consumer/_loop_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The loop of a consumer: open a batch, process and finish it in one transaction, wait for more."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar

import psycopg
from psycopg.rows import dict_row

from pgqpy._runtime.acompat import Interruptible, Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.contracts import Contracts
from pgqpy._runtime.failure import blamed, soon, storable, traceback_of
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.listener import Subscription
from pgqpy._runtime.session import Session
from pgqpy._runtime.stoppable import Stoppable, Stopped
from pgqpy._wire.contract import Validators
from pgqpy.admin import Admin
from pgqpy.connection import Connection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import fields_of
from pgqpy.consumer._events import RunInPieces
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer._standby import Standby
from pgqpy.consumer.batch import Batch
from pgqpy.errors import PERMANENT, BatchLost, ConnectionFailed, LeaseLost, PgqError
from pgqpy.event import Event
from pgqpy.log import logger
from pgqpy.models import BatchStats
from pgqpy.retry import in_short
from pgqpy.telemetry._spans import processing_batch

#: The factor by which polls are rarer while notifications of ticks are known to arrive.
_TRUST = 100
#: Seconds without a tick, and without a batch, that are worth a warning; and until the next one.
_NO_TICK = 10.0
_AGAIN = 60.0


class Hooks(Stoppable, ConsumerSettings):
    """The methods of a consumer that its loop calls, to be overridden."""

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process a batch; see `Consumer`."""
        raise NotImplementedError

    def on_batch(self, stats: BatchStats) -> None:
        """Called when a batch is committed: the place for metrics."""

    def on_error(self, error: Exception, batch: Batch | None) -> None:
        """Called when a batch was rolled back, or (without a batch) when the database is away.

        It will be retried; raise here to leave `run` instead. The error is logged already.
        """

    def on_event_failed(self, event: Event, error: Exception, delay: timedelta | None) -> None:
        """Called when an event failed; it is retried after ``delay``, None: it is a dead letter.

        Both happen when the batch is finished. The error is logged already. Raise here to retry the
        whole batch instead.
        """

    def on_lag(self, lag: timedelta, batch: Batch) -> None:
        """Called for a batch older than ``max_lag``. It logs a warning; raise to leave `run`."""
        logger.warning(
            "consumer %s lags %s behind", self.consumer, lag, extra=self.log_fields(batch)
        )

    def wants_batch(self, conn: Connection) -> bool:
        """Whether to open a batch now; asked before each, with the connection that opens it.

        If not, `run` waits and asks again, or ends if it is to run until the queue is empty.
        """
        return True

    def around_batch(
        self, batch: Batch, idle: Callable[[], Connection]
    ) -> AbstractContextManager[None]:
        """Return a block around the processing of a batch and its commit.

        ``idle`` returns the connection that reads events; nothing else uses it if the batch is not
        iterated.
        """
        return nullcontext()


class Loop:
    """One run of a consumer.

    Subclasses open the batches of a group or of a shared consumer, or check a target database.
    """

    #: Whether to pause after a failed batch; otherwise other batches have their turn.
    _pauses = True
    #: Whether batches have the tick's snapshot, and heartbeats of an idle queue are batches.
    _with_tick = False
    #: Whether batches come that no notification announces.
    _unannounced = False
    #: The maximum seconds between looks for a batch.
    _longest_wait = math.inf
    #: The class of the batches.
    _kind: ClassVar[Callable[..., Batch]] = Batch

    def __init__(self, consumer: Hooks, waker: Waker, *, strict: bool) -> None:
        """With ``strict`` any error ends it."""
        self._consumer = consumer
        self._names = consumer.queue, consumer.consumer
        self._waker = waker
        self._strict = strict
        self._session = Session(
            consumer.dsn,
            application_name=consumer.session_name(),
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.isolation_level,
        )
        #: The notifications of ticks; None: it does not listen.
        self._subscription: Subscription | None = None
        self._subscribe(consumer.listen_dsn)
        #: Where batches are read; None: on the primary.
        self._standby: Standby | None = None
        if consumer.read_dsn is not None:
            self._standby = Standby(consumer, waker, self._session, consumer.read_dsn)
        self._contracts = Contracts(consumer.queue)
        self._failures = Backoff(consumer.backoff_first, consumer.backoff_cap)
        self._losses = Backoff(0.1, consumer.reconnect_cap)
        #: The batch that is processed now.
        self._at_work_on: Batch | None = None
        #: A failure that lost its connection, to be recorded over the next one.
        self._unnoted: tuple[Batch, Exception] | None = None
        self._look_at = monotonic() + _NO_TICK

    def run(self, *, until_empty: bool) -> None:
        """Process batches until the consumer is told to stop, or there are no more."""
        consumer = self._consumer
        new = self._join(self._session.working())
        logger.info(
            "consumer %s %s",
            consumer.consumer,
            "registered and started" if new else "started",
            extra=consumer.log_fields(),
        )
        while not consumer.stopping:
            if self.step():
                continue
            if until_empty:
                self._look_at = monotonic()
                self._look_for_ticks()
                break
            # Ticks before the first LISTEN were not notified: poll once more.
            if self._subscription is None or not self._subscription.open():
                self._wait()
                self._look_for_ticks()
        self._leave()
        logger.info("consumer %s stopped", consumer.consumer, extra=consumer.log_fields())

    def close(self) -> None:
        self._disconnect()
        if self._standby is not None:
            self._standby.close()

    def _subscribe(self, dsn: str) -> None:
        if self._consumer.listen:
            self._subscription = Subscription(dsn, self._consumer.queue)

    def _disconnect(self) -> None:
        """Close all connections; the next use opens them again."""
        self._session.close()
        if self._subscription is not None:
            self._subscription.close()

    def _join(self, conn: Connection) -> bool:
        """Register, when `run` begins; False if it was registered already."""
        return Admin(conn).register_consumer(*self._names, self._consumer.start)

    def _wait(self) -> None:
        seconds = self._consumer.poll_interval
        if self._subscription is None:
            self._waker.wait(min(seconds, self._longest_wait))
            return
        announced = self._consumer.min_lag is None and not self._unannounced
        if announced and self._subscription.works:
            # Polling only covers a connection that dies unnoticed.
            seconds *= _TRUST
        self._subscription.wait(self._waker, min(seconds, self._longest_wait))

    def _leave(self) -> None:
        """Clean up when `run` ends without an error."""

    def _look_for_ticks(self) -> None:
        """Warn if events wait for a tick: nothing else says that no ticker runs."""
        if monotonic() < self._look_at:
            return
        self._look_at = monotonic() + _AGAIN
        queue = self._consumer.queue
        try:
            (info,) = Admin(self._asking()).get_queue_info(queue)
        except PgqError:
            return  # The next step meets it, too.
        lag = info.ticker_lag or timedelta()
        if info.ev_new and lag.total_seconds() > _NO_TICK:
            logger.warning(
                "queue %s has new events, and no tick for %.0f s: run `pgqpy ticker`, or this"
                ' consumer with ticker="auto"',
                queue,
                lag.total_seconds(),
                extra=self._consumer.log_fields(),
            )

    def step(self) -> bool:
        """Process a batch if there is one. False if it is time to wait for the next."""
        consumer = self._consumer
        try:
            if not consumer.wants_batch(self._session.working()):
                return False
            batch = self._open()
        except PgqError as error:
            if self._strict or isinstance(error, PERMANENT):
                raise
            self._reconnect(error)
            return True
        self._losses.reset()
        if self._unnoted is not None:
            self._note_failure(*self._unnoted)
        if batch is None:
            return False
        self._at_work_on = batch
        if consumer.max_lag is not None and batch.lag > consumer.max_lag:
            consumer.on_lag(batch.lag, batch)
        try:
            with consumer.around_batch(batch, self._session.reading):
                stats = self._process(batch)
        except Stopped:
            # The batch stays open; its finished events are recorded.
            return False
        except Exception as error:
            self._note_failure(batch, error)
            if self._strict:
                raise
            self._failed(batch, error)
            return True
        self._done(batch)
        self._look_at = monotonic() + _NO_TICK
        logger.debug(
            "batch %s done: %s events in %.3f s",
            batch.id,
            stats.events,
            stats.seconds,
            extra=consumer.log_fields(batch)
            | {
                "events": stats.events,
                "retried": stats.retried,
                "dead_letters": stats.dead_letters,
                "seconds": stats.seconds,
            },
        )
        consumer.on_batch(stats)
        return self._more(batch)

    # --- opening

    def _asking(self) -> Connection:
        """Return the connection for opening the next batch; later notifications are new."""
        conn = self._session.working()
        if self._subscription is not None:
            self._subscription.ask()
        return conn

    def _open(self) -> Batch | None:
        """Open the next batch, or get the one that is still open, and commit."""
        conn = self._asking()
        (row,) = fetch(conn, *self._statement(), dict_row, binary=True)
        return None if row["batch_id"] is None else self._made(row)

    def _statement(self) -> tuple[bytes, list[Any]]:
        wanted = *self._names, self._consumer.batch_size, self._consumer.min_lag
        return sql.next_batch(*wanted, self._most_inline, with_tick=self._with_tick)

    @property
    def _most_inline(self) -> int:
        """The maximum number of events to get with the batch; -1: none, not even an empty list."""
        # With the batch come events of all types.
        if self._standby is not None or self._consumer.event_types is not None:
            return -1
        return sql.MOST_INLINE

    def _made(self, row: dict[str, Any], **more: Any) -> Batch:
        """Return the batch of a row; a large one is read on the session's other connection."""
        rows = row["events"]
        return self._kind(
            **fields_of(row),
            queue=self._consumer.queue,
            consumer=self._consumer.consumer,
            event_types=self._consumer.event_types,
            validators=self._validators(),
            source=self._session.reading() if rows is None else rows,
            elsewhere=self._standby,
            **more,
        )

    def _validators(self) -> Validators | None:
        if not self._consumer.check_contracts:
            return None
        return self._contracts.read(self._asking())

    # --- processing

    def _process(self, batch: Batch) -> BatchStats:
        """Process and finish a batch in one transaction."""
        started = monotonic()
        conn = self._session.working()
        with processing_batch(batch):
            try:
                try:
                    self._transact(conn, batch)
                except RunInPieces:
                    batch.start_over(in_pieces=True)
                # Outside of the `except`: the error would be the context of every later one.
                if batch.in_pieces:
                    self._transact(conn, batch)
            finally:
                self._at_work_on = None
                batch.close()
        return batch.stats(monotonic() - started)

    def _transact(self, conn: BatchConnection, batch: Batch) -> None:
        with conn.batch():
            # A batch that raises a CancelledError of its own has failed.
            with Interruptible():
                self._consumer.process_batch(conn, batch)
            if not batch.retries:
                conn.forgo_transaction()
            batch.finish(conn)

    def _done(self, batch: Batch) -> None:
        """Note that a batch was finished."""
        self._failures.reset()

    def _more(self, batch: Batch) -> bool:
        """Whether there may be a batch after this one."""
        # A poll in vain is a fifth of the cost of a small batch.
        return self._subscription is None or not self._subscription.up_to_date(batch.tick)

    # --- failures

    def _failed(self, batch: Batch, error: Exception) -> None:
        """Log a failed batch, and pause. Raises errors that waiting does not cure."""
        self._at_work_on = None
        if self._lost:
            self._reconnect(error, batch)
            return
        fields = self._consumer.log_fields(batch)
        if isinstance(error, LeaseLost):
            logger.warning("batch %s was rolled back: %s", batch.id, error.message, extra=fields)
            return
        pause = self._pause(batch)
        event_id = blamed(error)
        logger.error(
            "batch %s of consumer %s on queue %s failed%s and was rolled back; again %s: %s",
            batch.id,
            batch.consumer,
            batch.queue,
            "" if event_id is None else f" at event {event_id}",
            soon(pause),
            in_short(error),
            exc_info=error,
            extra=fields | {"pause": pause} | ({} if event_id is None else {"event_id": event_id}),
        )
        self._consumer.on_error(error, batch)
        if self._pauses:
            self._sleep(pause)

    def _pause(self, batch: Batch) -> float:
        """Return the seconds until a failed batch is retried."""
        return self._failures.pause()

    @property
    def _lost(self) -> bool:
        return self._session.lost

    def _reconnect(self, error: Exception, batch: Batch | None = None) -> None:
        """Close the connections that broke, and pause; the next use opens them again."""
        away = self._session.lost or isinstance(error, ConnectionFailed)
        self._disconnect()
        what = "lost the database" if away else "got no batch"
        self._rest(what, self._losses, error, batch)

    def _rest(self, what: str, losses: Backoff, error: Exception, batch: Batch | None) -> None:
        """Log a loss, and pause."""
        pause = losses.pause(error)
        logger.log(
            losses.level,
            "consumer %s %s: %s; again %s",
            self._consumer.consumer,
            what,
            str(error).partition("\n")[0],
            soon(pause),
            extra=self._consumer.log_fields(batch) | {"pause": pause},
        )
        self._consumer.on_error(error, batch)
        self._sleep(pause)

    def _note_failure(self, batch: Batch, error: Exception) -> None:
        """Record the failure for ``pgqpy status``, if possible: the batch is rolled back
        already."""
        self._unnoted = None
        if isinstance(error, BatchLost | LeaseLost) or not batch.is_of_queue:
            # Another worker has the batch; or the queue has no such batch.
            return
        if self._session.lost:
            self._unnoted = batch, error
            return
        try:
            conn = self._session.working()
            encoding = conn.info.parameter_status("server_encoding") or ""
            text = f"{in_short(error)[:_MOST_OF_AN_ERROR]}\n\n{traceback_of(error)}"
            conn.execute(sql.NOTE_FAILURE, (batch.id, storable(text, encoding), blamed(error)))
        except (psycopg.Error, PgqError) as impossible:
            # The role lacks the right, or the queue is one of PgQ itself.
            logger.debug(
                "batch %s: its failure cannot be noted: %s",
                batch.id,
                str(impossible).partition("\n")[0],
                extra=self._consumer.log_fields(batch),
            )

    def _warn(self, message: str, *arguments: object) -> None:
        logger.warning(message, *arguments, extra=self._consumer.log_fields())

    def _sleep(self, seconds: float) -> None:
        if not self._consumer.stopping:
            self._waker.wait(seconds)


_MOST_OF_AN_ERROR = 1_000
