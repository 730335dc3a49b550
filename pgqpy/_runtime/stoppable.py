# WARNING: generated from pgqpy/_runtime/stoppable_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Objects with a `run` that ends when they are told to stop: consumers and workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from pgqpy._runtime.acompat import Waker, on_stop_signals


class Stopped(BaseException):
    """Leave what is under way, as if it had not begun: `stop` was called."""


class Stoppable:
    """Base of classes with a `run`, which `stop` or a signal ends."""

    stopping = False
    """Whether `run` is to return; code that takes long may look at it."""
    _waker: Waker | None = None

    def stop(self) -> None:
        """Make `run` return after the current work, or now if it waits.

        Call it from any thread (asyncio: the event loop's), also before `run`.
        """
        self.stopping = True
        if self._waker is not None:
            self._waker.wake()

    @contextmanager
    def _running(self, *, handle_signals: bool) -> Iterator[Waker]:
        """Make a block that `stop` and, if handled, SIGTERM and SIGINT tell to end.

        Yields what its code waits with.
        """
        signals = on_stop_signals(self.stop) if handle_signals else nullcontext()
        self._waker = waker = Waker()
        try:
            with signals:
                yield waker
        finally:
            self.stopping = False
            self._waker = None
            waker.close()
