"""A database that is served: its state and numbers, written by its worker, read by the endpoint."""

from __future__ import annotations

import asyncio
import enum
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pgqpy_ticker.config import Database
from pgqpy_ticker.logs import Log, gist

Operation: TypeAlias = tuple[str, str | None]
"""A job, or a maintenance operation with its argument."""

REFUSED = "pgq.maint_refused"
"""Stands in pgq.maint_operations() for what is not run; its argument says what, and why."""

Record: TypeAlias = Callable[[str, float, dict[str, str]], None]
"""Takes a histogram's name, a duration and the labels."""

ROUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
OPERATIONS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)


class State(enum.Enum):
    """The life of a worker.

    ::

        AWAY ──connected──> STANDBY ──won the lock──> LEADING
          ^                    │                         │
          └──── anything went wrong; tried again later ──┘
    """

    AWAY = "away"
    STANDBY = "standby"
    LEADING = "leading"


class Histogram:
    """Durations in seconds, counted by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class QueueSeen(NamedTuple):
    """A queue. Ages in seconds."""

    name: str
    tick_age: float
    pending: int
    rotations: int
    rotation_age: float
    rate: float = 0.0
    delayed: int = 0
    retries: int = 0


class ConsumerSeen(NamedTuple):
    """A consumer of a queue. Ages in seconds."""

    queue: str
    name: str
    lag: float
    last_seen: float
    pending: int
    failures: int = 0
    dead_letters: int = 0


# Long: a field for each number.
class TaskQueueSeen(NamedTuple):
    """A task queue with its tenants: tasks by status, the longest wait, operations so far."""

    name: str
    available: int
    claimed: int
    scheduled: int
    held: int
    stopped: int
    oldest_age: float
    pushed: int
    attempts: int
    finished: int
    popped: int
    failed_attempts: int
    failed: int
    released: int
    moved: int
    deleted: int


class Observation(NamedTuple):
    """A leader's view of the whole database; empty if another ticker leads."""

    queues: tuple[QueueSeen, ...] = ()
    consumers: tuple[ConsumerSeen, ...] = ()
    oldest: Mapping[str, float] = {}
    """The age of the oldest open transaction of each kind; 0 if there is none."""
    task_queues: tuple[TaskQueueSeen, ...] = ()


NOTHING = Observation()


# Long: each field is a state or a number that the endpoint shows.
@dataclass(slots=True, eq=False)
class Served:
    """A database that is served.

    Other threads read it: containers are replaced as a whole, or copied before they are read.
    Obstacles by roles without rights of ours (``refused``, ``foreign_locks``) make nothing
    unhealthy by themselves, or every such role could. An operation that fails because of them does.
    """

    database: Database
    """May be replaced while it is served by one with the same name and DSN."""
    state: State = State.AWAY
    reason: str = "starting"
    heartbeat: float = field(default_factory=time.monotonic)
    """The time of the last round of ticks, or attempt to get the lead."""
    failing: dict[Operation, str] = field(default_factory=dict)
    """The operations whose last run failed, with their errors."""
    refused: list[str] = field(default_factory=list)
    foreign_locks: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when ``failing`` or ``refused`` has changed."""
    ticks: int = 0
    wakes: int = 0
    moved: int = 0
    """Delayed and retried events that were delivered."""
    errors: Counter[str] = field(default_factory=Counter)
    rounds: Histogram = field(default_factory=lambda: Histogram(ROUNDS))
    operations: dict[str, Histogram] = field(default_factory=dict)
    maintained: float | None = None
    """The time of the last pass of maintenance without failure, or when the lead began."""
    observation: Observation = NOTHING
    record: Record | None = None
    """Is given the durations, too: OpenTelemetry counts them itself."""

    @property
    def name(self) -> str:
        return self.database.name

    def log(self, **fields: object) -> Log:
        return Log(database=self.name, **fields)

    # State

    def enter(self, state: State, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.beat()

    def beat(self) -> None:
        self.heartbeat = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Return whether it ticks or stands by, and no other job of a leader fails."""
        return (
            self.state is not State.AWAY
            and time.monotonic() - self.heartbeat <= self.database.healthy_within
            and not self.failing
        )

    def report(self) -> dict[str, object]:
        report: dict[str, object] = {
            "state": self.state.value,
            "healthy": self.healthy,
            "seconds_since_heartbeat": round(time.monotonic() - self.heartbeat, 3),
        }
        failing = [
            {"operation": name, "error": error}
            | ({} if argument is None else {"argument": argument})
            for (name, argument), error in self.failing.items()
        ]
        told = {"reason": self.reason, "failing": failing}
        told |= {"refused": self.refused, "foreign_locks": self.foreign_locks}
        return report | {key: value for key, value in told.items() if value}

    # Failures

    def fail(self, operation: Operation, error: str) -> None:
        """Record a failure of an operation, repeated or new."""
        self.errors[operation[0]] += 1
        if gist(self.failing.get(operation, "")) != gist(error):
            self.failing = self.failing | {operation: error}
            self.changed.set()

    def mend(self, *operations: Operation) -> None:
        """Record operations that succeeded, or are not needed any more."""
        if not self.failing.keys().isdisjoint(operations):
            self.failing = {key: self.failing[key] for key in self.failing.keys() - operations}
            self.changed.set()

    def refuse(self, reasons: list[str]) -> None:
        """Set the operations that maintenance does not run."""
        if reasons != self.refused:
            self.refused = reasons
            self.changed.set()

    def forget_failures(self) -> None:
        """Forget all failures and obstacles: another ticker knows now, or will."""
        self.mend(*self.failing)
        self.refuse([])
        self.foreign_locks = []

    # Numbers

    def ticked(self, ticks: int, seconds: float) -> None:
        self.ticks += ticks
        self.rounds.observe(seconds)
        if self.record is not None:
            self.record("pgqpy_ticker_round_seconds", seconds, {"database": self.name})

    def ran(self, operation: str, seconds: float) -> None:
        """Record a maintenance operation that succeeded."""
        if operation not in self.operations:
            self.operations[operation] = Histogram(OPERATIONS)
        self.operations[operation].observe(seconds)
        if self.record is not None:
            labels = {"database": self.name, "operation": operation}
            self.record("pgqpy_maintenance_seconds", seconds, labels)
