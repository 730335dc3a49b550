"""How a status looks on a terminal: one table of queues and their consumers, then what is wrong."""

from __future__ import annotations

from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pgqpy.cli.output import duration, printable, rate, shown
from pgqpy.cli.status_health import (
    Alert,
    ConsumerState,
    ConsumerStatus,
    QueueState,
    QueueStatus,
    Status,
)

_STYLES = {
    ConsumerState.OK: "green",
    ConsumerState.BEHIND: "yellow",
    ConsumerState.STUCK: "bold red",
    QueueState.TICKING: "green",
    QueueState.PAUSED: "yellow",
    QueueState.EXTERNAL: "cyan",
    QueueState.NO_TICKER: "bold red",
}


def render(status: Status) -> RenderableType:
    """The whole status, as narrow as its names allow."""
    parts: list[RenderableType] = [_heading(status)]
    if status.queues:
        parts.append(_table(status.queues))
    else:
        parts.append(Text("\nno queues yet; make one: pgqpy queue create NAME"))
    parts += [_alert(alert) for alert in status.alerts]
    return Group(*parts)


def _heading(status: Status) -> Text:
    server = status.server
    consumers = sum(len(queue.consumers) for queue in status.queues)
    return Text.assemble(
        (printable(server.database), "bold"),
        f" · PostgreSQL {server.server_version.split()[0]}"
        f" · {_plural(len(status.queues), 'queue')}, {_plural(consumers, 'consumer')}"
        f" · {shown(server.time)}",
    )


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _table(queues: list[QueueStatus]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("Queue", overflow="fold", min_width=12)
    table.add_column("Events/s", justify="right")
    table.add_column("Backlog", justify="right")
    table.add_column("Lag", justify="right", no_wrap=True)
    table.add_column("Tick", justify="right")
    table.add_column("State", overflow="fold")
    for queue in queues:
        table.add_row(*_queue_cells(queue))
        last = len(queue.consumers) - 1
        for index, consumer in enumerate(queue.consumers):
            table.add_row(*_consumer_cells(consumer, "└ " if index == last else "├ "))
    return table


def _queue_cells(queue: QueueStatus) -> tuple[Text, ...]:
    state = Text(queue.state, _STYLES[queue.state])
    if queue.rotation_held_by:
        state.append(", rotation held", "yellow")
    if queue.retry_events:
        state.append(f", {queue.retry_events:,} to retry", "yellow")
    if not queue.consumers:
        state.append(", no consumers", "dim")
    return (
        Text(printable(queue.queue), "bold"),
        Text("-" if queue.events_per_second is None else rate(queue.events_per_second)),
        Text(shown(queue.unticked_events)),
        Text(_lag(queue.tick_age)),
        Text(shown(queue.last_tick)),
        state,
    )


def _consumer_cells(consumer: ConsumerStatus, branch: str) -> tuple[Text, ...]:
    state = Text(consumer.state, _STYLES[consumer.state])
    if consumer.state is ConsumerState.STUCK:
        state.append(f", seen {_lag(consumer.last_seen)} ago", "default")
    return (
        Text.assemble((branch, "dim"), printable(consumer.consumer)),
        Text(),
        Text(shown(consumer.pending_events)),
        Text(_lag(consumer.lag)),
        Text(shown(consumer.last_tick)),
        state,
    )


def _lag(value: timedelta | None) -> str:
    return "-" if value is None else duration(value)


def _alert(alert: Alert) -> Padding:
    text = Text.assemble(("! ", "bold red"), printable(alert.message), "\n", "  ")
    text.append(printable(alert.remedy), "cyan")
    return Padding(text, (0, 0, 1, 0))
