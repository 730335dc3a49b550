"""Workers: claim tasks, work on them, and complete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Unpack

from pgqpy import dsn as dsns
from pgqpy._runtime.heartbeat import unique_name
from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.stoppable_async import AsyncStoppable
from pgqpy.connection_async import AsyncConnection
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._settings import TaskWorkerSettings, set_given, settings_of
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.base import PlainTaskWorker
from pgqpy.tasks._worker.loop import Loop


class AsyncTaskWorker(PlainTaskWorker, AsyncStoppable):
    """Claims tasks, works on them, and finishes them; any number may serve the same queues.

    There are three ways to work. Give a handler, or override `handle_task`: it is called outside
    of any transaction, and the task is finished afterwards, so its effects happen *at least once*.
    Or override `process_task`: its writes on ``conn`` commit in the transaction in which the task
    is finished, so effects in this database happen *exactly once*. Or override `process_batch`,
    for many tasks in one such transaction::

        async def send(task):
            await mail(task.payload["to"])

        await AsyncTaskWorker(dsn, "mails", send).run()

    A task belongs to the worker for its lease, which is renewed in the background while the worker
    works. If that fails, because the machine slept or the network was down, and another worker has
    taken the task over, this one cannot finish it any more: in a transaction its writes are rolled
    back; a handler of asyncio is cancelled, and `on_task_lost` is called.

    The value returned for a task is its result, which is kept if the queue keeps finished tasks. If
    it is not JSON the task is finished without it: that is no reason to repeat the work. A `Retry`,
    a `DeadLetter` or a `Move` may be returned or raised; if returned, the task's writes in its
    transaction commit with it, if raised, they are rolled back. After any other error
    ``retry_policy`` gives the delay of the next attempt; if that or the queue allows no more
    attempts, the task goes to the error queue with the reason.
    """

    _io = AsyncIo()

    def __init__(
        self,
        dsn: str | None = None,
        queues: str | Sequence[str] | None = None,
        handler: Callable[[Task], Awaitable[Any]] | None = None,
        *,
        name: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
        **settings: Unpack[TaskWorkerSettings],
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; ``settings``, from ``lease`` to
        ``stop_timeout``, win over the class's.

        ``name`` is the name of the claims, by default a unique one. Behind a PgBouncer in
        transaction mode, ``listen_dsn`` goes around it, and ``prepare_threshold=None`` if it does
        not support prepared statements.
        """
        set_given(self, TaskWorkerSettings, settings)
        self.queues = self.queues if queues is None else queues
        self.dsn = dsns.resolve(dsn)
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self.prepare_threshold = prepare_threshold
        self.name = name or unique_name()
        self.handler = handler

    # --- to be overridden

    async def handle_task(self, task: Task) -> Any:
        """Work on a task, outside of any transaction. The default calls the handler."""
        if self.handler is None:
            raise NotImplementedError
        return await self.handler(task)

    async def process_task(self, conn: AsyncConnection, task: Task) -> Any:
        """Work on a task inside the transaction in which it is finished.

        It begins when ``conn`` is first used. Leave it open; ``conn.transaction()`` gives
        savepoints.
        """
        raise NotImplementedError

    async def process_batch(self, conn: AsyncConnection, tasks: list[Task]) -> Sequence[Any] | None:
        """Work on tasks inside the one transaction in which they are finished.

        Returns None if they all are, else for each task a result like `process_task`'s. If it
        raises, or if the worker has lost one of the tasks meanwhile, all is rolled back, and it is
        called again for each task alone.
        """
        raise NotImplementedError

    async def on_task_failed(
        self, task: Task, error: Exception, delay: float | timedelta | None
    ) -> None:
        """Called when a task failed; it is retried after ``delay``, None: it is in the error queue.

        That is its outcome on the server, whatever the retry policy had said: a note of ``error``
        names the error queue, and the reason if it was the queue's max_attempts or a cancellation.
        The error is logged already.
        """

    async def on_completed(self, stats: TaskStats) -> None:
        """Called when outcomes of tasks are committed: the place for metrics."""

    async def on_error(self, error: Exception) -> None:
        """Called when the database is away. The worker will reconnect; raise here to leave `run`
        instead. The error is logged already."""

    # --- the life of a worker

    async def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Work until `stop`, or with ``until_empty`` until no task is available, also none that its
        own tasks have pushed or unblocked. Running tasks are completed, others released.

        After ``stop_timeout`` asyncio tasks are cancelled. Threads go on, but cannot finish their
        tasks any more, and end with the process; with a ``stop_timeout`` a sync worker always works
        in threads.

        Survives errors of tasks, the loss of the database, and of some of its queues, on which it
        works again when they are back. Raises TaskQueueNotFound, ConnectionFailed if it cannot
        connect at the start, and later only errors that waiting does not cure; with ``until_empty``
        any error of the database.

        In the main thread SIGTERM and SIGINT stop it (a second one, at once), unless
        ``handle_signals`` is false; handlers are as before when it returns.
        """
        settings = settings_of(self, until_empty=until_empty)
        async with self._running(handle_signals=handle_signals) as waker:
            self._loop = Loop(settings, self, waker)
            try:
                await self._io.run(self._loop.run())
            finally:
                self._loop = None
