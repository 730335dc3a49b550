"""``pgqpy event``: insert events by hand or from files, look at them, and cancel delayed ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any, LiteralString

import click
import psycopg

from pgqpy._runtime.words import plural
from pgqpy.admin import Admin
from pgqpy.cli._base.arguments import MOMENT, TEXT, due_options, queue_argument
from pgqpy.cli._base.command import Group, count_option, options
from pgqpy.cli._base.database import connect, dict_rows
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_items, say, shown, wants_json
from pgqpy.cli._events.event_file import FIELDS, FORMATS, event_keys, open_events
from pgqpy.cli._events.peek import Wanted, newest, of_ticks, since_then
from pgqpy.connection import Connection
from pgqpy.event import NewEvent
from pgqpy.models import EventPlace
from pgqpy.producer import Producer

EVENT_STATES = {
    "stored": "stored, inserted at {}",
    "delayed": "delayed until {}",
    "not committed": "not there; its transaction is open, or was rolled back just now",
    "not kept": "not kept any more, if it ever was there: rotated away, or rolled back",
    "absent": "not there: rolled back, cancelled, or never inserted",
}
"""What has become of an event itself, in words."""

NOT_TEXT = "a payload is text; send binary data in base64"

DELAYED: LiteralString = """
select due, ev_id as id, ev_type as type, ev_data as data,
       ev_extra1 as extra1, ev_extra2 as extra2, ev_extra3 as extra3, ev_extra4 as extra4
  from pgq.get_delayed_events(%s, %s)
"""


@click.group(cls=Group)
def event() -> None:
    """Insert events, and look at them without consuming them."""


@event.command("insert", role="pgq_writer")
@queue_argument
@click.argument("event_type", metavar="[TYPE]", type=TEXT, required=False)
@click.argument("data", metavar="[DATA]", type=TEXT, required=False)
@options(*(click.option(f"--{name}", type=TEXT, help=f"ev_{name}") for name in FIELDS[2:]))
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Insert the events of a file; - is standard input.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    help="The file's format, if its name (.csv, .jsonl) does not tell; jsonl for -.",
)
@click.option(
    "--whole-row",
    is_flag=True,
    help="A row of the file is the data of an event, as JSON, instead of an event's fields.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Commit after every N events; without it the whole file is one transaction.",
)
@due_options
@click.option(
    "--key",
    type=TEXT,
    help="Only if no event with this key was inserted within the queue's key_window.",
)
def insert(
    dsn: str,
    queue: str,
    event_type: str | None,
    data: str | None,
    path: str | None,
    file_format: str | None,
    whole_row: bool,
    batch: int | None,
    at: datetime | None,
    delay: str | None,
    key: str | None,
    **extras: Any,
) -> None:
    """Insert one event from the arguments, or the events of a file.

    DATA is the payload, any text; - reads it from standard input. A file has one event a line: JSON
    objects or CSV columns named type, data, extra1 to extra4. TYPE is then the type of events that
    have none. With --format lines each line is the data of an event of type TYPE. A file is
    inserted completely or, if there is any error in it, not at all.

    With --at or --delay events are delivered later; until then `pgqpy event delayed` shows them,
    and `pgqpy event cancel` cancels them.

    Examples:
      pgqpy event insert flights delayed '{"carrier": "UA", "minutes": 12}'
      git log -1 | pgqpy event insert builds commit -
      pgqpy event insert flights --file events.jsonl
      pgqpy event insert flights flight --file flights.csv --whole-row
      pgqpy event insert flights remind UA12 --delay '2 hours'
      pgqpy event insert orders paid 1047 --key 'order 1047'
      tail -F app.log | pgqpy event insert log line --file - --format lines --batch 1
    """
    if path is None:
        if event_type is None or data is None:
            raise click.UsageError("Give TYPE and DATA, or --file.")
        if file_format or whole_row or batch:
            raise click.UsageError("--format, --whole-row and --batch go with --file.")
        if data == "-":
            data = _standard_input()
        with connect(dsn) as conn:
            at = _due(conn, at, delay)
            event_id = Producer(queue).insert_event(
                conn, event_type, data, at=at, key=key, **extras
            )
        later = "" if at is None else f", to be delivered at {shown(at)}"
        if key is None:
            say(f"inserted 1 event into {queue}{later}: {event_id}")
        else:
            say(f"the event with this key in {queue}, inserted now or before: {event_id}")
        return
    if data is not None or key is not None or any(extras.values()):
        raise click.UsageError(
            "DATA, --key and --extra1 to --extra4 are for one event, not for --file."
        )
    with (
        open_events(path, file_format, event_type=event_type, whole_row=whole_row) as events,
        connect(dsn) as conn,
    ):
        count = _insert_all(conn, queue, events, batch, _due(conn, at, delay))
    say(f"inserted {plural(count, 'event')} into {queue}")


def _standard_input() -> str:
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CliError(f"standard input is not UTF-8: {error.reason}", NOT_TEXT) from None
    if "\0" in text:
        raise CliError("standard input holds a NUL character", NOT_TEXT)
    return text


def _due(conn: Connection, at: datetime | None, delay: str | None) -> datetime | None:
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


def _insert_all(
    conn: Connection, queue: str, events: Iterator[NewEvent], batch: int | None, at: datetime | None
) -> int:
    """Insert the events and return their number.

    Without ``batch`` an error rolls all of them back; with it, the error says how many were
    committed before.
    """
    producer = Producer(queue)
    if batch is None:
        return producer.insert_events(conn, events, at=at)
    inserted = 0
    try:
        for first in events:
            some = chain([first], islice(events, batch - 1))
            inserted += producer.insert_events(conn, some, at=at)
    except Exception as error:
        error.add_note(f"{inserted:,} events were inserted before")
        raise
    return inserted


@event.command("peek", role="pgq_reader")
@queue_argument
@count_option(10)
@click.option("--from-tick", type=click.IntRange(min=0), metavar="N", help="Only after this tick.")
@click.option("--to-tick", type=click.IntRange(min=0), metavar="N", help="Only up to this tick.")
@click.option("--since", type=MOMENT, help="The first ones inserted since then (ISO 8601).")
@click.option("--type", "event_type", type=TEXT, help="Only events of this type.")
@click.option("--contains", type=TEXT, metavar="TEXT", help="Only if the data holds this text.")
@click.option("--path", type=TEXT, help="Only if the data is JSON that has this jsonpath.")
@click.option("--value", type=TEXT, help="With --path: only if it has this value there.")
@json_option
def peek(
    conn: Connection,
    queue: str,
    count: int,
    from_tick: int | None,
    to_tick: int | None,
    since: datetime | None,
    **matching: Any,
) -> None:
    """Show events: the newest, since a time, or between two ticks.

    Consumes nothing. With conditions it reads until enough events meet all of them, if need be all
    that the queue has. `pgqpy event where` says which consumers have read one.

    The newest events are shown as soon as they are committed, ticked or not. With --json each
    event is an object on a line of its own, with the keys id, time, txid, retry, type, data,
    extra1 to extra4; `insert --file` takes such lines.

    Examples:
      pgqpy event peek flights
      pgqpy event peek flights -n 3 --json
      pgqpy event peek flights --since 2026-11-21T08:30
      pgqpy event peek flights --from-tick 1200 --to-tick 1201
      pgqpy event peek flights --type delayed --path '$.carrier' --value UA
      pgqpy event peek flights -n 1000 --json | pgqpy event insert copy --file -
    """
    if (from_tick is None) != (to_tick is None):
        raise click.UsageError("--from-tick and --to-tick go together.")
    if since is not None and to_tick is not None:
        raise click.UsageError("--since and --to-tick exclude each other.")
    if matching["value"] is not None and matching["path"] is None:
        raise click.UsageError("--value goes with --path.")
    wanted = Wanted(count, **matching)
    if from_tick is not None and to_tick is not None:
        events = of_ticks(conn, queue, from_tick, to_tick, wanted)
    elif since is not None:
        events = since_then(conn, queue, since, wanted)
    else:
        events = newest(conn, queue, wanted).events
    found = [event_keys(each) for each in events]
    columns: dict[str, Any] = {
        "Id": lambda each: str(each["id"]),
        "Time": "time",
        "Type": "type",
        "Data": "data",
    }
    used = [name for name in FIELDS[2:] if any(each[name] for each in found)]
    print_items(
        found,
        columns | {name.capitalize(): name for name in used},
        empty=f"queue {queue} has no events there",
        each_a_line=True,
    )


@event.command("where", role="pgq_reader")
@queue_argument
@click.argument("event_id", metavar="EVENT", type=click.IntRange(-(2**63), 2**63 - 1))
@json_option
def where(conn: Connection, queue: str, event_id: int) -> None:
    """Say for each consumer where an event is.

    Not read yet, and how far away; in the open batch; done; waiting for a retry; parked; a dead
    letter; skipped. It is exact, by the snapshots of ticks, not by comparing ids. `pgqpy event
    peek` finds ids by what events hold. With --json it is a list of objects: first the event
    itself, then its consumers.

    Examples:
      pgqpy event where flights 1047
    """
    places = Admin(conn).where_is_event(queue, event_id)
    itself, *of_consumers = places
    if not wants_json():
        time = shown(itself.due or itself.since)
        say(f"event {event_id} of {queue}: {EVENT_STATES[itself.state].format(time)}")
        if not of_consumers:
            return
        click.echo()
    print_items(
        places if wants_json() else of_consumers,
        {
            "Consumer": lambda each: (
                each.consumer if each.partition is None else f"{each.consumer}#{each.partition}"
            ),
            "State": "state",
            "Time": lambda each: each.due or each.since,
            "Details": details,
        },
        empty="",
    )


def details(place: EventPlace) -> str:
    """Put the rest of what is known about an event for a consumer into words."""
    parts: list[str | None] = []
    if place.ticks is not None and place.events is not None:
        parts.append(f"{plural(place.events, 'event')}, {plural(place.ticks, 'tick')} to go")
    if place.state == "retry" or (place.state == "parked" and place.due is not None):
        parts.append(f"attempt {place.attempt} then")
    elif place.state == "parked":
        parts.append("until the key is unparked")
    elif place.state == "dead letter":
        parts.append(f"after attempt {place.attempt}")
    elif place.attempt is not None and place.attempt > 1:
        parts.append(f"attempt {place.attempt}")
    if place.state == "in batch":
        parts.append(f"batch {place.batch_id}")
    parts += [place.worker and f"worker {place.worker}", place.reason]
    return "; ".join(part for part in parts if part) or "-"


@event.command("delayed", role="pgq_reader")
@queue_argument
@count_option(10)
@json_option
def delayed(conn: Connection, queue: str, count: int) -> None:
    """Show the delayed events, the next ones first.

    Retries of consumers are not shown. With --json each is an object on a line of its own,
    with the keys due, id, type, data, extra1 to extra4.

    Examples:
      pgqpy event delayed flights -n 1000 --json
    """
    print_items(
        dict_rows(conn, DELAYED, [queue, count]),
        {"Due": "due", "Id": lambda each: str(each["id"]), "Type": "type", "Data": "data"},
        empty=f"queue {queue} has no delayed events",
        each_a_line=True,
    )


@event.command("cancel", role="pgq_writer")
@queue_argument
@click.argument("event_ids", metavar="EVENT...", type=int, nargs=-1, required=True)
def cancel(conn: Connection, queue: str, event_ids: tuple[int, ...]) -> None:
    """Cancel delayed events by their ids.

    All of them or none: it is an error if one was delivered, cancelled, or never existed.

    Examples:
      pgqpy event cancel flights 1047
      pgqpy event cancel flights 1047 1048 1050
    """
    with conn.transaction():
        producer = Producer(queue)
        gone = [each for each in event_ids if not producer.cancel_event(conn, each)]
        if gone:
            raise CliError(
                f"not waiting in queue {queue}: {', '.join(map(str, gone))}; nothing was cancelled",
                f"see what waits: pgqpy event delayed {queue}",
            )
    say(f"cancelled {plural(len(event_ids), 'event')} of {queue}")
