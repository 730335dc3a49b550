"""The consumer that keeps tables of another database equal to this one's."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Unpack

import pgqpy
from pgqpy.consumer import RunOptions
from pgqpy.consumer.remote import RemoteConsumer
from pgqpy_consumers.replicate._apply import Stream
from pgqpy_consumers.replicate._workers import Workers
from pgqpy_consumers.settings import Configured, setting


class Replicate(Configured, RemoteConsumer):
    """Copies tables into another database and keeps them in step.

    Tables are added, removed, compared and repaired with `pgqpy replicate`, while it runs or not.
    A batch is applied in one transaction of the target, so the target always shows the source
    as it was at some tick.
    """

    dsn: str = setting("The source: the database with the tables and the queue.")
    consumer = "replicate"
    target_dsn: str = setting("The database with the copies; not through a transaction pooler.")
    copies: int = setting("The number of tables copied at once.", default=2, at_least=1)
    sequences_ahead: int = setting(
        "How far the target's sequences are kept ahead of the source's.", default=1000, at_least=0
    )
    sequences_period: float = setting(
        "Seconds between looks at the source's sequences.", default=10.0
    )

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if the period is no time."""
        if config.sequences_period <= 0:
            raise ValueError("sequences_period must be more than 0")

    _workers: Workers | None = None
    _until_empty = False

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self.queue, self.consumer)

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Copy and follow until `stop`.

        With ``until_empty``, until all added tables are copied and the queue is empty; then raises
        ReplicaError if a table fails. Otherwise its changes wait, and the others go on.
        """
        self._until_empty = options.get("until_empty", False)
        self._workers = workers = Workers(
            (self.dsn, self.target_dsn),
            (self.queue, self.consumer),
            copies=self.copies,
            sequences_ahead=self.sequences_ahead,
            sequences_period=self.sequences_period,
        )
        try:
            super().run(**options)
            if self._until_empty:
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

    def prepare_target(self, target: pgqpy.Connection) -> None:
        """Begin to copy: not earlier, or the copy might miss changes before the first position."""
        if self._workers is None:
            return
        if self._until_empty:
            self._workers.finish()
        else:
            self._workers.start()
