"""Metrics for Prometheus. The daemon's work is counted as it happens; the state of the queues is
from the leader's last observation, and is absent if another ticker leads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pgqpy_ticker.observation import Observation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ROUND_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_MAINTENANCE_BUCKETS = (0.001, 0.01, 0.1, 1, 10, 60, 600)


class Metrics:
    """Metrics of a daemon."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        one = ["database"]
        self._registry = registry
        self._ticks = Counter("pgqpy_ticks", "Ticks made.", one, registry=registry)
        self._rounds = Histogram(
            "pgqpy_ticker_round_seconds",
            "Duration of one round of ticks over all queues.",
            one,
            buckets=_ROUND_BUCKETS,
            registry=registry,
        )
        self._wakes = Counter(
            "pgqpy_ticker_wakes", "Times a producer woke the ticker.", one, registry=registry
        )
        self._errors = Counter(
            "pgqpy_ticker_errors", "Errors by duty.", ["database", "job"], registry=registry
        )
        self._failing = Gauge(
            "pgqpy_ticker_failing",
            "Duties and maintenance operations that failed when last tried.",
            ["database", "job"],
            registry=registry,
        )
        self._refused = Gauge(
            "pgqpy_ticker_refused_operations",
            "Maintenance that is not run, because a role that is not trusted made it.",
            one,
            registry=registry,
        )
        self._foreign_locks = Gauge(
            "pgqpy_ticker_foreign_locks",
            "Locks of pgq that sessions without a role of pgq hold.",
            one,
            registry=registry,
        )
        self._leader = Gauge(
            "pgqpy_ticker_leader", "1 if this ticker leads, else 0.", one, registry=registry
        )
        self._moved = Counter(
            "pgqpy_due_events",
            "Delayed and retried events whose time had come.",
            one,
            registry=registry,
        )
        self._maintenance = Histogram(
            "pgqpy_maintenance_seconds",
            "Duration of maintenance operations.",
            ["database", "operation"],
            buckets=_MAINTENANCE_BUCKETS,
            registry=registry,
        )
        self._maintenance_age = Gauge(
            "pgqpy_maintenance_age_seconds",
            "Time since a pass of maintenance in which nothing failed, or since the lead began.",
            one,
            registry=registry,
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
        for metric in (self._ticks, self._rounds, self._wakes, self._leader, self._moved):
            metric.remove_by_labels({"database": database})
        for metric in (self._refused, self._foreign_locks):
            metric.remove_by_labels({"database": database})
        for metric in (self._errors, self._failing, self._maintenance, self._maintenance_age):
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
        tick_age = GaugeMetricFamily(
            "pgqpy_queue_last_tick_age_seconds", "Time since the last tick.", labels=queue
        )
        pending = GaugeMetricFamily(
            "pgqpy_queue_pending_events", "Events since the last tick, about.", labels=queue
        )
        rotations = GaugeMetricFamily(
            "pgqpy_queue_rotations", "Table rotations since the queue was made.", labels=queue
        )
        rotated = GaugeMetricFamily(
            "pgqpy_queue_rotation_age_seconds", "Time since the last rotation.", labels=queue
        )
        lag = GaugeMetricFamily(
            "pgqpy_consumer_lag_seconds", "Age of the consumer's last tick.", labels=consumer
        )
        seen = GaugeMetricFamily(
            "pgqpy_consumer_last_seen_seconds", "Time since its last action.", labels=consumer
        )
        behind = GaugeMetricFamily(
            "pgqpy_consumer_pending_events", "Events it has to read, about.", labels=consumer
        )
        oldest = GaugeMetricFamily(
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
