"""Functions that can be pushed: called as usual, or put into a queue for a worker."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from hashlib import sha256
from inspect import isawaitable
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import psycopg

from pgqpy._runtime.checks import COUNT
from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidTask
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._client import Tasks
from pgqpy.tasks._client_async import AsyncTasks
from pgqpy.tasks._connections import is_async
from pgqpy.tasks._jobs.current import Middleware
from pgqpy.tasks._jobs.payload import Arguments
from pgqpy.tasks._jobs.periodic import PeriodicTask
from pgqpy.tasks._statements import Duration, headers_json, smallint
from pgqpy.tasks._values import Pushed

if TYPE_CHECKING:
    from pgqpy.tasks._connections import AsyncForeignConnection, ForeignConnection

P = ParamSpec("P")
R = TypeVar("R")

#: A text, or a function of the job's arguments that returns one, or None for none.
Key = str | Callable[..., str | None] | None
#: True: the job's name and arguments.
UniqueKey = Key | Literal[True]


def check_positive(value: Duration | None, what: str) -> None:
    """Raise InvalidTask for a duration that is none, or not positive."""
    try:
        if value is None or interval(value, what) > timedelta():
            return
    except ValueError:
        pass
    raise InvalidTask(f"{what} is {value!r:.80}", hint="Give more than 0 seconds, or a timedelta.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """The options of a job's push; the names are those of `pgqpy.tasks.Tasks.push`, and for
    ``unique_while``, ``unique_for`` and ``replace`` of `push_unique`.

    ``unique_key=True`` is a key of the job's name and of the arguments that differ from their
    defaults. ``limit_key`` is the key of limits
    per key: see `pgq_task.set_limits`. ``tenant`` is a part of the queue's name, ``mails/acme``, if
    the queue has tenants. ``timeout`` is the seconds of an attempt; after
    ``max_attempts`` of them, or when the retry policy or the queue says so, no other one is made.
    """

    queue: str
    tenant: Key = None
    at: datetime | None = None
    delay: Duration | None = None
    priority: int = 0
    headers: Mapping[str, Any] | None = None
    unique_key: UniqueKey = None
    unique_while: Literal["waiting", "running"] = "waiting"
    unique_for: Duration | None = None
    replace: bool = False
    order_key: Key = None
    limit_key: Key = None
    timeout: Duration | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        smallint(self.priority)
        check_positive(self.timeout, "the timeout")
        if self.max_attempts is not None and not COUNT.test(self.max_attempts):
            raise InvalidTask(
                f"max_attempts is {self.max_attempts!r:.40}", hint="Give a whole number from 1 on."
            )
        if self.unique_while not in ("waiting", "running"):
            raise InvalidTask(
                f"unique_while is {self.unique_while!r:.80}", hint='Give "waiting" or "running".'
            )
        check_positive(self.unique_for, "unique_for")
        unique = (self.unique_while, self.unique_for, self.replace) != ("waiting", None, False)
        if unique and self.unique_key is None:
            raise InvalidTask(
                "unique_while, unique_for and replace need a unique_key",
                hint="Give a key, or True for one of the job's name and arguments.",
            )

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return None if self.timeout is None else interval(self.timeout, "timeout").total_seconds()


class Push(Generic[P]):
    """A function's name and arguments, with the options of a push."""

    def __init__(
        self, name: str, arguments: Arguments, options: PushOptions, own: PushOptions | None = None
    ) -> None:
        """``own`` are the job's options, which its workers know."""
        self.name = name
        self.arguments = arguments
        self.default = options
        self._own = options if own is None else own

    @overload
    def push(
        self,
        conn: psycopg.Connection[Any] | ForeignConnection,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> int: ...

    @overload
    def push(
        self,
        conn: psycopg.AsyncConnection[Any] | AsyncForeignConnection,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[int]: ...

    def push(self, conn: Any, /, *args: P.args, **kwargs: P.kwargs) -> int | Awaitable[int]:
        """Put a call into the queue, in the connection's transaction; return the task's id.

        The connection is one of psycopg, SQLAlchemy (also a session), asyncpg or Django; await it
        if that is asynchronous. While a task with the same ``unique_key`` waits in the
        queue, none is pushed, and its id is returned. Raises TypeError for arguments that the
        function does not take, InvalidPayload for those that do not fit its annotations.
        """
        client = tasks_of(conn)
        payload, settings = self.task(args, kwargs)
        pushed: int | Awaitable[int] = _push(client, self.queue(args, kwargs), payload, settings)
        return pushed

    def push_many(
        self, conn: Any, calls: Iterable[Mapping[str, Any]], /
    ) -> list[int] | Awaitable[list[int]]:
        """Put many calls into the queue, each a mapping of arguments by name; return their ids.

        In one round trip, or in one for each change of tenant or ``limit_key`` from call to call.
        """
        tasks = [(self.queue((), call), self.task((), call)) for call in calls]
        groups = groupby(tasks, lambda task: (task[0], task[1][1]["headers"]))
        pushes = [
            self._push_group(conn, queue, [task for _, task in group])
            for (queue, _), group in groups
        ]
        return _all(pushes) if is_async(conn) else [task for ids in pushes for task in ids]

    def _push_group(self, conn: Any, queue: str, group: list[tuple[Any, dict[str, Any]]]) -> Any:
        keys = {
            f"{key}s": [settings[key] for _, settings in group]
            for key in ("order_key", "unique_key")
        }
        common = group[0][1] | {"order_key": None, "unique_key": None}
        given = {name: value for name, value in (common | keys).items() if name not in _KEYS}
        if not any(keys["unique_keys"]):
            del given["unique_keys"]
        payloads = [payload for payload, _ in group]
        return tasks_of(conn).push_many(queue, payloads, **given)

    def queue(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the queue for a call: that of its tenant, if there is one."""
        tenant = _key(self.default.tenant, "tenant", args, kwargs)
        if tenant is None:
            return self.default.queue
        if "/" in tenant:
            raise InvalidTask(f"the tenant is {tenant!r:.80}", hint="Give a text without a slash.")
        return f"{self.default.queue}/{tenant}"

    def task(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the payload, and the other arguments of `Tasks.push`."""
        options = self.default
        encoded = self.arguments.encode(args, kwargs)
        headers_json(options.headers)
        headers = dict(options.headers or {})
        limit_key = _key(options.limit_key, "limit_key", args, kwargs)
        if limit_key is not None:
            headers["limit_key"] = limit_key
        # Workers know the job's own.
        if options.timeout != self._own.timeout:
            headers["timeout"] = options.seconds
        if options.max_attempts != self._own.max_attempts:
            headers["max_attempts"] = options.max_attempts
        return {"task": self.name, "args": encoded}, {
            "at": options.at,
            "delay": options.delay,
            "priority": options.priority,
            "headers": headers or None,
            "unique_key": self._unique_key(encoded, args, kwargs),
            "order_key": _key(options.order_key, "order_key", args, kwargs),
        } | {
            name: getattr(options, name)
            for name in _UNIQUE
            if getattr(options, name) != getattr(_NONE, name)
        }

    def _unique_key(
        self, encoded: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str | None:
        if self.default.unique_key is not True:
            return _key(self.default.unique_key, "unique_key", args, kwargs)
        text = json.dumps([self.name, self.arguments.given(encoded)], sort_keys=True)
        return f"{self.name} {sha256(text.encode()).hexdigest()[:32]}"


class Job(Push[P], Generic[P, R]):
    """A function that can be put into a queue; `TaskApp.task` makes it.

    Call it to run the function now; `push` it to let a worker run it later.
    """

    def __init__(
        self,
        app: Jobs,
        function: Callable[P, R],
        name: str,
        options: PushOptions,
        lease: Duration | None,
        retry_policy: RetryPolicy | None,
        transaction: bool,
    ) -> None:
        update_wrapper(self, function)
        self.app = app
        super().__init__(name, Arguments(name, function), options)
        self.function = function
        self.lease = lease
        self.retry_policy = retry_policy
        self.transaction = transaction

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def options(self, **options: Any) -> Push[P]:
        """Change some `PushOptions`: ``job.options(delay=60, priority=5).push(conn, ...)``."""
        check_options(options, f"pushing {self.name}")
        changed = replace(self.default, **options)
        return Push(self.name, self.arguments, changed, self.default)


class Jobs(Protocol):
    """The jobs of an app, for its workers."""

    jobs: dict[str, Job[Any, Any]]
    names: dict[str, Job[Any, Any]]
    middlewares: list[Middleware]
    periodics: dict[str, Any]
    retry_policy: RetryPolicy | None

    @property
    def queues(self) -> list[str]: ...

    def periodic_tasks(self) -> list[PeriodicTask]: ...


#: The options with which a push is one of `push_unique`.
_UNIQUE = ("unique_while", "unique_for", "replace")
_NONE = PushOptions(queue="")
_KEYS = ("order_key", "unique_key")


def check_options(options: Mapping[str, object], what: str, *others: str) -> None:
    """Raise InvalidTask for an option that `PushOptions` does not have."""
    if unknown := options.keys() - PushOptions.__slots__:
        raise InvalidTask(
            f"no option {min(unknown)!r} for {what}",
            hint=f"There are {', '.join((*others, *PushOptions.__slots__))}.",
        )


def _push(client: Any, queue: str, payload: Any, settings: dict[str, Any]) -> Any:
    """Push; return the id, or what gives it if it is awaited."""
    if settings.keys().isdisjoint(_UNIQUE):
        return client.push(queue, payload, **settings)
    if settings["unique_key"] is None:
        given = {name: value for name, value in settings.items() if name not in _UNIQUE}
        return client.push(queue, payload, **given)
    pushed = client.push_unique(queue, payload, **settings)
    return _id(pushed) if isawaitable(pushed) else pushed.id


async def _id(pushed: Awaitable[Pushed]) -> int:
    return (await pushed).id


async def _all(pushes: list[Awaitable[list[int]]]) -> list[int]:
    return [task for push in pushes for task in await push]


def _key(key: Key, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    value: object = key(*args, **kwargs) if callable(key) else key
    if value is None or (isinstance(value, str) and value):
        return value
    raise InvalidTask(f"the {what} is {value!r:.80}", hint="Give a text, or None for none.")


#: Makes the client that pushes into a connection, in place of the real one: for tests.
client_of: ContextVar[Callable[[Any], Any] | None] = ContextVar("pgqpy_client_of", default=None)


def tasks_of(conn: Any) -> Any:
    """Return the client for either kind of connection."""
    if (make := client_of.get()) is not None:
        return make(conn)
    return AsyncTasks(conn) if is_async(conn) else Tasks(conn)
