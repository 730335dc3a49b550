"""The expected behaviour of a queue, in a few lines of Python.

The whole truth is the list of events in the order in which their transactions
committed. A tick is a length of that list, a batch is a slice of it, and all
that PostgreSQL adds (snapshots, transaction ids, tables that are filled in
turn) must not be visible from here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """One event as a consumer sees it."""

    data: str
    retry: int = 0
    owner: int | None = None
    """The registration that it comes again for; None for all."""


@dataclass
class Batch:
    """A batch that a consumer has open."""

    batch_id: int
    end: int
    """The tick that it ends at."""
    rows: list[tuple[object, ...]] | None = None
    """The rows as they were read first."""


@dataclass
class Consumer:
    """A registration and its position."""

    name: str
    serial: int
    tick: int
    batch: Batch | None = None
    coming_again: dict[str, int] = field(default_factory=dict)
    """Payload and retry count of events that wait in the retry queue."""
    done: set[int] = field(default_factory=set)
    """The places in the log of the events of batches that it has finished."""


class Model:
    """A queue, its consumers, and what has been committed."""

    def __init__(self, first_tick: int) -> None:
        self.log: list[Event] = []
        self.ticks = {first_tick: 0}
        self.consumers: dict[str, Consumer] = {}
        self._serials = itertools.count(1)

    @property
    def newest_tick(self) -> int:
        return max(self.ticks)

    def committed(self, payloads: list[str]) -> None:
        self.log += [Event(data) for data in payloads]

    def ticked(self, tick_id: int, *, when: int | None = None) -> None:
        """A tick, which saw what was committed at the time ``when`` (now)."""
        assert tick_id > self.newest_tick, "tick ids must ascend"
        self.ticks[tick_id] = len(self.log) if when is None else when

    def registered(self, name: str, tick_id: int) -> None:
        self.consumers[name] = Consumer(name, next(self._serials), tick_id)

    def expected(self, consumer: Consumer, end: int) -> list[tuple[str, int]]:
        """Payload and retry count of the events between the consumer's position and a tick."""
        return sorted(
            (event.data, event.retry)
            for event in self.log[self.ticks[consumer.tick] : self.ticks[end]]
            if event.owner in (None, consumer.serial)
        )

    def finished(self, consumer: Consumer, end: int) -> None:
        consumer.done |= set(range(self.ticks[consumer.tick], self.ticks[end]))
        consumer.tick, consumer.batch = end, None

    def where(self, consumer: Consumer, data: str) -> set[str]:
        """The states that an event may be said to be in; more than one only if it is passed."""
        places = [
            n
            for n, event in enumerate(self.log)
            if event.data == data and event.owner in (None, consumer.serial)
        ]
        behind = [n for n in places if n >= self.ticks[consumer.tick]]
        if consumer.batch and any(n < self.ticks[consumer.batch.end] for n in behind):
            return {"in batch"}
        if behind:
            return {"not read" if behind[0] < self.ticks[self.newest_tick] else "no tick yet"}
        if data in consumer.coming_again:
            return {"retry"}
        return {"done"} if places[-1] in consumer.done else {"skipped", "registered later"}

    def retried(self) -> int:
        """All that waits comes again; returns how many events that are."""
        moved = [
            Event(data, retry, consumer.serial)
            for consumer in self.consumers.values()
            for data, retry in consumer.coming_again.items()
        ]
        for consumer in self.consumers.values():
            consumer.coming_again.clear()
        self.log += moved
        return len(moved)
