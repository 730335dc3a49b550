"""``pgqpy event``: insert events by hand or from files, look at them, and cancel delayed ones."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from pgqpy.cli._base.command import Function, Group, dsn_option, json_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import QUEUE, TEXT
from pgqpy.cli._base.output import print_json_line, print_table, say
from pgqpy.cli._base.position import Moment
from pgqpy.cli._base.wording import shown
from pgqpy.cli._events.delayed import cancel, delayed, resolved
from pgqpy.cli._events.event_file import EventFile
from pgqpy.cli._events.event_input import ASSIGNED, FIELDS, Format
from pgqpy.cli._events.event_load import load
from pgqpy.cli._events.peek import newest, of_ticks
from pgqpy.event import Event
from pgqpy.producer import Producer


@click.group(cls=Group)
def event() -> None:
    """Insert events, and look at them without consuming them."""


event.add_command(cancel)
event.add_command(delayed)

EXTRAS = ("extra1", "extra2", "extra3", "extra4")


def _extra_options(function: Function) -> Function:
    for name in reversed(EXTRAS):
        function = click.option(f"--{name}", type=TEXT, metavar="TEXT", help=f"ev_{name}")(function)
    return function


@event.command(
    "insert",
    role="pgq_writer",
    examples=(
        """pgqpy event insert flights delayed '{"carrier": "UA", "minutes": 12}'""",
        "git log -1 | pgqpy event insert builds commit -",
        "pgqpy event insert flights --file events.jsonl",
        "pgqpy event insert flights flight --file flights.csv --whole-row",
        "pgqpy event insert flights remind UA12 --in '2 hours'",
        "pgqpy event insert orders paid 1047 --key 'order 1047'",
        "tail -F app.log | pgqpy event insert log line --file - --format lines --batch 1",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("event_type", metavar="[TYPE]", type=TEXT, required=False)
@click.argument("data", metavar="[DATA]", type=TEXT, required=False)
@_extra_options
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Insert the events of a file; - is standard input.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice([each.value for each in Format]),
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
@click.option(
    "--at", type=Moment(), metavar="TIME", help="Deliver at this time; local if without offset."
)
@click.option("--in", "delay", type=TEXT, metavar="INTERVAL", help="Deliver after this interval.")
@click.option(
    "--key",
    type=TEXT,
    metavar="TEXT",
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
    **extras: str | None,
) -> None:
    """Insert one event from the arguments, or the events of a file.

    DATA is the payload, any text; - reads it from standard input. A file has one event a line: JSON
    objects or CSV columns named type, data, extra1 to extra4. TYPE is then the type of events that
    have none. With --format lines each line is the data of an event of type TYPE. A file is
    inserted completely or, if there is any error in it, not at all.

    With --at or --in events are delivered later; until then `pgqpy event delayed` shows them, and
    `pgqpy event cancel` cancels them.
    """
    if at is not None and delay is not None:
        raise click.UsageError("Give --at or --in, not both.")
    if path is None:
        if event_type is None or data is None:
            raise click.UsageError("Give TYPE and DATA, or --file.")
        if file_format or whole_row or batch:
            raise click.UsageError("--format, --whole-row and --batch go with --file.")
        if data == "-":
            data = _standard_input()
        with connect(dsn) as conn:
            at = resolved(conn, at, delay)
            event_id = Producer(queue).insert_event(
                conn,
                event_type,
                data,
                extra1=extras["extra1"],
                extra2=extras["extra2"],
                extra3=extras["extra3"],
                extra4=extras["extra4"],
                at=at,
                key=key,
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
        EventFile.open(path, Format(file_format) if file_format else Format.of(path)) as file,
        connect(dsn) as conn,
    ):
        count = load(
            conn,
            queue,
            file.events(event_type=event_type, whole_row=whole_row),
            batch=batch,
            at=resolved(conn, at, delay),
        )
    say(f"inserted {count:,} event{'' if count == 1 else 's'} into {queue}")


def _standard_input() -> str:
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CliError(f"standard input is not UTF-8: {error.reason}", NOT_TEXT) from None
    if "\0" in text:
        raise CliError("standard input holds a NUL character", NOT_TEXT)
    return text


NOT_TEXT = "a payload is text; send binary data in base64"


@event.command(
    "peek",
    role="pgq_reader",
    examples=(
        "pgqpy event peek flights",
        "pgqpy event peek flights -n 3 --json",
        "pgqpy event peek flights --from-tick 1200 --to-tick 1201",
        "pgqpy event peek flights -n 1000 --json | pgqpy event insert copy --file -",
    ),
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
@click.option("--from-tick", type=click.IntRange(min=0), metavar="N", help="Only after this tick.")
@click.option("--to-tick", type=click.IntRange(min=0), metavar="N", help="Only up to this tick.")
@json_option
def peek(
    dsn: str,
    queue: str,
    count: int,
    from_tick: int | None,
    to_tick: int | None,
    as_json: bool,
) -> None:
    """Show the newest events of a queue, or those between two ticks. Consumes nothing.

    The newest events are shown as soon as they are committed, ticked or not. With --json each
    event is an object on a line of its own, with the keys id, time, txid, retry, type, data,
    extra1 to extra4; `insert --file` takes such lines.
    """
    if (from_tick is None) != (to_tick is None):
        raise click.UsageError("--from-tick and --to-tick go together.")
    with connect(dsn) as conn:
        if from_tick is None or to_tick is None:
            events = newest(conn, queue, count)
        else:
            events = of_ticks(conn, queue, from_tick, to_tick, count)
    if as_json:
        for each in events:
            print_json_line(_keys(each))
    elif not events:
        say(f"queue {queue} has no events there")
    else:
        _print(events)


def _keys(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in (*ASSIGNED, *FIELDS)}


def _print(events: list[Event]) -> None:
    used = [name for name in EXTRAS if any(getattr(event, name) for event in events)]
    print_table(
        ("Id", "Time", "Type", "Data", *(name.capitalize() for name in used)),
        [
            (str(each.id), each.time, each.type, each.data, *(getattr(each, n) for n in used))
            for each in events
        ],
        cut=True,
    )
