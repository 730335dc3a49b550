"""The background work of an app's worker: periodic tasks, progress, cancellations."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Self

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.log import logger
from pgqpy.connection import Connection, connect, read_committed
from pgqpy.errors import PERMANENT, PgqError, translate_errors
from pgqpy.tasks._jobs.current import CurrentJob
from pgqpy.tasks._jobs.due import LOOK, push_due
from pgqpy.tasks._jobs.periodic import PeriodicTask, set_periodic

#: Seconds between checks for cancellations while jobs run, and between reports of progress.
_PAUSE = 1.0
#: Seconds to wait for the end of cancelled tasks.
_LINGER = 60.0

_ATTEND = b"""
select * from pgq_task.heartbeat(%s, %s::bigint[], %s::bigint[], %s::float8[], %s::float8[],
                              %s::text[])
"""


class Heartbeat:
    """A thread with its own connection, also with asyncio: jobs may keep the event loop busy."""

    def __init__(self, dsn: str, claimant: str, periodic: Sequence[PeriodicTask]) -> None:
        self._dsn = dsn
        self._claimant = claimant
        self._periodic = periodic
        self._jobs: dict[int, CurrentJob] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        #: Whether nothing is due, unless a job begins.
        self._idle = False
        self._conn: Connection | None = None
        self._push_at = 0.0
        self._watch_until = 0.0
        self._thread = threading.Thread(target=self._run, name="pgqpy heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Store the periodic tasks on the server; raises its errors."""
        if self._periodic:
            with self._connect() as conn, conn.transaction():
                set_periodic(conn, self._periodic)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @contextmanager
    def watching(self, job: CurrentJob) -> Iterator[None]:
        """While the job runs, tell it of its cancellation, and the server of its progress."""
        with self._changed:
            self._jobs[job.task.id] = job
            if self._idle:
                self._idle = False
                self._changed.notify()
        try:
            yield
        finally:
            with self._lock:
                del self._jobs[job.task.id]

    # --- in the thread

    def _run(self) -> None:
        backoff = Backoff(0.5, 30)
        pause = 0.0
        try:
            while self._wait(pause):
                try:
                    self._turn()
                    backoff.reset()
                    pause = 0.0
                except PgqError as error:
                    self._disconnect()
                    pause = backoff.pause()
                    log = logger.error if isinstance(error, PERMANENT) else logger.warning
                    log("beside its jobs worker %s cannot: %s", self._claimant, error)
                except Exception:
                    # Whatever the error, jobs are still cancelled and pushed.
                    self._disconnect()
                    pause = backoff.pause()
                    logger.exception("beside its jobs worker %s failed", self._claimant)
        finally:
            self._disconnect()

    def _wait(self, pause: float) -> bool:
        """Wait until there is something to do, at least ``pause``. False if closed."""
        begun = monotonic()
        with self._changed:
            while not self._closed:
                now = monotonic()
                due = [begun + max(pause, _PAUSE)] if self._watches(now) else []
                if self._periodic:
                    due.append(max(self._push_at, begun + pause))
                if due and min(due) <= now:
                    return True
                self._idle = not due
                self._changed.wait(min(due) - now if due else None)
        return False

    def _watches(self, now: float) -> bool:
        return bool(self._jobs) or now < self._watch_until

    def _turn(self) -> None:
        if self._conn is None:
            self._conn = self._connect()
        if self._periodic and monotonic() >= self._push_at:
            seconds = push_due(self._conn)
            self._push_at = monotonic() + (LOOK if seconds is None else min(seconds, LOOK))
        if self._watches(monotonic()):
            self._beat(self._conn)

    def _beat(self, conn: Connection) -> None:
        with self._lock:
            jobs = dict(self._jobs)
        news = [(job, job.take_progress()) for job in jobs.values()]
        told = [(job, progress) for job, progress in news if progress is not None]
        try:
            with translate_errors():
                cancelled = conn.execute(
                    _ATTEND,
                    [
                        self._claimant,
                        list(jobs),
                        [job.task.id for job, _ in told],
                        *([progress[n] for _, progress in told] for n in range(3)),
                    ],
                ).fetchall()
        except PgqError:
            for job, progress in told:
                job.keep_progress(progress)
            raise
        for task_id, reason in cancelled:
            if not jobs[task_id].cancelled:
                logger.info("task %s is cancelled: %s", task_id, reason)
            jobs[task_id].cancel(reason)
            self._watch_until = monotonic() + _LINGER

    def _connect(self) -> Connection:
        conn = connect(self._dsn, autocommit=True, application_name=f"pgqpy {self._claimant}"[:63])
        read_committed(conn)
        return conn

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
