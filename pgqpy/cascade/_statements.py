"""The statements of cascaded queues, and the rows of COPY; nothing here talks to a server."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from psycopg import sql
from psycopg.sql import quote

from pgqpy._wire.copy_format import HEADER, NEW_EVENT_COLUMNS

#: What a copied event keeps.
COLUMNS = ("ev_id", "ev_time", "ev_retry", *NEW_EVENT_COLUMNS)
#: Its place in the copy comes first.
COPIED = ("ev_txid", *COLUMNS)
#: What an event keeps that is merged into another queue.
MERGED = ("ev_time", *NEW_EVENT_COLUMNS)

STATE = b"""
select n.node_type, n.node_name, coalesce(%s::text, n.worker_name) as consumer, n.combined_queue,
       (select c.node_type from pgq_node.node_info c
         where c.queue_name = n.combined_queue) as combined_type,
       s.completed_tick as completed, s.provider_node, s.provider_location,
       s.paused, s.uptodate, s.cur_error,
       n.node_attrs ~ '(^|&)sync_watermark=' is true as syncs, t.tick_id as newest,
       -- The first tick of a node that was made by SQL is its own; those after it were copied.
       case when exists (select from pgq.tick before
                          where before.tick_queue = q.queue_id
                            and before.tick_id > 1
                            and before.tick_id < t.tick_id) then t.tick_time end as newest_time,
       array(select p.queue_name from pgq_node.node_info p
              where p.combined_queue = n.queue_name) as parts
  from pgq_node.node_info n
 cross join lateral pgq_node.get_consumer_state(
       n.queue_name, coalesce(%s::text, n.worker_name)) s
  left join pgq.queue q on q.queue_name = n.queue_name
  left join lateral (
       select tick_id, tick_time from pgq.tick
        where tick_queue = q.queue_id order by tick_id desc limit 1) t on true
 where n.queue_name = %s
"""
NODES = b"""
select n.queue_name, n.node_name, n.node_type, s.provider_node, l.node_location, s.paused,
       s.uptodate
  from pgq_node.node_info n
  left join pgq_node.local_state s
    on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
  left join pgq_node.node_location l
    on l.queue_name = s.queue_name and l.node_name = s.provider_node
"""
#: PgQ's own nodes have neither ranges of ticks to copy, nor epochs.
KIND = b"""
select to_regclass('pgq_node.node_info') is not null as is_node,
       to_regclass('pgq_node.root_epoch') is not null as is_ours
"""
EPOCH = b"select coalesce(epoch, 0) as epoch from pgq_node.get_epoch(%s)"
#: The other nodes of a root that is not fenced, and its own epoch.
OTHERS = b"""
select l.node_location, coalesce(e.epoch, 0) as epoch
  from pgq_node.node_info n
  join pgq_node.node_location l
    on l.queue_name = n.queue_name and l.node_name <> n.node_name and not l.dead
  left join pgq_node.root_epoch e on e.queue_name = n.queue_name
 where n.queue_name = %s and n.node_type = 'root' and e.fenced_by is null
 order by random()
"""
AT_PROVIDER = b"""
select n.node_type, newest.tick_id as newest, same.tick_time as time,
       exists (select from pgq_node.subscriber_info s
                where s.queue_name = n.queue_name and s.subscriber_node = %s) as is_subscribed
  from pgq_node.node_info n
  join pgq.queue q on q.queue_name = n.queue_name
  left join lateral (
       select tick_id from pgq.tick
        where tick_queue = q.queue_id order by tick_id desc limit 1) newest on true
  left join pgq.tick same on same.tick_queue = q.queue_id and same.tick_id = %s
 where n.queue_name = %s
"""
#: Without a name the provider of the node, or the root itself.
LOCATION = b"""
select l.node_name, l.node_location
  from pgq_node.node_info n
  join pgq_node.local_state s
    on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
  left join pgq_node.node_location l
    on l.queue_name = n.queue_name and l.node_name = coalesce(%s::text, s.provider_node)
 where n.queue_name = %s
"""
REGISTER = b"select * from pgq_node.register_consumer(%s, %s, %s, %s)"
UNREGISTER = b"select * from pgq_node.unregister_consumer(%s, %s)"
CHANGE_PROVIDER = b"select * from pgq_node.change_consumer_provider(%s, %s, %s)"
POSITION = b"select last_tick from pgq.get_consumer_info(%s, %s)"
UPTODATE = b"select * from pgq_node.set_consumer_uptodate(%s, %s, true)"
#: If it is where it was: of two workers only one goes on. Copies of ticks see to that themselves.
LOCK_STATE = b"""
select from pgq_node.local_state
 where queue_name = %s and consumer_name = %s and last_tick_id = %s
   for no key update
"""
COMPLETED = b"select * from pgq_node.set_consumer_completed(%s, %s, %s)"
NOTE_ERROR = b"select * from pgq_node.set_consumer_error(%s, %s, %s)"
LOCAL_WATERMARK = b"select local_watermark from pgq_node.get_node_info(%s)"

NEXT_TICKS = b"select * from pgq.next_ticks(%s, %s::bigint, %s::integer, %s::integer)"
#: The provider forgets early ticks when its log rotates, but none that a consumer stands at.
KNOWN_BEFORE = b"""
select max(tick_id)
  from pgq.tick
  join pgq.queue on queue_id = tick_queue
 where queue_name = %s and tick_id between queue_horizon_tick and %s
"""
RANGE = b"select pgq.tick_range_sql(%s, %s::bigint, %s::bigint)"
ADVANCE = b"select pgq_node.advance_subscriber(%s, %s, %s::bigint)"
#: If it is no subscriber any more: others would hold rotation back.
LEAVE = b"""
select pgq.unregister_consumer(queue_name, worker_name)
  from (values (%s, %s)) v (queue_name, worker_name)
 where not exists (select from pgq_node.subscriber_info s
                    where s.queue_name = v.queue_name and s.worker_name = v.worker_name)
"""
REGISTER_AT = b"select pgq.register_consumer_at(%s, %s, %s::bigint)"
#: A batch of PgQ itself.
NEXT_BATCH = b"""
select batch_id, prev_tick_id, cur_tick_id, cur_tick_time, cur_tick_event_seq,
       case when batch_id > 0 then pgq.batch_event_sql(batch_id) end as batch_sql
  from pgq.next_batch_info(%s, %s)
"""
FINISH_BATCH = b"select pgq.finish_batch(%s::bigint)"
TICK = b"""
select tick_time, tick_event_seq
  from pgq.tick
  join pgq.queue on queue_id = tick_queue
 where queue_name = %s and tick_id = %s
"""
#: Into the queue that a leaf merges its queue into.
MERGED_INTO = b"select pgq.current_event_table(%s)"
MERGED_UP_TO = b"""
select pgq.insert_event(%s, 'pgq.tick-id', %s::bigint::text, %s, null, null, null)
"""
TICKER = b"select pgq.ticker(%s, %s::bigint, %s, %s::bigint)"
#: Both databases have forgotten some early ticks.
REPORT = b"""
select f.ret_code, f.ret_note
  from (select tick_id
          from pgq.tick
          join pgq.queue on queue_id = tick_queue
         where queue_name = %s and tick_id <= %s
         order by tick_id desc limit 1) known,
       pgq_node.set_subscriber_watermark(%s, %s, known.tick_id) f
"""
#: Publishing is an event, too: an idle queue has no other.
UNPUBLISHED = b"""
select l.tick_event_seq > g.tick_event_seq + 1 is not false as fresh
  from pgq_node.get_node_info(%s) n
  join pgq.queue q on q.queue_name = %s
  left join pgq.tick l on l.tick_queue = q.queue_id and l.tick_id = n.local_watermark
  left join pgq.tick g on g.tick_queue = q.queue_id and g.tick_id = n.global_watermark
"""
PUBLISH = b"select * from pgq_node.set_global_watermark(%s, null)"

LOCATIONS = b"select * from pgq_node.get_queue_locations(%s)"
PARTS = b"""
select queue_name, s.last_tick_id
  from pgq_node.node_info n
  join pgq_node.local_state s using (queue_name)
 where n.combined_queue = %s and s.consumer_name = n.worker_name
"""
PROGRESS = b"select global_watermark, worker_last_tick from pgq_node.get_node_info(%s)"
LOCATE = b"select * from pgq_node.register_location(%s, %s, %s, %s)"
UNLOCATE = b"select * from pgq_node.unregister_location(%s, %s)"
MOVE_WATERMARK = b"select * from pgq_node.set_global_watermark(%s, %s::bigint)"
MOVE_PART = b"select * from pgq_node.set_partition_watermark(%s, %s, %s::bigint)"
LEARN = b"select * from pgq_node.learn_epoch(%s, %s::bigint)"

#: Ends the query of a tick's events. Readers of a copy sort it again.
_ORDER = " order by 1"
#: Begins the type of an event that controls the nodes. It may also be anywhere in a payload.
CONTROL = b"pgq."


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick to copy, and the query of its events."""

    id: int
    time: datetime
    event_seq: int
    early: bool
    sql: str
    #: The batch of PgQ that ends with it.
    batch: int | None = None


@dataclass(slots=True)
class News:
    """What the events of a transaction that control the nodes of a queue are about. Any producer
    can insert such events, so that only little of them is kept."""

    queue: str
    #: The last ticks of the queues that are merged into this one.
    parts: dict[str, int]
    nodes: set[str] = field(default_factory=set)
    watermark: bool = False
    epoch: int | None = None

    @property
    def of_all_nodes(self) -> bool:
        """Whether there were too many names to keep."""
        return len(self.nodes) > _MOST_NODES

    def read(self, rows: Sequence[bytes]) -> None:
        """Take up what rows of a COPY of `COPIED` say; the others may look so, and be large."""
        for row in rows:
            if CONTROL in row and len(row) <= _LONGEST:
                self._read(*_texts(row.removeprefix(HEADER))[4:])

    def _read(
        self, kind: str | None, data: str | None, extra1: str | None, *extra: str | None
    ) -> None:
        if data is None:
            return
        if kind == "pgq.tick-id":
            if extra1 in self.parts and _NUMBER.fullmatch(data):
                self.parts[extra1] = max(self.parts[extra1], int(data))
        elif extra1 != self.queue:
            return
        elif kind == "pgq.global-watermark":
            self.watermark = True
        elif kind in ("pgq.location-info", "pgq.unregister-location"):
            if not self.of_all_nodes:
                self.nodes.add(data)
            extra4 = extra[-1]
            if extra4 is not None and _NUMBER.fullmatch(extra4):
                self.epoch = max(self.epoch or 0, int(extra4))


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node's database says of the node and its worker, or of another consumer there."""

    node_type: str
    node_name: str
    consumer: str
    combined_queue: str | None
    combined_type: str | None
    completed: int | None
    provider_node: str | None
    provider_location: str | None
    paused: bool | None
    uptodate: bool | None
    cur_error: str | None
    #: Whether PgQ's worker would keep its watermark and those of some other nodes equal.
    syncs: bool
    newest: int | None
    newest_time: datetime | None
    #: The queues that are merged into this one here.
    parts: list[str]


# One message each: with parameters there would be two, and a branch stores 160 ticks a second.
def begin_copy(queue: str, ticks: Sequence[Tick]) -> bytes:
    """Return the statements that begin a transaction and store ticks in it."""
    ids, seqs, early = (
        json.dumps([getattr(tick, name) for tick in ticks]) for name in ("id", "event_seq", "early")
    )
    times = [tick.time.isoformat() for tick in ticks]
    return (
        f"begin; select * from pgq.copy_ticks({quote(queue)}, array{ids}::bigint[],"
        f" array{times}::timestamptz[], array{seqs}::bigint[], array{early})"
    ).encode()


def complete(queue: str, consumer: str, tick: int) -> bytes:
    """Return the statements that note what the node has, and commit."""
    names = f"{quote(queue)}, {quote(consumer)}"
    return f"select pgq_node.set_consumer_completed({names}, {tick}); commit".encode()


def without(tick: Tick, events: Sequence[int]) -> Tick:
    """Return the tick without some of its events."""
    query = sql.SQL("select * from ({}) tick where ev_id <> all ({}::bigint[])").format(
        sql.SQL(tick.sql), sql.Literal(list(events))
    )
    return replace(tick, sql=query.as_string(None))


def copy_ticks_out(ticks: Sequence[Tick], txids: Sequence[int]) -> bytes:
    """Return the COPY of the events of ticks, with the transaction ids that they get."""
    return _copy(
        " union all ".join(
            f"(select {txid}::bigint, {', '.join(COLUMNS)}"
            f" from ({tick.sql.removesuffix(_ORDER)}) tick)"
            for tick, txid in zip(ticks, txids, strict=True)
        )
    )


def copy_merged_out(ticks: Sequence[Tick]) -> bytes:
    """Return the COPY of the events of ticks, in order, without those that control the nodes."""
    merged = " union all ".join(
        f"select {number} as tick, * from ({tick.sql}) tick"
        " where (ev_type like 'pgq.%') is not true"
        for number, tick in enumerate(ticks)
    )
    return _copy(f"select {', '.join(MERGED)} from ({merged}) merged order by tick, ev_id")


def copy_control_out(ticks: Sequence[Tick]) -> bytes:
    """Return the COPY of the events of ticks that control the nodes."""
    return _copy(
        " union all ".join(
            f"(select {', '.join(COPIED)} from ({tick.sql}) tick where ev_type like 'pgq.%')"
            for tick in ticks
        )
    )


# With psycopg.sql a fifth of a worker's time would be spent here.
def _copy(query: str) -> bytes:
    return f"copy ({query}) to stdout (format binary)".encode()


_length = struct.Struct(">i")
_NUMBER = re.compile("[0-9]{1,18}")
#: The bytes of a row that has names, numbers and a connection string.
_LONGEST = 4_000
#: Of more nodes than these the names are not kept: then all are looked at.
_MOST_NODES = 1_000


def _texts(row: bytes) -> list[str | None]:
    """Return the fields of a row as texts; numbers are of no use."""
    fields: list[str | None] = []
    position = 2
    while position < len(row):
        (size,) = _length.unpack_from(row, position)
        position += _length.size
        fields.append(
            None if size < 0 else row[position : position + size].decode("utf-8", "replace")
        )
        position += max(size, 0)
    return fields
