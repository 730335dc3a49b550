# WARNING: generated from pgqpy/consumer/tracked_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers with effects that cannot be rolled back: a mail that was sent stays sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Unpack

from pgqpy import dsn as dsns
from pgqpy._runtime.checks import check_returned
from pgqpy._runtime.failure import blame
from pgqpy._runtime.fetch import fetch
from pgqpy.connection import Connection
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import Stopped as Stopped  # noqa: PLC0414
from pgqpy.consumer.base import ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.remote import TargetConsumer
from pgqpy.event import Event

#: Batches of up to about this many events are read before the first is processed. A reader that
#: waits for slow effects would hold back the horizon of the queue's database.
_READ_AHEAD = 10_000


class TrackedConsumer(TargetConsumer):
    """Processes event by event, and records each finished one.

    For effects that no transaction can undo::

        class Mailer(TrackedConsumer):
            queue = "mails"
            consumer = "mailer"

            def process_tracked_event(self, target, event):
                send(event.data)

    Each event is one transaction of the target, which is the queue's own database unless
    ``target_dsn`` says otherwise: it locks the consumer's name there, checks whether the event is
    done (schema ``pgq_ext``), processes it, and records it. If the process dies the batch is opened
    again, without the finished events. So at most one event is processed twice: the one whose
    effect had happened and was not yet recorded.

    A batch that begins before the events that the target has recorded raises TargetAhead, out of
    `run`: the queue's database was restored from a backup, or the consumer was moved back.

    ``retry_policy`` applies to an event that fails; an event that is retried is not done. `stop`
    ends `run` after the current event.
    """

    batch_size: int | None = 1_000
    _ways = ("process_tracked_event",)

    def __init__(
        self,
        dsn: str | None = None,
        *,
        target_dsn: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """See RemoteConsumer; without ``target_dsn`` it is the queue's database."""
        target_dsn = dsns.resolve(dsn) if target_dsn is None else target_dsn
        super().__init__(dsn, target_dsn=target_dsn, **options)

    # --- to be overridden

    def process_tracked_event(self, target: Connection, event: Event) -> None:
        """Process an event inside its own transaction of ``target``, which must be left open.

        Writes there commit together with the record that the event is done.
        """
        self._handle(target, event)

    def process_tracked_batch(self, target: Connection, batch: Batch) -> None:
        """Process the events that are not done yet, one after the other.

        Override it to process them in another way: each of `read_events` that `is_done` says is
        not done, with `set_done` after it. Raise `Stopped` if ``stopping`` leaves some undone.
        """
        for event in self.read_events(batch):
            if self.stopping:
                raise Stopped
            self._process_one(batch, event)

    def read_events(self, batch: Batch) -> Iterator[Event]:
        """Iterate over a batch's events, for `process_tracked_batch`; few are read ahead."""
        if batch.seq_end - batch.seq_start > _READ_AHEAD:
            for event in batch:
                yield event
            return
        events = list(batch)
        for event in events:
            yield event

    # --- helpers

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process the batch with the target; do not override."""
        self.process_tracked_batch(self.target(), batch)

    def _process_one(self, batch: Batch, event: Event) -> None:
        target = self.target()
        begun = False
        try:
            with target.batch():
                if self.is_done(target, batch, event):
                    return
                begun = True
                process: Callable[..., object] = self.process_tracked_event
                check_returned(process(target, event))
                if event.id not in batch.retries:
                    self.set_done(target, batch, event)
        except Exception as error:
            if begun:
                blame(event.id, error)
            if not begun or target.closed or not self._is_for_policy(error):
                raise
            self.fail_event(batch, event, error)

    def is_done(self, target: Connection, batch: Batch, event: Event) -> bool:
        """Lock the consumer's name until the transaction ends; return whether the event is done."""
        return self._tell(target, sql.BEGIN_EVENT, batch, event)

    def set_done(self, target: Connection, batch: Batch, event: Event) -> None:
        """Record that the event is done."""
        self._tell(target, sql.END_EVENT, batch, event)

    def _tell(self, target: Connection, statement: bytes, batch: Batch, event: Event) -> bool:
        identity = *batch.identity, event.id, event.retry_count, event.time
        return bool((fetch(target, statement, identity))[0][0])
