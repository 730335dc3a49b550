"""Checks of a worker, before it claims a task."""

from __future__ import annotations

import inspect
import math

from pgqpy._runtime.checks import check_hooks, check_policy, check_runs
from pgqpy._runtime.failure import interval
from pgqpy.errors import InvalidConsumer
from pgqpy.tasks import _statements as sql

#: The methods of work, of which a worker has one.
WAYS = ("handle_task", "process_task", "process_batch")


def way_of(worker: object) -> str:
    """Return the method that a worker has overridden. Raises InvalidConsumer if it is not one."""
    given: str | None = getattr(worker, "_way")  # noqa: B009
    if given is not None:
        return given
    name = type(worker).__name__
    ways = [
        way
        for way in WAYS
        if getattr(type(worker), way).__module__ not in _OURS
        or (way == "handle_task" and getattr(worker, "handler") is not None)  # noqa: B009
    ]
    if len(ways) != 1:
        raise InvalidConsumer(
            f"{name} must have one of a handler, process_task and process_batch"
            + (f", not {' and '.join(ways)}" if ways else "")
        )
    return ways[0]


_OURS = ("pgqpy.tasks._worker.worker", "pgqpy.tasks._worker.worker_async")


def check_worker(worker: object) -> None:
    """Raise InvalidConsumer if a method or a setting of a worker cannot work."""
    name = type(worker).__name__
    way_of(worker)
    check_hooks(worker)
    handler = getattr(worker, "handler")  # noqa: B009
    if handler is not None:
        _check_handler(name, handler, inspect.iscoroutinefunction(getattr(worker, "run")))  # noqa: B009
    check_policy(getattr(worker, "retry_policy"))  # noqa: B009
    sql.queue_names(getattr(worker, "queues"))  # noqa: B009
    for setting in ("batch_size", "concurrency"):
        value = getattr(worker, setting)
        if not isinstance(value, int) or value < 1:
            raise InvalidConsumer(f"{name}: {setting} is {value!r}; it must be 1 or more")
    for setting in ("poll_interval", "reconnect_cap"):
        value = getattr(worker, setting)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidConsumer(f"{name}: {setting} is {value!r}; it must be positive seconds")
    fold = getattr(worker, "fold_interval")  # noqa: B009
    if not isinstance(fold, int | float) or not 0 <= fold < math.inf:
        raise InvalidConsumer(f"{name}: fold_interval is {fold!r}; it must be seconds, or 0")
    lease = getattr(worker, "lease")  # noqa: B009
    try:
        positive = lease is None or interval(lease, "lease").total_seconds() > 0
    except ValueError:
        positive = False
    if not positive:
        raise InvalidConsumer(f"{name}: lease is {lease!r}; it must be positive seconds, or None")
    outages = getattr(worker, "outages")  # noqa: B009
    if not isinstance(outages, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in outages
    ):
        raise InvalidConsumer(
            f"{name}: outages is {outages!r}; it must be a tuple of classes of exceptions"
        )


def _check_handler(name: str, handler: object, awaited: bool) -> None:
    if not callable(handler):
        raise InvalidConsumer(f"{name}: the handler {handler!r:.80} cannot be called")
    check_runs(f"{name}: the handler", handler)
    call = getattr(handler, "__call__")  # noqa: B004, B009
    given = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    if given and not awaited:
        raise InvalidConsumer(f"{name}: the handler must not be `async def`; use AsyncTaskWorker")
    # A lambda may return an awaitable.
    if awaited and not given and getattr(handler, "__name__", "<lambda>") != "<lambda>":
        raise InvalidConsumer(f"{name}: the handler must be `async def`; or use TaskWorker")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise InvalidConsumer(
            f"{name}: the handler is called with (task); it takes {inspect.signature(handler)}"
        ) from None
