# WARNING: generated from pgqpy/tasks/worker/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers: claim tasks, work on them, and say what became of them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from pgqpy import dsn as dsns
from pgqpy.acompat import Waker, on_stop_signals
from pgqpy.connection import Connection
from pgqpy.log import logger
from pgqpy.retries import MAX_TRACEBACK, interval
from pgqpy.retry_policy import DeadLetter, ExponentialBackoff, Retry, RetryPolicy, in_short
from pgqpy.tasks import statements as sql
from pgqpy.tasks.client import claimant_name
from pgqpy.tasks.outcome import (
    Failed,
    Finished,
    Move,
    Moved,
    Outcome,
    Released,
    TaskStats,
    without_result,
)
from pgqpy.tasks.statements import Duration
from pgqpy.tasks.task import Task
from pgqpy.tasks.worker.check import check_worker
from pgqpy.tasks.worker.shift import Shift


class TaskWorker:
    """Claims tasks, works on them, and finishes them; any number may serve the same queues.

    There are three ways to work. Give a handler, or override `handle_task`: it is called outside
    of any transaction, and the task is finished afterwards, so what it does happens *at least
    once*. Or override `process_task`: what it writes on ``conn`` commits in the transaction in
    which the task is finished, so effects in this database happen *exactly once*. Or override
    `process_batch`, for many tasks in one such transaction::

        def send(task):
            mail(task.payload["to"])

        TaskWorker(dsn, "mails", send).run()

    A task is the worker's for its lease, which is renewed in the background for as long as it
    works. If that fails, because the machine slept or the network was away, and another worker has
    taken the task over, this one cannot finish it any more: in a transaction nothing of what it
    wrote is committed; a handler of asyncio is cancelled, and `on_task_lost` is called.

    What is returned for a task is its result, which is kept if the queue keeps finished tasks. If
    it is no JSON the task is finished without it: what was done is not done again because of what
    it returned. A `Retry`, a `DeadLetter` or a `Move` may be returned or raised; returned, what was
    written for the task in its transaction commits with it, raised, it is rolled back. After any
    other error ``retry_policy`` says when the task comes again; when that or the queue allows no
    more attempts, the task goes to the error queue with the reason.
    """

    queues: str | Sequence[str] = ()
    """The queues to serve; higher priorities first, else at random among them."""

    lease: Duration | None = None
    """For how long a task is claimed and renewed, in seconds. None: what the queue's settings
    say."""
    batch_size: int = 100
    """Claim at most so many tasks at once: fewer while they take long."""
    concurrency: int = 1
    """Work on so many tasks at once: in threads, or in tasks of asyncio."""
    random: bool = True
    """Begin with any of those that have waited longest, so that tasks which bring workers down do
    not hold up the others. False: in the order in which they became available."""

    retry_policy: RetryPolicy = ExponentialBackoff()
    """When a task for which an error is raised comes again: a `FixedDelay`, an
    `ExponentialBackoff`, or any function of the attempt (1 for the first) and the error that gives
    the seconds, or None for never; in a class that is a method, or a staticmethod."""
    outages: tuple[type[Exception], ...] = ()
    """Errors that say nothing against the task: it is given back, the attempt does not count. Lost
    connections, deadlocks, serialization failures, locks that could not be had and full disks of
    PostgreSQL are always taken so, and conflicts with others that change the same tasks."""

    periodic: bool = True
    """Push periodic tasks when they are due, whatever their queues. It takes ``pgqpy[jobs]``."""

    listen: bool = True
    """Hear of new tasks by LISTEN, where that is possible."""
    fold_interval: float = 0.005
    """While tasks keep coming, be woken only every so many seconds, for all that came meanwhile.
    The first ones after a pause wake the worker at once. With 0 each does; 0.05 costs much less
    than the default, and tasks of a stream wait so long."""
    poll_interval: float = 1.0
    """The most seconds between looks for tasks: not all of them can be heard of."""
    reconnect_cap: float = 5.0
    """The most seconds between attempts to connect again."""

    def __init__(
        self,
        dsn: str | None = None,
        queues: str | Sequence[str] | None = None,
        handler: Callable[[Task], Any] | None = None,
        *,
        name: str | None = None,
        lease: Duration | None = None,
        batch_size: int | None = None,
        concurrency: int | None = None,
        random: bool | None = None,
        retry_policy: RetryPolicy | None = None,
        outages: tuple[type[Exception], ...] | None = None,
        periodic: bool | None = None,
        listen: bool | None = None,
        fold_interval: float | None = None,
        poll_interval: float | None = None,
        reconnect_cap: float | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` as for `pgqpy.dsn.resolve`; what is given here wins over the class's.

        ``name`` is under which the tasks are claimed, unique if none is given. Behind a PgBouncer
        in transaction mode, ``listen_dsn`` goes around it, and ``prepare_threshold=None`` if it
        does not know prepared statements.
        """
        self.dsn = dsns.resolve(dsn)
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self.prepare_threshold = prepare_threshold
        self.name = name or claimant_name()
        self.handler = handler
        given = {
            "queues": queues,
            "lease": lease,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "random": random,
            "retry_policy": retry_policy,
            "outages": outages,
            "periodic": periodic,
            "listen": listen,
            "fold_interval": fold_interval,
            "poll_interval": poll_interval,
            "reconnect_cap": reconnect_cap,
        }
        for setting, value in given.items():
            if value is not None:
                setattr(self, setting, value)
        self.stopping = False
        self._waker: Waker | None = None
        self._shift: Shift | None = None

    # --- to be overridden

    def handle_task(self, task: Task) -> Any:
        """Work on a task, outside of any transaction. The default calls the handler."""
        if self.handler is None:
            raise NotImplementedError
        return self.handler(task)

    def process_task(self, conn: Connection, task: Task) -> Any:
        """Work on a task inside the transaction in which it is finished.

        It begins when ``conn`` is first used, and must be left open; ``conn.transaction()`` gives
        savepoints.
        """
        raise NotImplementedError

    def process_batch(self, conn: Connection, tasks: list[Task]) -> Sequence[Any] | None:
        """Work on tasks inside the one transaction in which they are finished.

        Returns None if they all are, else for each task what `process_task` would. If it raises,
        or if the worker has lost one of the tasks meanwhile, all is rolled back, and it is called
        again for each task alone.
        """
        raise NotImplementedError

    def on_task_lost(self, task: Task) -> None:
        """Somebody else may have the task now; whatever the worker does for it is in vain.

        Called in another thread, while the task is worked on, or when it cannot be finished. The
        log knows already.
        """

    def on_task_failed(self, task: Task, error: Exception, after: float | timedelta | None) -> None:
        """A task failed, and comes again after so long; None: it went to the error queue.

        That is what became of it on the server, whatever the retry policy had said: a note of
        ``error`` names the error queue, and what sent the task there if it was the queue's
        max_attempts or a cancellation. The log knows already.
        """

    def on_settled(self, stats: TaskStats) -> None:
        """What became of tasks is committed: the place for metrics."""

    def on_error(self, error: Exception) -> None:
        """The database is away. The worker will connect again; raise here to leave `run` instead.
        The log knows already."""

    # --- the life of a worker

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Work until `stop`, or with ``until_empty`` until no task is available.

        Survives errors of tasks, the loss of the database, and of some of its queues, on which it
        works again when they are back. Raises TaskQueueNotFound, ConnectionFailed if it cannot
        connect to begin with, and later only what waiting does not mend; with ``until_empty`` any
        error of the database.

        In the main thread SIGTERM and SIGINT stop it (a second one, at once), unless
        ``handle_signals`` is false; handlers are as before when it returns.
        """
        check_worker(self)
        self._waker = Waker()
        self._shift = Shift(self, self._waker, until_empty=until_empty)
        signals = on_stop_signals(self.stop) if handle_signals else nullcontext()
        try:
            with signals:
                self._shift.run()
        finally:
            self.stopping = False
            self._shift = None
            waker, self._waker = self._waker, None
            waker.close()

    def stop(self) -> None:
        """Make `run` return when the tasks that it works on are done.

        Those that it has claimed and not begun are given back. From any thread (asyncio: in the
        event loop's), also before `run`.
        """
        self.stopping = True
        if self._waker is not None:
            self._waker.wake()

    def has(self, task: Task) -> bool:
        """Whether the lease of a task that is worked on is not known to be lost. From any
        thread: for handlers that take long."""
        shift = self._shift
        return shift is not None and task in shift.held

    # --- decisions

    def policy_of(self, task: Task) -> RetryPolicy:
        """The retry policy for a task."""
        return self.retry_policy

    def pushes_periodic(self) -> bool:
        """Whether it pushes periodic tasks, between the others."""
        return self.periodic

    def encode_result(self, value: Any) -> str | None:
        """What was returned for a task, as JSON; None for none."""
        return sql.jsonb_or_null(value)

    def outcome_of(self, value: Any) -> Outcome:
        """What was returned for a task, as what becomes of it. Raises DeadLetter, ValueError."""
        if isinstance(value, Retry):
            after = interval(value.after, "the delay to retry after")
            if after < timedelta():
                raise ValueError("the delay to retry after is negative")
            return Released(after)
        if isinstance(value, DeadLetter):
            return Failed(_described(value.reason, value.__cause__), None, value)
        if isinstance(value, Move):
            return Moved(value.change)
        if inspect.iscoroutine(value):
            value.close()
            raise DeadLetter("a coroutine was returned, which nobody has awaited")
        try:
            return Finished(self.encode_result(value))
        except Exception as error:
            return without_result(error)

    def outcome_of_error(self, task: Task, error: Exception) -> Outcome:
        """What becomes of a task for which an error was raised that is no outage."""
        try:
            if isinstance(error, Retry | DeadLetter | Move):
                return self.outcome_of(error)
            after = self.policy_of(task)(task.attempts, error)
            delay = None if after is None else interval(after, "the delay of the retry_policy")
            if delay is not None and delay < timedelta():
                raise ValueError("the delay of the retry_policy is negative")
        except Exception as worse:
            logger.exception("task %s failed, and the retry policy, too", task.id)
            return Failed(_described(in_short(worse), worse), timedelta(minutes=1), error)
        return Failed(_described(in_short(error), error), delay, error)

    @property
    def fields(self) -> dict[str, Any]:
        """What every log line carries."""
        return {"queues": sql.queue_names(self.queues), "claimant": self.name}


def _described(reason: str, error: BaseException | None) -> str:
    """A reason in the first line, then the traceback, of which the end tells most."""
    if error is None:
        return reason
    text = "".join(traceback.format_exception(error)).rstrip()
    return f"{reason}\n\n{text[-MAX_TRACEBACK:]}"
