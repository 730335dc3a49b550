# WARNING: generated from pgqpy/coop_consumer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers that share their work: several workers, one position, whole batches each."""

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

from pgqpy.acompat import every
from pgqpy.batch import Batch
from pgqpy.calls import MOST_INLINE, checked
from pgqpy.connection import Connection, connect
from pgqpy.consumer import Consumer
from pgqpy.consumer_check import check_interval
from pgqpy.errors import PgqError, translate_errors
from pgqpy.log import logger
from pgqpy.session import Session
from pgqpy.values import BatchStats

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
    """A batch that only the worker may finish that has it."""

    worker: str = ""

    def _finish_batch(self) -> tuple[bytes, Sequence[Any]]:
        return _FINISH_BATCH, (self.queue, self.consumer, self.worker, self.id)


class CoopConsumer(Consumer):
    """A worker: one of several processes that share a consumer's events, whole batches each.

    As `Consumer`; start as many as there is work for, on as many machines. Each event goes to
    one of them, exactly once for what it writes in this database. Batches are worked on at the
    same time, so events are in order within a batch only. Retried events go to whoever is next.

    A worker registers when `run` begins, and leaves when `run` ends well. While it works on a
    batch it says so, every quarter of ``dead_after``, on a connection of its own. One that is
    killed is silent: after ``dead_after`` another one has its batch. Should it not be dead, but
    slow (asyncio: its event loop was busy for so long), its own finish then fails with BatchLost,
    and all that it has written is rolled back. While it pauses after a failed batch it is silent,
    too: a long pause hands the batch on.

    `unregister` unregisters the consumer, with all workers.
    """

    worker_name: str = ""
    """The name of this worker among those of the consumer; by default unique to the object."""
    batch_size: int | None = 1_000
    """As for `Consumer`. What one worker takes at once, the others cannot share."""
    dead_after: timedelta = timedelta(minutes=1)
    """Take over the batch of a worker that has been silent for so long. The same for all."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue_name: str | None = None,
        consumer_name: str | None = None,
        worker_name: str | None = None,
        dead_after: timedelta | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """As for `Consumer`; the names and ``dead_after`` here win over the class's.

        A worker that is started anew with a name that is not unique gets its open batch back at
        once, without waiting for ``dead_after``. Two that run with one name stop each other.
        """
        super().__init__(
            dsn,
            queue_name=queue_name,
            consumer_name=consumer_name,
            listen_dsn=listen_dsn,
            prepare_threshold=prepare_threshold,
        )
        self.worker_name = (
            worker_name
            or self.worker_name
            or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        )
        self.dead_after = self.dead_after if dead_after is None else dead_after
        check_interval(self, "dead_after", self.dead_after)
        self._batch_class = partial(_SharedBatch, worker=self.worker_name)
        self._at_work_on: int | None = None

    @property
    def _member(self) -> tuple[str, str, str]:
        return self.queue_name, self.consumer_name, self.worker_name

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
            # A batch that failed is not to be passed over; others take over, and clear up.
            logger.warning(
                "worker %s stays registered: %s",
                self.worker_name,
                error.message,
                extra=self._fields(),
            )

    def _wait(self, session: Session) -> None:
        # Nobody notifies of a worker's death.
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
        """Say that this worker lives, if it is at work."""
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
