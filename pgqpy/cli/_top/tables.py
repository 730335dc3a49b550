"""What the screen shows: a table for each tab, made from one reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pgqpy._runtime.words import plural
from pgqpy.cli._base.errors import first_line
from pgqpy.cli._base.output import shown
from pgqpy.cli._status import STYLES, lasting
from pgqpy.cli._tasks.choice import compact, distance
from pgqpy.connection import Connection
from pgqpy.doctor._queues import Status
from pgqpy.doctor._readings import TaskWorker
from pgqpy.doctor._status import ConsumerState, ConsumerStatus, QueueState, QueueStatus
from pgqpy.tasks import TaskInfo, TaskQueueInfo, Tasks

#: Tasks of an opened queue or worker.
SHOWN = 200

#: Consumers and queues that are worse come first.
WORST = {each: nr for nr, each in enumerate(STYLES)}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value to sort by, and how it is written."""

    value: Any
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """What Enter shows: a text, rows of another tab, or a table that is read with each reading."""

    title: str
    text: str = ""
    tab: str = ""
    #: The value of that tab's first column.
    only: str = ""
    read: Callable[[Connection], Table] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A line. The same thing has the same key in each reading."""

    key: tuple[str, ...]
    cells: Sequence[Cell]
    opens: Opened | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and lines. ``order`` is the column by which it is sorted first."""

    headings: Sequence[str]
    rows: Sequence[Row]
    order: int = 0
    reverse: bool = False
    empty: str = "none"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read at once. Task queues and workers are None if the role may not see them."""

    status: Status
    #: Events a second that each consumer of a queue has read; None: not known yet.
    out: Mapping[tuple[str, str], float | None]
    tasks: list[TaskQueueInfo] | None
    workers: list[TaskWorker] | None


def _name(text: str) -> Cell:
    return Cell(text.lower(), text, "bold")


def _plain(text: str) -> Cell:
    return Cell(text.lower(), text)


def _number(value: float | None, style: str = "") -> Cell:
    return Cell(value, shown(value), style if value else "")


def _lasting(value: timedelta | None) -> Cell:
    return Cell(value, lasting(value))


def _state(state: ConsumerState | QueueState, more: str = "") -> Cell:
    return Cell(WORST[state], f"{state}{more}", STYLES[state])


def queues(reading: Reading) -> Table:
    """Return a line for each queue of events."""
    return Table(
        ("Queue", "State", "In/s", "Out/s", "Lag", "Backlog", "Consumers", "Retries", "Dead"),
        [_queue(each, reading.out) for each in reading.status.queues],
        order=1,
        reverse=True,
        empty="no queues yet; make one: pgqpy queue create NAME",
    )


def _queue(queue: QueueStatus, out: Mapping[tuple[str, str], float | None]) -> Row:
    rates = [out.get((queue.queue, each.consumer)) for each in queue.consumers]
    known = [each for each in rates if each is not None]
    held = ", rotation held" if queue.rotation_held_by else ""
    cells = (
        _name(queue.queue),
        _state(queue.state, held),
        _number(queue.events_per_second),
        _number(sum(known) if known else None),
        _lasting(queue.lag),
        _number(queue.unread),
        _number(len(queue.consumers)),
        _number(queue.retry_events, "yellow"),
        _number(queue.dead_letters, "yellow"),
    )
    opens = Opened(f"consumers of {queue.queue}", tab="consumers", only=queue.queue)
    return Row((queue.queue,), cells, opens)


def consumers(reading: Reading) -> Table:
    """Return a line for each consumer."""
    return Table(
        ("Queue", "Consumer", "State", "Lag", "Backlog", "Out/s", "Seen", "Batch", "Dead"),
        [
            _consumer(queue, each, reading.out.get((queue.queue, each.consumer)))
            for queue in reading.status.queues
            for each in queue.consumers
        ],
        order=2,
        reverse=True,
        empty="no consumers",
    )


def _consumer(queue: QueueStatus, each: ConsumerStatus, out: float | None) -> Row:
    failing = each.failing
    cells = (
        _plain(queue.queue),
        _name(each.consumer),
        _state(each.state, f", {plural(failing.attempts, 'time')}" if failing else ""),
        _lasting(each.lag),
        _number(queue.unread_by(each)),
        _number(out),
        _lasting(each.last_seen),
        _number(each.current_batch),
        _number(each.dead_letters, "yellow"),
    )
    error = f"\n\nError of batch {failing.batch_id}:\n{failing.error}" if failing else ""
    text = (
        f"{each.consumer} of {queue.queue}: {each.state}\n"
        f"last finished tick {_number(each.last_tick).text}, open batch {cells[7].text}, "
        f"last seen {cells[6].text} ago, {cells[4].text} events behind{error}"
    )
    return Row((queue.queue, each.consumer), cells, Opened(each.consumer, text=text))


def task_queues(reading: Reading) -> Table:
    """Return a line for each task queue."""
    now = reading.status.server.time
    rows = []
    for each in reading.tasks or ():
        state = Cell(1, "paused", "yellow") if each.paused else Cell(0, "open", "green")
        sizes = (each.available, each.claimed, each.scheduled, each.held, each.stopped)
        waits = now - each.oldest if each.oldest else None
        name = each.queue_name
        opens = Opened(f"tasks of {name}", read=_tasks(name, {}))
        cells = (_name(name), state, _lasting(waits), *(_number(size) for size in sizes))
        rows.append(Row((name,), cells, opens))
    return Table(
        (
            *("Task queue", "State", "Waits", "Available"),
            *("Claimed", "Scheduled", "Held", "Stopped"),
        ),
        rows,
        order=2,
        reverse=True,
        empty="no task queues" if reading.tasks is not None else "you may not see task queues",
    )


def workers(reading: Reading) -> Table:
    """Return a line for each worker that has tasks."""
    now = reading.status.server.time
    rows = []
    for each in reading.workers or ():
        opens = Opened(
            f"tasks of {each.claimant}",
            read=_tasks(None, {"claimant": each.claimant, "status": "claimed"}),
        )
        cells = (
            _name(each.claimant),
            _number(each.tasks),
            _plain(", ".join(each.queues)),
            _lasting(now - each.since if each.since else None),
            _lasting(each.lease - now if each.lease else None),
        )
        rows.append(Row((each.claimant,), cells, opens))
    return Table(
        ("Worker", "Tasks", "Queues", "Oldest since", "Lease ends in"),
        rows,
        order=3,
        reverse=True,
        empty="no worker has a task now"
        if reading.workers is not None
        else "you may not see tasks",
    )


def _tasks(queue: str | None, which: dict[str, Any]) -> Callable[[Connection], Table]:
    def read(conn: Connection) -> Table:
        tasks = Tasks(conn)
        now = tasks.server_time()
        return Table(
            ("Id", "Queue", "State", "When", "Attempts", "Payload or error"),
            [_task(each, now) for each in tasks.list(queue, which, max_tasks=SHOWN)],
            empty="no tasks",
        )

    return read


def _task(task: TaskInfo, now: datetime) -> Row:
    error = first_line(task.error or "")
    away = None if task.at is None else task.at - now
    cells = (
        Cell(task.id, str(task.id), "bold"),
        _plain(task.queue),
        _plain(task.status),
        Cell(away, distance(task.at, now) or "-"),
        _number(task.attempts),
        Cell(error, error, "red") if error else _plain(compact(task.payload)),
    )
    title = f"task {task.id}"
    text = f"{title} of {task.queue}\n\npayload: {compact(task.payload)}"
    if task.error:
        text += f"\n\nerror: {task.error}"
    return Row((str(task.id),), cells, Opened(title, text=text))


def problems(reading: Reading) -> Table:
    """Return a line for each problem, and what to do."""
    rows = [
        Row(
            (each.check, each.message),
            (
                Cell(each.verdict, str(each.verdict), "bold red"),
                _plain(each.message),
                Cell(each.remedy, each.remedy or "", "cyan"),
            ),
            Opened("problem", text=f"{each.message}\n\n{each.remedy or ''}"),
        )
        for each in reading.status.alerts
    ]
    return Table(("", "Problem", "What to do"), rows, empty="no problems")


TABS: dict[str, Callable[[Reading], Table]] = {
    "queues": queues,
    "consumers": consumers,
    "tasks": task_queues,
    "workers": workers,
    "problems": problems,
}
