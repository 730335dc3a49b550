# WARNING: generated from pgqpy/consumer/remote_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers with effects in another database, which get each batch exactly once."""

from __future__ import annotations

from functools import partial
from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.fetch import fetch
from pgqpy.connection import Connection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._target import TargetConsumer, TargetLoop
from pgqpy.consumer.batch import Batch
from pgqpy.errors import PgqError, comes_from, translate_errors
from pgqpy.event import Event
from pgqpy.log import logger


class RemoteConsumer(TargetConsumer):
    """Applies a queue's batches in another database, the target, each exactly once.

    Subclass it, and write on ``target``::

        class Copy(RemoteConsumer):
            queue = "flights"
            consumer = "copy"

            def process_remote_batch(self, conn, batch, target):
                ...

    Each batch is one transaction of the target, in which the target also records the batch (schema
    ``pgq_ext``, installed by ``pgqpy migrate``). Then the batch is finished in the queue's
    database. If anything is killed in between, the batch is opened again, and skipped.

    Writes on ``conn``, in the queue's database, are lost if the process dies between the two
    commits: read there, and write on ``target``.

    A batch that does not follow the target's position raises TargetBehind or TargetAhead, out of
    `run`: one of the databases was restored from a backup, or the consumer was moved. Heartbeats of
    an idle queue are batches here, without events.
    """

    _loop: RemoteLoop
    _ways = "process_remote_batch", "process_remote_event"

    # --- to be overridden

    def prepare_target(self, target: Connection) -> None:
        """Check the target's objects, or create them: called once, before any batch.

        ``target`` is in autocommit.
        """

    def process_remote_batch(self, conn: Connection, batch: Batch, target: Connection) -> None:
        """Apply a batch inside a transaction of ``target``, which must be left open.

        ``conn`` is the queue's database, for reading. The default calls `process_remote_event` for
        each event, and applies ``retry_policy``.
        """
        process = self._traced(batch, partial(self.process_remote_event, target))
        self._process_each(target, batch, process)

    def process_remote_event(self, target: Connection, event: Event) -> None:
        """Apply an event inside the batch's transaction of ``target``; see `process_event`."""
        self._handle(target, event)

    # --- the life of a consumer

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Apply the batch in the target, unless it has it; do not override."""
        target = self.target()
        with target.batch():
            if not self._begin(target, batch):
                self.process_remote_batch(conn, batch, target)
                batch.close()
                self._end(target, batch)
        if batch.retries and self._loop.source_is_ours:
            fetch(conn, sql.SETTLE_BATCH, (batch.id,))

    # --- helpers

    def _kind_of_loop(self) -> type[Loop]:
        return RemoteLoop

    def _begin(self, target: Connection, batch: Batch) -> bool:
        """Whether the target has the batch."""
        identity = (
            batch.consumer,
            batch.queue,
            batch.id,
            batch.prev_tick,
            batch.prev_tick_time,
            batch.tick,
            batch.tick_time,
        )
        (row,) = fetch(target, sql.BEGIN_BATCH, identity, dict_row)
        if not row["done"]:
            return False
        logger.info(
            "batch %s is in the target database already", batch.id, extra=self.log_fields(batch)
        )
        batch.retries.load(row["retries"] or {})
        return True

    def _end(self, target: Connection, batch: Batch) -> None:
        encoding = target.info.parameter_status("server_encoding") or ""
        retries = Jsonb(batch.retries.dump(encoding)) if batch.retries else None
        identity = batch.consumer, batch.queue, batch.id, batch.tick, batch.tick_time
        fetch(target, sql.END_BATCH, [*identity, retries, batch.tick_snapshot, batch.seq_end])


class SerialConsumer(RemoteConsumer):
    """An RemoteConsumer for effects whose order matters: no event is left for later.

    An event that is retried, or given up, fails the batch, which is retried as a whole.
    """

    def _end(self, target: Connection, batch: Batch) -> None:
        self._check_order(batch)
        super()._end(target, batch)

    def _check_order(self, batch: Batch) -> None:
        if batch.retries:
            raise PgqError(
                f"an event of batch {batch.id} was retried or given up, but consumer "
                f"{batch.consumer} keeps the order of events",
                hint="Raise the error, so that the batch comes again, or use a RemoteConsumer.",
            )


class RemoteLoop(TargetLoop):
    """The run of a consumer whose batches follow the target's position."""

    _consumer: RemoteConsumer
    # The target would not be told of heartbeats that are skipped.
    _with_tick = True

    def __init__(self, consumer: RemoteConsumer, waker: Waker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._names = consumer.queue, consumer.consumer
        self._prepared = False
        #: Whether source and target are known to agree on the position.
        self._started = False
        #: Whether the queue is pgqpy's, not of PgQ itself.
        self.source_is_ours = True

    def _join(self, conn: Connection) -> bool:
        """Register, and tell the target the position."""
        new = super()._join(conn)
        self._start(conn)
        return new

    def _open(self) -> Batch | None:
        """Open the next batch; the target knows the position before it."""
        if not self._started:
            self._start(self._session.working())
        return super()._open()

    def _failed(self, batch: Batch, error: Exception) -> None:
        # The target may have committed.
        self._started = False
        super()._failed(batch, error)

    def _start(self, conn: Connection) -> None:
        """Tell the target the consumer's position, if it knows none and that is no error.

        Also reopens a batch that only the target records as done.
        """
        if self._consumer.batch_size is None:
            ((self.source_is_ours,),) = fetch(conn, sql.IS_OURS)
        statement = sql.POSITION if self.source_is_ours else sql.POSITION_OF_PGQ
        positions = fetch(conn, statement, self._names)
        if not positions:
            # Not registered; opening a batch will raise that.
            return
        target = self.target()
        with comes_from(self._consumer.target_dsn), translate_errors():
            if not self._prepared:
                self._consumer.prepare_target(target)
                self._prepared = True
            known = self._consumer.consumer, self._consumer.queue, *positions[0]
            (batch,) = fetch(target, sql.START_BATCHES, known, dict_row)
        if batch["batch_id"] is not None:
            self._reopen(conn, batch)
        self._started = True

    def _reopen(self, conn: Connection, batch: dict[str, Any]) -> None:
        """Open a batch again whose retries the target has and the queue has not."""
        ((reopened,),) = fetch(conn, sql.REOPEN_BATCH, (*self._names, *batch.values()))
        if reopened:
            logger.warning(
                "consumer %s was moved before it could finish batch %s, whose retries are noted in"
                " the target; it is opened again",
                self._consumer.consumer,
                batch["batch_id"],
                extra=self._consumer.log_fields() | {"batch_id": batch["batch_id"]},
            )
