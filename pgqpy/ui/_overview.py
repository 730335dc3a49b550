"""The first page: what is wrong, and how queues and task queues are doing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from pgqpy.doctor._history import SPAN, History
from pgqpy.doctor._queues import Status, status_of
from pgqpy.doctor._readings import read, task_workers
from pgqpy.doctor._status import ConsumerState, ConsumerStatus, QueueState, QueueStatus, judge
from pgqpy.tasks import Tasks
from pgqpy.ui._view import Look, View

#: Seconds between readings of rates, however many viewers of many roles look.
EVERY = 5.0
#: Tasks of each kind that are counted; the page says if there are more.
COUNTED = 1000
TASK_SIZES = "pgq_task.get_queue_info(text, integer, integer)"
WORKERS = "pgq_task.get_workers(integer)"


@dataclass(frozen=True)
class Line:
    """A queue in the list, worst first."""

    status: QueueStatus
    history: History

    @cached_property
    def is_wrong(self) -> bool:
        return bool(self.wrong) or self.status.state is QueueState.NO_TICKER

    @cached_property
    def wrong(self) -> list[ConsumerStatus]:
        """The consumers that fail, and those that are stuck."""
        states = (ConsumerState.FAILING, ConsumerState.STUCK)
        found = [each for each in self.status.consumers if each.state in states]
        return sorted(found, key=lambda each: each.state)

    @property
    def rate_out(self) -> float | None:
        return self.history.rate(
            ("out", self.status.queue, c.consumer) for c in self.status.consumers
        )

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(self.history["in", self.status.queue].rates)

    @property
    def span(self) -> float:
        return SPAN


def read_status(look: Look, queue: str | None = None) -> Status:
    """Read the state of all queues, or of one, and add it to the history."""
    conn = look.visit.conn
    status = status_of(judge(read(conn, queue, look.patience), look.patience))
    if queue is None:
        look.history.read(conn, status, every=EVERY)
    return status


def overview(look: Look) -> dict[str, Any]:
    status = read_status(look)
    lines = [Line(each, look.history) for each in status.queues]
    lines.sort(key=lambda x: (not x.is_wrong, -(x.status.lag or timedelta()), x.status.queue))
    rates = [each.events_per_second for each in status.queues if each.events_per_second is not None]
    tasks, workers = None, None
    if look.visit.may(TASK_SIZES):
        tasks = Tasks(look.visit.conn).queues(max_count=COUNTED)
        tasks.sort(key=lambda each: (each.oldest or status.server.time, each.queue_name))
        if not any(each.claimed for each in tasks):
            workers = 0
        elif look.visit.may(WORKERS):
            workers = len(task_workers(look.visit.conn, COUNTED))
    return {
        "status": status,
        "lines": lines,
        "tasks": tasks,
        "workers": workers,
        # Those of a long queue may be behind the tasks that are counted.
        "workers_at_least": any(each.exact is False for each in tasks or ()),
        "consumers": sum(len(each.consumers) for each in status.queues),
        "rate_in": sum(rates) if rates else None,
        "rate_out": look.history.rate(
            ("out", line.status.queue, consumer.consumer)
            for line in lines
            for consumer in line.status.consumers
        ),
        "lag": max((each.lag for each in status.queues if each.lag is not None), default=None),
        "dead_letters": sum(each.dead_letters or 0 for each in status.queues),
    }


VIEWS = [View("", "Overview", overview)]
