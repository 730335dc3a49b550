"""Consumers of cascaded queues, which can change the node that they read."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

import psycopg

from pgqpy import dsn as dsns
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._runtime.planted import NODE, async_refuse_planted
from pgqpy.admin_async import AsyncAdmin
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases_async import async_connect_to
from pgqpy.cascade._node_async import (
    async_find_node,
    async_lock_state,
    async_note_error,
    async_read_state,
)
from pgqpy.cascade._statements import NodeState
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer._loop_async import AsyncLoop
from pgqpy.consumer.base_async import ConsumerOptions
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.consumer.remote_async import AsyncRemoteLoop, AsyncSerialConsumer
from pgqpy.errors import (
    ConsumerNotRegistered,
    InvalidConsumer,
    PgqError,
    QueueNotFound,
    TickNotFound,
)
from pgqpy.event import Event
from pgqpy.log import logger


class AsyncCascadedConsumer(AsyncSerialConsumer):
    """Applies a cascaded queue's batches in the database of a node, each exactly once, and can
    change the node that it reads.

    Subclass it like an AsyncRemoteConsumer, and write on ``target``, the database of ``dsn``. Its
    state is there, too, in ``pgq_node.local_state``: the provider, the last tick, pauses and
    errors. All nodes have the same ticks, so with another provider it goes on at the same tick.
    The order of events is kept: an event that fails, fails the batch.
    """

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
        async with await async_connect(self.target_dsn, autocommit=True) as node:
            places: set[str | None] = set()
            with suppress(ConsumerNotRegistered):
                state = await async_read_state(node, self.queue, self.consumer)
                if at_tick is None:
                    return False
                places.add(state.provider_location)
            name, location = await async_find_node(node, self.queue, self.provider)
            async with await async_connect_to(location) as source:
                admin = AsyncAdmin(source)
                if at_tick is None:
                    await admin.register_consumer(self.queue, self.consumer, self.start)
                else:
                    await admin.register_consumer_at(self.queue, self.consumer, at_tick)
                names = self.queue, self.consumer
                ((tick,),) = await async_fetch(source, statements.POSITION, names)
            registered = self.queue, self.consumer, name, tick
            async with node.transaction():
                ((code, note),) = await async_fetch(node, statements.REGISTER, registered)
                if code == 201 and at_tick is None:
                    # Another process was faster, and may have gone on.
                    raise psycopg.Rollback
            if code >= 300:
                raise PgqError(note)
            state = await async_read_state(node, self.queue, self.consumer)
            for place in {*places, location} - {state.provider_location}:
                await self._leave(place)
        return bool(code == 200)

    async def unregister(self) -> bool:
        """Delete the position at the provider and the state at the node; False without one."""
        names = self.queue, self.consumer
        async with await async_connect(self.target_dsn) as node:
            try:
                state = await async_lock_state(node, *names)
            except ConsumerNotRegistered:
                return False
            await self._leave(state.provider_location)
            await async_fetch(node, statements.UNREGISTER, names)
        # If it runs, it may have registered once more before the commit.
        await self._leave(state.provider_location)
        return True

    async def move(self, provider: str) -> None:
        """Read another node from the next batch on, wherever the consumer runs.

        Raises TickNotFound if that node does not have the consumer's tick, or not yet.
        """
        names = self.queue, self.consumer
        # One transaction: other moves of it wait.
        async with await async_connect(self.target_dsn) as node:
            state = await async_lock_state(node, *names)
            _, location = await async_find_node(node, self.queue, provider)
            if location == state.provider_location:
                return
            async with await async_connect_to(location) as source:
                await self._check_newest(source, provider, state.completed or 0)
                await AsyncAdmin(source).register_consumer_at(*names, state.completed or 0)
            ((code, note),) = await async_fetch(
                node, statements.CHANGE_PROVIDER, (*names, provider)
            )
            if code >= 300:
                raise PgqError(note)
        try:
            await self._leave(state.provider_location)
        except QueueNotFound:
            pass
        except PgqError as error:
            logger.warning(
                "consumer %s may have left a position at node %s, which keeps events for it: %s;"
                " remove it there: pgqpy consumer unregister %s %s",
                *(self.consumer, state.provider_node, str(error).partition("\n")[0]),
                *names,
                extra=self.log_fields(),
            )

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

    async def _check_newest(self, source: AsyncConnection, provider: str, tick: int) -> None:
        [info] = await AsyncAdmin(source).get_queue_info(self.queue)
        if info.last_tick_id is None or info.last_tick_id < tick:
            raise TickNotFound(
                f"node {provider} has queue {self.queue!r} up to tick {info.last_tick_id};"
                f" {self.consumer!r} has read up to {tick} elsewhere",
                hint="Wait until it has caught up: ticks without events take up to half a minute.",
            )

    async def _leave(self, location: str | None) -> None:
        """Delete the position at a provider, so that it need not keep events."""
        async with await async_connect_to(location) as source:
            await AsyncAdmin(source).unregister_consumer(self.queue, self.consumer)

    def _kind_of_loop(self) -> type[AsyncLoop]:
        return AsyncCascadedLoop

    async def _begin(self, target: AsyncConnection, batch: AsyncBatch) -> bool:
        _check_follows(batch, await async_read_state(target, self.queue, self.consumer))
        return False

    async def _end(self, target: AsyncConnection, batch: AsyncBatch) -> None:
        batch.refuse_retries()
        # Another process with this name may have been faster.
        _check_follows(batch, await async_lock_state(target, self.queue, self.consumer))
        completed = self.queue, self.consumer, batch.tick
        await async_fetch(target, statements.COMPLETED, completed)


class AsyncCascadedLoop(AsyncRemoteLoop):
    """The run of a consumer, with batches of the node that its state names."""

    _consumer: AsyncCascadedConsumer
    # A new provider.
    _unannounced = True
    #: The DSN of the provider.
    _location: str

    async def _join(self, conn: AsyncConnection) -> bool:
        return await self._consumer.register()

    async def _open(self) -> AsyncBatch | None:
        """Open the next batch of the provider, unless the consumer is paused."""
        target = await self.target()
        state = await async_read_state(target, *self._names)
        if not state.uptodate:
            await async_fetch(target, statements.UPTODATE, self._names)
            # It may have changed once more before that.
            state = await async_read_state(target, *self._names)
        if state.paused:
            return None
        self._location = str(state.provider_location)
        if self._session.dsn != self._location:
            await self._disconnect()
            self._session.dsn = self._location
            self._subscribe(self._location)
            self._started = False
        try:
            return await super()._open()
        except ConsumerNotRegistered:
            # It was moved just now.
            self._started = False
            return None

    async def _failed(self, batch: AsyncBatch, error: Exception) -> None:
        with suppress(psycopg.Error, PgqError):
            await async_note_error(await self.target(), *self._names, error)
        await super()._failed(batch, error)

    async def _start(self, conn: AsyncConnection) -> None:
        """Stand at the tick that the node has applied."""
        await async_refuse_planted(conn, NODE)
        target = await self.target()
        state = await async_read_state(target, *self._names)
        position = await async_fetch(conn, statements.POSITION, self._names)
        if position != [(state.completed,)]:
            at = *self._names, state.completed
            await async_fetch(conn, statements.REGISTER_AT, at)
            location = None
            with suppress(ConsumerNotRegistered):
                location = (await async_read_state(target, *self._names)).provider_location
            if location != self._location:
                # Moved or unregistered meanwhile, and this provider may have been left before.
                await AsyncAdmin(conn).unregister_consumer(*self._names)
        self._started = True


def _check_follows(batch: AsyncBatch, state: NodeState) -> None:
    """Raise an error unless the batch begins where the node has stopped."""
    if state.completed != batch.prev_tick:
        raise PgqError(
            f"node {state.node_name} has applied queue {batch.queue} up to tick {state.completed},"
            f" the batch begins after {batch.prev_tick}",
            hint="It is opened again at that tick.",
        )
