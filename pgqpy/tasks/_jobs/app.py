"""The jobs of a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, overload

import psycopg

from pgqpy._runtime.checks import check_policy
from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidTask
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._client import Tasks
from pgqpy.tasks._jobs.job import Job, Key, P, PushOptions, R
from pgqpy.tasks._jobs.periodic import MISSED, Cron, PeriodicTask
from pgqpy.tasks._jobs.worker import AppWorker
from pgqpy.tasks._jobs.worker_async import AsyncAppWorker
from pgqpy.tasks._statements import Duration

__all__ = ["Job", "PushOptions", "TaskApp"]

#: The settings of a push that also apply to a schedule.
_OF_PERIODIC = ("priority", "headers", "unique_key", "order_key")


class TaskApp:
    """The jobs of a program, and the workers that run them::

        app = TaskApp("mails")

        @app.task(retry_policy=FixedDelay(60))
        def send(order: Order, copies: int = 1) -> None: ...

        send.push(conn, order)           # in the transaction in which the order is saved
        app.worker(dsn).run()

    Arguments are stored as JSON, by the annotations of the parameters: dataclasses, pydantic's
    models, enums, datetimes, UUIDs and Decimals come back as such. They are checked when they are
    pushed and when they are run: a payload that does not fit goes to the error queue at once.
    """

    def __init__(self, queue: str = "default", *, retry_policy: RetryPolicy | None = None) -> None:
        """``queue`` and ``retry_policy`` are the defaults of the jobs."""
        self.queue = queue
        self.retry_policy = retry_policy
        self.jobs: dict[str, Job[Any, Any]] = {}
        self.periodics: dict[str, Callable[[], PeriodicTask]] = {}

    @overload
    def task(self, function: Callable[P, R], /) -> Job[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        unique_key: Key = None,
        order_key: Key = None,
        limit_key: Key = None,
        transaction: bool = False,
    ) -> Callable[[Callable[P, R]], Job[P, R]]: ...

    def task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        transaction: bool = False,
        **push: Any,
    ) -> Any:
        """Make a function, sync or async, a job.

        ``name`` is the job's name in the queue, so it must not change if the function is renamed;
        the default is the function's name. The keys are texts, or functions that are called with
        the job's arguments. A worker claims for the longest ``lease`` of its jobs, in seconds. With
        ``transaction`` the job is finished in the transaction of ``current_job().conn``: its writes
        there happen exactly once.
        """

        def make(function: Callable[..., Any]) -> Job[Any, Any]:
            known: Any = getattr(function, "__name__", None) if name is None else name
            _check_function(function, known)
            if known in self.jobs:
                raise InvalidTask(
                    f"there are two jobs called {known}", hint="Give one of them another name=."
                )
            if retry_policy is not None:
                check_policy(retry_policy)
            if lease is not None and interval(lease, "lease") <= timedelta():
                raise InvalidTask(f"the lease of {known} is {lease!r}", hint="Give seconds.")
            options = PushOptions(queue=self.queue if queue is None else queue, **push)
            self.jobs[known] = Job(function, known, options, lease, retry_policy, transaction)
            return self.jobs[known]

        return make if function is None else make(function)

    def periodic(
        self,
        cron: str,
        *,
        time_zone: str = "UTC",
        missed: str = "last",
        periodic_name: str | None = None,
        **kwargs: Any,
    ) -> Callable[[Job[P, R]], Job[P, R]]:
        """Push a job, made by `task`, at the times of a cron expression of five fields::

            @app.periodic("30 2 * * *", time_zone="Europe/Berlin")
            @app.task
            def clean_up() -> None: ...

        Each run is pushed once, however many workers there are. If no worker ran when runs were
        due, ``missed`` chooses those that the next worker pushes: the "last" of them, "all", or
        none ("skip"). ``kwargs`` are the job's arguments; its priority and its keys apply to these
        tasks, too. ``periodic_name`` is the schedule's name in the database, by default the job's:
        a job may have several schedules with different names. Raises InvalidTask for an invalid
        expression, time zone or job, or a name that is taken.
        """
        schedule = Cron(cron, time_zone)
        if missed not in MISSED:
            raise InvalidTask(f"missed is {missed!r}", hint=f"One of {', '.join(MISSED)}.")

        def register(job: Job[P, R]) -> Job[P, R]:
            if job not in self.jobs.values():
                raise InvalidTask(f"{job!r} is no job of this app", hint="Put @app.task below it.")
            name = job.name if periodic_name is None else periodic_name
            if name in self.periodics:
                raise InvalidTask(
                    f"there are two schedules called {name}",
                    hint="Give one of them another periodic_name=.",
                )

            def make() -> PeriodicTask:
                payload, settings = job.task((), kwargs)
                return PeriodicTask(
                    name=name,
                    queue=job.default.queue,
                    cron=schedule,
                    missed=missed,
                    payload=payload,
                    **{each: settings[each] for each in _OF_PERIODIC},
                )

            self.periodics[name] = make
            return job

        return register

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the schedules in the server's form. Raises InvalidPayload for arguments that a job
        does not take."""
        return [make() for make in self.periodics.values()]

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """Return the functions of all jobs."""
        return [job.function for job in self.jobs.values()]

    @property
    def queues(self) -> list[str]:
        """Return the queues of all jobs."""
        return sorted({job.default.queue for job in self.jobs.values()})

    def create_queues(self, conn: psycopg.Connection[Any]) -> None:
        """Create the queues that do not exist, in the connection's transaction."""
        for queue in self.queues:
            Tasks(conn).create_queue(queue)

    def worker(
        self, dsn: str | None = None, queues: str | Iterable[str] | None = None, **settings: Any
    ) -> AppWorker:
        """Return a `pgqpy.tasks.TaskWorker` that runs the jobs of these queues, by default of all.

        The settings are that class's. Async jobs run in an event loop each. Unless ``periodic`` is
        false, it also pushes the periodic jobs, whatever their queues.
        """
        return AppWorker(self, dsn, queues, **settings)

    def async_worker(
        self, dsn: str | None = None, queues: str | Iterable[str] | None = None, **settings: Any
    ) -> AsyncAppWorker:
        """Return an `AsyncTaskWorker` that runs the jobs; sync jobs run in threads."""
        return AsyncAppWorker(self, dsn, queues, **settings)


def _check_function(function: object, name: object) -> None:
    if not callable(function) or inspect.isgeneratorfunction(function):
        raise InvalidTask(
            f"{function!r:.80} is no function that does something when it is called",
            hint="Write @app.task, or @app.task(name=...), above one that has no yield.",
        )
    if not isinstance(name, str) or not name:
        raise InvalidTask(f"a job is called {name!r:.80}", hint="Give a text as name=.")
