"""Reading events without consuming them."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql
from psycopg.rows import args_row, scalar_row

import pgqpy
from pgqpy import Event
from pgqpy.cli._base.database import no_such_queue

COLUMNS: LiteralString = """
select ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), ev_type, ev_data,
       ev_extra1, ev_extra2, ev_extra3, ev_extra4
"""

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

NEWEST: LiteralString = (
    COLUMNS + " from {events} where ev_txid >= %(txid)s order by ev_id desc limit %(count)s"
)


def newest(conn: pgqpy.Connection, queue: str, count: int) -> list[Event]:
    """Return the newest events, oldest first, including those that no tick covers yet.

    It goes back as many ticks as needed: ids of rolled-back transactions are missing, so one
    guess may not be enough.
    """
    with (
        conn.cursor(row_factory=scalar_row) as scalar,
        conn.cursor(row_factory=args_row(Event)) as cursor,
    ):
        queue_id = scalar.execute(
            "select queue_id from pgq.queue where queue_name = %s", [queue]
        ).fetchone()
        if queue_id is None:
            raise no_such_queue(queue)
        statement = sql.SQL(NEWEST).format(events=sql.Identifier("pgq", f"event_{queue_id}"))
        back = count
        while True:
            place = {"queue_id": queue_id, "back": back}
            txid = scalar.execute(OLDEST_TXID, place).fetchone()
            found = cursor.execute(statement, {"txid": txid or 0, "count": count}).fetchall()
            if txid is None or len(found) == count:
                return found[::-1]
            back *= 8


def of_ticks(conn: pgqpy.Connection, queue: str, first: int, last: int, count: int) -> list[Event]:
    """Return the first events between two ticks, in the form that a consumer gets."""
    with conn.cursor(row_factory=scalar_row) as scalar:
        text = scalar.execute(
            "select pgq.tick_range_sql(%s, %s, %s)", [queue, first, last]
        ).fetchone()
    assert text is not None
    with conn.cursor(row_factory=args_row(Event)) as cursor:
        # The text is a query built by pgqpy, complete with its literals.
        statement = sql.SQL(COLUMNS + "from ({}) e order by ev_id limit {}")
        return cursor.execute(statement.format(sql.SQL(text), count)).fetchall()
