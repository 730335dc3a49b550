"""Concurrent events of a batch, for asyncio, and the order of those with one key; threads process
one after the other.

The events share the connection of the batch's transaction. From its first statement on, an event
has the connection for itself until it is done: no other event's statements come in between,
savepoints nest, and the writes of a failed event can be told from those of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from pgqpy._runtime.acompat import async_own_error
from pgqpy._runtime.batch_connection_async import async_savepoint
from pgqpy.connection_async import AsyncConnection
from pgqpy.event import Event

#: The events that wait in memory for each that is processed: most may be of one key.
WAITING = 32


class Failed(Protocol):
    """Called for an event that fails; ``spoiled``: its writes are in the transaction."""

    def __call__(self, event: Event, error: Exception, *, spoiled: bool) -> Awaitable[None]: ...


class AsyncConcurrentEvents:
    """Runs at most ``slots`` events at once; these, and one that waits for a slot, are in memory.

    With ``savepoints`` the writes of a failed event are undone when ``failed`` is called.
    """

    def __init__(self, conn: AsyncConnection, slots: int, *, savepoints: bool) -> None:
        self._conn = conn
        self._slots = asyncio.Semaphore(slots)
        self._turns = asyncio.Lock()
        self._savepoints = savepoints
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def run(
        self,
        events: AsyncIterable[Event],
        process: Callable[[Event], Awaitable[None]],
        failed: Failed,
    ) -> None:
        """Process all events. The first error from ``failed`` ends it, and cancels the others.

        Not a TaskGroup: that would cancel the reading of events, too, in the middle of a message.
        """
        before, self._conn.lock = self._conn.lock, _TurnLock()
        try:
            async for event in events:
                await self._slots.acquire()
                if self._error is not None:
                    break
                task = asyncio.create_task(self._run_one(event, process, failed))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks and self._error is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [*self._tasks]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self._conn.lock = before
        if self._error is not None:
            raise self._error

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if self._error is None:
            self._error = asyncio.CancelledError() if task.cancelled() else task.exception()

    async def _run_one(
        self, event: Event, process: Callable[[Event], Awaitable[None]], failed: Failed
    ) -> None:
        turn = _Turn(self._conn, self._turns, self._savepoints)
        _turn.set(turn)
        try:
            async with turn:
                await process(event)
        except (Exception, asyncio.CancelledError) as raised:
            error = async_own_error(raised)
            await failed(event, error, spoiled=turn.begun and not self._savepoints)


class _Turn:
    """An event's hold on the connection: from its first statement until it is done."""

    def __init__(self, conn: AsyncConnection, turns: asyncio.Lock, savepoint: bool) -> None:
        self._conn = conn
        self._turns = turns
        self._savepoint = savepoint
        self._beginning = asyncio.Lock()
        self._held = AsyncExitStack()
        self.begun = False
        self._over = False

    async def begin(self) -> None:
        """Wait until no other event has the connection. Once is enough."""
        if self._over:
            raise RuntimeError("the connection of a batch was used by an event that was done")
        async with self._beginning:
            if self.begun:
                return
            await self._held.enter_async_context(self._turns)
            self.begun = True
            if self._savepoint:
                token = _turn.set(None)
                try:
                    await self._held.enter_async_context(async_savepoint(self._conn))
                finally:
                    _turn.reset(token)

    async def __aenter__(self) -> None:
        """Do nothing: the turn begins when the connection is used."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over = True
        _turn.set(None)
        if error is None or self._savepoint:
            await self._held.__aexit__(kind, error, traceback)
        # Otherwise no event gets the connection any more: all that is left is to roll back.


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


class _TurnLock(asyncio.Lock):
    """The lock that psycopg takes for each statement, behind the turns of events."""

    async def acquire(self) -> Literal[True]:
        turn = _turn.get()
        if turn is not None:
            await turn.begin()
        return await super().acquire()


class AsyncKeyOrder:
    """Lets each event wait for the one before it with the same key, until that is done or parked.

    Of the events that need not wait, ``at_once`` are processed at a time. Events begin in their
    order, like the tasks of `AsyncConcurrentEvents`.
    """

    def __init__(self, at_once: int, key_of: Callable[[Event], str]) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._key_of = key_of
        self._last: dict[str, asyncio.Event] = {}
        self._done: dict[int, asyncio.Event] = {}

    async def process(self, process: Callable[[Event], Awaitable[None]], event: Event) -> None:
        """Process an event in its turn. If that fails, the next one of the key waits for `end`:
        the key may have to be parked."""
        key = self._key_of(event)
        before = self._last.get(key)
        self._last[key] = self._done[event.id] = asyncio.Event()
        if before is not None:
            await before.wait()
        async with self._places:
            await process(event)
        self.end(event.id)

    def end(self, event_id: int) -> None:
        """Let the next event of the key begin."""
        if done := self._done.pop(event_id, None):
            done.set()


class _OneByOne:
    """Replaces both classes for threads, which never make them."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any: ...


ConcurrentEvents: TypeAlias = _OneByOne
KeyOrder: TypeAlias = _OneByOne
