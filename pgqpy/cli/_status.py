"""``pgqpy status``: queues, their consumers, and the problems, once or repeatedly."""

from __future__ import annotations

from datetime import timedelta

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgqpy._runtime.words import brief, duration, plural, printable
from pgqpy.cli._base.arguments import any_queue_argument
from pgqpy.cli._base.command import Command, stuck_after_option, watch_options
from pgqpy.cli._base.output import empty_table, json_option, show, shown
from pgqpy.connection import Connection
from pgqpy.consumer.progress import BatchProgress
from pgqpy.doctor import Finding
from pgqpy.doctor._queues import Status, status_of
from pgqpy.doctor._readings import read
from pgqpy.doctor._status import ConsumerState, ConsumerStatus, QueueState, QueueStatus, judge

#: Consumers and queues by their states, the worst last.
STYLES = {
    ConsumerState.OK: "green",
    ConsumerState.PAUSED: "yellow",
    ConsumerState.BEHIND: "yellow",
    ConsumerState.FAILING: "bold red",
    ConsumerState.STUCK: "bold red",
    QueueState.TICKING: "green",
    QueueState.PAUSED: "yellow",
    QueueState.EXTERNAL: "cyan",
    QueueState.NO_TICKER: "bold red",
}


@click.command(cls=Command, role="pgq_reader")
@any_queue_argument
@watch_options
@stuck_after_option
@json_option
def status(
    conn: Connection, queue: str | None, watch: bool, every: float, stuck_after: float
) -> None:
    """Show how queues and consumers are doing, and what is wrong.

    A queue's line shows the events per second, the events that no tick covers yet, and the age and
    number of its last tick. The lines below it are its consumers: their pending events and the age
    of their position. Problems are listed under the table with their remedies: no ticker, stuck
    consumers, blocked rotation, transactions left open. `pgqpy doctor` checks more.

    Examples:
      pgqpy status
      pgqpy status flights --watch
      pgqpy status --json | jq '.queues[] | {queue, unticked_events}'
    """
    patience = timedelta(seconds=stuck_after)
    show(
        lambda: status_of(judge(read(conn, queue, patience), patience)),
        render,
        every=every if watch else None,
    )


def render(status: Status) -> RenderableType:
    """Draw the whole status, as narrow as its names allow."""
    parts: list[RenderableType] = [_heading(status), ""]
    if status.queues:
        parts.append(_table(status.queues))
    else:
        parts.append("no queues yet; make one: pgqpy queue create NAME")
    for alert in status.alerts:
        parts += ["", _alert(alert)]
    return Group(*parts)


def _heading(status: Status) -> Text:
    server = status.server
    consumers = sum(len(queue.consumers) for queue in status.queues)
    ticker, style = f"ticker in session {server.ticker_pid}", ""
    if server.standby_lag is not None:
        ticker = f"standby, {duration(server.standby_lag)} behind"
    elif not server.ticker_pid:
        ticker, style = "no pgqpy ticker", "yellow"
    return Text.assemble(
        (printable(server.database), "bold"),
        f" · PostgreSQL {server.server_version.split()[0]}"
        f" · {plural(len(status.queues), 'queue')}, {plural(consumers, 'consumer')}"
        " · ",
        (ticker, style),
    )


def _table(queues: list[QueueStatus]) -> Table:
    table = empty_table()
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
            branch = "└ " if index == last else "├ "
            table.add_row(*_consumer_cells(consumer, branch, queue))
    return table


def _queue_cells(queue: QueueStatus) -> tuple[Text, ...]:
    state = Text(queue.state, STYLES[queue.state])
    if queue.rotation_held_by:
        state.append(", rotation held", "yellow")
    if queue.retry_events:
        state.append(f", {queue.retry_events:,} to retry", "yellow")
    if queue.delayed_events and queue.next_due_in is not None:
        next_in = brief(max(queue.next_due_in, timedelta()))
        state.append(f", {queue.delayed_events:,} delayed, next in {next_in}", "default")
    if queue.dead_letters:
        state.append(f", {plural(queue.dead_letters, 'dead letter')}", "yellow")
    if not queue.consumers:
        state.append(", no consumers", "dim")
    return (
        Text(printable(queue.queue), "bold"),
        Text(shown(queue.events_per_second)),
        Text(shown(queue.unticked_events)),
        Text(lasting(queue.tick_age)),
        Text(shown(queue.last_tick)),
        state,
    )


def _consumer_cells(consumer: ConsumerStatus, branch: str, queue: QueueStatus) -> tuple[Text, ...]:
    state = Text(consumer.state, STYLES[consumer.state])
    if consumer.state is ConsumerState.STUCK:
        state.append(f", seen {lasting(consumer.last_seen)} ago", "default")
    if consumer.paused is not None:
        also = "" if consumer.state is ConsumerState.PAUSED else ", paused"
        state.append(f"{also} since {shown(consumer.paused)}", "default")
    if consumer.failing is not None:
        state.append(f", {plural(consumer.failing.attempts, 'time')}", "default")
    if consumer.dead_letters:
        state.append(f", {plural(consumer.dead_letters, 'dead letter')}", "yellow")
    if consumer.progress is not None:
        state.append(f", {_progress(consumer.progress)}", "default")
    return (
        Text.assemble((branch, "dim"), printable(consumer.consumer)),
        Text(),
        Text(shown(queue.unread_by(consumer))),
        Text(lasting(consumer.lag)),
        Text(shown(consumer.last_tick)),
        state,
    )


def _progress(progress: BatchProgress) -> str:
    tasks = "" if progress.tasks is None else f": {progress.tasks_done}/{progress.tasks} tasks"
    return f"batch {progress.batch_id} for {brief(progress.running)}{tasks}"


def lasting(value: timedelta | None) -> str:
    return "-" if value is None else brief(value)


def _alert(alert: Finding) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text("!", "bold red"), Text(printable(alert.message)))
    grid.add_row("", Text(printable(alert.remedy or ""), "cyan"))
    return grid
