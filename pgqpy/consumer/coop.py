# WARNING: generated from pgqpy/consumer/coop_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers that share their work: several workers, one position, each a batch at a time."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg

from pgqpy._runtime.acompat import every
from pgqpy._runtime.checks import POSITIVE_INTERVAL, check_settings
from pgqpy._runtime.log import logger
from pgqpy._runtime.session import Session
from pgqpy._wire.statements import MOST_INLINE, checked
from pgqpy.connection import Connection, connect
from pgqpy.consumer.base import Consumer
from pgqpy.consumer.batch import Batch
from pgqpy.errors import PgqError, translate_errors
from pgqpy.models import BatchStats

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

    worker: str = ""

    def _finish_batch(self) -> tuple[bytes, Sequence[Any]]:
        return _FINISH_BATCH, (self.queue, self.consumer, self.worker, self.id)


class CoopConsumer(Consumer):
    """A worker: one of several processes that share a consumer's events, whole batches each.

    Works like `Consumer`; start as many as the work needs, on as many machines. Each event
    goes to one of them, exactly once for its writes in this database. Batches are processed
    concurrently, so events are in order within a batch only. Any worker may get a retried event.

    A worker registers when `run` begins, and unregisters when `run` ends without an error. While it
    processes a batch it sends a heartbeat every quarter of ``dead_after``, on a connection of its
    own. If it is killed, another worker takes its batch over after ``dead_after``. If it was only
    slow (asyncio: its event loop was busy for that long), its own finish fails with BatchLost, and
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
        queue: str | None = None,
        consumer: str | None = None,
        worker_name: str | None = None,
        dead_after: timedelta | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """See `Consumer`; the names and ``dead_after`` here win over the class's.

        If a worker restarts under a fixed name, it gets its open batch back at once, without
        waiting for ``dead_after``. Two workers with one name stop each other.
        """
        super().__init__(
            dsn,
            queue=queue,
            consumer=consumer,
            listen_dsn=listen_dsn,
            prepare_threshold=prepare_threshold,
        )
        self.worker_name = (
            worker_name
            or self.worker_name
            or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        )
        self.dead_after = self.dead_after if dead_after is None else dead_after
        check_settings(self, {"dead_after": POSITIVE_INTERVAL})
        self._batch_class = partial(_SharedBatch, worker=self.worker_name)
        self._at_work_on: int | None = None

    @property
    def _member(self) -> tuple[str, str, str]:
        return self.queue, self.consumer, self.worker_name

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with super()._session() as session, every(self._quarter, self._keep_batch):
            yield session

    @property
    def _quarter(self) -> float:
        return self.dead_after.total_seconds() / 4

    def _join(self, conn: Connection) -> bool:
        with translate_errors():
            cursor = conn.execute(_REGISTER, self._member)
            ((new,),) = cursor.fetchall()
        return bool(new)

    def _leave(self, session: Session) -> None:
        try:
            with translate_errors():
                (session.working()).execute(_UNREGISTER, self._member)
        except PgqError as error:
            # A failed batch must not be skipped; other workers take over, and clean up.
            logger.warning(
                "worker %s stays registered: %s",
                self.worker_name,
                error.message,
                extra=self._fields(),
            )

    def _wait(self, session: Session) -> None:
        # No notification is sent when a worker dies.
        assert self._waker is not None
        session.wait(
            self._waker,
            min(self.poll_interval, self._quarter),
            for_tick=self.min_lag is None,
            at_most=self._quarter,
        )

    def _next_batch(self) -> tuple[bytes, list[Any]]:
        most_inline = MOST_INLINE if self.event_types is None else 0
        return _NEXT_BATCH, checked(
            [*self._member, self.dead_after, self.min_lag, self.batch_size, most_inline]
        )

    def _process(self, session: Session, batch: Batch) -> BatchStats:
        self._at_work_on = batch.id
        try:
            return super()._process(session, batch)
        finally:
            self._at_work_on = None

    def _keep_batch(self) -> None:
        """Send a heartbeat, if this worker has a batch."""
        batch_id = self._at_work_on
        if batch_id is None:
            return
        try:
            with connect(self.dsn) as conn:
                cursor = conn.execute(_KEEP_BATCH, (*self._member, batch_id))
                ((kept,),) = cursor.fetchall()
        except (PgqError, psycopg.Error) as error:
            logger.warning(
                "worker %s cannot say that it is at work: %s",
                self.worker_name,
                str(error).partition("\n")[0],
                extra=self._fields(),
            )
            return
        if not kept and self._at_work_on == batch_id:
            logger.warning(
                "worker %s has lost batch %s to another one",
                self.worker_name,
                batch_id,
                extra=self._fields(),
            )

    def _fields(self, batch: Batch | None = None) -> dict[str, Any]:
        return super()._fields(batch) | {"worker": self.worker_name}
