# WARNING: generated from pgqpy/cascade/consumer_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers of cascaded queues, which can change the node that they read."""

from __future__ import annotations

from typing import Unpack

from pgqpy import dsn as dsns
from pgqpy.cascade._consumer import (
    CascadedLoop,
    CascadedSettings,
    Registration,
    check_follows,
    complete,
)
from pgqpy.connection import Connection
from pgqpy.consumer.base import ConsumerOptions
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.remote import SerialConsumer
from pgqpy.errors import InvalidConsumer
from pgqpy.event import Event


class CascadedConsumer(CascadedSettings, SerialConsumer):
    """Applies a cascaded queue's batches in the database of a node, each exactly once, and can
    change the node that it reads.

    Subclass it like an RemoteConsumer, and write on ``target``, the database of ``dsn``. Its
    state is there, too, in ``pgq_node.local_state``: the provider, the last tick, pauses and
    errors. All nodes have the same ticks, so with another provider it goes on at the same tick.
    The order of events is kept: an event that fails, fails the batch.
    """

    _loop_kind = CascadedLoop

    provider: str | None = None
    """The node to read first; later ``local_state`` says it. None: the one that this node copies;
    at the root, itself."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        provider: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """``dsn`` is the database of the node with the effects; for the rest see Consumer."""
        dsn = dsns.resolve(dsn)
        super().__init__(dsn, target_dsn=dsn, **options)
        self.provider = provider or self.provider

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register at the provider and at the node, to get all events from ``start`` on, or after
        ``at_tick``. False if it was registered already.

        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        return self._io.run(Registration(self).register(at_tick))

    def unregister(self) -> bool:
        """Delete the position at the provider and the state at the node; False without one."""
        return self._io.run(Registration(self).unregister())

    def move(self, provider: str) -> None:
        """Read another node from the next batch on, wherever the consumer runs.

        Raises TickNotFound if that node does not have the consumer's tick, or not yet.
        """
        self._io.run(Registration(self).move(provider))

    def process_remote_batch(self, conn: Connection, batch: Batch, target: Connection) -> None:
        """Apply a batch as an RemoteConsumer does.

        The default leaves out the events by which nodes tell each other of themselves, unless
        ``event_types`` names them.
        """

        def process(event: Event) -> None:
            if self.event_types is not None or not (event.type or "").startswith("pgq."):
                self.process_remote_event(target, event)

        self._process_each(target, batch, self._traced(batch, process))

    # --- helpers

    def _check(self) -> None:
        super()._check()
        if self.read_dsn is not None:
            raise InvalidConsumer(
                f"{type(self).__name__} can change its provider, and a standby is that of one node",
                hint="Leave read_dsn out, or read a node that is a branch.",
            )

    def _begin(self, target: Connection, batch: Batch) -> bool:
        self._io.run(check_follows(self._io, target, batch))
        return False

    def _end(self, target: Connection, batch: Batch) -> None:
        batch.refuse_retries()
        self._io.run(complete(self._io, target, batch))
