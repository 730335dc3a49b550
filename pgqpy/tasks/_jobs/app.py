"""The jobs of a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, overload

import psycopg

from pgqpy._runtime.checks import check_policy
from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidTask
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._client import Tasks
from pgqpy.tasks._jobs.current import Middleware
from pgqpy.tasks._jobs.flow import Flow
from pgqpy.tasks._jobs.job import (
    Job,
    Key,
    P,
    PushOptions,
    R,
    UniqueKey,
    check_options,
    check_positive,
)
from pgqpy.tasks._jobs.periodic import MISSED, Cron, PeriodicTask
from pgqpy.tasks._jobs.periodic import every as interval_expression
from pgqpy.tasks._jobs.worker import AppWorker
from pgqpy.tasks._jobs.worker_async import AsyncAppWorker
from pgqpy.tasks._statements import Duration

__all__ = ["Flow", "Job", "PushOptions", "TaskApp"]

MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)

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
        if retry_policy is not None:
            check_policy(retry_policy)
        self.queue = queue
        self.retry_policy = retry_policy
        self.jobs: dict[str, Job[Any, Any]] = {}
        #: The jobs by their names and aliases.
        self.names: dict[str, Job[Any, Any]] = {}
        self.middlewares: list[Middleware] = []
        self.periodics: dict[str, Callable[[], PeriodicTask]] = {}

    @overload
    def task(self, function: Callable[P, R], /) -> Job[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str | None = None,
        tenant: Key = None,
        priority: int = 0,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        unique_key: UniqueKey = None,
        unique_while: Literal["waiting", "running"] = "waiting",
        unique_for: Duration | None = None,
        replace: bool = False,
        order_key: Key = None,
        limit_key: Key = None,
        timeout: Duration | None = None,
        max_attempts: int | None = None,
        transaction: bool = False,
    ) -> Callable[[Callable[P, R]], Job[P, R]]: ...

    def task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str | None = None,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        transaction: bool = False,
        **push: Any,
    ) -> Any:
        """Make a function, sync or async, a job.

        ``name`` is the job's name in the queue, so it must not change if the function is renamed;
        the default is the function's name. ``aliases`` are earlier names, for tasks that were
        pushed before it was renamed. The keys are texts, or functions that are called with the
        job's arguments; the other options are described at `PushOptions`. A worker claims for the
        longest ``lease`` of its jobs, in seconds. An attempt fails with `TaskTimeout` after
        ``timeout`` seconds: an async job is cancelled, a sync one gets the error from its next
        call of ``current_job().check_cancelled()`` or ``progress()``. With ``transaction`` the job
        is finished in the transaction of ``current_job().conn``: its writes there happen exactly
        once.
        """

        def make(function: Callable[..., Any]) -> Job[Any, Any]:
            known: Any = getattr(function, "__name__", None) if name is None else name
            names = [known, *([aliases] if isinstance(aliases, str) else aliases)]
            for each in names:
                _check_function(function, each)
                if each in self.names:
                    raise InvalidTask(
                        f"there are two jobs called {each}", hint="Give one of them another name=."
                    )
            if retry_policy is not None:
                check_policy(retry_policy)
            check_positive(lease, f"the lease of {known}")
            others = ("name", "aliases", "lease", "retry_policy", "transaction")
            check_options(push, f"the job {known}", *others)
            options = PushOptions(queue=self.queue if queue is None else queue, **push)
            job = Job(self, function, known, options, lease, retry_policy, transaction)
            self.jobs[known] = job
            self.names |= dict.fromkeys(names, job)
            return job

        return make if function is None else make(function)

    def middleware(self, function: MiddlewareT, /) -> MiddlewareT:
        """Run jobs inside of a context manager, the first one outermost::

            @app.middleware
            @contextmanager
            def log(job):  # a CurrentJob
                print(job.task.id, "begins")
                yield
                print(job.task.id, "is done")

        An exception of the job is raised at the ``yield``; one that the middleware raises is the
        job's. An asynccontextmanager is for async jobs only.
        """
        self.middlewares.append(function)
        return function

    def periodic(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        time_zone: str = "UTC",
        missed: str = "last",
        periodic_name: str | None = None,
        **kwargs: Any,
    ) -> Callable[[Job[P, R]], Job[P, R]]:
        """Push a job, made by `task`, at the times of a cron expression, or at an interval::

            @app.periodic("30 2 * * *", time_zone="Europe/Berlin")
            @app.task
            def clean_up() -> None: ...

            @app.periodic(every=90)
            @app.task
            def poll() -> None: ...

        The expression has five fields, or six: seconds first. ``every`` is in whole seconds,
        counted from when the schedule is registered.

        Each run is pushed once, however many workers there are. If no worker ran when runs were
        due, ``missed`` chooses those that the next worker pushes: the "last" of them, "all", or
        none ("skip"). ``kwargs`` are the job's arguments; its priority and its keys apply to these
        tasks, too. ``periodic_name`` is the schedule's name in the database, by default the job's:
        a job may have several schedules with different names. Raises InvalidTask for an invalid
        expression, time zone or job, or a name that is taken.
        """
        if (cron is None) == (every is None):
            raise InvalidTask(
                "a periodic job needs a cron expression, or an interval",
                hint='@app.periodic("30 2 * * *"), or @app.periodic(every=90).',
            )
        if every is not None:
            cron = interval_expression(interval(every, "every"))
        schedule = Cron(str(cron), time_zone)
        if missed not in MISSED:
            raise InvalidTask(f"missed is {missed!r}", hint=f"One of {', '.join(MISSED)}.")

        def register(job: Job[P, R]) -> Job[P, R]:
            if job not in self.jobs.values():
                raise InvalidTask(f"{job!r} is no job of this app", hint="Put @app.task below it.")
            job.arguments.bind(**kwargs)
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
                    queue=job.queue((), kwargs),
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
