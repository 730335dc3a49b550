"""Delayed events: list and cancel them."""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString

import click
import psycopg
from psycopg.rows import dict_row

import pgqpy
from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import QUEUE
from pgqpy.cli._base.output import print_json_line, print_table, say

DELAYED: LiteralString = """
select due, ev_id as id, ev_type as type, ev_data as data,
       ev_extra1 as extra1, ev_extra2 as extra2, ev_extra3 as extra3, ev_extra4 as extra4
  from pgq.get_delayed_events(%s, %s)
"""


def resolved(conn: pgqpy.Connection, at: datetime | None, delay: str | None) -> datetime | None:
    """Return the time of delivery: a given time, or now plus an interval as PostgreSQL reads it."""
    if delay is None:
        return at
    try:
        row = conn.execute("select clock_timestamp() + %s::interval", [delay]).fetchone()
    except psycopg.DataError as error:
        raise CliError(
            f"{delay!r} is no delay: {error.diag.message_primary or 'no date is so far away'}",
            "write it as PostgreSQL does: '90 seconds', '2h', '1 day'",
        ) from None
    assert row is not None
    (time,) = row
    assert isinstance(time, datetime)
    return time


@click.command(
    "delayed",
    cls=Command,
    role="pgq_reader",
    examples=("pgqpy event delayed flights", "pgqpy event delayed flights -n 1000 --json"),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="The maximum number of events to show.",
)
@json_option
def delayed(dsn: str, queue: str, count: int, as_json: bool) -> None:
    """Show the delayed events, the next ones first.

    Retries of consumers are not shown. With --json each is an object on a line of its own,
    with the keys due, id, type, data, extra1 to extra4.
    """
    with connect(dsn) as conn, conn.cursor(row_factory=dict_row) as cursor:
        events = cursor.execute(DELAYED, [queue, count]).fetchall()
    if as_json:
        for event in events:
            print_json_line(event)
    elif not events:
        say(f"queue {queue} has no delayed events")
    else:
        print_table(
            ("Due", "Id", "Type", "Data"),
            [(each["due"], str(each["id"]), each["type"], each["data"]) for each in events],
            cut=True,
        )


@click.command(
    "cancel",
    cls=Command,
    role="pgq_writer",
    examples=("pgqpy event cancel flights 1047", "pgqpy event cancel flights 1047 1048 1050"),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("event_ids", metavar="EVENT...", type=int, nargs=-1, required=True)
def cancel(dsn: str, queue: str, event_ids: tuple[int, ...]) -> None:
    """Cancel delayed events by their ids.

    All of them or none: it is an error if one was delivered, cancelled, or never existed.
    """
    with connect(dsn) as conn, conn.transaction():
        producer = pgqpy.Producer(queue)
        gone = [each for each in event_ids if not producer.cancel_event(conn, each)]
        if gone:
            raise CliError(
                f"not waiting in queue {queue}: {', '.join(map(str, gone))}; nothing was cancelled",
                f"see what waits: pgqpy event delayed {queue}",
            )
    say(f"cancelled {len(event_ids):,} event{'' if len(event_ids) == 1 else 's'} of {queue}")
