"""Objects with a `run` that ends when they are told to stop: consumers and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from time import monotonic

from pgqpy._runtime.acompat import AsyncWaker, async_on_stop_signals
from pgqpy.errors import InvalidConsumer

#: Seconds between looks at a ticker that begins or ends, and for which its end is waited.
_LOOK = 0.01
_END = 5.0


class AsyncStoppable:
    """Base of classes with a `run`, which `stop` or a signal ends."""

    stopping = False
    """Whether `run` is to return; code that takes long may look at it."""
    _waker: AsyncWaker | None = None

    def stop(self) -> None:
        """Make `run` return after the current work, or now if it waits.

        Call it from any thread, also before `run`.
        """
        self.stopping = True
        if self._waker is not None:
            self._waker.wake()

    @asynccontextmanager
    async def _running(self, *, handle_signals: bool) -> AsyncIterator[AsyncWaker]:
        """Make a block that `stop` and, if handled, SIGTERM and SIGINT tell to end.

        Yields what its code waits with.
        """
        signals = async_on_stop_signals(self.stop) if handle_signals else nullcontext()
        self._waker = waker = AsyncWaker()
        try:
            async with signals:
                yield waker
        finally:
            self.stopping = False
            self._waker = None
            waker.close()

    @asynccontextmanager
    async def _ticking(self, waker: AsyncWaker, dsn: str, ticker: object) -> AsyncIterator[None]:
        """Make a block beside which a ticker leads, or stands by to lead, if ``ticker`` is "auto".

        The block begins when there are ticks. Its end gives the lead back.
        """
        if ticker is None:
            yield
            return
        if ticker != "auto":
            raise InvalidConsumer(f'ticker is {ticker!r}; it must be "auto", or None')
        # Few processes tick; and the ticker uses this library.
        from pgqpy_ticker.beside import Beside

        beside = Beside(dsn)
        try:
            while not (beside.settled or self.stopping):
                await waker.wait(_LOOK)
            beside.check()
            yield
        finally:
            beside.stop()
            latest = monotonic() + _END
            while not beside.ended and monotonic() < latest:
                await waker.wait(_LOOK)
