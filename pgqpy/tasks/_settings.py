"""The settings of workers: checked, and passed on to their parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar

from pgqpy._runtime.checks import (
    COUNT,
    EXCEPTIONS,
    POSITIVE_SECONDS,
    SECONDS,
    Kind,
    check_handler,
    check_hooks,
    check_policy,
    check_settings,
)
from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidConsumer
from pgqpy.retry import ExponentialBackoff, RetryPolicy
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._rows.table import TaskColumnNames
from pgqpy.tasks._statements import Duration

T = TypeVar("T")


# Long: the settings that users give.
class TaskWorkerAttributes:
    """The settings of a `TaskWorker`, which subclasses override."""

    lease: Duration | None = None
    """Seconds for which a task is claimed and renewed. None: the queue's setting."""
    batch_size: int | None = None
    """The maximum number of tasks to claim at once: fewer while they take long. None: 100 for each
    of ``concurrency``, and 1,000 at most."""
    concurrency: int = 1
    """The number of tasks to work on at once: in threads, or in asyncio tasks."""
    random: bool = True
    """Begin with any of the tasks that have waited longest, so that tasks that crash workers do
    not block the others. False: in the order in which they became available."""

    retry_policy: RetryPolicy = ExponentialBackoff()
    """The delay of a task for which an error is raised: a `FixedDelay`, an `ExponentialBackoff`, or
    any function of the attempt (1 for the first) and the error that returns the seconds, or None
    for never; in a class, a method or a staticmethod."""
    outages: tuple[type[Exception], ...] = ()
    """Errors that are not the task's fault: it is released, the attempt does not count. Lost
    connections, deadlocks, serialization failures, unavailable locks and full disks of PostgreSQL,
    and conflicts with others that change the same tasks, always count as such."""

    periodic: bool = True
    """Push periodic tasks when they are due, whatever their queues. It needs ``pgqpy[jobs]``."""

    listen: bool = True
    """Whether to be notified of new tasks by LISTEN, if that is possible."""
    fold_interval: float = 0.005
    """The seconds between wake-ups while tasks keep coming, each for all tasks that came meanwhile.
    The first tasks after a pause wake the worker at once. With 0 each does; 0.05 costs much less
    than the default, and tasks of a stream wait up to that long."""
    poll_interval: float = 1.0
    """The maximum seconds between polls for tasks: some are not notified."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect; a quarter of a second while no server
    listens, so that an outage ends when the server is back."""
    stop_timeout: float | None = None
    """The seconds after `stop` or a signal for which `run` waits for the tasks in progress. Then it
    gives them back, as if they had not begun, and returns. None: for as long as they take."""


class TaskWorkerSettings(TypedDict, total=False):
    """The attributes of a `TaskWorker` that it also takes as arguments; None: the class's."""

    lease: Duration | None
    batch_size: int | None
    concurrency: int | None
    random: bool | None
    retry_policy: RetryPolicy | None
    outages: tuple[type[Exception], ...] | None
    periodic: bool | None
    listen: bool | None
    fold_interval: float | None
    poll_interval: float | None
    reconnect_cap: float | None
    stop_timeout: float | None


# Long: the settings that users give.
class TableWorkerAttributes:
    """The settings of a `TableWorker`, which subclasses override."""

    columns: TaskColumnNames = TaskColumnNames()
    """The names of its columns."""

    batch_size: int = 1
    """The maximum rows of one transaction."""
    concurrency: int = 1
    """The number of concurrent transactions: in threads, or in asyncio tasks."""
    delete_done: bool = False
    """Whether to delete finished rows."""
    time_limit: float | None = None
    """With asyncio: the seconds after which a row, or batch, has failed. Without, the server frees
    rows for others if the session was idle for a second longer."""

    retry_policy: RetryPolicy = ExponentialBackoff()
    """The delay of a row for which an error is raised: a `FixedDelay`, an `ExponentialBackoff`, or
    any function of the attempt (1 for the first) and the error that returns the seconds, or None
    for never; in a class, a method or a staticmethod."""
    outages: tuple[type[Exception], ...] = ()
    """Errors that are not the row's fault: its transaction is rolled back and repeated, the attempt
    does not count. Lost connections, deadlocks, serialization failures, unavailable locks and full
    disks of PostgreSQL always count as such."""

    listen: bool = True
    """Whether to listen, if the table has the triggers of `pgq_task.notify_workers`."""
    poll_interval: float = 1.0
    """The maximum seconds between polls for rows: some are not notified."""
    backoff_first: float = 0.1
    """Seconds of the first pause after an outage."""
    backoff_cap: float = 10.0
    """The maximum seconds of such a pause."""


class TableWorkerSettings(TypedDict, total=False):
    """The attributes of a `TableWorker` that it also takes as arguments; None: the class's."""

    columns: TaskColumnNames | None
    batch_size: int | None
    concurrency: int | None
    delete_done: bool | None
    time_limit: float | None
    retry_policy: RetryPolicy | None
    outages: tuple[type[Exception], ...] | None
    listen: bool | None
    poll_interval: float | None
    backoff_first: float | None
    backoff_cap: float | None


def set_given(worker: object, known: type, given: Mapping[str, Any]) -> None:
    """Set the attributes that are given. Raises TypeError for one that is not ``known``."""
    for name, value in given.items():
        if name not in known.__annotations__:
            near = get_close_matches(name, known.__annotations__, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"{type(worker).__name__}() has no setting {name!r}{meant}")
        if value is not None:
            setattr(worker, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The database of a worker, and the name of its claims, or of its table."""

    dsn: str
    #: None: do not listen.
    listen_dsn: str | None
    claimant: str
    prepare_threshold: int | None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a connection."""
        return {
            "autocommit": True,
            "application_name": f"pgqpy {self.claimant}"[:63],
            "prepare_threshold": self.prepare_threshold,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The attributes of a `TaskWorker` when it starts, checked.

    ``way`` is the method that works on tasks, ``in_slots`` whether they are worked on beside the
    loop, not in it, ``pushes_periodic`` whether the loop pushes periodic tasks.
    """

    database: Database
    way: str
    queues: list[str]
    lease: timedelta | None
    batch_size: int
    concurrency: int
    in_slots: bool
    random: bool
    outages: tuple[type[Exception], ...]
    pushes_periodic: bool
    fold_interval: float
    poll_interval: float
    reconnect_cap: float
    stop_timeout: float | None
    until_empty: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of every log line."""
        return {"queues": self.queues, "claimant": self.database.claimant}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """The attributes of a `TableWorker` when it starts, checked.

    With ``whole_batches`` the rows of a transaction are worked on together; with ``until_empty`` an
    outage ends the run.
    """

    database: Database
    table: str
    columns: TaskColumnNames
    whole_batches: bool
    batch_size: int
    concurrency: int
    delete_done: bool
    time_limit: float | None
    retry_policy: RetryPolicy
    outages: tuple[type[Exception], ...]
    poll_interval: float
    backoff_first: float
    backoff_cap: float
    until_empty: bool

    @property
    def fields(self) -> dict[str, Any]:
        return {"table": self.table}


def _is_positive(value: Any) -> bool:
    with suppress(ValueError):
        return interval(value, "lease") > timedelta()
    return False


_KINDS = {
    "batch_size": COUNT,
    "concurrency": COUNT,
    "outages": EXCEPTIONS,
    "poll_interval": POSITIVE_SECONDS,
}
_KINDS_OF_TASKS = _KINDS | {
    "batch_size": COUNT.or_none(),
    "lease": Kind("positive seconds", _is_positive).or_none(),
    "fold_interval": SECONDS,
    "reconnect_cap": POSITIVE_SECONDS,
    "stop_timeout": SECONDS.or_none(),
}
_KINDS_OF_ROWS = _KINDS | {
    "table": Kind("the name of one", lambda value: isinstance(value, str) and value != ""),
    "columns": Kind("TaskColumnNames", lambda value: isinstance(value, TaskColumnNames)),
    "time_limit": POSITIVE_SECONDS.or_none(),
    "backoff_first": POSITIVE_SECONDS,
    "backoff_cap": POSITIVE_SECONDS,
}


def settings_of(worker: Any, *, until_empty: bool) -> Settings:
    """Return the settings of a `TaskWorker`.

    Raises InvalidConsumer or InvalidTask if a method or a setting of it cannot work.
    """
    way = worker._way or _way_of(worker)
    _check(worker, _KINDS_OF_TASKS, "task")
    return _collected(
        Settings,
        worker,
        database=_database_of(worker, worker.name),
        way=way,
        in_slots=worker._in_slots or worker.concurrency > 1 or worker.stop_timeout is not None,
        queues=sql.queue_names(worker.queues),
        lease=sql.duration(worker.lease, "lease"),
        # Tasks of few slots do not keep many busy until the next claim is answered.
        batch_size=worker.batch_size or min(100 * worker.concurrency, 1000),
        pushes_periodic=worker._pushes_periodic(),
        until_empty=until_empty,
    )


def _database_of(worker: Any, claimant: str) -> Database:
    return Database(
        dsn=worker.dsn,
        listen_dsn=worker.listen_dsn if worker.listen else None,
        claimant=claimant,
        prepare_threshold=worker.prepare_threshold,
    )


def _way_of(worker: Any) -> str:
    """Return the method that works on tasks, of which a worker has one."""
    ways = [way for way in ("process_task", "process_batch") if _overrides(worker, way)]
    if worker.handler is not None or _overrides(worker, "handle_task"):
        ways.insert(0, "handle_task")
    if len(ways) != 1:
        raise InvalidConsumer(
            f"{type(worker).__name__} must have one of a handler, process_task and process_batch"
            + (f", not {' and '.join(ways)}" if ways else "")
        )
    return ways[0]


def row_settings_of(worker: Any, *, until_empty: bool) -> RowSettings:
    """Return the settings of a `TableWorker`.

    Raises InvalidConsumer if a method or a setting of it cannot work.
    """
    whole_batches = _overrides(worker, "process_batch")
    if whole_batches == (_overrides(worker, worker._way) or worker.handler is not None):
        name = type(worker).__name__
        raise InvalidConsumer(f"{name} must have one of a handler, {worker._way} and process_batch")
    # The second is of a `ModelWorker`.
    arguments = ("session", "obj") if hasattr(worker, "process_object") else ("conn", "row")
    _check(worker, _KINDS_OF_ROWS, *arguments)
    return _collected(
        RowSettings,
        worker,
        database=_database_of(worker, worker.table),
        whole_batches=whole_batches,
        until_empty=until_empty,
    )


def _overrides(worker: object, name: str) -> bool:
    """Whether a user's class has this method."""
    declared = next(each for each in type(worker).__mro__ if name in vars(each))
    return not declared.__module__.startswith("pgqpy.")


def _check(worker: Any, kinds: Mapping[str, Kind], *arguments: str) -> None:
    """Check the methods and settings; ``arguments`` are those of a handler."""
    check_hooks(worker)
    if worker.handler is not None:
        check_handler(worker, worker.handler, *arguments)
    check_policy(worker.retry_policy)
    check_settings(worker, kinds)


def _collected(kind: type[T], worker: object, **decided: Any) -> T:
    """Return settings: those decided, and the worker's attributes of the other names."""
    names = {each.name for each in fields(kind)} - decided.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(worker, name) for name in names}, **decided)
