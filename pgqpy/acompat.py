"""The few things that sync and asyncio cannot spell alike.

Everything here comes in pairs, ``AsyncX`` and ``X``, with the same interface; the generator of the
sync modules (tools/async_to_sync.py) exchanges the names.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
import socket
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

T = TypeVar("T")

#: What service managers and terminals send to end a process.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Waker:
    """Sleeping that can be ended: by `wake`, from any thread or signal handler, or by a socket."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)

    def wake(self) -> None:
        """End the wait that is going on, or else the next one, at once."""
        # A full buffer wakes as well; one that is closed has nobody to wake.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def wait(self, timeout: float, fileno: int | None = None) -> None:
        """Wait so many seconds, or until woken or until the socket is readable."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ)
            if fileno is not None:
                selector.register(fileno, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(timeout)}
        if self._receiver.fileno() in ready:
            self._receiver.recv(4096)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


class AsyncWaker:
    """The same, for one event loop; `wake` from its thread, or with call_soon_threadsafe."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the wait that is going on, or else the next one, at once."""
        self._woken.set()

    async def wait(self, timeout: float, fileno: int | None = None) -> None:  # noqa: ASYNC109
        """Wait so many seconds, or until woken; there is no socket, it has an `AsyncWatch`."""
        assert fileno is None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        self._woken.clear()

    def close(self) -> None:
        """Nothing to close."""


class Watch:
    """A socket that is to be read when it is readable; who waits for that watches `fileno`."""

    def __init__(self, fileno: int, read: Callable[[], None]) -> None:
        self.fileno: int | None = fileno

    def close(self) -> None:
        """Nothing to close."""


class AsyncWatch:
    """The same, but it is the event loop that watches, and reads."""

    fileno: int | None = None

    def __init__(self, fileno: int, read: Callable[[], None]) -> None:
        self._fileno = fileno
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fileno, read)

    def close(self) -> None:
        self._loop.remove_reader(self._fileno)


AsyncLock = asyncio.Lock
Lock = nullcontext[None]
"""For what no two threads use."""

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Any, Any]]
_shared = WeakKeyDictionary()


def shared(make: Callable[[str], T], key: str) -> T:
    """One for each who asks."""
    return make(key)


def async_shared(make: Callable[[str], T], key: str) -> T:
    """The same one for all in the running event loop that ask with this key, while they have it."""
    made = _shared.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    thing: T | None = made.get((make, key))
    if thing is None:
        thing = made[make, key] = make(key)
    return thing


@contextmanager
def on_stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Within the block the first SIGTERM or SIGINT calls back; a second acts as it did before.

    Signals belong to the main thread: in others this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            # None: installed by something other than Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def on_signal(_number: int, _frame: object) -> None:
        restore()
        callback()

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


@asynccontextmanager
async def async_on_stop_signals(callback: Callable[[], None]) -> AsyncIterator[None]:
    """The same, for the running event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        # A plain handler interrupts whatever the loop is doing; the loop must call.
        loop.call_soon_threadsafe(callback)

    with on_stop_signals(on_signal):
        yield


async def async_each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Iterate over either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def each(items: Iterable[T]) -> Iterable[T]:
    """Iterate."""
    return items
