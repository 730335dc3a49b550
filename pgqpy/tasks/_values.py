"""Tasks, queues and reports, as values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar

from psycopg import AsyncCursor, Cursor, abc, postgres
from psycopg.adapt import Transformer
from psycopg.pq import Format
from psycopg.rows import RowMaker

T = TypeVar("T")

_JSONB = postgres.types["jsonb"].oid


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it was claimed.

    ``id`` is given when it is pushed; ``version`` counts its changes, claims and renewals included.
    ``queue``, ``priority`` (higher ones come first), ``attempts`` (claims so far, this one
    included), ``lease`` (the end of its claim), ``created``. ``payload`` is JSON, decoded;
    ``headers`` a dict of further data, or None; either is an `Unreadable` if Python cannot read it.
    ``error`` is that of the previous attempt, if it failed. At most one waiting task of a queue has
    a ``unique_key``; tasks of a queue with the same ``order_key`` are worked on in the order of
    their ids.
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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for JSON that PostgreSQL can hold and Python cannot read: nested too deeply, or with a
    number of thousands of digits. ``text`` is that JSON; ``reason`` says why."""

    text: str = field(repr=False)
    reason: str

    def __str__(self) -> str:
        return f"Python cannot read its JSON: {self.reason}"


def read_json(text: str | bytes) -> Any:
    """Read a value of the database, `Unreadable` if that is impossible: to push it would end
    workers."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        return Unreadable(shown, str(error))


def read_again(cursor: Cursor[T] | AsyncCursor[T], make: RowMaker[T]) -> list[T]:
    """Return a binary cursor's rows, with `Unreadable` for JSON that its own loader refused."""
    result, loader = cursor.pgresult, cursor.adapters.get_loader(_JSONB, Format.BINARY)
    assert result is not None
    assert loader is not None
    cursor.adapters.register_loader(_JSONB, _lenient(loader))
    transformer = Transformer(cursor)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, make)


@cache
def _lenient(loader: type[abc.Loader]) -> type[abc.Loader]:
    class Lenient(loader):  # type: ignore[misc, valid-type]
        def load(self, data: abc.Buffer) -> Any:
            try:
                return super().load(data)
            except (RecursionError, ValueError) as error:
                # After a byte with the version of the format.
                return Unreadable(bytes(data)[1:].decode(errors="replace"), str(error))

    return Lenient


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


# Long: a field for each column of pgq_task.tasks.
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A task as it is listed. ``status`` is available, claimed, scheduled, held (back by an earlier
    one with the same ``order_key``) or stopped; ``at`` the time from which it is available, or when
    its lease ends; None if it is held back or stopped. ``failures`` are the last 20 attempts that
    failed, the oldest first: each has ``attempt`` (its number), ``at``, ``claimant`` and ``error``.
    An attempt that is missing there ended without a report. The rest is described at `Task`."""

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
    failures: list[dict[str, Any]] | None


# Long: a field for each column of pgq_task.get_queue_info.
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
    time_limit: timedelta | None
    max_attempts: int | None
    error_queue: str
    keep: timedelta
    weight: int
    keep_tenants: timedelta | None
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


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step of a flow: its number from 1, the task's id, and in ``after`` the numbers of those
    that it waits for.

    ``state`` is finished, removed, failed (in the error queue), waiting (for those in ``after``),
    or the task's status. Name, state, attempts, error and result are None if the caller may not
    read the queue.
    """

    nr: int
    id: int
    name: str | None
    queue: str
    after: list[int]
    state: str | None
    attempts: int | None
    error: str | None
    result: Any


@dataclass(frozen=True, slots=True)
class FlowInfo:
    """A flow (pgq_task.list_flows): when it was pushed and has ended (None: not yet), the queue of
    its first step, and numbers of steps: all, those that have ended, those that have failed."""

    flow: int
    created: datetime
    ended: datetime | None
    queue: str
    steps: int
    ended_steps: int
    failed: int


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
    """The number of times each operation was done on tasks of a queue since it was created, or the
    counts were reset.

    ``claimed`` counts attempts, popped tasks included, ``failed`` tasks that
    went to the error queue, ``released`` those given back untried, ``moved`` those that
    left for another queue. What is rolled back does not count, except a `push` without options. A
    crash of the server loses the counts of the last minute.
    """

    queue: str
    pushed: int
    claimed: int
    finished: int
    popped: int
    failed_attempts: int
    failed: int
    released: int
    moved: int
    deleted: int


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

    ``last_run`` is the last run that was pushed, None before the first one; ``last_due`` the last
    one that was pushed or skipped; ``paused`` the time of its pause, or None. Payload, headers and
    keys are None if the caller may not read the restricted queue.
    """

    name: str
    queue: str
    cron: str
    time_zone: str
    payload: Any
    priority: int
    missed: str
    last_due: datetime
    last_run: datetime | None
    paused: datetime | None
    headers: dict[str, Any] | None
    unique_key: str | None
    order_key: str | None
