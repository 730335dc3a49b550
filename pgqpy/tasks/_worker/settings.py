"""The settings of a worker: checked, and passed on to its parts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

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
from pgqpy.tasks import _statements as sql


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
    until_empty: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of every log line."""
        return {"queues": self.queues, "claimant": self.database.claimant}


def _is_positive(value: Any) -> bool:
    with suppress(ValueError):
        return interval(value, "lease") > timedelta()
    return False


#: The attributes that `TaskWorker` also takes as arguments.
ATTRIBUTES = (
    *("queues", "lease", "batch_size", "concurrency", "random", "retry_policy", "outages"),
    *("periodic", "listen", "fold_interval", "poll_interval", "reconnect_cap"),
)
_KINDS = {
    "batch_size": COUNT,
    "concurrency": COUNT,
    "lease": Kind("positive seconds", _is_positive).or_none(),
    "outages": EXCEPTIONS,
    "fold_interval": SECONDS,
    "poll_interval": POSITIVE_SECONDS,
    "reconnect_cap": POSITIVE_SECONDS,
}
#: The methods of work, of which a worker has one.
_WAYS = ("handle_task", "process_task", "process_batch")


def settings_of(worker: Any, base: type, *, until_empty: bool) -> Settings:
    """Return the settings of a worker; ``base`` is the class that declares the methods to override.

    Raises InvalidConsumer or InvalidTask if a method or a setting of it cannot work.
    """
    way = worker._way or _way_of(worker, base)
    check_hooks(worker)
    if worker.handler is not None:
        check_handler(worker, worker.handler, "task")
    check_policy(worker.retry_policy)
    queues = sql.queue_names(worker.queues)
    check_settings(worker, _KINDS)
    database = Database(
        dsn=worker.dsn,
        listen_dsn=worker.listen_dsn,
        claimant=worker.name,
        prepare_threshold=worker.prepare_threshold,
    )
    decided: dict[str, Any] = {
        "database": database,
        "way": way,
        "queues": queues,
        "lease": sql.duration(worker.lease, "lease"),
        "pushes_periodic": worker._pushes_periodic(),
        "until_empty": until_empty,
    }
    names = {each.name for each in fields(Settings)} - decided.keys()
    return Settings(**{name: getattr(worker, name) for name in names}, **decided)


def _way_of(worker: Any, base: type) -> str:
    ways = [way for way in _WAYS if getattr(type(worker), way) is not getattr(base, way)]
    if worker.handler is not None and "handle_task" not in ways:
        ways.insert(0, "handle_task")
    if len(ways) != 1:
        raise InvalidConsumer(
            f"{type(worker).__name__} must have one of a handler, process_task and process_batch"
            + (f", not {' and '.join(ways)}" if ways else "")
        )
    return ways[0]
