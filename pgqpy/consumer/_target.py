# WARNING: generated from pgqpy/consumer/_target_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Common parts of consumers with effects in another database, the target."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

import psycopg
from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.session import Session
from pgqpy.connection import connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._loop import Loop
from pgqpy.consumer.base import Consumer, ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.errors import InvalidConsumer, LostPosition, PgqError, comes_from, translate_errors


class TargetConsumer(Consumer):
    """A consumer with a connection to a target; see its subclasses."""

    target_isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in the target."""

    def __init__(
        self, dsn: str | None = None, *, target_dsn: str, **options: Unpack[ConsumerOptions]
    ) -> None:
        """``dsn`` is the queue's database, ``target_dsn`` the other; for the rest see
        Consumer.

        ``prepare_threshold`` is for both.
        """
        super().__init__(dsn, **options)
        # Empty means libpq's environment, which is the target's only if it is the queue's as well.
        if not target_dsn and self.dsn:
            raise InvalidConsumer(f"{type(self).__name__} needs a target_dsn")
        self.target_dsn = dsns.resolve(target_dsn)

    _loop: TargetLoop

    def target(self) -> BatchConnection:
        """Return the connection to the target, for a consumer that runs; connects if needed."""
        return self._loop.target()

    def unregister(self) -> bool:
        """Delete the position, the pending retries, and the target's records.

        False if there was no position.
        """
        done = super().unregister()
        with connect(self.target_dsn) as target, translate_errors():
            target.execute(sql.FORGET, (self.consumer, self.queue))
        return done

    def _kind_of_loop(self) -> type[Loop]:
        return TargetLoop


class TargetLoop(Loop):
    """The run of a consumer whose effects are in the target."""

    _consumer: TargetConsumer

    def __init__(self, consumer: TargetConsumer, waker: Waker, *, strict: bool) -> None:
        super().__init__(consumer, waker, strict=strict)
        self._target = Session(
            consumer.target_dsn,
            None,
            application_name=f"pgqpy {consumer.consumer}"[:63],
            prepare_threshold=consumer.prepare_threshold,
            isolation_level=consumer.target_isolation_level,
        )
        self._unreachable = False
        self._target_losses = Backoff(0.1, consumer.reconnect_cap)

    def target(self) -> BatchConnection:
        """Return the connection to the target; connects if needed."""
        self._unreachable = True
        with comes_from(self._consumer.target_dsn):
            target = self._target.working()
        self._unreachable = False
        return target

    def close(self) -> None:
        self._target.close()
        super().close()

    def _done(self, batch: Batch) -> None:
        super()._done(batch)
        self._target_losses.reset()
        if self._consumer.target_isolation_level != IsolationLevel.READ_COMMITTED:
            # The batch is finished; if this fails, the next one notices.
            with suppress(psycopg.Error, PgqError):
                self._rotate(self.target())

    def _rotate(self, target: BatchConnection) -> None:
        """Remove old records in the target; transactions with old snapshots cannot."""
        target.set_isolation_level(IsolationLevel.READ_COMMITTED)
        try:
            with target.transaction():
                target.execute(sql.ROTATE)
        finally:
            target.set_isolation_level(self._consumer.target_isolation_level)

    def _failed(self, batch: Batch, error: Exception) -> None:
        if isinstance(error, LostPosition):
            raise error
        super()._failed(batch, error)

    @property
    def _lost(self) -> bool:
        return self._target_lost or super()._lost

    @property
    def _target_lost(self) -> bool:
        """Whether the target could not be reached, or its connection broke."""
        return self._unreachable or self._target.lost

    def _reconnect(self, error: Exception, batch: Batch | None = None) -> None:
        target_alone = self._target_lost and not self._session.lost
        self._unreachable = False
        self._target.close()
        if target_alone:
            self._rest("lost the target database", self._target_losses, error, batch)
        else:
            super()._reconnect(error, batch)
