"""The loop of a consumer: open a batch, process and finish it in one transaction, wait for more."""

from __future__ import annotations

import math
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar

import psycopg
from psycopg.rows import dict_row

from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.contracts import Contracts
from pgqpy._runtime.contracts_async import AsyncContracts
from pgqpy._runtime.failure import blamed, soon, storable, traceback_of
from pgqpy._runtime.listener import Subscription
from pgqpy._runtime.session import Session
from pgqpy._wire.contract import Validators
from pgqpy.admin import Admin
from pgqpy.admin_async import AsyncAdmin
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import RunInPieces, Stopped, fields_of
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer._standby import Standby
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import PERMANENT, BatchLost, ConnectionFailed, LeaseLost, PgqError
from pgqpy.log import logger
from pgqpy.models import BatchStats
from pgqpy.retry import in_short
from pgqpy.telemetry._spans import processing_batch

#: The factor by which polls are rarer while notifications of ticks are known to arrive.
_TRUST = 100
#: Seconds without a tick, and without a batch, that are worth a warning; and until the next one.
_NO_TICK = 10.0
_AGAIN = 60.0


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
    #: The classes of the batches, for asyncio and for threads.
    _batch_kinds: ClassVar[tuple[type[AsyncBatch], type[Any]]] = AsyncBatch, Batch

    def __init__(self, consumer: ConsumerSettings, waker: AsyncWaker, *, strict: bool) -> None:
        """With ``strict`` any error ends it."""
        self._consumer = consumer
        self._io = consumer._io
        self._names = consumer.queue, consumer.consumer
        self._waker = waker
        self._strict = strict
        self._session = Session(
            self._io,
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
        self._contracts = self._io.either(AsyncContracts, Contracts)(consumer.queue)
        self._failures = Backoff(consumer.backoff_first, consumer.backoff_cap)
        self._losses = Backoff(0.1, consumer.reconnect_cap)
        #: The batch that is processed now.
        self._at_work_on: AsyncBatch | None = None
        #: A failure that lost its connection, to be recorded over the next one.
        self._unnoted: tuple[AsyncBatch, Exception] | None = None
        self._look_at = monotonic() + _NO_TICK

    async def run(self, *, until_empty: bool) -> None:
        """Process batches until the consumer is told to stop, or there are no more."""
        consumer = self._consumer
        new = await self._join(await self._session.working())
        logger.info(
            "consumer %s %s",
            consumer.consumer,
            "registered and started" if new else "started",
            extra=consumer.log_fields(),
        )
        while not consumer.stopping:
            if await self.step():
                continue
            if until_empty:
                self._look_at = monotonic()
                await self._look_for_ticks()
                break
            # Ticks before the first LISTEN were not notified: poll once more.
            if self._subscription is None or not await self._subscription.open():
                await self._wait()
                await self._look_for_ticks()
        await self._leave()
        logger.info("consumer %s stopped", consumer.consumer, extra=consumer.log_fields())

    async def close(self) -> None:
        await self._disconnect()
        if self._standby is not None:
            await self._standby.close()

    def _subscribe(self, dsn: str) -> None:
        if self._consumer.listen:
            self._subscription = Subscription(self._io, dsn, self._consumer.queue)

    async def _disconnect(self) -> None:
        """Close all connections; the next use opens them again."""
        await self._session.close()
        if self._subscription is not None:
            await self._subscription.close()

    async def _join(self, conn: AsyncConnection) -> bool:
        """Register, when `run` begins; False if it was registered already."""
        admin = self._io.either(AsyncAdmin, Admin)(conn)
        return await self._io.call(admin.register_consumer, *self._names, self._consumer.start)

    async def _wait(self) -> None:
        seconds = self._consumer.poll_interval
        if self._subscription is None:
            await self._io.call(self._waker.wait, min(seconds, self._longest_wait))
            return
        announced = self._consumer.min_lag is None and not self._unannounced
        if announced and self._subscription.works:
            # Polling only covers a connection that dies unnoticed.
            seconds *= _TRUST
        await self._subscription.wait(self._waker, min(seconds, self._longest_wait))

    async def _leave(self) -> None:
        """Clean up when `run` ends without an error."""

    async def _look_for_ticks(self) -> None:
        """Warn if events wait for a tick: nothing else says that no ticker runs."""
        if monotonic() < self._look_at:
            return
        self._look_at = monotonic() + _AGAIN
        queue = self._consumer.queue
        try:
            admin = self._io.either(AsyncAdmin, Admin)(await self._asking())
            (info,) = await self._io.call(admin.get_queue_info, queue)
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

    async def step(self) -> bool:
        """Process a batch if there is one. False if it is time to wait for the next."""
        consumer = self._consumer
        guard = consumer._shard_guard
        try:
            conn = await self._session.working()
            if guard is not None and not await guard.wants_batch(conn):
                return False
            if not await self._io.call(consumer.wants_batch, conn):
                return False
            batch = await self._open()
        except PgqError as error:
            if self._strict or isinstance(error, PERMANENT):
                raise
            await self._reconnect(error)
            return True
        self._losses.reset()
        if self._unnoted is not None:
            await self._note_failure(*self._unnoted)
        if batch is None:
            return False
        self._at_work_on = batch
        if consumer.max_lag is not None and batch.lag > consumer.max_lag:
            await self._io.call(consumer.on_lag, batch.lag, batch)
        try:
            if guard is not None:
                await guard.check()
            async with self._io.block(consumer.around_batch(batch, self._idle)):
                stats = await self._process(batch)
        except Stopped:
            # The batch stays open; its finished events are recorded.
            return False
        except Exception as error:
            await self._note_failure(batch, error)
            if self._strict:
                raise
            await self._failed(batch, error)
            return True
        await self._done(batch)
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
        await self._io.call(consumer.on_batch, stats)
        return self._more(batch)

    def _idle(self) -> Any:
        """Return the connection that reads events, for the consumer's own code."""
        return self._io.run(self._session.reading())

    # --- opening

    async def _asking(self) -> AsyncConnection:
        """Return the connection for opening the next batch; later notifications are new."""
        conn = await self._session.working()
        if self._subscription is not None:
            self._subscription.ask()
        return conn

    async def _open(self) -> AsyncBatch | None:
        """Open the next batch, or get the one that is still open, and commit."""
        conn = await self._asking()
        (row,) = await self._io.fetch(conn, *self._statement(), dict_row, binary=True)
        return None if row["batch_id"] is None else await self._made(row)

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

    async def _made(self, row: dict[str, Any], **more: Any) -> AsyncBatch:
        """Return the batch of a row; a large one is read on the session's other connection."""
        rows = row["events"]
        return self._io.either(*self._batch_kinds)(
            **fields_of(row),
            queue=self._consumer.queue,
            consumer=self._consumer.consumer,
            event_types=self._consumer.event_types,
            validators=await self._validators(),
            source=await self._session.reading() if rows is None else rows,
            elsewhere=self._standby,
            **more,
        )

    async def _validators(self) -> Validators | None:
        if not self._consumer.check_contracts:
            return None
        return await self._io.call(self._contracts.read, await self._asking())

    # --- processing

    async def _process(self, batch: AsyncBatch) -> BatchStats:
        """Process and finish a batch in one transaction."""
        started = monotonic()
        conn = await self._session.working()
        with processing_batch(batch):
            try:
                try:
                    await self._transact(conn, batch)
                except RunInPieces:
                    await self._io.call(batch.start_over, in_pieces=True)
                # Outside of the `except`: the error would be the context of every later one.
                if batch.in_pieces:
                    await self._transact(conn, batch)
            finally:
                self._at_work_on = None
                await self._io.call(batch.close)
        return batch.stats(monotonic() - started)

    async def _transact(self, conn: AsyncBatchConnection, batch: AsyncBatch) -> None:
        async with self._io.block(conn.batch()):
            # A batch that raises a CancelledError of its own has failed.
            with self._io.interruptible():
                await self._io.call(self._consumer.process_batch, conn, batch)
            if not batch.retries:
                await self._io.call(conn.forgo_transaction)
            await self._io.call(batch.finish, conn)

    async def _done(self, batch: AsyncBatch) -> None:
        """Note that a batch was finished."""
        self._failures.reset()

    def _more(self, batch: AsyncBatch) -> bool:
        """Whether there may be a batch after this one."""
        # A poll in vain is a fifth of the cost of a small batch.
        return self._subscription is None or not self._subscription.up_to_date(batch.tick)

    # --- failures

    async def _failed(self, batch: AsyncBatch, error: Exception) -> None:
        """Log a failed batch, and pause. Raises errors that waiting does not cure."""
        self._at_work_on = None
        if self._lost:
            await self._reconnect(error, batch)
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
        await self._io.call(self._consumer.on_error, error, batch)
        if self._pauses:
            await self._sleep(pause)

    def _pause(self, batch: AsyncBatch) -> float:
        """Return the seconds until a failed batch is retried."""
        return self._failures.pause()

    @property
    def _lost(self) -> bool:
        return self._session.lost

    async def _reconnect(self, error: Exception, batch: AsyncBatch | None = None) -> None:
        """Close the connections that broke, and pause; the next use opens them again."""
        away = self._session.lost or isinstance(error, ConnectionFailed)
        await self._disconnect()
        what = "lost the database" if away else "got no batch"
        await self._rest(what, self._losses, error, batch)

    async def _rest(
        self, what: str, losses: Backoff, error: Exception, batch: AsyncBatch | None
    ) -> None:
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
        await self._io.call(self._consumer.on_error, error, batch)
        await self._sleep(pause)

    async def _note_failure(self, batch: AsyncBatch, error: Exception) -> None:
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
            conn = await self._session.working()
            encoding = conn.info.parameter_status("server_encoding") or ""
            text = f"{in_short(error)[:_MOST_OF_AN_ERROR]}\n\n{traceback_of(error)}"
            note = batch.id, storable(text, encoding), blamed(error)
            await self._io.call(conn.execute, sql.NOTE_FAILURE, note)
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

    async def _sleep(self, seconds: float) -> None:
        if not self._consumer.stopping:
            await self._io.call(self._waker.wait, seconds)


_MOST_OF_AN_ERROR = 1_000
