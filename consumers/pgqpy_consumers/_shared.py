"""Parts of several consumers: pieces of a batch, names of events, links of traces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from psycopg import sql

from pgqpy import Batch, Connection, Event
from pgqpy.errors import translate_errors

T = TypeVar("T")


def pieces(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of up to ``size``."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def identity(event: Event, *scope: str) -> str:
    """A name that is the same at each delivery, for systems outside the database: the event's id,
    and a digest of id, time and ``scope`` (the queue and the receiver).

    The time tells databases apart, and a queue from an earlier one of the same name.
    """
    text = "\n".join((*scope, str(event.id), event.time.isoformat()))
    return f"{event.id}.{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def watch_events(conn: Connection, batch: Batch) -> None:
    """Show traced events, a thousand at most, to what watches a batch that is read elsewhere."""
    if batch.watch is None:
        return
    texts = None if batch.elsewhere is None else batch.elsewhere.use(batch, _traced)
    if texts is None:
        texts = _traced(conn, batch.sql)
    batch.watch([Event(0, batch.tick_time, 0, 0, None, None, extra4=text) for (text,) in texts])


def _traced(conn: Connection, query: str) -> list[Any]:
    with translate_errors():
        return conn.execute(sql.SQL(_TRACED).format(sql.SQL(query))).fetchall()


_TRACED = """
select ev_extra4 from ({}) batch where ev_extra4 like '{{%"traceparent"%' limit 1000
"""
