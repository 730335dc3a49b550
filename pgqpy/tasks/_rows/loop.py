"""A run of a `TableWorker`, from its first look until it stops."""

from __future__ import annotations

from time import monotonic
from typing import cast

from pgqpy._runtime.acompat import AsyncWaker, Waker
from pgqpy.log import logger
from pgqpy.tasks._notifier import Notifier
from pgqpy.tasks._rows.executor import RowExecutor
from pgqpy.tasks._rows.handler import RowHooks
from pgqpy.tasks._rows.table import TableMarks
from pgqpy.tasks._settings import RowSettings


async def run_once(settings: RowSettings, hooks: RowHooks) -> bool:
    """Run one transaction; False if nothing was due."""
    executor = RowExecutor(settings, hooks, TableMarks())
    try:
        worked = await executor.step()
        while executor.unfinished:
            await executor.step()
        return worked
    finally:
        await executor.close()


class RowLoop:
    """Lets executors work when rows are due, each in a concurrency slot."""

    def __init__(self, settings: RowSettings, hooks: RowHooks, waker: AsyncWaker | Waker) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io
        self._waker = cast(AsyncWaker, waker)
        self._slots = self._io.slots(waker.wake)
        marks = TableMarks()
        self._executors = [RowExecutor(settings, hooks, marks) for _ in range(settings.concurrency)]
        self._notifier: Notifier | None = None

    async def run(self) -> None:
        """Work until the worker stops, or until nothing is due."""
        settings = self._settings
        try:
            table = await self._executors[0].table()
            listen_dsn = settings.database.listen_dsn
            if listen_dsn and table.signal is not None and not settings.until_empty:
                channel = "pgq_task_table"
                self._notifier = Notifier(self._io, listen_dsn, channel, [table.signal], "rows")
            logger.info("worker for table %s started", table.name, extra=settings.fields)
            await self._work()
            for executor in self._executors:
                await executor.leave()
            logger.info("worker for table %s stopped", table.name, extra=settings.fields)
        finally:
            self._hooks.stopping = True
            await self._io.call(self._slots.close)
            for executor in self._executors:
                await executor.close()
            if self._notifier is not None:
                await self._notifier.close()

    async def _work(self) -> None:
        until_empty = self._settings.until_empty
        while not self._hooks.stopping:
            self._slots.check()
            heard = self._notifier is not None and self._notifier.heard
            if self._notifier is not None:
                self._notifier.heard = False
            for executor in self._executors:
                if executor.free and (heard or until_empty or monotonic() >= executor.look_at):
                    executor.free = False
                    if self._settings.concurrency == 1:
                        await executor.work()
                    else:
                        self._io.start(self._slots, executor.work)
            if not until_empty:
                looks = [executor.look_at for executor in self._executors if executor.free]
                await self._wait(min(looks, default=monotonic() + 60) - monotonic())
                continue
            await self._all_done()
            if not any(executor.worked for executor in self._executors):
                break
        await self._all_done()

    async def _wait(self, seconds: float) -> None:
        if self._notifier is None:
            await self._io.call(self._waker.wait, max(seconds, 0))
        # Rows before the first LISTEN were not notified: poll once more.
        elif await self._notifier.open():
            self._notifier.heard = True
        else:
            await self._notifier.wait(self._waker, max(seconds, 0))

    async def _all_done(self) -> None:
        while self._slots:
            await self._io.call(self._waker.wait, 1)
        self._slots.check()
