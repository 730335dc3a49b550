"""A leader's observation of its database; values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue. Ages in seconds."""

    name: str
    tick_age: float
    pending: int
    rotations: int
    rotation_age: float


@dataclass(frozen=True, slots=True)
class ConsumerSeen:
    """A consumer of a queue. Ages in seconds."""

    queue: str
    name: str
    lag: float
    last_seen: float
    pending: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction with an id: rotation waits for it, wherever in the cluster it is.

    ``kind`` is prepared, idle (in transaction), active, or hidden: our role may not see its state,
    nor its start, and ``age`` counts from when we first noticed it.
    """

    kind: str
    holder: str
    age: float
    database: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of the whole database."""

    queues: tuple[QueueSeen, ...]
    consumers: tuple[ConsumerSeen, ...]
    transactions: tuple[OpenTransaction, ...]

    def oldest(self) -> dict[str, float]:
        """Return the age of the oldest transaction by kind; 0 if there is none, so alerts
        resolve."""
        ages = dict.fromkeys(("prepared", "idle", "active", "hidden"), 0.0)
        for transaction in self.transactions:
            ages[transaction.kind] = max(ages[transaction.kind], transaction.age)
        return ages
