"""Tasks as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was claimed.

    ``id`` is given when it is pushed; ``version`` counts its changes, claims and renewals included.
    ``queue``, ``priority`` (higher ones come first), ``attempts`` (claims so far, this one
    included), ``lease`` (the end of its claim), ``created``. ``payload`` is JSON, decoded;
    ``headers`` a dict of further data, or None. ``error`` is that of the previous attempt, if it
    failed. At most one waiting task of a queue has a ``unique_key``; tasks of a queue with the
    same ``order_key`` are worked on in the order of their ids.
    """

    id: int
    version: int
    queue: str
    priority: int
    attempts: int
    lease: datetime
    created: datetime
    payload: Any
    headers: dict[str, Any] | None
    error: str | None
    unique_key: str | None
    order_key: str | None


class Pushed(NamedTuple):
    """A push with a unique key: the task's ``id`` if it was ``inserted``, or the id of the one that
    stands for it."""

    id: int
    inserted: bool


class Modified(NamedTuple):
    """A modified task: ``kind`` is insert, skip, change or delete; ``number`` its place, from 1,
    among the arguments of its kind; ``version`` its new one, None if it is gone."""

    kind: str
    number: int
    id: int
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A task as it is listed. ``status`` is available, claimed, scheduled, held (back by an earlier
    one with the same ``order_key``) or stopped; ``at`` the time from which it is available, or when
    its lease ends; None if it is held back or stopped. The rest is described at `Task`."""

    id: int
    version: int
    queue: str
    priority: int
    status: str
    at: datetime | None
    claimant: str | None
    attempts: int
    last_attempt: datetime | None
    created: datetime
    payload: Any
    headers: dict[str, Any] | None
    error: str | None
    unique_key: str | None
    order_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueInfo:
    """Settings and sizes of a task queue.

    ``paused`` is the time of its pause. Unless ``exact``, ``total`` is an estimate and the other
    sizes are lower bounds; they are None if the caller may not read the queue. ``oldest`` is the
    time since which the longest waiting task is available, ``next_time`` the time when the next
    scheduled one is due.
    """

    queue_name: str
    created: datetime
    paused: datetime | None
    restricted: bool
    lease: timedelta
    max_attempts: int | None
    error_queue: str | None
    keep: timedelta
    total: int | None
    exact: bool | None
    available: int | None
    claimed: int | None
    scheduled: int | None
    held: int | None
    stopped: int | None
    highest_attempts: int | None
    oldest: datetime | None
    next_time: datetime | None
