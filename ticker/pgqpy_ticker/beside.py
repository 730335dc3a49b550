"""A ticker beside other work, in a thread: for its database it is what the daemon is.

A thread, also beside asyncio: code that takes long without waiting delays no ticks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from psycopg import errors

from pgqpy.errors import PermissionDenied, PgqError
from pgqpy_ticker.config import Config
from pgqpy_ticker.jobs import cancel
from pgqpy_ticker.problem import NotAllowed, Problem
from pgqpy_ticker.served import Served
from pgqpy_ticker.worker import Worker

#: Seconds between two looks at the thread.
_LOOK = 0.01


class Beside:
    """Leads a database's tickers, or stands by to lead, until `stop`.

    It has connections of its own, and never keeps the process alive.
    """

    def __init__(self, dsn: str) -> None:
        """Start it; it needs some time to be `settled`."""
        (self._database,) = Config.from_dsns(dsn).databases
        self._worker = Worker(Served(self._database))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pgqpy ticker", daemon=True)
        self._thread.start()

    @property
    def settled(self) -> bool:
        """Whether it has made its first ticks, or another ticker leads, or it can do nothing."""
        return self._worker.settled.is_set() or self.ended

    @property
    def ended(self) -> bool:
        """Whether it holds nothing any more."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise PermissionDenied if the role lacks rights, PgqError if the DSN leads to a pooler,
        or to no schema of ours. If waiting may help, it goes on trying."""
        failure = self._worker.failure
        if failure is None:
            return
        problem = Problem.of(failure, self._database)
        if problem.permanent:
            forbidden = isinstance(failure, NotAllowed | errors.InsufficientPrivilege)
            kind = PermissionDenied if forbidden else PgqError
            raise kind(f"the ticker cannot run here: {problem.message}", hint=problem.hint)

    def stop(self) -> None:
        """Make it give the lead back and end, soon."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        serving = asyncio.create_task(self._worker.run())
        await self._stop.wait()
        await cancel(serving)


@asynccontextmanager
async def ticking(dsn: str) -> AsyncIterator[None]:
    """Make a block of asyncio beside which a ticker leads, or stands by, like the daemon.

    The block begins when there are ticks; its end gives the lead back. Raises PermissionDenied, and
    PgqError if there is no schema, or a pooler in between.
    """
    beside = Beside(dsn)
    try:
        # Its events are of another thread's loop.
        while not beside.settled:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        beside.check()
        yield
    finally:
        beside.stop()
        while not beside.ended:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
