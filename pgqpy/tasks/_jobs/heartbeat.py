"""The heartbeat of an app's worker: periodic tasks, progress, cancellations."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Self

from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy.connection import Connection, connect, read_committed
from pgqpy.errors import PERMANENT, PgqError
from pgqpy.log import logger
from pgqpy.tasks._jobs.current import CurrentJob
from pgqpy.tasks._jobs.due import LOOK, push_due
from pgqpy.tasks._jobs.periodic import PeriodicTask, set_periodic

#: Seconds between checks for cancellations while jobs run, and between reports of progress.
_PAUSE = 1.0
#: Seconds after its timeout from which on a job hangs: it looks for its end too rarely, or never.
_HANGS = 10.0
#: Seconds to wait for the end of cancelled tasks.
_LINGER = 60.0

_REPORT = b"""
select * from pgq_task.heartbeat(%s, %s::bigint[], %s::bigint[], %s::float8[], %s::float8[],
                                 %s::text[])
"""


class JobHeartbeat:
    """Pushes what is due, and while jobs run reports their progress and asks for cancellations.

    In a thread with its own connection, also with asyncio: jobs may keep the event loop busy.
    """

    def __init__(self, dsn: str, claimant: str, periodic: Sequence[PeriodicTask]) -> None:
        self._dsn = dsn
        self._claimant = claimant
        self._periodic = periodic
        self._jobs: list[CurrentJob] = []
        #: Jobs that hang, for the loop to end their attempts.
        self.hung: deque[CurrentJob] = deque()
        self._push_at = 0.0 if periodic else math.inf
        self._report_at = 0.0
        self._linger_until = 0.0
        self._thread = Heartbeat("heartbeat", self._connect, self._beat, self._due, self._failed)

    def __enter__(self) -> Self:
        """Store the periodic tasks on the server; raises its errors."""
        if self._periodic:
            with self._connect() as conn, conn.transaction():
                set_periodic(conn, self._periodic)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.close()

    @contextmanager
    def watching(self, job: CurrentJob) -> Iterator[None]:
        """While the job runs, tell it of its cancellation, and the server of its progress."""
        if not self._jobs:
            # Short jobs now and then need no report.
            self._report_at = max(self._report_at, monotonic() + _PAUSE)
        self._jobs.append(job)
        self._thread.wake(self._report_at)
        try:
            yield
        finally:
            self._jobs.remove(job)

    @property
    def hanging(self) -> int:
        """The number of jobs that should have ended long ago; the log says which."""
        return sum(job.hangs for job in self._jobs.copy())

    # --- in the thread

    def _due(self) -> float:
        return min(self._push_at, self._report_at if self._watches() else math.inf)

    def _watches(self) -> bool:
        return bool(self._jobs) or monotonic() < self._linger_until

    def _beat(self, conn: Connection) -> None:
        if monotonic() >= self._push_at:
            seconds = push_due(conn)
            self._push_at = monotonic() + (LOOK if seconds is None else min(seconds, LOOK))
        if self._watches() and monotonic() >= self._report_at:
            self._report_at = monotonic() + _PAUSE
            self._report(conn)

    def _report(self, conn: Connection) -> None:
        self._tell_hanging()
        # A worker that has lost a task may have it again by now: the last one counts.
        jobs = {job.task.id: job for job in self._jobs.copy()}
        news = [(job, job.take_progress()) for job in jobs.values()]
        told = [(job, progress) for job, progress in news if progress is not None]
        numbers = [[progress[n] for _, progress in told] for n in range(3)]
        ids = [job.task.id for job, _ in told]
        try:
            cursor = conn.execute(_REPORT, [self._claimant, list(jobs), ids, *numbers])
        except Exception:
            for job, progress in told:
                job.keep_progress(progress)
            raise
        for task_id, reason in cursor.fetchall():
            if not jobs[task_id].cancelled:
                logger.info("task %s is cancelled: %s", task_id, reason)
            jobs[task_id].cancel(reason)
            self._linger_until = monotonic() + _LINGER

    def _tell_hanging(self) -> None:
        for job in self._jobs.copy():
            if job.late > _HANGS and not job.hangs:
                # First, since all are to be ended when the worker stops because all hang.
                self.hung.append(job)
                job.hangs = True
                logger.error(
                    "task %s of queue %s hangs, %.0f s after its timeout: worker %s has lost a"
                    " slot until it ends",
                    job.task.id,
                    job.task.queue,
                    job.late,
                    self._claimant,
                    extra={"task_id": job.task.id, "queue": job.task.queue},
                )

    def _failed(self, error: Exception, pause: float) -> None:
        if isinstance(error, PgqError):
            log = logger.error if isinstance(error, PERMANENT) else logger.warning
            log("beside its jobs worker %s cannot: %s", self._claimant, error)
        else:
            # Whatever the error, jobs are still cancelled and pushed.
            logger.error("beside its jobs worker %s failed", self._claimant, exc_info=error)

    def _connect(self) -> Connection:
        conn = connect(self._dsn, autocommit=True, application_name=f"pgqpy {self._claimant}"[:63])
        read_committed(conn)
        return conn
