"""Pairs of functions and classes that sync and asyncio code cannot spell alike.

Each pair, ``AsyncX`` and ``X``, has one interface; the generator of the sync modules
(tools/async_to_sync.py) exchanges the names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import socket
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: The signals with which service managers and terminals end a process.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: If an asyncio task ends with one of these, its event loop ends at once, with all other tasks.
EXITS = (KeyboardInterrupt, SystemExit)
#: Raised in the running code when the program, or its asyncio task, is ended.
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)


class Waker:
    """A sleep that can be ended: by `wake`, from any thread or signal handler, or by a socket."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)

    def wake(self) -> None:
        """End the current wait, or else the next one, at once."""
        # A full buffer wakes as well; a closed one has no waiter.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def wait(self, timeout: float, fileno: int | None = None) -> None:
        """Wait ``timeout`` seconds, or until woken, or until the socket is readable."""
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
    """A `Waker` for one event loop."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def wake(self) -> None:
        """End the current wait, or else the next one, at once."""
        if threading.get_ident() == self._thread:
            self._woken.set()
            return
        # A closed loop has no waiter.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, timeout: float, fileno: int | None = None) -> None:  # noqa: ASYNC109
        """Wait ``timeout`` seconds, or until woken; there is no socket, it has an `AsyncWatch`."""
        assert fileno is None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        self._woken.clear()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Watch:
    """A socket that must be read when it is readable; its waiter watches `fileno`."""

    def __init__(self, fileno: int, read: Callable[[], None]) -> None:
        self.fileno: int | None = fileno

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class AsyncWatch:
    """A socket that the event loop watches and reads."""

    fileno: int | None = None

    def __init__(self, fileno: int, read: Callable[[], None]) -> None:
        self._fileno = fileno
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fileno, read)

    def close(self) -> None:
        self._loop.remove_reader(self._fileno)


AsyncLock = asyncio.Lock
Lock = nullcontext[None]
"""Replaces a lock where no two threads share anything."""


class _StopSignals:
    """Handles SIGTERM and SIGINT while a callback is registered: the first signal calls them
    all."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        #: The handlers from before, while ours are installed.
        self._previous: dict[signal.Signals, Any] = {}

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if not self._previous:
            self._previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            for number in STOP_SIGNALS:
                signal.signal(number, self._on_signal)

    def remove(self, callback: Callable[[], None]) -> None:
        self._callbacks.remove(callback)
        if not self._callbacks:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            # None: installed by something other than Python, which cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._restore()
        for callback in tuple(self._callbacks):
            callback()


_stop_signals = _StopSignals()


@contextmanager
def on_stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call back at the first SIGTERM or SIGINT within the block; a second acts as before.

    Blocks may overlap: all are called back. Signals belong to the main thread: in other threads
    this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stop_signals.add(callback)
    try:
        yield
    finally:
        _stop_signals.remove(callback)


@asynccontextmanager
async def async_on_stop_signals(callback: Callable[[], None]) -> AsyncIterator[None]:
    """Call back at the first SIGTERM or SIGINT within the block, for the running event loop."""
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
    """Iterate over either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def each(items: Iterable[T]) -> Iterable[T]:
    return items


@asynccontextmanager
async def async_holding(lock: threading.Lock) -> AsyncIterator[None]:
    """Hold a lock that threads also hold for short times."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    try:
        yield
    finally:
        lock.release()


def async_own_error(error: BaseException) -> Exception:
    """Return the error of a call; raise a CancelledError again if the current task is cancelled."""
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    return own_error(error)


def own_error(error: BaseException) -> Exception:
    """Return the error of a call; a CancelledError is one of what it has called."""
    if isinstance(error, Exception):
        return error
    cancelled = RuntimeError("it was cancelled by something inside it")
    cancelled.__cause__ = error
    return cancelled


class AsyncInterruptible:
    """A block that other threads may interrupt: its current wait is cancelled, and it ends."""

    interrupted = False

    def __enter__(self) -> AsyncInterruptible:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] | None = task
        self._loop = asyncio.get_running_loop()
        return self

    def interrupt(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self.interrupted:
            self.interrupted = True
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: object, where: object) -> bool:
        task, self._task = self._task, None
        assert task is not None
        others = task.uncancel() if self.interrupted else task.cancelling()
        if kind is not asyncio.CancelledError or others:
            return False
        if not self.interrupted:
            raise RuntimeError("it was cancelled by something inside it")
        return True


class Interruptible:
    """A block that cannot be interrupted: a CancelledError is an error of what is in it."""

    interrupted = False

    def __enter__(self) -> Interruptible:
        return self

    def interrupt(self) -> None:
        """Do nothing: threads end when they end."""

    def __exit__(self, kind: type[BaseException] | None, error: object, where: object) -> None:
        if kind is asyncio.CancelledError:
            raise RuntimeError("it was cancelled by something inside it")


class _Threads:
    """Threads for calls, as many as run at a time. They do not keep the process from ending, as
    those of `concurrent.futures` do."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        ended: Future[T] = Future()
        self._calls.put((ended, call))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="pgqpy call", daemon=True).start()
        return ended

    def _run(self) -> None:
        while True:
            ended, call = self._calls.get()
            if ended.set_running_or_notify_cancel():
                try:
                    result = call()
                except StopIteration as error:
                    # Futures of asyncio refuse it, and their waiters would wait for ever.
                    refused = RuntimeError("the call raised StopIteration")
                    refused.__cause__ = error
                    ended.set_exception(refused)
                    del refused
                except BaseException as error:
                    ended.set_exception(error)
                else:
                    ended.set_result(result)
                    del result
            del ended, call
            self._idle.release()


_threads = _Threads()


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread that does not keep the process from ending."""
    return _threads.submit(call)


class _Slots:
    """Concurrency slots. `check` raises the first error."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """``ended`` is called whenever a call has ended."""
        self._ended = ended
        self._running: set[Any] = set()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._running)

    def fail(self, error: BaseException) -> None:
        """Record an error, unless there is one."""
        self._error = self._error or error

    @property
    def failed(self) -> bool:
        """Whether a call has raised an error."""
        return self._error is not None

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class Slots(_Slots):
    """Slots for calls that run in threads."""

    def start(self, call: Callable[[], None]) -> None:
        """Run a call; there must be room."""
        running = in_thread(call)
        self._running.add(running)
        running.add_done_callback(self._done)

    def _done(self, ended: Future[None]) -> None:
        error = ended.exception()
        # Else another thread's error, set meanwhile, would be overwritten.
        if error is not None:
            self._error = self._error or error
        self._running.discard(ended)
        self._ended()

    def cancel(self, timeout: float) -> None:
        """Do nothing: threads end when they end."""

    def close(self, timeout: float | None = None) -> None:
        """Wait for all calls, at most ``timeout`` seconds."""
        wait([*self._running], timeout)


class AsyncSlots(_Slots):
    """Slots for calls that run in tasks."""

    def start(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a call; there must be room."""
        task = asyncio.create_task(self._run(call))
        self._running.add(task)
        task.add_done_callback(self._done)

    async def _run(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await call()
        except EXITS as error:
            self.fail(error)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()
        self._ended()

    async def cancel(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """Cancel all calls, and wait for their ends, at most ``timeout`` seconds."""
        for task in (left := [*self._running]):
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=timeout)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Like `cancel`."""
        await self.cancel(timeout)
