"""Events of a queue as they come, found by what they hold, and where one of them is."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from pgqpy.admin import Admin
from pgqpy.cli._events.event import EVENT_STATES, details
from pgqpy.cli._events.event_file import event_keys
from pgqpy.cli._events.peek import Wanted, from_id, newest, of_ticks, one, since_then
from pgqpy.connection import Connection
from pgqpy.doctor._history import COUNTERS
from pgqpy.errors import (
    ConsumerNotRegistered,
    InvalidParameter,
    PermissionDenied,
    PgqError,
    translate_errors,
)
from pgqpy.event import Event
from pgqpy.models import EventPlace
from pgqpy.producer import Producer
from pgqpy.ui._mask import masked, require_flat, text_masked
from pgqpy.ui._view import Done, File, Look, NotFound, View, address

#: Events on a page, and in a file.
SHOWN, LOADED = 100, 1000
#: The events that a search of the newest looks at.
SEARCHED = 50_000
#: Characters of a payload in the list, on its page, and of all in a file.
CUT, LONGEST, FILE = 2000, 200_000, 32 * 2**20
EXTRAS = ("extra1", "extra2", "extra3", "extra4")
FIELDS = ("type", "since", "from", "contains", "path", "value", "unread")
#: With one of these the first events are shown, not the newest.
OLDEST_FIRST = ("since", "from", "unread")
#: What a spreadsheet computes, but for numbers.
FORMULA = re.compile(r"[=@\t\r]|[-+](?![0-9.]+$)")

# PostgreSQL checks the right to insert on the queue's relation.
MAY_INSERT = """
select has_any_column_privilege(to_regclass(format('pgq_queue.%%I', %s::text)), 'insert')
"""
TICKS = """
select t.tick_id
  from pgq.queue q
  join pgq.tick t on t.tick_queue = q.queue_id
 where q.queue_name = %s
 order by t.tick_id desc
 limit 1
"""


def events(look: Look) -> dict[str, Any]:
    conn = look.visit.conn
    written: dict[str, int] = dict(conn.execute(COUNTERS).fetchall())
    queue = look.name or max(written, key=written.__getitem__, default="")
    found: list[Event] = []
    complete = True
    problem: PgqError | None = None
    if queue:
        try:
            with conn.transaction():
                found, complete = _found(look, queue, SHOWN, CUT)
        except (InvalidParameter, PermissionDenied) as error:
            problem = error
    return {
        "names": sorted(written),
        "queue": queue,
        "given": {name: look.query.get(name, "") for name in FIELDS},
        "found": found if any(map(look.query.get, OLDEST_FIRST)) else found[::-1],
        "searched": None if complete else SEARCHED,
        "most": SHOWN,
        "problem": problem,
        "link": {name: look.query[name] for name in FIELDS if name in look.query},
        "may_insert": not look.visit.read_only
        and conn.execute(MAY_INSERT, [queue]).fetchone() == (True,),
        "extras": EXTRAS,
    }


def _found(look: Look, queue: str, count: int, cut: int) -> tuple[list[Event], bool]:
    """Return the events of the URL's conditions, oldest first, and whether all were searched."""
    given = {name: look.query.get(name, "").replace("\0", "").strip() or None for name in FIELDS}
    if given["value"] is not None and given["path"] is None:
        raise InvalidParameter("a value is found by its JSON path", hint="give both, as in $.id: 7")
    try:
        first = None if given["from"] is None else int(given["from"][:18])
        since = None if given["since"] is None else datetime.fromisoformat(given["since"])
    except ValueError:
        raise InvalidParameter(
            "give the first id in digits, the time as 2026-11-21 08:30"
        ) from None
    wanted = Wanted(
        count, given["type"], given["contains"], given["path"], given["value"], first, cut
    )
    try:
        with translate_errors():
            if since is not None:
                since = since if since.tzinfo else since.replace(tzinfo=UTC)
                return since_then(look.visit.conn, queue, since, wanted), True
            if given["unread"] is not None:
                return _unread(look.visit.conn, queue, given["unread"], wanted), True
            if first is not None:
                return from_id(look.visit.conn, queue, wanted), True
            most = SEARCHED if any(given.values()) else None
            return newest(look.visit.conn, queue, wanted, most=most)
    except PermissionDenied:
        raise
    except PgqError as error:
        if error.sqlstate == "57014":
            raise InvalidParameter(
                "the search took too long", hint="search from a later time, or by fewer conditions"
            ) from None
        if error.sqlstate and error.sqlstate[:2] in ("22", "42") and given["path"]:
            raise InvalidParameter(
                f"{given['path']!r} is no JSON path of PostgreSQL: {error.message}",
                hint="write it as $.customer.id, or $.lines[*].price",
            ) from None
        raise


def _unread(conn: Connection, queue: str, consumer: str, wanted: Wanted) -> list[Event]:
    """Return the first events that a consumer is to read, up to the newest tick."""
    ticks = conn.execute(TICKS, [queue]).fetchall()
    for info in Admin(conn).get_consumer_info(queue, consumer):
        if info.last_tick is None or not ticks:
            return []
        return of_ticks(conn, queue, info.last_tick, max(info.last_tick, ticks[0][0]), wanted)
    raise ConsumerNotRegistered(f"queue {queue!r} has no consumer {consumer!r}")


def download(look: Look) -> File:
    """Return the events of the URL's conditions, as JSON lines or CSV."""
    found, _ = _found(look, look.name, LOADED, FILE // LOADED + 1)
    for each in found:
        texts = (getattr(each, name) or "" for name in ("data", *EXTRAS))
        if any(len(text) > FILE // LOADED for text in texts):
            raise InvalidParameter(
                f"event {each.id} has more than {FILE // LOADED:,} characters in a field: too many"
                " for this file",
                hint="find only others, or write the file by"
                f" `pgqpy event peek {quote(look.name)} -n {LOADED} --json`",
            )
    rows = []
    for each in found:
        row = event_keys(each) | {"time": each.time.isoformat()}
        for name in ("data", *EXTRAS) if look.masks else ():
            # That of a captured change is the row before.
            row[name] = row[name] and text_masked(row[name], look.masks)
        rows.append(row)
    text = io.StringIO()
    if look.query["download"] == "csv":
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["id"])
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    name: f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value
                    for name, value in row.items()
                }
            )
        return File(f"{look.name}.csv", "text/csv", text.getvalue())
    text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return File(f"{look.name}.jsonl", "application/x-ndjson", text.getvalue())


def event(look: Look) -> dict[str, Any]:
    number = look.query.get("id", "")
    try:
        event_id = int(number)
        assert -(2**63) <= event_id < 2**63
    except (ValueError, AssertionError):
        raise NotFound(f"{number!r} is no id of an event") from None
    places, found = _places(look, event_id), None
    if not places or places[0].state == "stored":
        found = one(look.visit.conn, look.name, event_id, LONGEST + 1)
    if not places and found is None:
        raise NotFound(f"queue {look.name} has no event {event_id}")
    state = places[0].state if places else "stored"
    return {
        "queue": look.name,
        "id": event_id,
        "is_stored": state == "stored",
        "itself": EVENT_STATES[state].removesuffix("{}"),
        "time": places[0].due or places[0].since if places else found and found.time,
        "may_locate": bool(places),
        "places": [(each, details(each)) for each in places[1:]],
        "event": found,
        "is_cut": found is not None and len(found.data or "") > LONGEST,
        "longest": LONGEST,
        "rows": [] if found is None else compared(found, look),
        "extras": [(name, getattr(found, name)) for name in EXTRAS] if found else [],
    }


def _places(look: Look, event_id: int) -> list[EventPlace]:
    """Return where an event is, first what has become of it; nothing if the role may not know."""
    try:
        with look.visit.conn.transaction():
            return Admin(look.visit.conn).where_is_event(look.name, event_id)
    except PermissionDenied:
        return []


def compared(change: Event, look: Look) -> list[tuple[str, Any, Any, bool]]:
    """Return a captured change as (column, before, after, whether it differs)."""
    if change.operation in (None, "TRUNCATE"):
        return []
    try:
        whole, before_it = change.row(), change.old_row() or {}
        require_flat([whole, before_it])
    except (ValueError, RecursionError):
        return []  # no row, or it was cut, or is nested too deeply
    row: Any = masked(whole, look.masks)
    old: Any = masked(before_it, look.masks)
    if change.operation == "DELETE":
        return [(name, value, None, False) for name, value in row.items()]
    # The old row may hold the changed columns only.
    before = {} if change.operation == "INSERT" or not old else row | old
    return [
        (name, before.get(name), value, bool(before) and before[name] != value)
        for name, value in row.items()
    ]


def insert(look: Look, form: Mapping[str, str]) -> Done:
    """Insert an event; what was left empty is NULL."""
    extras: dict[str, Any] = {name: form.get(name) or None for name in EXTRAS}
    if not form.get("type"):
        raise InvalidParameter("the event has no type", hint="give it one, such as placed")
    number = Producer(look.name).insert_event(
        look.visit.conn, form["type"], form.get("data") or None, **extras
    )
    return Done(f"inserted event {number} into {look.name}", address("events", name=look.name))


VIEWS = [
    View("events", "Events", events, {"insert": insert}, "events", download=download),
    View("event", "Event", event, menu="events"),
]
