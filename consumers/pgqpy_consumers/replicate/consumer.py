"""The consumer that keeps tables of another database equal to this one's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pgqpy
from pgqpy.consumer.remote import RemoteConsumer
from pgqpy_consumers.replicate._apply import Stream
from pgqpy_consumers.replicate._workers import Plan, Workers
from pgqpy_consumers.settings import setting


class Replicate(RemoteConsumer):
    """Copies tables into another database and keeps them in step.

    Tables are added, removed, compared and repaired with `pgqpy replicate`, while it runs or not.
    A batch is applied in one transaction of the target, so the target always shows the source
    as it was at some tick.
    """

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        """Settings of `pgqpy run replicate`."""

        dsn: str = setting("The source: the database with the tables and the queue.")
        target_dsn: str = setting("The database with the copies; not through a transaction pooler.")
        queue: str = setting("The queue that the tables are captured into.")
        consumer: str = setting("The name of this replication.", default="replicate")
        copies: int = setting("How many tables are copied at once.", default=2)
        sequences_ahead: int = setting(
            "How far the target's sequences are kept ahead of the source's.", default=1000
        )
        sequences_period: float = setting(
            "Seconds between looks at the source's sequences.", default=10.0
        )

        def __post_init__(self) -> None:
            if self.copies < 1:
                raise ValueError("copies must be at least 1")
            if self.sequences_ahead < 0:
                raise ValueError("sequences_ahead must not be negative")
            if self.sequences_period <= 0:
                raise ValueError("sequences_period must be more than 0")

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The consumer with these settings."""
        return cls(
            config.dsn,
            target_dsn=config.target_dsn,
            queue=config.queue,
            consumer=config.consumer,
            copies=config.copies,
            sequences_ahead=config.sequences_ahead,
            sequences_period=config.sequences_period,
        )

    def __init__(
        self,
        dsn: str | None = None,
        *,
        target_dsn: str,
        copies: int = 2,
        sequences_ahead: int = 1000,
        sequences_period: float = 10.0,
        **options: Any,
    ) -> None:
        """Settings as in `Config`; further options are those of `RemoteConsumer`."""
        super().__init__(dsn, target_dsn=target_dsn, **options)
        self._plan = Plan(
            dsn=self.dsn,
            target_dsn=self.target_dsn,
            queue=self.queue,
            consumer=self.consumer,
            copies=copies,
            sequences_ahead=sequences_ahead,
            sequences_period=sequences_period,
        )
        self._stream = Stream(self.queue, self.consumer)
        self._workers: Workers | None = None
        self._until_empty = False

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Copy and follow until `stop`.

        With ``until_empty``, until all added tables are copied and the queue is empty; then raises
        ReplicaError if a table fails. Otherwise its changes wait, and the others go on.
        """
        self._until_empty = until_empty
        self._workers = workers = Workers(self._plan)
        try:
            super().run(until_empty=until_empty, handle_signals=handle_signals)
            if until_empty:
                workers.finish()
        finally:
            self._workers = None
            workers.stop()

    def stop(self) -> None:
        """Make `run` return after the current batch; unfinished copies begin anew."""
        super().stop()
        if self._workers is not None:
            self._workers.interrupt()

    def process_remote_batch(
        self, conn: pgqpy.Connection, batch: pgqpy.Batch, target: pgqpy.Connection
    ) -> None:
        """Apply a batch."""
        self._stream.process(conn, batch, target)

    def _join(self, conn: pgqpy.Connection) -> bool:
        # A copy that begins before there is a position might miss the changes right after it.
        new = super()._join(conn)
        assert self._workers is not None
        if self._until_empty:
            self._workers.finish()
        else:
            self._workers.start()
        return new
