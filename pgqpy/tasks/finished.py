"""Finished tasks and statistics, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A task at its end.

    ``outcome`` is finished, popped or deleted; ``result`` is JSON, decoded; ``error`` is that of
    the last failed attempt, if any, or why the result is not kept; ``last_attempt`` is the start of
    the last attempt. The rest is described at `pgqpy.tasks.Task`.
    """

    id: int
    queue: str
    outcome: str
    finished: datetime
    claimant: str | None
    attempts: int
    last_attempt: datetime | None
    created: datetime
    result: Any
    error: str | None
    payload: Any
    headers: dict[str, Any] | None
    priority: int
    unique_key: str | None
    order_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """The number of times each operation was done on tasks of a queue since it was created.

    ``claimed`` counts attempts, popped tasks included, ``failed`` failed attempts, ``buried``
    tasks that went to the error queue, ``released`` those given back untried, ``moved`` those that
    left for another queue. Rolled-back operations are counted, too, and a crash of the server lets
    the counters jump ahead a little.
    """

    queue: str
    pushed: int
    claimed: int
    finished: int
    popped: int
    failed: int
    buried: int
    released: int
    moved: int
    deleted: int
