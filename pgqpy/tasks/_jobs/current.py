"""The running job, as its function sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    suppress,
)
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from pgqpy._runtime.acompat import EXITS, in_thread
from pgqpy.errors import InvalidTask
from pgqpy.retry import DeadLetter
from pgqpy.tasks._values import Task

#: Done, total, and a note.
Progress: TypeAlias = tuple[float, float | None, str | None]


class TaskTimeout(Exception):
    """The attempt took longer than the job's ``timeout``: it failed, and is retried like others."""


class TaskCancelled(DeadLetter):
    """The task was cancelled while it ran: it goes to the error queue, with the reason."""


@dataclass(eq=False, slots=True)
class CurrentJob:
    """The task of a job, as `current_job` returns it."""

    task: Task
    _conn: Any = None
    #: For middleware and the job to share what they like, such as a session.
    state: dict[str, Any] = field(default_factory=dict)
    _middleware: Sequence[Middleware] = ()
    _timeout: float | None = None
    _stopping: Callable[[], bool] = lambda: False
    _began: float = field(default_factory=monotonic)
    #: Whether the log says that it hangs.
    hangs: bool = False
    #: Progress that the server does not know yet.
    _progress: Progress | None = None
    _cancelled: str | None = None
    _cancel: Callable[[], object] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def conn(self) -> Any:
        """The connection in whose transaction the task is finished: an AsyncConnection in an async
        worker. Raises InvalidTask unless the job was made with ``transaction=True``."""
        if self._conn is None:
            raise InvalidTask(
                "the job has no transaction", hint="Make it with @app.task(transaction=True)."
            )
        return self._conn

    @property
    def results(self) -> list[Any]:
        """The results of the jobs that this one comes after in its `Flow`, in their order."""
        return list((self.task.headers or {}).get("results") or [])

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop: raise ``Retry(0)`` to continue in another one."""
        return self._stopping()

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._cancelled is not None

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if the task was cancelled, TaskTimeout if its time is over. Async
        jobs need not call it: they are cancelled like asyncio tasks."""
        if self._cancelled is not None:
            raise TaskCancelled(self._cancelled)
        if self.late > 0:
            raise self._out_of_time()

    @property
    def late(self) -> float:
        """The seconds since its timeout; negative before, or if there is none."""
        return -1 if self._timeout is None else monotonic() - self._began - self._timeout

    def _out_of_time(self) -> TaskTimeout:
        return TaskTimeout(f"the attempt took more than {self._timeout:g} s")

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report the job's progress: ``progress(40, 100, "pages")``.

        It is sent to the server about once a second, outside of the job's transaction. Raises
        the errors of `check_cancelled`, InvalidTask for invalid numbers.
        """
        try:
            numbers = [None if number is None else float(number) for number in (done, total)]
        except (TypeError, ValueError, OverflowError):
            numbers = [-1]
        if not all(number is None or 0 <= number < float("inf") for number in numbers):
            raise InvalidTask(
                f"a progress of {done!r:.40} of {total!r:.40}", hint="Give numbers from 0 on."
            )
        # Text that the server cannot store must not block the reports of other jobs.
        text = (
            None if note is None else str(note).replace("\0", "").encode(errors="replace").decode()
        )
        with self._lock:
            self._progress = (float(done), None if total is None else float(total), text)
        self.check_cancelled()

    def take_progress(self) -> Progress | None:
        """Return the progress that the server does not know yet."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress

    def keep_progress(self, progress: Progress) -> None:
        """Keep progress that could not be sent."""
        with self._lock:
            self._progress = self._progress or progress

    def cancel(self, reason: str) -> None:
        if self._cancelled is None:
            self._cancelled = f"cancelled: {reason}"
            cancel = self._cancel
            if cancel is not None:
                cancel()


#: Called with each job before it runs; the job runs inside of the context manager.
Middleware: TypeAlias = Callable[
    [CurrentJob], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]
]

_current: ContextVar[CurrentJob | None] = ContextVar("pgqpy_current_job", default=None)


def current_job() -> CurrentJob:
    """Return the running job. Raises InvalidTask outside of one."""
    job = _current.get()
    if job is None:
        raise InvalidTask("no job is running here", hint="Call it in a job that a worker runs.")
    return job


def call(job: CurrentJob, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job's function here; an async one in an event loop of its own."""
    if asyncio.iscoroutinefunction(function):
        return asyncio.run(async_call(job, function, *args, **kwargs))
    token = _current.set(job)
    try:
        with ExitStack() as stack:
            for each in job._middleware:
                context = each(job)
                if not isinstance(context, AbstractContextManager):
                    raise InvalidTask(
                        f"the middleware {each!r:.80} cannot be used by a sync job",
                        hint="Make it with contextlib.contextmanager: that is for both kinds.",
                    )
                stack.enter_context(context)
            return function(*args, **kwargs)
    finally:
        _current.reset(token)


async def async_call(
    job: CurrentJob, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a job's function in the event loop; a sync one in a thread."""
    if not asyncio.iscoroutinefunction(function):
        return await asyncio.wrap_future(
            in_thread(partial(copy_context().run, call, job, function, *args, **kwargs))
        )
    token = _current.set(job)
    exits: list[BaseException] = []
    running = asyncio.create_task(_inside(job, exits, function, *args, **kwargs))
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        # The loop of a job that has just ended may be closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(running.cancel)

    job._cancel = cancel
    if job.cancelled:
        running.cancel()
    timeout = asyncio.timeout(job._timeout)
    try:
        async with timeout:
            value = await running
        if exits:
            raise exits[0]
        return value
    except TimeoutError as error:
        if timeout.expired():
            raise job._out_of_time() from error
        raise
    except asyncio.CancelledError:
        # Otherwise the worker's own task is cancelled.
        if job.cancelled and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            job.check_cancelled()
        running.cancel()
        await asyncio.wait([running])
        raise
    finally:
        job._cancel = None
        _current.reset(token)


async def _inside(
    job: CurrentJob,
    exits: list[BaseException],
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run an async job's function inside of the middleware. What would end the event loop at once
    is returned in ``exits``."""
    try:
        async with AsyncExitStack() as stack:
            for each in job._middleware:
                context = each(job)
                if isinstance(context, AbstractAsyncContextManager):
                    await stack.enter_async_context(context)
                else:
                    stack.enter_context(context)
            return await function(*args, **kwargs)
    except EXITS as error:
        exits.append(error)
