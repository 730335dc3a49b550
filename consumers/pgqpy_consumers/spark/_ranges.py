"""Positions in a queue, and the query of the events between two of them; on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString, Self

from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

import pgqpy
from pgqpy.errors import (
    ConsumerNotRegistered,
    NoTicks,
    PgqError,
    QueueNotFound,
    TickNotFound,
    translate_errors,
)
from pgqpy_consumers.spark._events import EVENT_COLUMNS, EventSource

SHARDS = "shards"
"""The key of the offsets by shard, in the checkpoint of a stream over shards."""


@dataclass(frozen=True, slots=True)
class Offset:
    """A tick of a queue, with all that reading from there or up to there needs. Early ticks leave
    the tick log when it rotates, so the snapshot comes along."""

    queue: str
    """The queue's `fingerprint`, not its name."""
    tick: int
    """Id of the tick."""
    seq: int
    """The event sequence at the tick: differences estimate numbers of events."""
    time: int
    """When it was made, in microseconds since 1970: the same at all nodes of a cascaded queue. 0:
    unknown."""
    snapshot: str
    """The tick's snapshot, as PostgreSQL writes a txid_snapshot: ``xmin:xmax:xip,xip``."""

    def to_dict(self) -> dict[str, Any]:
        """The form that Spark keeps in a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The offset that a checkpoint holds. Raises ForeignOffset if it is one of shards."""
        if SHARDS in stored:
            raise ForeignOffset(
                "the checkpoint is that of a stream over shards",
                hint="Give option shards, with the map, instead of dsn.",
            )
        return cls(
            queue=str(stored["queue"]),
            tick=int(stored["tick"]),
            seq=int(stored["seq"]),
            time=int(stored.get("time", 0)),
            snapshot=str(stored["snapshot"]),
        )


class ForeignOffset(PgqError):
    """An offset is not of this queue's history: the queue was created anew, or was restored."""

    default_hint = (
        "What was processed cannot be told from what was not any more. Decide what to keep of"
        " the results, and start again with a new checkpoint or other ticks."
    )


# A queue created anew has another id, but possibly the same tables. A restored dump has other
# oids. A cluster that is copied with its data keeps all.
_FIND: LiteralString = """
select pg_catalog.concat_ws('/', c.system_identifier, d.oid, q.queue_id,
                            to_regclass(q.queue_data_pfx || '_0')::oid) as queue,
       t.tick_id as tick, t.tick_event_seq as seq, t.tick_snapshot::text as snapshot,
       (extract(epoch from t.tick_time) * 1000000.0)::int8 as time
  from pgq.queue q
 cross join pg_control_system() c
  join pg_database d on d.datname = current_database()
  left join lateral (
       select * from pgq.tick
        where tick_queue = q.queue_id
          and {}
        limit 1) t on true
 where q.queue_name = %(queue)s
"""

_NEWEST: LiteralString = _FIND.format("true order by tick_id desc")
_EARLIEST: LiteralString = _FIND.format("tick_id >= q.queue_horizon_tick order by tick_id")
_BY_ID: LiteralString = _FIND.format("tick_id = %(tick)s")
_BEFORE: LiteralString = _FIND.format(
    "tick_id >= q.queue_horizon_tick and tick_time <= %(time)s order by tick_id desc"
)
_AFTER: LiteralString = _FIND.format("tick_time >= %(time)s order by tick_id")

_HAS_NODES: LiteralString = "select to_regclass('pgq_node.node_info') is not null"
_NODE: LiteralString = "select node_name from pgq_node.node_info where queue_name = %s"


def fingerprint(conn: pgqpy.Connection, queue: str) -> str:
    """A text that differs between this queue and one of the same name made later, or elsewhere.
    Raises QueueNotFound."""
    return str(_row(conn, queue, _NEWEST)["queue"])


def newest(conn: pgqpy.Connection, queue: str) -> Offset:
    """The newest tick. Raises QueueNotFound, NoTicks."""
    return _find(conn, queue, _NEWEST) or _no_ticks(queue)


def earliest(conn: pgqpy.Connection, queue: str) -> Offset:
    """The oldest tick after which all events are present. Raises QueueNotFound, NoTicks."""
    return _find(conn, queue, _EARLIEST) or _no_ticks(queue)


def offset_at(conn: pgqpy.Connection, queue: str, tick: int) -> Offset:
    """A tick by its id. Raises QueueNotFound, TickNotFound."""
    found = _find(conn, queue, _BY_ID, tick=tick)
    if found is None:
        raise TickNotFound(
            f"tick {tick} of queue {queue!r} is not available",
            hint="It was never made, or is forgotten. Look at pgq.tick for the ticks there are.",
        )
    return found


def before(conn: pgqpy.Connection, queue: str, time: datetime) -> Offset:
    """The last tick made by then: all events that became visible later are after it. Raises
    QueueNotFound, and TickNotFound if rotation may have removed some of them."""
    found = _find(conn, queue, _BEFORE, time=time)
    if found is not None:
        return found
    first = earliest(conn, queue)
    # Nothing is missing if it is the queue's first tick: the queue is younger than the time.
    if first.tick > 1:
        raise TickNotFound(
            f"queue {queue!r} has events from tick {first.tick} on, which is later than {time}",
            hint=f"Rotation has removed older ones. Begin with tick {first.tick}.",
        )
    return first


def after(conn: pgqpy.Connection, queue: str, time: datetime) -> Offset:
    """The first tick made then or later, or the newest if there is none yet. Raises QueueNotFound,
    NoTicks."""
    return _find(conn, queue, _AFTER, time=time) or newest(conn, queue)


def position(conn: pgqpy.Connection, queue: str, consumer: str) -> Offset:
    """The last tick that a consumer has finished. Raises QueueNotFound, ConsumerNotRegistered."""
    with translate_errors():
        row = conn.execute(
            "select last_tick from pgq.get_consumer_info(%s, %s)", (queue, consumer)
        ).fetchone()
    if row is None:
        fingerprint(conn, queue)
        raise ConsumerNotRegistered(
            f"consumer {consumer!r} is not registered on queue {queue!r}",
            hint="Register it: pgqpy consumer register, or pgq.register_consumer(queue, consumer).",
        )
    return offset_at(conn, queue, row[0])


def check(conn: pgqpy.Connection, queue: str, offset: Offset) -> None:
    """Raises ForeignOffset if the offset cannot be one of this queue, QueueNotFound, NoTicks."""
    last = newest(conn, queue)
    if offset.queue != last.queue:
        raise ForeignOffset(
            f"tick {offset.tick} is of an earlier queue {queue!r}, which was dropped and made"
            " anew, or restored from a dump"
        )
    same = _find(conn, queue, _BY_ID, tick=offset.tick)
    if offset.tick > last.tick or (same is not None and same.snapshot != offset.snapshot):
        raise ForeignOffset(
            f"tick {offset.tick} of queue {queue!r} was made in another history of this"
            f" database, which was restored to an earlier time; its newest tick is {last.tick}"
        )


def here(conn: pgqpy.Connection, queue: str, offset: Offset) -> Offset:
    """The offset at this database, if it was made at another node of a cascaded queue; else itself.

    Raises TickNotFound if this node does not have the tick, and the errors of `check`.
    """
    try:
        check(conn, queue, offset)
    except ForeignOffset:
        node = _node(conn, queue)
        if node is None:
            raise
        found = _find(conn, queue, _BY_ID, tick=offset.tick)
        if found is None:
            raise TickNotFound(
                f"node {node!r} of queue {queue!r} has no tick {offset.tick}, after which to go on",
                hint="It does not have it yet, or not any more. Wait, or go on at another node.",
            ) from None
        if (found.seq, found.time) != (offset.seq, offset.time):
            raise
        return found
    return offset


def _node(conn: pgqpy.Connection, queue: str) -> str | None:
    """The name of the node that this database is of the queue."""
    if conn.execute(_HAS_NODES).fetchone() != (True,):
        return None
    row = conn.execute(_NODE, [queue]).fetchone()
    return row and str(row[0])


def range_source(
    conn: pgqpy.Connection,
    queue: str,
    start: Offset,
    end: Offset,
    *,
    columns: Sequence[str] = EVENT_COLUMNS,
    where: str | None = None,
    consumer: str | None = None,
    standby: pgqpy.Connection | None = None,
) -> EventSource:
    """The events after one tick up to another; executors connect as ``conn`` did, or as ``standby``
    and wait until that has replayed them.

    ``where`` is a condition in SQL over `EVENT_COLUMNS`. ``consumer`` is the consumer whose retried
    events are included.

    Raises QueueNotFound, TickNotFound if rotation has removed events of the range,
    InvalidParameter if it runs backwards or ``where`` is more than a condition, ForeignOffset if
    ``standby`` is another database's.
    """
    if where is not None:
        check_condition(conn, where)
    with translate_errors():
        row = conn.execute(
            "select pgq.snapshot_range_sql(%s, %s, %s, %s, %s, %s)",
            (queue, start.tick, start.snapshot, end.tick, end.snapshot, consumer),
        ).fetchone()
    assert row is not None
    # A DataFrame has no order, so sorting is not needed.
    query, replayed = row[0].removesuffix(" order by 1"), None
    if standby is not None:
        if fingerprint(standby, queue) != end.queue:
            raise ForeignOffset(
                f"the database of readDsn has another queue {queue!r}",
                hint="Give a standby of the queue's server, and the same database.",
            )
        place = sql.Literal(queue).as_string(None), f"{end.tick:d}"
        replayed = "select pgq.has_replayed({}, {})".format(*place)
        # A pooler may give the second statement to another server than the first.
        required = "pgq.has_replayed({}, {}, null, true)".format(*place)
        query = f"select * from ({query}) range where (select {required})"
    return EventSource(
        conninfo=conninfo(standby or conn),
        query=query,
        replayed=replayed,
        columns=tuple(columns),
        condition=where or "true",
        description=f"ticks {start.tick} to {end.tick} of queue {queue!r}",
    )


def check_condition(conn: pgqpy.Connection, where: str) -> None:
    """Raises InvalidParameter if ``where`` is more than a condition in SQL."""
    with translate_errors():
        conn.execute("select pgq.check_event_condition(%s)", (where,))


def conninfo(conn: pgqpy.Connection) -> str:
    """The parameters of a connection, including the password, and those of the environment."""
    settings = conn.info.get_parameters()
    # The settings of a service are included; executors need not have the service file.
    for name in ("service", "servicefile"):
        settings.pop(name, None)
    if conn.info.password:
        settings["password"] = conn.info.password
    return make_conninfo(**settings)


def _find(
    conn: pgqpy.Connection, queue: str, query: LiteralString, **place: object
) -> Offset | None:
    row = _row(conn, queue, query, **place)
    return None if row["tick"] is None else Offset.from_dict(row)


def _row(
    conn: pgqpy.Connection, queue: str, query: LiteralString, **place: object
) -> dict[str, Any]:
    with translate_errors(), conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query, {"queue": queue, **place}).fetchone()
    if row is None:
        raise QueueNotFound(
            f"queue {queue!r} does not exist", hint="pgqpy queue list shows the queues there are."
        )
    return row


def _no_ticks(queue: str) -> Offset:
    raise NoTicks(f"queue {queue!r} has no tick yet", hint="Run the ticker: pgqpy ticker.")
