"""The settings of workers: checked, and passed on to their parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
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
from pgqpy.retry import RetryPolicy
from pgqpy.tasks import _statements as sql
from pgqpy.tasks._rows.table import TaskColumnNames
from pgqpy.tasks._statements import Duration

T = TypeVar("T")


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
            raise TypeError(f"{type(worker).__name__}() has no setting {name!r}")
        if value is not None:
            setattr(worker, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The database of a worker's claims, and the name of its claims."""

    dsn: str
    listen_dsn: str
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

    ``way`` is the method that works on tasks, ``pushes_periodic`` whether the loop pushes periodic
    tasks.
    """

    database: Database
    way: str
    queues: list[str]
    lease: timedelta | None
    batch_size: int
    concurrency: int
    random: bool
    outages: tuple[type[Exception], ...]
    pushes_periodic: bool
    listen: bool
    fold_interval: float
    poll_interval: float
    reconnect_cap: float
    stop_timeout: float | None
    until_empty: bool

    @property
    def in_slots(self) -> bool:
        """Whether tasks are worked on beside the loop, not in it."""
        return self.concurrency > 1 or self.stop_timeout is not None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of every log line."""
        return {"queues": self.queues, "claimant": self.database.claimant}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """The attributes of a `TableWorker` when it starts, checked.

    With ``whole_batches`` the rows of a transaction are worked on together; ``strict`` is whether
    an outage ends the run.
    """

    dsn: str
    prepare_threshold: int | None
    table: str
    columns: TaskColumnNames
    whole_batches: bool
    batch_size: int
    delete_done: bool
    time_limit: float | None
    retry_policy: RetryPolicy
    outages: tuple[type[Exception], ...]
    poll_interval: float
    backoff_first: float
    backoff_cap: float
    strict: bool

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
    database = Database(
        dsn=worker.dsn,
        listen_dsn=worker.listen_dsn,
        claimant=worker.name,
        prepare_threshold=worker.prepare_threshold,
    )
    return _collected(
        Settings,
        worker,
        database=database,
        way=way,
        queues=sql.queue_names(worker.queues),
        lease=sql.duration(worker.lease, "lease"),
        # Tasks of few slots do not keep many busy until the next claim is answered.
        batch_size=worker.batch_size or min(100 * worker.concurrency, 1000),
        pushes_periodic=worker._pushes_periodic(),
        until_empty=until_empty,
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


def row_settings_of(worker: Any, *, strict: bool) -> RowSettings:
    """Return the settings of a `TableWorker`.

    Raises InvalidConsumer if a method or a setting of it cannot work.
    """
    whole_batches = _overrides(worker, "process_batch")
    if whole_batches == (_overrides(worker, worker._way) or worker.handler is not None):
        name = type(worker).__name__
        raise InvalidConsumer(f"{name} must have one of a handler, {worker._way} and process_batch")
    _check(worker, _KINDS_OF_ROWS, "where to write", "row")
    return _collected(RowSettings, worker, whole_batches=whole_batches, strict=strict)


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
