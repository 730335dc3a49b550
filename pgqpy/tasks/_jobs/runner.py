"""The parts of an app's worker that do not await."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidPayload, InvalidTask
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry, RetryPolicy
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._jobs.current import CurrentJob, TaskTimeout
from pgqpy.tasks._jobs.heartbeat import JobHeartbeat
from pgqpy.tasks._jobs.job import Job, Jobs
from pgqpy.tasks._jobs.payload import encode_result
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.base import PlainTaskWorker

#: Seconds after which a task of an unknown job is offered again.
_UNKNOWN = 15.0
#: The maximum characters of a result that is passed on.
_LARGEST = 1_000_000


class JobRunner(PlainTaskWorker):
    """A base of workers that run the jobs of an app; the other one is the kind of worker."""

    _heartbeat: JobHeartbeat

    def __init__(
        self,
        app: Jobs,
        dsn: str | None = None,
        queues: str | Iterable[str] | None = None,
        *,
        periodic: bool = True,
        **settings: Any,
    ) -> None:
        names = app.queues if queues is None else sql.queue_names(queues)
        if not app.jobs:
            raise InvalidTask("the app has no jobs", hint="Make functions jobs with @app.task.")
        jobs = [job for job in app.jobs.values() if job.default.queue in names]
        for job in jobs:
            if job.transaction and inspect.iscoroutinefunction(job.function) is not self._io.awaits:
                raise InvalidTask(
                    f"the connection of this worker is not for the job {job.name}",
                    hint="Jobs with a transaction that are `async def` need TaskApp.async_worker,"
                    " those that are `def` TaskApp.worker; they can be in queues of their own.",
                )
        leases = [interval(job.lease, "lease") for job in jobs if job.lease is not None]
        settings = {"lease": max(leases, default=None)} | settings
        if app.retry_policy is not None:
            settings = {"retry_policy": app.retry_policy} | settings
        super().__init__(dsn, names, **settings)  # type: ignore[call-arg]
        self.app = app
        self.periodic = periodic
        transaction = any(job.transaction for job in app.jobs.values())
        self._way = "process_task" if transaction else "handle_task"
        self._in_slots = any(job.default.timeout is not None for job in jobs)

    def policy_of(self, task: Task) -> RetryPolicy:
        job = self.app.names.get(_name(task))
        if job is None:
            return self.retry_policy
        policy = job.retry_policy or self.retry_policy
        most = _option(task, job, "max_attempts")
        if most is None:
            return policy
        return lambda attempt, error: None if attempt >= most else policy(attempt, error)

    def encode_result(self, value: Any) -> str | None:
        return None if value is None else encode_result(value)

    def _pushes_periodic(self) -> bool:
        # The heartbeat of an app with schedules does it, even while jobs take long.
        return self.periodic and not self.app.periodics

    def _stuck(self) -> Exception | None:
        if self._heartbeat.hanging < self.concurrency:
            return None
        return TaskTimeout(
            f"all {self.concurrency} slots of worker {self.name} hang, long after their jobs'"
            " timeouts: it must be started again"
        )

    def _hung(self) -> tuple[Task, Exception] | None:
        if not self._heartbeat.hung:
            return None
        job = self._heartbeat.hung.popleft()
        return job.task, job._out_of_time()

    def _beating(self) -> AbstractContextManager[JobHeartbeat]:
        """Check the jobs; make a block beside which the app has a heartbeat."""
        for job in self.app.jobs.values():
            job.arguments.check()
        periodics = self.app.periodic_tasks() if self.periodic else []
        self._heartbeat = JobHeartbeat(self.dsn, self.name, periodics)
        return self._heartbeat

    def _call_of(
        self, task: Task, conn: Any
    ) -> tuple[CurrentJob, Job[Any, Any], inspect.BoundArguments]:
        """Return the job of a task and its arguments. Raises Retry, DeadLetter, InvalidPayload."""
        job = self._job(task)
        try:
            bound = job.arguments.decode(task.payload["args"])
        except InvalidPayload as error:
            # A newer program may have pushed it, and know its arguments: then it is retried.
            if not job.arguments.knows(task.payload["args"]):
                raise
            raise DeadLetter(str(error)) from None
        current = CurrentJob(
            task,
            conn if job.transaction else None,
            _middleware=self.app.middlewares,
            _timeout=_option(task, job, "timeout"),
            _stopping=lambda: self.stopping,
        )
        return current, job, bound

    def _job(self, task: Task) -> Job[Any, Any]:
        name = _name(task)
        if not name:
            raise DeadLetter('the payload is no job\'s: that is {"task": name, "args": {...}}')
        job = self.app.names.get(name)
        if job is None:
            reason = f"left for a newer worker: no job of {self.name} is called {name}"
            logger.warning("task %s is %s", task.id, reason)
            # That its last worker was lost is still to be known.
            raise Retry(_UNKNOWN, None if task.error == sql.LOST else reason)
        return job


def check_result(task: Task, value: Any) -> None:
    """Raise DeadLetter for a result that the next step of a flow could not get."""
    if "flow" not in (task.headers or {}) or isinstance(value, Exception):
        return
    try:
        size = len(encode_result(value))
    except (TypeError, ValueError) as error:
        raise DeadLetter(f"the result is not JSON, and the flow needs it: {error}") from None
    if size > _LARGEST:
        raise DeadLetter(
            f"the result has {size} characters, and that of a step in a flow at most {_LARGEST}:"
            " store it, and return where"
        )


def _option(task: Task, job: Job[Any, Any], name: Literal["timeout", "max_attempts"]) -> Any:
    """Return an option of this push, or else of the job."""
    own = job.default.seconds if name == "timeout" else job.default.max_attempts
    given = (task.headers or {}).get(name, own)
    return given if given is None or (isinstance(given, int | float) and given > 0) else own


def _name(task: Task) -> str:
    """Return the name of the job, or an empty one if the payload has none."""
    payload = task.payload
    named = isinstance(payload, dict) and {"task", "args"} <= payload.keys()
    return payload["task"] if named and isinstance(payload["task"], str) else ""
