"""What is known of tasks that are gone, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A task as it was at its end.

    ``outcome`` is finished, popped or deleted; ``result`` is JSON, decoded; ``error`` of the last
    attempt that failed, if one did, or why the result is not kept; ``last_attempt`` is when the
    last one began. The rest is as of `pgqpy.tasks.Task`.
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
    """With how many tasks of a queue each thing was done since it was created.

    ``claimed`` counts attempts, popped tasks included, ``failed`` those that failed, ``buried``
    tasks that went to the error queue, ``released`` those given back untried, ``moved`` those that
    left for another queue. What was rolled back is counted, too, and a crash of the server makes
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
