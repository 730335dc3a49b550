"""The settings of a worker for rows: checked, and passed on to its parts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pgqpy._runtime.checks import (
    COUNT,
    EXCEPTIONS,
    POSITIVE_SECONDS,
    Kind,
    check_handler,
    check_hooks,
    check_policy,
    check_settings,
)
from pgqpy.errors import InvalidConsumer
from pgqpy.retry import RetryPolicy
from pgqpy.tasks._rows.table import TaskColumnNames


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
        """The fields of every log line."""
        return {"table": self.table}


#: The attributes that `TableWorker` also takes as arguments.
ATTRIBUTES = (
    *("table", "columns", "batch_size", "concurrency", "delete_done", "time_limit"),
    *("retry_policy", "outages", "listen", "poll_interval", "backoff_first", "backoff_cap"),
)
_KINDS = {
    "table": Kind("the name of one", lambda value: isinstance(value, str) and value != ""),
    "columns": Kind("TaskColumnNames", lambda value: isinstance(value, TaskColumnNames)),
    "batch_size": COUNT,
    "concurrency": COUNT,
    "time_limit": POSITIVE_SECONDS.or_none(),
    "outages": EXCEPTIONS,
    "poll_interval": POSITIVE_SECONDS,
    "backoff_first": POSITIVE_SECONDS,
    "backoff_cap": POSITIVE_SECONDS,
}


def settings_of(worker: Any, *, strict: bool) -> RowSettings:
    """Return the settings of a worker. Raises InvalidConsumer if a method or a setting of it cannot
    work."""
    whole_batches = _overrides(worker, "process_batch")
    if whole_batches == (_overrides(worker, worker._way) or worker.handler is not None):
        name = type(worker).__name__
        raise InvalidConsumer(f"{name} must have one of a handler, {worker._way} and process_batch")
    check_hooks(worker)
    if worker.handler is not None:
        check_handler(worker, worker.handler, "where to write", "row")
    check_policy(worker.retry_policy)
    check_settings(worker, _KINDS)
    decided: dict[str, Any] = {"whole_batches": whole_batches, "strict": strict}
    names = {each.name for each in fields(RowSettings)} - decided.keys()
    return RowSettings(**{name: getattr(worker, name) for name in names}, **decided)


def _overrides(worker: Any, name: str) -> bool:
    """Whether a user's class has this method."""
    declared = next(each for each in type(worker).__mro__ if name in vars(each))
    return not declared.__module__.startswith("pgqpy.")
