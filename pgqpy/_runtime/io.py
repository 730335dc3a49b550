"""How consumers and workers wait: for the server, for the user's code, for time.

Their parts are written once, as coroutines, and never await such a thing itself: they call it by
the `AsyncIo` of the consumer or worker. A sync one has an `Io` in its place, and gives its parts
the sync twins: connections, hooks, what wakes it. Each call then blocks the thread, so that no
coroutine is ever suspended, and `Io.run` takes it to its end in one step.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from time import sleep
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import psycopg
from psycopg import AsyncCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.acompat import (
    AsyncInterruptible,
    AsyncSlots,
    AsyncWatch,
    Interruptible,
    Slots,
    Watch,
    async_holding,
    in_thread,
)
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection import connect_as, read_committed
from pgqpy.connection_async import AsyncConnection, C, async_connect_as, async_read_committed
from pgqpy.errors import translate_errors

T = TypeVar("T")

#: A statement and its parameters.
Call: TypeAlias = tuple[bytes, list[Any]]
#: The same with the cursor that executes it.
CursorCall: TypeAlias = tuple[AsyncCursor[Any], bytes, Any]

#: Classes of connections, for asyncio and for threads.
PLAIN = psycopg.AsyncConnection[tuple[Any, ...]], psycopg.Connection[tuple[Any, ...]]
BATCH = AsyncBatchConnection, BatchConnection

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Any, Any]]
_shared = WeakKeyDictionary()


class AsyncIo:
    """The waiting of asyncio's consumers and workers."""

    awaits = True
    slots: Callable[[Callable[[], None]], AsyncSlots] = AsyncSlots
    interruptible: Callable[[], AsyncInterruptible] = AsyncInterruptible
    watch: Callable[[int, Callable[[], None]], AsyncWatch] = AsyncWatch
    #: A lock for those that share an object; threads share none.
    lock: Callable[[], AbstractAsyncContextManager[Any]] = asyncio.Lock
    #: Executes a statement on a connection, and returns its rows.
    fetch = staticmethod(async_fetch)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a part of a consumer or worker."""
        return await work

    def start(self, slots: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in a slot; there must be room."""
        slots.start(work)

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Call what waits: a hook, or a method of a connection."""
        return await function(*args, **options)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Call what blocks the thread."""
        return await asyncio.wrap_future(in_thread(function))

    def block(self, manager: AbstractAsyncContextManager[T]) -> AbstractAsyncContextManager[T]:
        """Make a block of a context manager that waits, such as a transaction."""
        return manager

    def either(self, asynchronous: T, sync: Any) -> T:
        """Return a class or function for asyncio, or its sync twin."""
        return asynchronous

    def shared(self, make: Callable[[AsyncIo, str], T], key: str) -> T:
        """Return one object for all callers in the event loop that use this key; for threads, a
        new one."""
        made = _shared.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        thing: T | None = made.get((make, key))
        if thing is None:
            thing = made[make, key] = make(self, key)
        return thing

    def holding(self, lock: threading.Lock) -> AbstractAsyncContextManager[Any]:
        """Make a block that holds a lock, which threads hold for short times."""
        return async_holding(lock)

    def deadline(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        """Make a block that raises TimeoutError if it takes longer; None: no limit. Sync code
        cannot be interrupted."""
        return asyncio.timeout(seconds)

    async def connect(self, kind: tuple[type[C], type[Any]], dsn: str | None, **options: Any) -> C:
        """Open a connection, of one of two classes, with the options of `connect_as`."""
        return await async_connect_as(kind[0], dsn, **options)

    async def read_committed(self, conn: AsyncConnection) -> None:
        """Use READ COMMITTED, whatever the default."""
        await async_read_committed(conn)

    async def notified(self, conn: AsyncConnection, seconds: float) -> None:
        """Wait for a notification, at most some seconds."""
        async for _ in conn.notifies(timeout=seconds, stop_after=1):
            pass

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(seconds)

    async def fetch_by(self, cursor: AsyncCursor[Any], statement: bytes, values: Any = None) -> Any:
        """Execute a statement by a cursor, and return its rows."""
        await cursor.execute(statement, values)
        return await cursor.fetchall()

    async def execute(self, conn: AsyncConnection, calls: Iterable[CursorCall]) -> None:
        """Execute statements in one round trip, each by a cursor of its own."""
        async with conn.pipeline():
            for cursor, statement, values in calls:
                await cursor.execute(statement, values)

    async def send(self, conn: AsyncConnection, calls: Sequence[Call]) -> list[list[Any]]:
        """Send statements at once and return their rows: outside of a transaction they are one."""
        cursors = [conn.cursor(row_factory=tuple_row, binary=True) for _ in calls]
        with translate_errors():
            if len(calls) == 1:
                return [await self.fetch_by(cursors[0], *calls[0])]
            try:
                await self.execute(
                    conn, [(cursor, *call) for cursor, call in zip(cursors, calls, strict=True)]
                )
            except psycopg.Error:
                await self._forget_prepared(conn)
                raise
            return [await self.call(cursor.fetchall) for cursor in cursors]

    async def _forget_prepared(self, conn: AsyncConnection) -> None:
        """Make psycopg forget its prepared statements, by a rollback: if one of a pipeline's
        statements was refused, it wrongly takes those behind it for prepared."""
        if conn.info.transaction_status == TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                async with self.block(conn.transaction(force_rollback=True)):
                    pass


class Io(AsyncIo):
    """The waiting of sync consumers and workers, which blocks the thread."""

    awaits = False
    slots = cast(Any, Slots)
    interruptible = cast(Any, Interruptible)
    watch = cast(Any, Watch)
    lock = nullcontext

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # type: ignore[override]
        try:
            work.send(None)
        except StopIteration as ended:
            return cast(T, ended.value)
        work.close()
        raise RuntimeError("a part of a sync consumer or worker awaits something itself")

    def start(self, slots: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        slots.start(lambda: self.run(work()))

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        return cast(T, function(*args, **options))

    async def blocking(self, function: Callable[[], T]) -> T:
        return function()

    def block(self, manager: Any) -> AbstractAsyncContextManager[Any]:
        return _Block(manager)

    def either(self, asynchronous: T, sync: Any) -> T:
        return cast(T, sync)

    def shared(self, make: Callable[[AsyncIo, str], T], key: str) -> T:
        return make(self, key)

    def holding(self, lock: threading.Lock) -> AbstractAsyncContextManager[Any]:
        return _Block(lock)

    def deadline(self, seconds: float | None) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    async def connect(self, kind: tuple[type[C], type[Any]], dsn: str | None, **options: Any) -> C:
        return cast(C, connect_as(kind[1], dsn, **options))

    async def fetch(
        self,
        conn: Any,
        statement: bytes,
        arguments: Any = (),
        rows: Any = tuple_row,
        **options: Any,
    ) -> list[Any]:
        return fetch(conn, statement, arguments, rows, **options)

    async def read_committed(self, conn: Any) -> None:
        read_committed(conn)

    async def fetch_by(self, cursor: Any, statement: bytes, values: Any = None) -> Any:
        cursor.execute(statement, values)
        return cursor.fetchall()

    async def execute(self, conn: Any, calls: Iterable[tuple[Any, bytes, Any]]) -> None:
        with conn.pipeline():
            for cursor, statement, values in calls:
                cursor.execute(statement, values)

    async def notified(self, conn: Any, seconds: float) -> None:
        for _ in conn.notifies(timeout=seconds, stop_after=1):
            pass

    async def sleep(self, seconds: float) -> None:
        sleep(seconds)  # noqa: ASYNC251


class _Block(AbstractAsyncContextManager[Any]):
    """A block of sync code's."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *error: object) -> bool | None:
        return cast(bool | None, self._manager.__exit__(*error))
