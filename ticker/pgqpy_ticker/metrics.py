"""Metrics for Prometheus. The daemon's work is counted as it happens; the state of the queues is
from the leader's last observation, and is absent if another ticker leads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

M = TypeVar("M", Counter, Gauge, Histogram)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ROUND_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_MAINTENANCE_BUCKETS = (0.001, 0.01, 0.1, 1, 10, 60, 600)


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


class Metrics:
    """Metrics of a daemon."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def made(kind: type[M], name: str, about: str, *labels: str, **more: Any) -> M:
            return kind(name, about, ["database", *labels], registry=registry, **more)

        self._ticks = made(Counter, "pgqpy_ticks", "Ticks made.")
        self._rounds = made(
            Histogram,
            "pgqpy_ticker_round_seconds",
            "Duration of one round of ticks over all queues.",
            buckets=_ROUND_BUCKETS,
        )
        self._wakes = made(Counter, "pgqpy_ticker_wakes", "Times a producer woke the ticker.")
        self._errors = made(Counter, "pgqpy_ticker_errors", "Errors by job.", "job")
        self._failing = made(
            Gauge,
            "pgqpy_ticker_failing",
            "Jobs and maintenance operations that failed when last tried.",
            "job",
        )
        self._refused = made(
            Gauge,
            "pgqpy_ticker_refused_operations",
            "Maintenance that is not run, because a role that is not trusted made it.",
        )
        self._foreign_locks = made(
            Gauge,
            "pgqpy_ticker_foreign_locks",
            "Locks of pgq that sessions without a role of pgq hold.",
        )
        self._leader = made(Gauge, "pgqpy_ticker_leader", "1 if this ticker leads, else 0.")
        self._moved = made(
            Counter, "pgqpy_due_events", "Delayed and retried events whose time had come."
        )
        self._maintenance = made(
            Histogram,
            "pgqpy_maintenance_seconds",
            "Duration of maintenance operations.",
            "operation",
            buckets=_MAINTENANCE_BUCKETS,
        )
        self._maintenance_age = made(
            Gauge,
            "pgqpy_maintenance_age_seconds",
            "Time since a pass of maintenance in which nothing failed, or since the lead began.",
        )
        self.observations = Observations()
        registry.register(self.observations)

    def page(self) -> bytes:
        """Return the whole page of /metrics."""
        return generate_latest(self._registry)

    def round(self, database: str, ticks: int, seconds: float) -> None:
        self._ticks.labels(database).inc(ticks)
        self._rounds.labels(database).observe(seconds)

    def woken(self, database: str) -> None:
        self._wakes.labels(database).inc()

    def failed(self, database: str, job: str) -> None:
        self._errors.labels(database, job).inc()

    def failing(self, database: str, job: str, operations: int) -> None:
        self._failing.labels(database, job).set(operations)

    def refused(self, database: str, operations: int) -> None:
        self._refused.labels(database).set(operations)

    def foreign_locks(self, database: str, locks: int) -> None:
        self._foreign_locks.labels(database).set(locks)

    def leads(self, database: str, leads: bool) -> None:
        self._leader.labels(database).set(int(leads))

    def moved(self, database: str, events: int) -> None:
        self._moved.labels(database).inc(events)

    def maintained(self, database: str, operation: str, seconds: float) -> None:
        self._maintenance.labels(database, operation).observe(seconds)

    def maintenance_began(self, database: str) -> None:
        """Set the age of maintenance to zero: a lead has begun, or all was done."""
        began = time.monotonic()
        self._maintenance_age.labels(database).set_function(lambda: time.monotonic() - began)

    def maintenance_ended(self, database: str) -> None:
        """Forget the age of maintenance: another ticker has the lead, or will."""
        self._maintenance_age.remove_by_labels({"database": database})

    def serves(self, database: str) -> None:
        """Show a database from the start, with zeros: a rate needs a first value."""
        self.leads(database, False)
        self.refused(database, 0)
        self.foreign_locks(database, 0)
        for counter in (self._ticks, self._wakes, self._moved):
            counter.labels(database).inc(0)

    def forget(self, database: str) -> None:
        """Remove a database that the daemon does not serve any more."""
        self.observations.forget(database)
        for metric in (
            *(self._ticks, self._rounds, self._wakes, self._leader, self._moved),
            *(self._refused, self._foreign_locks),
            *(self._errors, self._failing, self._maintenance, self._maintenance_age),
        ):
            metric.remove_by_labels({"database": database})


class Observations(Collector):
    """The newest observation of each database, as gauges.

    Made anew for each scrape, so that a dropped queue's numbers do not stay.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, Observation] = {}

    def put(self, database: str, observation: Observation) -> None:
        with self._lock:
            self._newest[database] = observation

    def forget(self, database: str) -> None:
        with self._lock:
            self._newest.pop(database, None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._lock:
            newest = dict(self._newest)
        queue = ["database", "queue"]
        consumer = [*queue, "consumer"]
        gauge = GaugeMetricFamily
        tick_age = gauge(
            "pgqpy_queue_last_tick_age_seconds", "Time since the last tick.", labels=queue
        )
        pending = gauge(
            "pgqpy_queue_pending_events", "Events since the last tick, about.", labels=queue
        )
        rotations = gauge(
            "pgqpy_queue_rotations", "Table rotations since the queue was made.", labels=queue
        )
        rotated = gauge(
            "pgqpy_queue_rotation_age_seconds", "Time since the last rotation.", labels=queue
        )
        lag = gauge(
            "pgqpy_consumer_lag_seconds", "Age of the consumer's last tick.", labels=consumer
        )
        seen = gauge(
            "pgqpy_consumer_last_seen_seconds", "Time since its last action.", labels=consumer
        )
        behind = gauge(
            "pgqpy_consumer_pending_events", "Events it has to read, about.", labels=consumer
        )
        oldest = gauge(
            "pgqpy_oldest_transaction_seconds",
            "Age of the oldest open transaction that rotation waits for.",
            labels=["database", "kind"],
        )
        for database, observation in newest.items():
            for q in observation.queues:
                tick_age.add_metric([database, q.name], q.tick_age)
                pending.add_metric([database, q.name], q.pending)
                rotations.add_metric([database, q.name], q.rotations)
                rotated.add_metric([database, q.name], q.rotation_age)
            for c in observation.consumers:
                lag.add_metric([database, c.queue, c.name], c.lag)
                seen.add_metric([database, c.queue, c.name], c.last_seen)
                behind.add_metric([database, c.queue, c.name], c.pending)
            for kind, age in observation.oldest().items():
                oldest.add_metric([database, kind], age)
        yield from (tick_age, pending, rotations, rotated, lag, seen, behind, oldest)
