"""The work of a worker that keeps a node: to copy, to report, to wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from time import monotonic
from typing import Any

import psycopg

from pgqpy import dsn as dsns
from pgqpy._runtime.acompat import AsyncWaker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.checks import COUNT, SECONDS, check_settings
from pgqpy._runtime.failure import soon
from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.listener import Subscription
from pgqpy._wire.statements import copy_in
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Databases
from pgqpy.cascade._location import usable
from pgqpy.cascade._lookout import PAUSE, Lookout
from pgqpy.cascade._node import (
    check_worker,
    follow_news,
    kept_twice,
    note_error,
    read_state,
)
from pgqpy.cascade._provider import Provider
from pgqpy.cascade._statements import News, NodeState, Tick
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._readers import CopyReader
from pgqpy.consumer._readers_async import AsyncCopyReader
from pgqpy.errors import (
    ConnectionFailed,
    InvalidConsumer,
    InvalidParameter,
    PgqError,
    TickNotFound,
    translate_errors,
)
from pgqpy.log import logger


# Long: a setting each.
class PlainCascadedWorker:
    """A base of `CascadedWorker` and `AsyncCascadedWorker`, which run these coroutines."""

    _io: AsyncIo
    stopping: bool

    queue: str = ""
    """The queue to copy."""
    batch_size: int = 200_000
    """The approximate maximum of events in a transaction, when the node is behind."""
    poll_interval: float = 1.0
    """Seconds between looks at the node's state; new ticks are notified by LISTEN."""
    watermark_interval: float = 60.0
    """Seconds between reports of which ticks are not needed any more, so that rotation can remove
    their events on all nodes."""
    backoff_first: float = 0.5
    """Seconds before the first retry after an error."""
    backoff_cap: float = 60.0
    """The maximum seconds before a retry after an error."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        databases: Databases | None = None,
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; workers that are given the same ``databases``
        share connections."""
        self.dsn = dsns.resolve(dsn)
        self.queue = queue or self.queue
        if not self.queue:
            raise InvalidConsumer(f"{type(self).__name__} needs a queue")
        self._databases = databases or Databases(self._io)
        self._shares = databases is not None
        self._lookout = Lookout(self._io, self._databases, self.dsn, self.queue)
        self._provider: Provider | None = None
        self._subscription: Subscription | None = None
        #: The names of the worker and of its node, once they are known.
        self._consumer = ""
        self._node = ""
        self._report_at = 0.0
        self._failures = Backoff(self.backoff_first, self.backoff_cap)
        self._losses = Backoff(0.1, self.reconnect_cap)

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of every log line."""
        return {"queue": self.queue, "node": self._node or None}

    # --- for those that run many workers

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        """Return a block around each transaction."""
        return nullcontext()

    def _patience(self, *, woken: bool) -> float:
        """Return the seconds to wait; ``woken`` if notifications of ticks are known to arrive, or
        the node has no provider."""
        return self.poll_interval

    # --- the life of a worker

    async def _run(self, waker: Any, *, until_empty: bool) -> None:
        check_settings(self, _SETTINGS)
        logger.info("worker of queue %s started", self.queue, extra=self.log_fields())
        try:
            while not self.stopping:
                try:
                    more = await self._once()
                except Exception as error:
                    if until_empty:
                        raise
                    await self._failed(error, waker)
                    continue
                if not more:
                    if until_empty:
                        break
                    await self._wait(waker)
        finally:
            await self._close()
        logger.info("worker of queue %s stopped", self.queue, extra=self.log_fields())

    async def _run_once(self) -> bool:
        try:
            return await self._once()
        finally:
            await self._close()

    # --- a transaction

    async def _once(self) -> bool:
        try:
            async with self._turn():
                copied = await self._step()
            if self._provider is None:
                await self._lookout.look()
        except Exception as error:
            await self._note(error)
            if self._provider is not None:
                self._provider.checked = False
            raise
        self._failures.reset()
        self._losses.reset()
        return copied

    async def _step(self) -> bool:
        async with self._databases.at(self.dsn).connection() as node:
            state = await read_state(self._io, node, self.queue)
            self._consumer, self._node = state.consumer, state.node_name
            if not state.uptodate:
                await self._io.fetch(node, statements.UPTODATE, (self.queue, self._consumer))
                # It may have changed once more before that.
                state = await read_state(self._io, node, self.queue)
            copied = False
            if state.node_type == "root":
                await self._leave_provider()
            if not state.paused and state.node_type == "root":
                await self._publish(node)
            elif not state.paused:
                check_worker(state, self.queue)
                provider = await self._go_to_provider(state)
                async with provider.database.connection() as source:
                    copied = await self._follow(node, provider, source, state)
                    await self._report(node, provider, source, state)
            if state.cur_error is not None and not copied:
                noted = self.queue, self._consumer, None
                await self._io.fetch(node, statements.NOTE_ERROR, noted)
            return copied

    async def _follow(
        self,
        node: AsyncConnection,
        provider: Provider,
        source: AsyncConnection,
        state: NodeState,
    ) -> bool:
        """Copy what the provider has."""
        assert state.completed is not None
        copies = state.node_type == "branch"
        position = state.completed
        if copies and state.newest is not None:
            if state.newest < position:
                await self._mend(node, provider, source, state)
            position = max(position, state.newest)
        kind = await self._databases.at(self.dsn).kind(node)
        if not provider.checked:
            epoch = None
            if kind["is_ours"]:
                ((epoch,),) = await self._io.fetch(node, statements.EPOCH, (self.queue,))
            await provider.check(source, state, position, epoch)
        merged = state.combined_queue if state.combined_type == "root" else None
        if state.combined_type == "branch":
            # The worker of the merged queue moves the position, as its root's part was merged.
            await provider.stand(source, state.consumer, position)
            return False
        if self._subscription is not None:
            self._subscription.ask()
        try:
            ticks = await provider.next(source, state, position, self.batch_size)
        except TickNotFound as error:
            ticks = await self._go_around(node, provider, source, state, position)
            if not ticks:
                raise error
        if not ticks:
            await provider.settle(source, state.consumer)
            return False
        read = partial(self._copy, node) if copies else self._read_controls
        news = News(self.queue, dict.fromkeys(state.parts, 0))
        with translate_errors():
            # A connection whose transaction fails is closed, which rolls it back.
            if not copies:
                await self._io.call(node.execute, b"begin")
            if merged is not None:
                await self._merge(node, source, ticks, merged)
            await read(source, ticks, news)
            above = await provider.database.kind(source)
            epochs = {"learns": kind["is_ours"], "knows": above["is_ours"]}
            await follow_news(self._io, node, source, news, **epochs)
            if not copies:
                mine = self.queue, state.consumer, state.completed
                if not await self._io.fetch(node, statements.LOCK_STATE, mine):
                    raise kept_twice(self.queue, self._node)
            done = statements.complete(self.queue, state.consumer, ticks[-1].id)
            await self._io.call(node.execute, done)
        known = self._subscription
        more = known is not None and not known.up_to_date(ticks[-1].id)
        await provider.finish(source, state.consumer, ticks[-1], more=more)
        logger.debug(
            "queue %s copied up to tick %s", self.queue, ticks[-1].id, extra=self.log_fields()
        )
        return more or known is None

    async def _copy(
        self, node: AsyncConnection, source: AsyncConnection, ticks: Sequence[Tick], news: News
    ) -> None:
        """Copy ticks and their events, without decoding those that are no news."""
        try:
            with translate_errors():
                begin = statements.begin_copy(self.queue, ticks)
                cursor = await self._io.call(node.execute, begin)
                cursor.nextset()
                ((table, txids),) = await self._io.call(cursor.fetchall)
        except InvalidParameter:  # it has the ticks
            raise kept_twice(self.queue, self._node) from None

        def look(messages: list[bytes], block: bytes) -> None:
            if statements.CONTROL in block:
                news.read(messages)

        out = statements.copy_ticks_out(ticks, txids)
        await self._pass_on(source, out, node, copy_in(table, statements.COPIED), look)

    async def _merge(
        self, node: AsyncConnection, source: AsyncConnection, ticks: Sequence[Tick], queue: str
    ) -> None:
        """Insert the events into another queue of the node, with a mark of how far they are."""
        ((table,),) = await self._io.fetch(node, statements.MERGED_INTO, (queue,))
        out = statements.copy_merged_out(ticks)
        await self._pass_on(source, out, node, copy_in(table, statements.MERGED))
        await self._io.fetch(node, statements.MERGED_UP_TO, (queue, ticks[-1].id, self.queue))

    async def _pass_on(
        self,
        source: AsyncConnection,
        out: bytes,
        node: AsyncConnection,
        into: bytes,
        look: Callable[[list[bytes], bytes], None] | None = None,
    ) -> None:
        """Pass rows from COPY to COPY, without decoding them."""
        copying = self._io.block(node.cursor().copy(into))
        async with self._reading(source, out) as reader, copying as copy:
            while messages := await self._io.call(reader.messages):
                block = b"".join(messages)
                if look is not None:
                    look(messages, block)
                await self._io.call(copy.write, block)

    @asynccontextmanager
    async def _reading(self, source: AsyncConnection, out: bytes) -> AsyncIterator[AsyncCopyReader]:
        reader = self._io.either(AsyncCopyReader, CopyReader)(source)
        try:
            await self._io.call(reader.begin, out)
            yield reader
        finally:
            await self._io.call(reader.close)

    async def _read_controls(
        self, source: AsyncConnection, ticks: Sequence[Tick], news: News
    ) -> None:
        """Read the events that control the nodes."""
        async with self._reading(source, statements.copy_control_out(ticks)) as reader:
            while messages := await self._io.call(reader.messages):
                news.read(messages)

    async def _go_around(
        self,
        node: AsyncConnection,
        provider: Provider,
        source: AsyncConnection,
        state: NodeState,
        position: int,
    ) -> list[Tick]:
        """Return the ticks after one that the provider has forgotten, without what is here.

        That happens if a worker is killed before the provider knows what its node has, and nothing
        is copied until the provider's log of ticks rotates.
        """
        before = await provider.before(source, position)
        if before is None:
            return []
        events: list[int] = []
        if state.node_type == "branch":
            copied = self.queue, before, position
            ((query,),) = await self._io.fetch(node, statements.RANGE, copied)
            events = [row[0] for row in await self._io.fetch(node, query.encode())]
        first, *others = await provider.next(source, state, before, self.batch_size)
        return [statements.without(first, events), *others]

    async def _mend(
        self,
        node: AsyncConnection,
        provider: Provider,
        source: AsyncConnection,
        state: NodeState,
    ) -> None:
        """Store the tick of a batch that PgQ's worker copied before it was killed."""
        assert state.completed is not None
        tick = await provider.tick(source, state.completed)
        if tick is None:
            raise PgqError(
                f"queue {self.queue!r} has tick {state.newest} as its newest, its worker"
                f" {state.completed}",
                hint="The provider does not have that tick any more: drop the node and create it.",
            )
        await self._io.fetch(node, statements.TICKER, (self.queue, state.completed, *tick))

    # --- what other nodes are told

    async def _publish(self, node: AsyncConnection) -> None:
        """Tell all nodes, as their root, which ticks none of them needs any more."""
        if monotonic() < self._report_at:
            return
        self._report_at = monotonic() + self.watermark_interval
        ((fresh,),) = await self._io.fetch(node, statements.UNPUBLISHED, (self.queue, self.queue))
        if fresh:
            await self._io.fetch(node, statements.PUBLISH, (self.queue,))

    async def _report(
        self,
        node: AsyncConnection,
        provider: Provider,
        source: AsyncConnection,
        state: NodeState,
    ) -> None:
        """Tell the provider which ticks are not needed any more here and below."""
        if monotonic() < self._report_at:
            return
        self._report_at = monotonic() + self.watermark_interval
        ((watermark,),) = await self._io.fetch(node, statements.LOCAL_WATERMARK, (self.queue,))
        if watermark is not None:
            await provider.report(source, state.node_name, watermark)

    # --- the provider

    async def _go_to_provider(self, state: NodeState) -> Provider:
        assert state.provider_location is not None
        database = self._databases.at(state.provider_location)
        if self._provider is None or self._provider.database is not database:
            await self._leave_provider()
            usable(state.provider_location)
            self._provider = Provider(self._io, database, self.queue)
            self._subscription = Subscription(self._io, database.dsn, self.queue)
            # The new one does not know what this node needs.
            self._report_at = 0.0
            logger.info(
                "queue %s is copied from node %s",
                self.queue,
                state.provider_node,
                extra=self.log_fields(),
            )
        return self._provider

    async def _close(self) -> None:
        await self._leave_provider()
        if not self._shares:
            await self._databases.close()

    async def _leave_provider(self) -> None:
        self._provider = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    # --- waiting and failing

    async def _wait(self, waker: AsyncWaker) -> None:
        subscription = self._subscription
        if subscription is None:
            await self._io.call(waker.wait, min(self._patience(woken=True), PAUSE))
            return
        # Ticks before the first LISTEN were not notified: look once more.
        if not await subscription.open():
            await subscription.wait(waker, self._patience(woken=subscription.works))

    async def _failed(self, error: Exception, waker: AsyncWaker) -> None:
        """Log an error, and pause."""
        lost = isinstance(error, ConnectionFailed | psycopg.OperationalError)
        backoff = self._losses if lost else self._failures
        pause = backoff.pause(error)
        if lost:
            await self._leave_provider()
        logger.log(
            backoff.level,
            "queue %s cannot be copied: %s; again %s",
            self.queue,
            str(error).partition("\n")[0],
            soon(pause),
            exc_info=None if isinstance(error, PgqError | psycopg.Error) else error,
            extra=self.log_fields() | {"pause": pause},
        )
        if not self.stopping:
            await self._io.call(waker.wait, pause)

    async def _note(self, error: Exception) -> None:
        """Note an error in the node's state, if that is possible."""
        if not self._consumer:
            return
        database = self._databases.at(self.dsn)
        with suppress(psycopg.Error, PgqError):
            async with database.connection() as node:
                await note_error(self._io, node, self.queue, self._consumer, error)


_SETTINGS = {
    "batch_size": COUNT,
    **dict.fromkeys(("poll_interval", "watermark_interval"), SECONDS),
    **dict.fromkeys(("backoff_first", "backoff_cap", "reconnect_cap"), SECONDS),
}
