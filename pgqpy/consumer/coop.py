# WARNING: generated from pgqpy/consumer/coop_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers that share their work: several workers, one position, each a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Unpack

from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import POSITIVE_INTERVAL, check_settings
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.heartbeat import Heartbeat, unique_name
from pgqpy._runtime.session import Session
from pgqpy.connection import Connection, connect
from pgqpy.consumer._loop import Batches
from pgqpy.consumer.base import Consumer, ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.errors import PgqError

_REGISTER = b"select pgq_coop.register_subconsumer(%s, %s, %s)"
_UNREGISTER = b"select pgq_coop.unregister_subconsumer(%s, %s, %s, 0)"
_NEXT_BATCH = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag
  from pgq_coop.open_next_batch(%s, %s, %s, %s, %s, null, null, %s, %s) batch
"""
_KEEP_BATCH = b"select pgq_coop.keep_batch(%s, %s, %s, %s)"
_FINISH_BATCH = b"select pgq_coop.finish_batch(%s, %s, %s, %s)"


@dataclass(eq=False, kw_only=True)
class _SharedBatch(Batch):
    """A batch that only its worker may finish."""

    worker: str

    def _finish_batch(self, encoding: str) -> tuple[bytes, Sequence[Any]]:
        return _FINISH_BATCH, (self.queue, self.consumer, self.worker, self.id)


class CoopConsumer(Consumer):
    """A worker: one of several processes that share a consumer's events, whole batches each.

    Works like `Consumer`; start as many as the work needs, on as many machines. Each event
    goes to one of them, exactly once for its writes in this database. Batches are processed
    concurrently, so events are in order within a batch only. Any worker may get a retried event.

    A worker registers when `run` begins, and unregisters when `run` ends without an error. While it
    processes a batch it sends a heartbeat every quarter of ``dead_after``, on a connection of its
    own. If it is killed, another worker takes its batch over after ``dead_after``. If it was only
    slow (its machine slept, or the network was down), its own finish fails with BatchLost, and
    all its writes are rolled back. It also sends no heartbeat while it pauses after a failed batch:
    a long pause hands the batch on.

    `unregister` unregisters the consumer, with all workers.
    """

    worker_name: str = ""
    """The name of this worker among those of the consumer; by default unique to the object."""
    batch_size: int | None = 1_000
    """See `Consumer`. The ticks that one worker takes at once are not shared with the
    others."""
    dead_after: timedelta = timedelta(minutes=1)
    """The silence after which a worker's batch is taken over. Equal for all workers."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        worker_name: str | None = None,
        dead_after: timedelta | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See `Consumer`; the names and ``dead_after`` here win over the class's.

        If a worker restarts under a fixed name, it gets its open batch back at once, without
        waiting for ``dead_after``. Two workers with one name stop each other.
        """
        super().__init__(dsn, **options)
        self.worker_name = worker_name or self.worker_name or unique_name()
        self.dead_after = self.dead_after if dead_after is None else dead_after
        check_settings(self, {"dead_after": POSITIVE_INTERVAL})

    def log_fields(self, batch: Batch | None = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        return super().log_fields(batch) | {"worker": self.worker_name}

    def _batches(self) -> Batches:
        return _SharedBatches(self)


class _SharedBatches(Batches):
    """Batches of a worker, with a heartbeat while it has one."""

    _consumer: CoopConsumer
    _kind = _SharedBatch

    def __init__(self, consumer: CoopConsumer) -> None:
        super().__init__(consumer)
        self._member = consumer.queue, consumer.consumer, consumer.worker_name
        self._quarter = consumer.dead_after.total_seconds() / 4
        self._beat_at = 0.0
        self._at_work_on: int | None = None
        self._heartbeat = Heartbeat(
            "batch",
            lambda: connect(consumer.dsn, autocommit=True, prepare_threshold=None),
            self._beat,
            self._due,
            self._beat_failed,
            backoff=Backoff(0.5, self._quarter),
        )
        self._heartbeat.start()

    def join(self, conn: Connection) -> bool:
        # The worker would register the consumer, too, at the newest tick.
        super().join(conn)
        ((new,),) = fetch(conn, _REGISTER, self._member)
        return bool(new)

    def open(self, session: Session, *, strict: bool) -> Batch | None:
        """Open a batch, or take over that of a worker that is gone."""
        batch = super().open(session, strict=strict)
        self._at_work_on = None if batch is None else batch.id
        return batch

    def wait(self, session: Session, waker: Waker) -> None:
        """Wait for a batch, or until it is time to look whether a worker is gone."""
        # No notification is sent when a worker dies.
        session.wait(
            waker,
            min(self._consumer.poll_interval, self._quarter),
            for_tick=self._consumer.min_lag is None,
            at_most=self._quarter,
        )

    def done(self, batch: Batch) -> None:
        self._at_work_on = None
        super().done(batch)

    def failed(self, batch: Batch, error: Exception) -> None:
        """Hand the batch on, if the pause is long."""
        self._at_work_on = None

    def leave(self, session: Session) -> None:
        try:
            fetch(session.working(), _UNREGISTER, self._member)
        except PgqError as error:
            # A failed batch must not be skipped; other workers take over, and clean up.
            self._warn("worker %s stays registered: %s", self._member[2], error.message)

    def close(self, session: Session) -> None:
        self._heartbeat.close(timeout=1)

    def _statement(self) -> tuple[bytes, list[Any]]:
        consumer = self._consumer
        bounds = consumer.batch_size, self._most_inline
        options = [consumer.dead_after, consumer.min_lag, *bounds]
        return _NEXT_BATCH, [*self._member, *options]

    def _made(self, session: Session, row: dict[str, Any], **more: Any) -> Batch:
        return super()._made(session, row, worker=self._consumer.worker_name)

    # --- in the heartbeat's thread

    def _due(self) -> float:
        if self._at_work_on is None:
            self._beat_at = monotonic() + self._quarter
        return self._beat_at

    def _beat(self, conn: Connection) -> None:
        batch_id = self._at_work_on
        self._beat_at = monotonic() + self._quarter
        if batch_id is None:
            return
        ((kept,),) = conn.execute(_KEEP_BATCH, (*self._member, batch_id)).fetchall()
        if not kept and self._at_work_on == batch_id:
            self._warn("worker %s has lost batch %s to another one", self._member[2], batch_id)

    def _beat_failed(self, error: Exception, pause: float) -> None:
        self._warn(
            "worker %s cannot say that it is at work: %s",
            self._member[2],
            str(error).partition("\n")[0],
        )
