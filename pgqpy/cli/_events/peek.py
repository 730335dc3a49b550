"""Events of a queue, read without consuming them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

from psycopg import sql
from psycopg.rows import args_row, scalar_row

from pgqpy.cli._base.database import no_such_queue
from pgqpy.connection import Connection
from pgqpy.event import Event

COLUMNS: LiteralString = """
select ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), ev_type,
       left(ev_data, %(cut)s) as ev_data, left(ev_extra1, %(cut)s), left(ev_extra2, %(cut)s),
       left(ev_extra3, %(cut)s), left(ev_extra4, %(cut)s)
"""
#: Characters that no text has.
UNCUT = 2**31 - 1

# Event tables are never analyzed: if a range of transactions had one end only, PostgreSQL would
# expect a third of the table, and read all of it.
LAST: LiteralString = "9223372036854775807"

# The tick to start from: the newest with that many events behind it. A transaction older than
# that tick's snapshot cannot hold newer events.
OLDEST_TXID: LiteralString = """
select split_part(t.tick_snapshot::text, ':', 1)::bigint
  from pgq.tick t
 where t.tick_queue = %(queue_id)s
   and t.tick_event_seq <=
       (select max(n.tick_event_seq) from pgq.tick n where n.tick_queue = %(queue_id)s) - %(back)s
 order by t.tick_id desc
 limit 1
"""
# The payload may be any text, so its JSON is read by a function that accepts that.
MATCHING: LiteralString = """
   and (%(event_type)s::text is null or ev_type = %(event_type)s)
   and (%(from_id)s::bigint is null or ev_id >= %(from_id)s)
   and (%(contains)s::text is null or position(%(contains)s in ev_data) > 0)
   and (%(path)s::text is null
        or case when %(value)s::text is null
                then cardinality(pgq.payload_values(ev_data, %(path)s::jsonpath)) > 0
                else %(value)s = any (pgq.payload_values(ev_data, %(path)s::jsonpath)) end)
"""
NEWEST: LiteralString = (
    COLUMNS
    + f"from {{events}} where ev_txid between %(txid)s and {LAST}"
    + MATCHING
    + "order by ev_id desc limit %(count)s"
)
SOME: LiteralString = f"""
(select * from {{}} where ev_txid between %(txid)s and {LAST}
  order by ev_id desc limit {{}}) newest
"""
HAS_MORE: LiteralString = "select count(*) = {most} from (select from {} limit {most}) found"


def _from(place: LiteralString) -> LiteralString:
    """Return events since two ticks before a place: a transaction that began since then is not in
    the snapshot of the tick before, and a tick reads the sequence before its snapshot, but after
    the tick before it was committed."""
    return f"""
{COLUMNS}
  from {{events}}
 where ev_txid >= coalesce((
           select split_part(t.tick_snapshot::text, ':', 1)::bigint
             from pgq.tick t
            where t.tick_queue = %(queue_id)s
              and {place}
            order by t.tick_id desc
           offset 1
            limit 1), 0)
   and ev_txid <= {LAST}
"""


FIRST: LiteralString = MATCHING + "order by ev_id limit %(count)s"
SINCE: LiteralString = _from("t.tick_time <= %(since)s") + "and ev_time >= %(since)s" + FIRST
FROM_ID: LiteralString = _from("t.tick_event_seq < %(from_id)s")
ONE: LiteralString = FROM_ID + "and ev_id = %(from_id)s order by ev_txid limit 1"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many events, and which: of a type, from an id on, whose payloads hold a text, or have a
    value at a jsonpath."""

    count: int
    event_type: str | None = None
    contains: str | None = None
    path: str | None = None
    value: str | None = None
    from_id: int | None = None
    #: The characters of each payload and extra field that are read.
    cut: int = UNCUT


class Newest(NamedTuple):
    """Events, oldest first, and whether all that the queue has was searched for them."""

    events: list[Event]
    complete: bool


def newest(conn: Connection, queue: str, wanted: Wanted, *, most: int | None = None) -> Newest:
    """Return the newest events; a tick is not needed. Raises QueueNotFound.

    For them it goes back as many ticks as needed, but not over more than ``most`` events: ids
    of transactions that were rolled back are missing, so one guess may not be enough.
    """
    queue_id, all_events = _events(conn, queue)
    events: sql.Composable = all_events
    if most is not None:
        events = sql.SQL(SOME).format(all_events, most)
    back, given = wanted.count, asdict(wanted)
    while True:
        with conn.cursor(row_factory=scalar_row) as cursor:
            place = {"queue_id": queue_id, "back": back}
            txid = cursor.execute(OLDEST_TXID, place).fetchone()
            found = _read(conn, sql.SQL(NEWEST).format(events=events), given | {"txid": txid or 0})
            if txid is None or len(found) == wanted.count or (most is not None and back >= most):
                has_more = (
                    most is not None
                    and cursor.execute(sql.SQL(HAS_MORE).format(all_events, most=most)).fetchone()
                )
                return Newest(found[::-1], not has_more)
        back *= 8


def since_then(conn: Connection, queue: str, since: datetime, wanted: Wanted) -> list[Event]:
    """Return the first events inserted since a time. Raises QueueNotFound."""
    return _found(conn, queue, SINCE, asdict(wanted) | {"since": since})


def from_id(conn: Connection, queue: str, wanted: Wanted) -> list[Event]:
    """Return the first events from ``wanted.from_id`` on. Raises QueueNotFound."""
    return _found(conn, queue, FROM_ID + FIRST, asdict(wanted))


def of_ticks(conn: Connection, queue: str, first: int, last: int, wanted: Wanted) -> list[Event]:
    """Return the first events between two ticks, in the form that a consumer gets."""
    with conn.cursor(row_factory=scalar_row) as scalar:
        text = scalar.execute(
            "select pgq.tick_range_sql(%s, %s, %s)", [queue, first, last]
        ).fetchone()
    assert text is not None
    # The text is a query built by pgqpy, complete with its literals.
    statement = sql.SQL(COLUMNS + "from ({}) e where true" + FIRST)
    return _read(conn, statement.format(sql.SQL(text.replace("%", "%%"))), asdict(wanted))


def one(conn: Connection, queue: str, event_id: int, cut: int = UNCUT) -> Event | None:
    """Return a stored event by its id, ``cut`` characters of each field. Raises QueueNotFound."""
    return next(iter(_found(conn, queue, ONE, {"from_id": event_id, "cut": cut})), None)


def _found(
    conn: Connection, queue: str, statement: LiteralString, given: dict[str, Any]
) -> list[Event]:
    queue_id, events = _events(conn, queue)
    return _read(conn, sql.SQL(statement).format(events=events), given | {"queue_id": queue_id})


def _events(conn: Connection, queue: str) -> tuple[int, sql.Identifier]:
    with conn.cursor(row_factory=scalar_row) as cursor:
        queue_id = cursor.execute(
            "select queue_id from pgq.queue where queue_name = %s", [queue]
        ).fetchone()
    if queue_id is None:
        raise no_such_queue(queue)
    return queue_id, sql.Identifier("pgq", f"event_{queue_id}")


def _read(conn: Connection, statement: sql.Composed, given: dict[str, Any]) -> list[Event]:
    with conn.cursor(row_factory=args_row(Event)) as cursor:
        return cursor.execute(statement, given).fetchall()
