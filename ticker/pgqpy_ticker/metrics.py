"""The page of metrics for Prometheus, in its text format."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from pgqpy_ticker.served import Histogram, Served, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The kind of each metric, and what it says.
METRICS = {
    "pgqpy_ticks_total": ("counter", "Ticks made."),
    "pgqpy_ticker_round_seconds": ("histogram", "Duration of one round of ticks over all queues."),
    "pgqpy_ticker_wakes_total": ("counter", "Times a producer woke the ticker."),
    "pgqpy_ticker_errors_total": ("counter", "Errors by job."),
    "pgqpy_ticker_failing": ("gauge", "Jobs and operations that failed when last tried."),
    "pgqpy_ticker_refused_operations": ("gauge", "Operations refused: no trusted role made them."),
    "pgqpy_ticker_foreign_locks": ("gauge", "Locks of pgq held by sessions without a role of pgq."),
    "pgqpy_ticker_leader": ("gauge", "1 if this ticker leads, else 0."),
    "pgqpy_due_events_total": ("counter", "Delayed and retried events whose time had come."),
    "pgqpy_maintenance_seconds": ("histogram", "Duration of maintenance operations."),
    "pgqpy_maintenance_age_seconds": ("gauge", "Time since all of it worked, or the lead began."),
    "pgqpy_queue_last_tick_age_seconds": ("gauge", "Time since the last tick."),
    "pgqpy_queue_pending_events": ("gauge", "Events since the last tick, about."),
    "pgqpy_queue_rotations": ("gauge", "Table rotations since the queue was made."),
    "pgqpy_queue_rotation_age_seconds": ("gauge", "Time since the last rotation."),
    "pgqpy_consumer_lag_seconds": ("gauge", "Age of the consumer's last tick."),
    "pgqpy_consumer_last_seen_seconds": ("gauge", "Time since its last action."),
    "pgqpy_consumer_pending_events": ("gauge", "Events it has to read, about."),
    "pgqpy_queue_events_per_second": ("gauge", "Events inserted, over the last 20 ticks."),
    "pgqpy_queue_delayed_events": ("gauge", "Events to be delivered later."),
    "pgqpy_queue_retry_events": ("gauge", "Events that wait to be retried."),
    "pgqpy_consumer_failures": ("gauge", "Failed attempts at its open batch."),
    "pgqpy_consumer_dead_letters": ("gauge", "Dead letters, up to 10,000."),
    "pgqpy_task_queue_tasks": ("gauge", "Tasks by status, up to 10,000 of a status."),
    "pgqpy_task_queue_oldest_seconds": ("gauge", "The longest wait of an available task."),
    "pgqpy_task_operations_total": ("counter", "Operations on tasks."),
    "pgqpy_oldest_transaction_seconds": ("gauge", "Age of the oldest one that rotation waits for."),
}

Sample = tuple[str, dict[str, str], float | Histogram]


def page(databases: Iterable[Served]) -> str:
    found: dict[str, list[str]] = defaultdict(list)
    for name, labels, value in samples(databases):
        found[name] += _lines(name, labels, value)
    lines = []
    for name, (kind, about) in METRICS.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *found[name]]
    return "\n".join(lines) + "\n"


def samples(databases: Iterable[Served]) -> Iterator[Sample]:
    for served in databases:
        for name, labels, value in _samples(served):
            yield name, {"database": served.name, **labels}, value


def _samples(served: Served) -> Iterator[Sample]:
    """Return the metric's name, the labels and the value of each sample.

    Queues and consumers are those of the leader's last observation.
    """
    yield "pgqpy_ticks_total", {}, served.ticks
    yield "pgqpy_ticker_round_seconds", {}, served.rounds
    yield "pgqpy_ticker_wakes_total", {}, served.wakes
    yield "pgqpy_ticker_refused_operations", {}, len(served.refused)
    yield "pgqpy_ticker_foreign_locks", {}, len(served.foreign_locks)
    yield "pgqpy_ticker_leader", {}, served.state is State.LEADING
    yield "pgqpy_due_events_total", {}, served.moved
    failing = [name for name, _ in served.failing]
    for job, errors in dict(served.errors).items():
        yield "pgqpy_ticker_errors_total", {"job": job}, errors
        # Whether ticks fail is said by the state.
        if job != "tick":
            yield "pgqpy_ticker_failing", {"job": job}, failing.count(job)
    for operation, durations in served.operations.copy().items():
        yield "pgqpy_maintenance_seconds", {"operation": operation}, durations
    if (maintained := served.maintained) is not None:
        yield "pgqpy_maintenance_age_seconds", {}, time.monotonic() - maintained
    seen = served.observation
    for queue in seen.queues:
        labels = {"queue": queue.name}
        yield "pgqpy_queue_last_tick_age_seconds", labels, queue.tick_age
        yield "pgqpy_queue_pending_events", labels, queue.pending
        yield "pgqpy_queue_rotations", labels, queue.rotations
        yield "pgqpy_queue_rotation_age_seconds", labels, queue.rotation_age
        yield "pgqpy_queue_events_per_second", labels, queue.rate
        yield "pgqpy_queue_delayed_events", labels, queue.delayed
        yield "pgqpy_queue_retry_events", labels, queue.retries
    for consumer in seen.consumers:
        labels = {"queue": consumer.queue, "consumer": consumer.name}
        yield "pgqpy_consumer_lag_seconds", labels, consumer.lag
        yield "pgqpy_consumer_last_seen_seconds", labels, consumer.last_seen
        yield "pgqpy_consumer_pending_events", labels, consumer.pending
        yield "pgqpy_consumer_failures", labels, consumer.failures
        yield "pgqpy_consumer_dead_letters", labels, consumer.dead_letters
    for tasks in seen.task_queues:
        labels = {"queue": tasks.name}
        for status in ("available", "claimed", "scheduled", "held", "stopped"):
            yield "pgqpy_task_queue_tasks", labels | {"status": status}, getattr(tasks, status)
        yield "pgqpy_task_queue_oldest_seconds", labels, tasks.oldest_age
        for name in tasks._fields[tasks._fields.index("pushed") :]:
            named = labels | {"operation": name}
            yield "pgqpy_task_operations_total", named, getattr(tasks, name)
    for kind, age in seen.oldest.items():
        yield "pgqpy_oldest_transaction_seconds", {"kind": kind}, age


def _lines(name: str, labels: Mapping[str, str], value: float | Histogram) -> Iterator[str]:
    if not isinstance(value, Histogram):
        written = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
        yield f"{name}{{{written}}} {float(value)!r}"
        return
    total = 0
    for bound, count in zip((*value.bounds, "+Inf"), [*value.counts], strict=True):
        total += count
        yield from _lines(f"{name}_bucket", {**labels, "le": str(bound)}, total)
    yield from _lines(f"{name}_count", labels, total)
    yield from _lines(f"{name}_sum", labels, value.sum)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
