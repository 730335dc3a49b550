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
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer.base_async import ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.remote_async import AsyncSerialConsumer
from pgqpy.errors import InvalidConsumer
from pgqpy.event import Event


class AsyncCascadedConsumer(CascadedSettings, AsyncSerialConsumer):
    """Applies a cascaded queue's batches in the database of a node, each exactly once, and can
    change the node that it reads.

    Subclass it like an AsyncRemoteConsumer, and write on ``target``, the database of ``dsn``. Its
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
        """``dsn`` is the database of the node with the effects; for the rest see AsyncConsumer."""
        dsn = dsns.resolve(dsn)
        super().__init__(dsn, target_dsn=dsn, **options)
        self.provider = provider or self.provider

    async def register(self, *, at_tick: int | None = None) -> bool:
        """Register at the provider and at the node, to get all events from ``start`` on, or after
        ``at_tick``. False if it was registered already.

        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        return await self._io.run(Registration(self).register(at_tick))

    async def unregister(self) -> bool:
        """Delete the position at the provider and the state at the node; False without one."""
        return await self._io.run(Registration(self).unregister())

    async def move(self, provider: str) -> None:
        """Read another node from the next batch on, wherever the consumer runs.

        Raises TickNotFound if that node does not have the consumer's tick, or not yet.
        """
        await self._io.run(Registration(self).move(provider))

    async def process_remote_batch(
        self, conn: AsyncConnection, batch: AsyncBatch, target: AsyncConnection
    ) -> None:
        """Apply a batch as an AsyncRemoteConsumer does.

        The default leaves out the events by which nodes tell each other of themselves, unless
        ``event_types`` names them.
        """

        async def process(event: Event) -> None:
            if self.event_types is not None or not (event.type or "").startswith("pgq."):
                await self.process_remote_event(target, event)

        await self._process_each(target, batch, self._traced(batch, process))

    # --- helpers

    def _check(self) -> None:
        super()._check()
        if self.read_dsn is not None:
            raise InvalidConsumer(
                f"{type(self).__name__} can change its provider, and a standby is that of one node",
                hint="Leave read_dsn out, or read a node that is a branch.",
            )

    async def _begin(self, target: AsyncConnection, batch: AsyncBatch) -> bool:
        await self._io.run(check_follows(self._io, target, batch))
        return False

    async def _end(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        batch.refuse_retries()
        await self._io.run(complete(self._io, target, batch))
