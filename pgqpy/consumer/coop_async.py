"""Consumers that share their work: several workers, one position, each a batch at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Unpack

from pgqpy._runtime.checks import POSITIVE_INTERVAL, check_settings
from pgqpy.consumer._coop import CoopLoop, CoopSettings
from pgqpy.consumer.base_async import AsyncConsumer, ConsumerOptions


class AsyncCoopConsumer(CoopSettings, AsyncConsumer):
    """A worker: one of several processes that share a consumer's events, whole batches each.

    Works like `AsyncConsumer`; start as many as the work needs, on as many machines. Each event
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

    _loop_kind = CoopLoop

    batch_size: int | None = 1_000
    """See `AsyncConsumer`. The ticks that one worker takes at once are not shared with the
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
        """See `AsyncConsumer`; the names and ``dead_after`` here win over the class's.

        If a worker restarts under a fixed name, it gets its open batch back at once, without
        waiting for ``dead_after``. Two workers with one name stop each other.
        """
        super().__init__(dsn, **options)
        self._name(worker_name)
        self.dead_after = self.dead_after if dead_after is None else dead_after
        check_settings(self, {"dead_after": POSITIVE_INTERVAL})
