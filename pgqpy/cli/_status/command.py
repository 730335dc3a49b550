"""``pgqpy status``: the state of all queues and consumers, once or repeatedly."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import click
from rich.live import Live

import pgqpy
from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.names import QUEUE
from pgqpy.cli._base.output import console, print_json, print_json_line, print_rich
from pgqpy.cli._status.health import Status, judge
from pgqpy.cli._status.query import read
from pgqpy.cli._status.view import render


@click.command(
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy status",
        "pgqpy status flights --watch",
        "pgqpy status --json | jq '.queues[] | {queue, unticked_events}'",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE, required=False)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: how often.",
)
@click.option(
    "--stuck-after",
    type=click.FloatRange(min=0),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How far behind a consumer, or how old a transaction, may be before it is reported.",
)
@json_option
def status(
    dsn: str, queue: str | None, watch: bool, every: float, stuck_after: float, as_json: bool
) -> None:
    """Show how queues and consumers are doing, and what is wrong.

    A queue's line shows the events per second, the events that no tick covers yet, and the age and
    number of its last tick. The lines below it are its consumers: their pending events and the age
    of their position. Problems are listed under the table with their remedies: no ticker, stuck
    consumers, blocked rotation, transactions left open.
    """
    patience = timedelta(seconds=stuck_after)
    with connect(dsn) as conn:
        if not watch:
            now = _status(conn, queue, patience)
            if as_json:
                print_json(now)
            else:
                print_rich(render(now))
        elif as_json or not console().is_terminal:
            _stream(conn, queue, patience, every, as_json=as_json)
        else:
            _watch(conn, queue, patience, every)


def _status(conn: pgqpy.Connection, queue: str | None, patience: timedelta) -> Status:
    return judge(read(conn, queue, patience), patience)


def _stream(
    conn: pgqpy.Connection,
    queue: str | None,
    patience: timedelta,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Print one status after the other; each is flushed, because readers want it at once."""
    while True:
        now = _status(conn, queue, patience)
        if as_json:
            print_json_line(now)
        else:
            print_rich(render(now))
        sys.stdout.flush()
        time.sleep(seconds)


def _watch(conn: pgqpy.Connection, queue: str | None, patience: timedelta, seconds: float) -> None:
    with Live(console=console(), screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(render(_status(conn, queue, patience)), refresh=True)
            time.sleep(seconds)
