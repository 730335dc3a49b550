"""What job queues know of tasks, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is that somebody works on.

    ``done`` of ``total``, with a ``note``, as was said ``at`` a time; None if nothing was said.
    ``cancelled`` is why the task shall end, None if it shall not.
    """

    id: int
    queue: str
    claimant: str
    lease: datetime
    done: float | None
    total: float | None
    note: str | None
    at: datetime | None
    cancelled: str | None


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The limits of a queue; None is no limit.

    ``running`` is how many tasks are claimed now, None if there is no limit of that; ``recent`` how
    many were claimed in the last ``rate_period``.
    """

    queue: str
    max_running: int | None
    max_running_per_key: int | None
    rate: int | None
    rate_per_key: int | None
    rate_period: timedelta
    running: int | None
    recent: int


@dataclass(frozen=True, slots=True)
class PeriodicInfo:
    """A periodic task as the server knows it.

    ``last_due`` is the last run that was pushed, or left out; ``paused`` since when none is pushed,
    or None. Payload, headers and keys are None of a restricted queue that one may not read.
    """

    name: str
    queue: str
    cron: str
    time_zone: str
    payload: Any
    priority: int
    missed: str
    last_due: datetime
    paused: datetime | None
    headers: dict[str, Any] | None
    unique_key: str | None
    order_key: str | None
