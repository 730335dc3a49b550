"""Functions as jobs: called as usual, or put into a queue and run by a worker."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import psycopg

from pgqpy._runtime.retries import interval
from pgqpy.errors import InvalidTask
from pgqpy.retry import RetryPolicy, check_policy
from pgqpy.tasks._client import Tasks
from pgqpy.tasks._client_async import AsyncTasks
from pgqpy.tasks._jobs.cron import Cron
from pgqpy.tasks._jobs.current import TaskCancelled, current_job
from pgqpy.tasks._jobs.payload import Arguments
from pgqpy.tasks._jobs.periodic import MISSED, PeriodicTask
from pgqpy.tasks._statements import Duration, headers_json, smallint

if TYPE_CHECKING:
    from pgqpy.tasks._jobs.worker import AppWorker
    from pgqpy.tasks._jobs.worker_async import AsyncAppWorker

__all__ = ["Job", "PushOptions", "TaskApp", "TaskCancelled", "current_job"]

P = ParamSpec("P")
R = TypeVar("R")

#: The hint if a worker is given a job whose connection would be of the other kind.
OTHER_KIND = (
    "Jobs with a transaction that are `async def` need TaskApp.async_worker, those that are `def` "
    "TaskApp.worker; they can be in queues of their own."
)

#: A text, or a function of the job's arguments that returns one, or None for none.
Key = str | Callable[..., str | None] | None

#: The settings of a push that also apply to a schedule.
_OF_PERIODIC = ("priority", "headers", "unique_key", "order_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The options of a job's push; the names are those of `pgqpy.tasks.Tasks.push`.

    ``limit_key`` is the key of limits per key: see `pgq_task.set_limits`.
    """

    queue: str
    at: datetime | None = None
    delay: Duration | None = None
    priority: int = 0
    headers: Mapping[str, Any] | None = None
    unique_key: Key = None
    order_key: Key = None
    limit_key: Key = None


@dataclass(frozen=True, slots=True)
class Periodic:
    """The schedule of a job."""

    job: Job[Any, Any]
    cron: Cron
    missed: str
    kwargs: Mapping[str, Any]


class Job(Generic[P, R]):
    """A function that can be put into a queue; `TaskApp.task` makes it.

    Call it to run the function now; `push` it to let a worker run it later.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        options: PushOptions,
        *,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        transaction: bool = False,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self.default = options
        self.lease = lease
        self.retry_policy = retry_policy
        self.transaction = transaction
        self.arguments = Arguments(name, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    @overload
    def push(self, conn: psycopg.Connection[Any], /, *args: P.args, **kwargs: P.kwargs) -> int: ...

    @overload
    def push(
        self, conn: psycopg.AsyncConnection[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[int]: ...

    def push(self, conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> int | Awaitable[int]:
        """Put a call into the queue, in the connection's transaction; return the task's id.

        With an AsyncConnection, await it. While a task with the same ``unique_key`` waits in the
        queue, none is pushed, and its id is returned. Raises TypeError for arguments that the
        function does not take, InvalidPayload for those that do not fit its annotations.
        """
        pushed: int | Awaitable[int] = Push(self, self.default).push(conn, *args, **kwargs)
        return pushed

    def push_many(
        self, conn: Any, calls: Iterable[Mapping[str, Any]], /
    ) -> list[int] | Awaitable[list[int]]:
        """Put many calls into the queue, each a mapping of arguments by name; return their ids.

        In one round trip, unless the job has a ``unique_key``.
        """
        return Push(self, self.default).push_many(conn, calls)

    def options(self, **options: Any) -> Push[P]:
        """Change some `PushOptions`: ``job.options(delay=60, priority=5).push(conn, ...)``."""
        try:
            changed = replace(self.default, **options)
        except TypeError as error:
            raise InvalidTask(
                f"{self.name}.options(): {error}",
                hint=f"There are {', '.join(PushOptions.__slots__)}.",
            ) from None
        return Push(self, changed)


class Push(Generic[P]):
    """A job with its options for the push."""

    def __init__(self, job: Job[P, Any], options: PushOptions) -> None:
        smallint(options.priority)
        self._job = job
        self._options = options

    @overload
    def push(self, conn: psycopg.Connection[Any], /, *args: P.args, **kwargs: P.kwargs) -> int: ...

    @overload
    def push(
        self, conn: psycopg.AsyncConnection[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[int]: ...

    def push(self, conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> int | Awaitable[int]:
        """See `Job.push`."""
        payload, settings = self.task(args, kwargs)
        pushed: int | Awaitable[int] = _tasks(conn).push(self._options.queue, payload, **settings)
        return pushed

    def push_many(
        self, conn: Any, calls: Iterable[Mapping[str, Any]], /
    ) -> list[int] | Awaitable[list[int]]:
        """See `Job.push_many`."""
        tasks = [self.task((), call) for call in calls]
        common = [{**settings, "order_key": None} for _, settings in tasks]
        client = _tasks(conn)
        ids: list[int] | Awaitable[list[int]]
        if not tasks:
            # Awaitable if the connection is async.
            ids = client.push_many(self._options.queue, [])
        elif common[0]["unique_key"] is None and all(one == common[0] for one in common):
            del common[0]["unique_key"], common[0]["order_key"]
            ids = client.push_many(
                self._options.queue,
                [payload for payload, _ in tasks],
                order_keys=[settings["order_key"] for _, settings in tasks],
                **common[0],
            )
        elif isinstance(client, AsyncTasks):
            ids = self._push_each_async(client, tasks)
        else:
            ids = [client.push(self._options.queue, payload, **each) for payload, each in tasks]
        return ids

    async def _push_each_async(self, client: AsyncTasks, tasks: list[Any]) -> list[int]:
        return [await client.push(self._options.queue, payload, **each) for payload, each in tasks]

    def task(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the payload, and the other arguments of `Tasks.push`."""
        options = self._options
        payload = {"task": self._job.name, "args": self._job.arguments.encode(args, kwargs)}
        headers_json(options.headers)
        headers = dict(options.headers or {})
        limit_key = _key(options.limit_key, "limit_key", args, kwargs)
        if limit_key is not None:
            headers["limit_key"] = limit_key
        return payload, {
            "at": options.at,
            "delay": options.delay,
            "priority": options.priority,
            "headers": headers or None,
            "unique_key": _key(options.unique_key, "unique_key", args, kwargs),
            "order_key": _key(options.order_key, "order_key", args, kwargs),
        }


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
        self.periodics: dict[str, Periodic] = {}

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
        priority: int = 0,
        lease: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        unique_key: Key = None,
        order_key: Key = None,
        limit_key: Key = None,
        transaction: bool = False,
    ) -> Any:
        """Make a function, sync or async, a job.

        ``name`` is the job's name in the queue, so it must not change if the function is renamed;
        the default is the function's name. The keys are texts, or functions that are called with
        the job's arguments. A worker claims for the longest ``lease`` of its jobs, in seconds. With
        ``transaction`` the job is finished in the transaction of ``current_job().conn``: its writes
        there happen exactly once.
        """

        def register(function: Callable[..., Any]) -> Job[Any, Any]:
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
            options = PushOptions(
                queue=self.queue if queue is None else queue,
                priority=smallint(priority),
                unique_key=unique_key,
                order_key=order_key,
                limit_key=limit_key,
            )
            job = Job(
                function,
                known,
                options,
                lease=lease,
                retry_policy=retry_policy,
                transaction=transaction,
            )
            self.jobs[known] = job
            return job

        return register if function is None else register(function)

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
            self.periodics[name] = Periodic(job, schedule, missed, kwargs)
            return job

        return register

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the schedules in the server's form. Raises InvalidPayload for arguments that a job
        does not take."""
        found = []
        for name, periodic in self.periodics.items():
            options = periodic.job.default
            payload, settings = Push(periodic.job, options).task((), periodic.kwargs)
            found.append(
                PeriodicTask(
                    name=name,
                    queue=options.queue,
                    cron=periodic.cron,
                    missed=periodic.missed,
                    payload=payload,
                    **{each: settings[each] for each in _OF_PERIODIC},
                )
            )
        return found

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
        self,
        dsn: str | None = None,
        queues: str | Iterable[str] | None = None,
        *,
        periodic: bool = True,
        **settings: Any,
    ) -> AppWorker:
        """Return a `pgqpy.tasks.TaskWorker` that runs the jobs of these queues, by default of all.

        The settings are that class's. Async jobs run in an event loop each. Unless ``periodic`` is
        false, it also pushes the periodic jobs, whatever their queues.
        """
        from pgqpy.tasks._jobs.worker import make_worker

        return make_worker(self, dsn, queues, periodic=periodic, **settings)

    def async_worker(
        self,
        dsn: str | None = None,
        queues: str | Iterable[str] | None = None,
        *,
        periodic: bool = True,
        **settings: Any,
    ) -> AsyncAppWorker:
        """Return an `AsyncTaskWorker` that runs the jobs; sync jobs run in threads."""
        from pgqpy.tasks._jobs.worker_async import async_make_worker

        return async_make_worker(self, dsn, queues, periodic=periodic, **settings)


def _key(key: Key, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    value: object = key(*args, **kwargs) if callable(key) else key
    if value is None or (isinstance(value, str) and value):
        return value
    raise InvalidTask(f"the {what} is {value!r:.80}", hint="Give a text, or None for none.")


def _check_function(function: object, name: object) -> None:
    if not callable(function) or inspect.isgeneratorfunction(function):
        raise InvalidTask(
            f"{function!r:.80} is no function that does something when it is called",
            hint="Write @app.task, or @app.task(name=...), above one that has no yield.",
        )
    if not isinstance(name, str) or not name:
        raise InvalidTask(f"a job is called {name!r:.80}", hint="Give a text as name=.")


def _tasks(conn: object) -> Any:
    """Return the client for either kind of connection."""
    if isinstance(conn, psycopg.AsyncConnection):
        return AsyncTasks(conn)
    if isinstance(conn, psycopg.Connection):
        return Tasks(conn)
    raise InvalidTask(
        f"a job cannot be pushed into {conn!r:.80}", hint="Give a connection of psycopg's."
    )
