"""Checks of a worker for a table, before it touches a row."""

from __future__ import annotations

import inspect
import math
from typing import Any

from pgqpy._runtime.checks import check_hooks, check_policy, check_runs
from pgqpy.errors import InvalidConsumer
from pgqpy.tasks._rows.columns import TaskColumnNames

_OURS = (
    "pgqpy.tasks._rows.worker",
    "pgqpy.tasks._rows.worker_async",
    "pgqpy.sqlalchemy.worker",
    "pgqpy.sqlalchemy.worker_async",
)


def whole_batches(worker: Any) -> bool:
    """Whether a worker has overridden `process_batch`."""
    return type(worker).process_batch.__module__ not in _OURS


def check_table_worker(worker: Any) -> None:
    """Raise InvalidConsumer if a method or a setting of a worker cannot work."""
    name = type(worker).__name__
    way = "process_object" if hasattr(worker, "process_object") else "process_row"
    single = getattr(type(worker), way).__module__ not in _OURS or worker.handler is not None
    if single == whole_batches(worker):
        raise InvalidConsumer(f"{name} must have one of a handler, {way} and process_batch")
    check_hooks(worker)
    if worker.handler is not None:
        _check_handler(name, worker.handler, inspect.iscoroutinefunction(worker.run))
    check_policy(worker.retry_policy)
    if not isinstance(worker.table, str) or not worker.table:
        raise InvalidConsumer(f"{name}: table is {worker.table!r}; it must be the name of one")
    if not isinstance(worker.columns, TaskColumnNames):
        raise InvalidConsumer(f"{name}: columns is {worker.columns!r}; it must be TaskColumnNames")
    for setting in ("batch_size", "concurrency"):
        value = getattr(worker, setting)
        if not isinstance(value, int) or value < 1:
            raise InvalidConsumer(f"{name}: {setting} is {value!r}; it must be 1 or more")
    for setting in ("poll_interval", "backoff_first", "backoff_cap", "time_limit"):
        value = getattr(worker, setting)
        if setting == "time_limit" and value is None:
            continue
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidConsumer(f"{name}: {setting} is {value!r}; it must be positive seconds")
    outages = worker.outages
    if not isinstance(outages, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in outages
    ):
        raise InvalidConsumer(
            f"{name}: outages is {outages!r}; it must be a tuple of classes of exceptions"
        )


def _check_handler(name: str, handler: Any, awaited: bool) -> None:
    if not callable(handler):
        raise InvalidConsumer(f"{name}: the handler {handler!r:.80} cannot be called")
    check_runs(f"{name}: the handler", handler)
    call = getattr(handler, "__call__")  # noqa: B004, B009
    given = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    if given and not awaited:
        raise InvalidConsumer(
            f"{name}: the handler must not be `async def`; the class whose name begins with Async"
            " takes that"
        )
    # A lambda may return an awaitable.
    if awaited and not given and getattr(handler, "__name__", "<lambda>") != "<lambda>":
        raise InvalidConsumer(f"{name}: the handler must be `async def`")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise InvalidConsumer(
            f"{name}: the handler is called with two arguments, where to write and the row; it"
            f" takes {inspect.signature(handler)}"
        ) from None
