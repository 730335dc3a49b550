"""The position of a consumer at its node and at the provider, and its run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from pgqpy._runtime.io import PLAIN, AsyncIo
from pgqpy._runtime.planted import NODE, async_refuse_planted, refuse_planted
from pgqpy._wire.statements import call
from pgqpy.admin import Admin
from pgqpy.admin_async import AsyncAdmin
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import connect_to
from pgqpy.cascade._node import find_node, lock_state, note_error, read_state
from pgqpy.cascade._statements import NodeState
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._batch import BatchFields
from pgqpy.consumer._target import RemoteLoop, TargetSettings
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.errors import ConsumerNotRegistered, PgqError, QueueNotFound, TickNotFound
from pgqpy.log import logger


class CascadedSettings(TargetSettings):
    """The settings of a `CascadedConsumer`, which describes them."""

    provider: str | None
    register: Callable[[], Any]


class Registration:
    """The consumer's state at its node, and its position at the provider."""

    def __init__(self, consumer: CascadedSettings) -> None:
        self._consumer = consumer
        self._io = consumer._io
        self._names = consumer.queue, consumer.consumer

    async def register(self, at_tick: int | None) -> bool:
        """Register at both. False if it was registered already."""
        consumer = self._consumer
        async with self._io.block(await self._connect(autocommit=True)) as node:
            places: set[str | None] = set()
            with suppress(ConsumerNotRegistered):
                state = await read_state(self._io, node, *self._names)
                if at_tick is None:
                    return False
                places.add(state.provider_location)
            name, location = await find_node(self._io, node, consumer.queue, consumer.provider)
            async with self._io.block(await connect_to(self._io, location)) as source:
                if at_tick is None:
                    admin = self._io.either(AsyncAdmin, Admin)(source)
                    await self._io.call(admin.register_consumer, *self._names, consumer.start)
                else:
                    await self._io.fetch(source, statements.REGISTER_AT, (*self._names, at_tick))
                ((tick,),) = await self._io.fetch(source, statements.POSITION, self._names)
            async with self._io.block(node.transaction()):
                registered = *self._names, name, tick
                ((code, note),) = await self._io.fetch(node, statements.REGISTER, registered)
                if code == 201 and at_tick is None:
                    # Another process was faster, and may have gone on.
                    raise psycopg.Rollback
            if code >= 300:
                raise PgqError(note)
            state = await read_state(self._io, node, *self._names)
            for place in {*places, location} - {state.provider_location}:
                await self.leave(place)
        return bool(code == 200)

    async def unregister(self) -> bool:
        """Delete both; False without a state at the node."""
        async with self._io.block(await self._connect(autocommit=False)) as node:
            try:
                state = await lock_state(self._io, node, *self._names)
            except ConsumerNotRegistered:
                return False
            await self.leave(state.provider_location)
            await self._io.fetch(node, statements.UNREGISTER, self._names)
        # If it runs, it may have registered once more before the commit.
        await self.leave(state.provider_location)
        return True

    async def move(self, provider: str) -> None:
        """Change the provider."""
        # One transaction: other moves of it wait.
        async with self._io.block(await self._connect(autocommit=False)) as node:
            state = await lock_state(self._io, node, *self._names)
            _, location = await find_node(self._io, node, self._consumer.queue, provider)
            if location == state.provider_location:
                return
            tick = state.completed or 0
            async with self._io.block(await connect_to(self._io, location)) as source:
                await self._check_newest(source, provider, tick)
                await self._io.fetch(source, statements.REGISTER_AT, (*self._names, tick))
            changed = *self._names, provider
            ((code, note),) = await self._io.fetch(node, statements.CHANGE_PROVIDER, changed)
            if code >= 300:
                raise PgqError(note)
        try:
            await self.leave(state.provider_location)
        except QueueNotFound:
            pass
        except PgqError as error:
            logger.warning(
                "consumer %s may have left a position at node %s, which keeps events for it: %s;"
                " remove it there: pgqpy consumer unregister %s %s",
                *(self._consumer.consumer, state.provider_node, str(error).partition("\n")[0]),
                *self._names,
                extra=self._consumer.log_fields(),
            )

    async def leave(self, location: str | None) -> None:
        """Delete the position at a provider, so that it need not keep events."""
        async with self._io.block(await connect_to(self._io, location)) as source:
            await self._io.fetch(source, call("unregister_consumer", 2), self._names)

    async def _connect(self, *, autocommit: bool) -> AsyncConnection:
        options = {"autocommit": autocommit, "prepare_threshold": 5}
        return await self._io.connect(PLAIN, self._consumer.target_dsn, **options)

    async def _check_newest(self, source: AsyncConnection, provider: str, tick: int) -> None:
        admin = self._io.either(AsyncAdmin, Admin)(source)
        queue, consumer = self._names
        [info] = await self._io.call(admin.get_queue_info, queue)
        if info.last_tick_id is None or info.last_tick_id < tick:
            raise TickNotFound(
                f"node {provider} has queue {queue!r} up to tick {info.last_tick_id};"
                f" {consumer!r} has read up to {tick} elsewhere",
                hint="Wait until it has caught up: ticks without events take up to half a minute.",
            )


class CascadedLoop(RemoteLoop):
    """The run of a consumer, with batches of the node that its state names."""

    _consumer: CascadedSettings
    # A new provider.
    _unannounced = True
    #: The DSN of the provider.
    _location: str

    async def _join(self, conn: AsyncConnection) -> bool:
        return bool(await self._io.call(self._consumer.register))

    async def _open(self) -> AsyncBatch | None:
        """Open the next batch of the provider, unless the consumer is paused."""
        target = await self.target()
        state = await read_state(self._io, target, *self._names)
        if not state.uptodate:
            await self._io.fetch(target, statements.UPTODATE, self._names)
            # It may have changed once more before that.
            state = await read_state(self._io, target, *self._names)
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
            await note_error(self._io, await self.target(), *self._names, error)
        await super()._failed(batch, error)

    async def _start(self, conn: AsyncConnection) -> None:
        """Stand at the tick that the node has applied."""
        await self._io.call(self._io.either(async_refuse_planted, refuse_planted), conn, NODE)
        target = await self.target()
        state = await read_state(self._io, target, *self._names)
        position = await self._io.fetch(conn, statements.POSITION, self._names)
        if position != [(state.completed,)]:
            at = *self._names, state.completed
            await self._io.fetch(conn, statements.REGISTER_AT, at)
            location = None
            with suppress(ConsumerNotRegistered):
                location = (await read_state(self._io, target, *self._names)).provider_location
            if location != self._location:
                # Moved or unregistered meanwhile, and this provider may have been left before.
                await self._io.fetch(conn, call("unregister_consumer", 2), self._names)
        self._started = True


async def check_follows(io: AsyncIo, target: Any, batch: BatchFields) -> None:
    """Raise an error unless the batch begins where the node has stopped."""
    _check_follows(batch, await read_state(io, target, batch.queue, batch.consumer))


async def complete(io: AsyncIo, target: Any, batch: BatchFields) -> None:
    """Note in the node's state that it has the batch."""
    # Another process with this name may have been faster.
    _check_follows(batch, await lock_state(io, target, batch.queue, batch.consumer))
    completed = batch.queue, batch.consumer, batch.tick
    await io.fetch(target, statements.COMPLETED, completed)


def _check_follows(batch: BatchFields, state: NodeState) -> None:
    if state.completed != batch.prev_tick:
        raise PgqError(
            f"node {state.node_name} has applied queue {batch.queue} up to tick {state.completed},"
            f" the batch begins after {batch.prev_tick}",
            hint="It is opened again at that tick.",
        )
