"""``pgqpy status``: the state of all queues and consumers, once or repeatedly."""

from __future__ import annotations

from datetime import timedelta

import click

from pgqpy.cli._base.arguments import any_queue_argument
from pgqpy.cli._base.command import Command, stuck_after_option, watch_options
from pgqpy.cli._base.output import json_option, show
from pgqpy.cli._status.view import render
from pgqpy.connection import Connection
from pgqpy.doctor._queues import status_of
from pgqpy.doctor._readings import read
from pgqpy.doctor._status import judge


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
