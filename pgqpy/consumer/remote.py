# WARNING: generated from pgqpy/consumer/remote_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers with effects in another database, which get each batch exactly once."""

from __future__ import annotations

from functools import partial
from typing import Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.session import Session
from pgqpy.connection import Connection
from pgqpy.consumer._loop import Batches
from pgqpy.consumer._target import TargetBatches, TargetConsumer
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

    _target: RemoteBatches

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
        if batch.retries and self._target.source_is_ours:
            fetch(conn, _SETTLE, (batch.id,))

    # --- helpers

    def _check(self) -> None:
        super()._check()
        self._check_way(RemoteConsumer, "process_remote_batch", "process_remote_event")

    def _batches(self) -> Batches:
        self._target = RemoteBatches(self)
        return self._target

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
        (row,) = fetch(target, _BEGIN, identity, dict_row)
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
        fetch(target, _END, [*identity, retries, batch.tick_snapshot, batch.seq_end])


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


class RemoteBatches(TargetBatches):
    """Batches that follow the target's position."""

    _consumer: RemoteConsumer
    # The target would not be told of heartbeats that are skipped.
    _with_tick = True

    def __init__(self, consumer: RemoteConsumer) -> None:
        super().__init__(consumer)
        self._names = consumer.queue, consumer.consumer
        self._prepared = False
        #: Whether source and target are known to agree on the position.
        self._started = False
        #: Whether the queue is pgqpy's, not of PgQ itself.
        self.source_is_ours = True

    def join(self, conn: Connection) -> bool:
        """Register, and tell the target the position."""
        new = super().join(conn)
        self._start(conn)
        return new

    def open(self, session: Session, *, strict: bool) -> Batch | None:
        """Open the next batch; the target knows the position before it."""
        if not self._started:
            self._start(session.working())
        return super().open(session, strict=strict)

    def failed(self, batch: Batch, error: Exception) -> None:
        """Ask for the target's position again: it may have committed."""
        self._started = False
        super().failed(batch, error)

    def _start(self, conn: Connection) -> None:
        """Tell the target the consumer's position, if it knows none and that is no error.

        Also reopens a batch that only the target records as done.
        """
        if self._consumer.batch_size is None:
            ((self.source_is_ours,),) = fetch(conn, _IS_OURS)
        statement = _POSITION if self.source_is_ours else _POSITION_OF_PGQ
        positions = fetch(conn, statement, self._names)
        if not positions:
            # Not registered; opening a batch will raise that.
            return
        target = self.connection()
        with comes_from(self._consumer.target_dsn), translate_errors():
            if not self._prepared:
                self._consumer.prepare_target(target)
                self._prepared = True
            known = self._consumer.consumer, self._consumer.queue, *positions[0]
            (batch,) = fetch(target, _START, known, dict_row)
        if batch["batch_id"] is not None:
            self._reopen(conn, batch)
        self._started = True

    def _reopen(self, conn: Connection, batch: dict[str, Any]) -> None:
        """Open a batch again whose retries the target has and the queue has not."""
        ((reopened,),) = fetch(conn, _REOPEN, (*self._names, *batch.values()))
        if reopened:
            logger.warning(
                "consumer %s was moved before it could finish batch %s, whose retries are noted in"
                " the target; it is opened again",
                self._consumer.consumer,
                batch["batch_id"],
                extra=self._consumer.log_fields() | {"batch_id": batch["batch_id"]},
            )


_POSITION = b"select tick_id, tick_time, fresh from pgq.get_consumer_start(%s, %s)"
#: Uses only functions of PgQ; it cannot tell whether the consumer is at its start.
_POSITION_OF_PGQ = b"""
select s.sub_last_tick as tick_id, t.tick_time, true as fresh
  from pgq.subscription s
  join pgq.queue q on q.queue_id = s.sub_queue
  join pgq.consumer c on c.co_id = s.sub_consumer
  join pgq.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
 where q.queue_name = %s and c.co_name = %s
"""
_IS_OURS = b"select to_regprocedure('pgq.settle_batch(bigint)') is not null as ours"
_START = b"select * from pgq_ext.start_batches(%s, %s, %s, %s, %s)"
_REOPEN = b"select pgq.reopen_batch(%s, %s, %s, %s, %s, %s, %s)"
_SETTLE = b"select pgq.settle_batch(%s)"
_BEGIN = b"select * from pgq_ext.begin_batch(%s, %s, %s, %s, %s, %s, %s)"
_END = b"select pgq_ext.end_batch(%s, %s, %s, %s, %s, %s, %s::text::txid_snapshot, %s)"
