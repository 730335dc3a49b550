"""Progress, limits and schedules of tasks, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a claimed task.

    ``done`` of ``total``, with a ``note``, as reported ``at`` a time; None without a report.
    ``cancelled`` is the reason of a cancellation, None if there is none.
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

    ``running`` is the number of claimed tasks, None if it is not limited; ``recent`` the number of
    claims in the last ``rate_period``.
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

    ``last_due`` is the last run that was pushed, or skipped; ``paused`` the time of its pause, or
    None. Payload, headers and keys are None if the caller may not read the restricted queue.
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
