"""The job that is running, as its function sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pgqpy.errors import InvalidTask
from pgqpy.retry_policy import DeadLetter
from pgqpy.tasks.task import Task

#: So much, of how much, of what.
Progress: TypeAlias = tuple[float, float | None, str | None]


class TaskCancelled(DeadLetter):
    """Somebody cancelled the task while it ran: it goes to the error queue, with the reason."""


@dataclass(eq=False, slots=True)
class CurrentJob:
    """The task that a job works on, as `current_job` returns it."""

    task: Task
    _conn: Any = None
    #: What the server does not know yet.
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
    def cancelled(self) -> bool:
        """Whether somebody wants the task to end."""
        return self._cancelled is not None

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if somebody wants the task to end. Async jobs need not call it: they
        are cancelled as tasks of asyncio are."""
        if self._cancelled is not None:
            raise TaskCancelled(self._cancelled)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the job is: ``progress(40, 100, "pages")``.

        The server is told about once a second, beside the job's transaction. Raises TaskCancelled
        as `check_cancelled` does, InvalidTask for numbers that make no sense.
        """
        try:
            numbers = [None if number is None else float(number) for number in (done, total)]
        except (TypeError, ValueError, OverflowError):
            numbers = [-1]
        if not all(number is None or 0 <= number < float("inf") for number in numbers):
            raise InvalidTask(
                f"a progress of {done!r:.40} of {total!r:.40}", hint="Give numbers from 0 on."
            )
        # What the server cannot store must not keep it from hearing of other jobs.
        text = (
            None if note is None else str(note).replace("\0", "").encode(errors="replace").decode()
        )
        with self._lock:
            self._progress = (float(done), None if total is None else float(total), text)
        self.check_cancelled()

    def take_progress(self) -> Progress | None:
        """What the server does not know yet."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress

    def keep_progress(self, progress: Progress) -> None:
        """It does not know it after all."""
        with self._lock:
            self._progress = self._progress or progress

    def cancel(self, reason: str) -> None:
        """Somebody wants the task to end."""
        if self._cancelled is None:
            self._cancelled = f"cancelled: {reason}"
            cancel = self._cancel
            if cancel is not None:
                cancel()


_current: ContextVar[CurrentJob | None] = ContextVar("pgqpy_current_job", default=None)


def current_job() -> CurrentJob:
    """The job that is running. Raises InvalidTask outside of one."""
    job = _current.get()
    if job is None:
        raise InvalidTask("no job is running here", hint="Call it in a job that a worker runs.")
    return job


def has_current_job() -> bool:
    """Whether a worker runs this; False if the function was called as usual."""
    return _current.get() is not None


def call(job: CurrentJob, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job's function here; one of asyncio in an event loop of its own."""
    if asyncio.iscoroutinefunction(function):
        return asyncio.run(async_call(job, function, *args, **kwargs))
    _current.set(job)
    try:
        return function(*args, **kwargs)
    finally:
        _current.set(None)


async def async_call(
    job: CurrentJob, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """The same in an event loop; a function that is not of asyncio in a thread."""
    if not asyncio.iscoroutinefunction(function):
        return await asyncio.to_thread(call, job, function, *args, **kwargs)
    _current.set(job)
    running = asyncio.create_task(function(*args, **kwargs))
    loop = asyncio.get_running_loop()
    job._cancel = lambda: loop.call_soon_threadsafe(running.cancel)
    if job.cancelled:
        running.cancel()
    try:
        return await running
    except asyncio.CancelledError:
        # Or is it the worker's own task that is cancelled?
        if job.cancelled and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            job.check_cancelled()
        running.cancel()
        await asyncio.wait([running])
        raise
    finally:
        job._cancel = None
        _current.set(None)
