# WARNING: generated from pgqpy/consumer/_target_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Common parts of consumers with effects in another database, the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.error_origin import comes_from
from pgqpy._runtime.log import logger
from pgqpy._runtime.session import Session
from pgqpy.connection import connect
from pgqpy.consumer.base import Consumer
from pgqpy.consumer.batch import Batch
from pgqpy.errors import InvalidConsumer, LostPosition, PgqError, translate_errors
from pgqpy.models import BatchStats


class TargetConsumer(Consumer):
    """A consumer with a connection to a target; see its subclasses."""

    target_isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in the target."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        target_dsn: str,
        queue: str | None = None,
        consumer: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` is the queue's database, ``target_dsn`` the other; for the rest see
        Consumer.

        ``prepare_threshold`` is for both.
        """
        super().__init__(
            dsn,
            queue=queue,
            consumer=consumer,
            listen_dsn=listen_dsn,
            prepare_threshold=prepare_threshold,
        )
        # Empty means libpq's environment, which is the target's only if it is the queue's as well.
        if not target_dsn and self.dsn:
            raise InvalidConsumer(f"{type(self).__name__} needs a target_dsn")
        self.target_dsn = dsns.resolve(target_dsn)

    #: Connections to the target, and pauses after its loss.
    _target: Session
    _target_lost: Backoff
    _target_failed = False

    def unregister(self) -> bool:
        """Delete the position, the pending retries, and the target's records.

        False if there was no position.
        """
        done = super().unregister()
        with connect(self.target_dsn) as target, translate_errors():
            target.execute(_FORGET, (self.consumer, self.queue))
        return done

    @contextmanager
    def _session(self) -> Iterator[Session]:
        self._target = Session(
            self.target_dsn,
            None,
            application_name=f"pgqpy {self.consumer}"[:63],
            prepare_threshold=self._prepare_threshold,
            isolation_level=self.target_isolation_level,
        )
        self._target_lost = Backoff(0.1, self.reconnect_cap)
        try:
            with super()._session() as session:
                yield session
        finally:
            self._target.close()

    def _working_target(self) -> BatchConnection:
        self._target_failed = True
        with comes_from(self.target_dsn):
            target = self._target.working()
        self._target_failed = False
        return target

    def _process(self, session: Session, batch: Batch) -> BatchStats:
        stats = super()._process(session, batch)
        if self.target_isolation_level != IsolationLevel.READ_COMMITTED:
            # The batch is finished; if this fails, the next one notices.
            with suppress(psycopg.Error, PgqError):
                self._rotate(self._working_target())
        return stats

    def _rotate(self, target: BatchConnection) -> None:
        """Remove old records in the target; transactions with old snapshots cannot."""
        target.set_isolation_level(IsolationLevel.READ_COMMITTED)
        try:
            with target.transaction():
                target.execute(_ROTATE)
        finally:
            target.set_isolation_level(self.target_isolation_level)

    def _batch_failed(self, session: Session, batch: Batch, error: Exception) -> None:
        if isinstance(error, LostPosition):
            raise error
        if session.lost or not (self._target_failed or self._target.lost):
            super()._batch_failed(session, batch, error)
            return
        self._target.close()
        pause = self._target_lost.pause()
        logger.warning(
            "consumer %s lost the target database: %s; again in %.1f s",
            self.consumer,
            str(error).partition("\n")[0],
            pause,
            extra=self._fields(batch) | {"pause": pause},
        )
        self.on_error(error, batch)
        self._sleep(pause)

    def _database_away(
        self, session: Session, error: Exception, batch: Batch | None = None
    ) -> None:
        self._target.close()
        super()._database_away(session, error, batch)


_ROTATE = b"select pgq_ext.rotate()"
_FORGET = b"select pgq_ext.forget_consumer(%s, %s)"
