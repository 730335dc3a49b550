"""The statements of consumers, as values; nothing here talks to a server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

NOTE_FAILURE = b"select pgq.note_failure(%s, %s, %s)"

EVENT_RETRY_MANY = b"""
select pgq.event_retry_many(
           %s, pg_catalog.array_agg(event_id),
           pg_catalog.array_agg(coalesce(at, clock_timestamp() + delay)))
  from unnest(%s::bigint[], %s::timestamptz[], %s::interval[]) as retry (event_id, at, delay)
"""

EVENT_DEAD_LETTER_MANY = b"""
select pgq.event_dead_letter_many(%s, %s::bigint[], %s::text[], %s::text[])
"""

_NEXT_BATCH = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag
  from pgq.open_next_batch(%s, %s, %s, null, null, %s, %s) batch
"""
#: Returns the tick too, for consumers that store it elsewhere; heartbeats of an idle queue are
#: batches.
_NEXT_BATCH_AND_TICK = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag,
       pgq.get_tick_snapshot(%s, batch.cur_tick_id)::text as tick_snapshot
  from pgq.open_next_batch(%s, %s, %s, null, null, %s, %s, i_heartbeats => true) batch
"""
#: Uses only functions of the original PgQ.
_NEXT_BATCH_OF_PGQ = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag, null::bytea[] as events,
       case when batch.batch_id > 0 then pgq.batch_event_sql(batch.batch_id) end as batch_sql
  from pgq.next_batch_custom(%s, %s, %s, null, null) batch
"""

#: Batches of up to about this many events arrive with their events, which saves a COPY for each.
MOST_INLINE = 100


def next_batch(
    queue: str,
    consumer: str,
    max_count: int | None,
    min_lag: timedelta | None,
    most_inline: int,
    *,
    with_tick: bool = False,
) -> tuple[bytes, list[Any]]:
    """Return the statement that opens a consumer's next batch, and its parameters.

    ``most_inline`` is the maximum number of events to get with it. ``with_tick`` is for consumers
    that store their ticks elsewhere.
    """
    if max_count is None:
        return _NEXT_BATCH_OF_PGQ, [queue, consumer, min_lag]
    parameters = [queue, consumer, min_lag, max_count, most_inline]
    if with_tick:
        return _NEXT_BATCH_AND_TICK, [queue, *parameters]
    return _NEXT_BATCH, parameters


# --- workers that share batches

REGISTER_WORKER = b"select pgq_coop.register_subconsumer(%s, %s, %s)"
UNREGISTER_WORKER = b"select pgq_coop.unregister_subconsumer(%s, %s, %s, 0)"
NEXT_SHARED_BATCH = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag
  from pgq_coop.open_next_batch(%s, %s, %s, %s, %s, null, null, %s, %s) batch
"""
KEEP_SHARED_BATCH = b"select pgq_coop.keep_batch(%s, %s, %s, %s)"
FINISH_SHARED_BATCH = b"select pgq_coop.finish_batch(%s, %s, %s, %s)"

# --- groups

NEXT_GROUP_BATCH = b"""
select batch.*, clock_timestamp() - batch.cur_tick_time as lag
  from pgq.next_group_batch(%s, %s, %s, %s::text[], %s, %s, %s::integer[], %s) batch
"""
KEY_SQL = b"""
select group_key_sql
  from pgq.consumer_group join pgq.group_member on member_group = group_id
 where member_id = %s
"""
OPEN_PARKED = b"select *, clock_timestamp() - first_time as lag from pgq.open_parked(%s)"
FINISH_GROUP_BATCH = b"""
select pgq.finish_group_batch(%s, %s, %s::bigint[], %s::text[], %s::interval[], %s::text[])
       is not null
"""
FINISH_PARKED = b"""
select pgq.finish_parked(%s, %s, %s::bigint[], %s, %s, %s::interval,
                         %s::bigint[], %s::text[], %s::text[])
"""

# --- standbys

DATABASE = b"""
select system_identifier, d.oid
  from pg_catalog.pg_control_system()
  join pg_catalog.pg_database d on d.datname = pg_catalog.current_database()
"""
HAS_REPLAYED = b"select pgq.has_replayed(%s, %s, %s)"
IF_REPLAYED = "select * from ({}) batch where (select pgq.has_replayed({}, {}, {}, true))"

# --- targets

ROTATE = b"select pgq_ext.rotate()"
FORGET = b"select pgq_ext.forget_consumer(%s, %s)"
#: Uses only functions of PgQ; it cannot tell whether the consumer is at its start.
POSITION_OF_PGQ = b"""
select s.sub_last_tick as tick_id, t.tick_time, true as fresh
  from pgq.subscription s
  join pgq.queue q on q.queue_id = s.sub_queue
  join pgq.consumer c on c.co_id = s.sub_consumer
  join pgq.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
 where q.queue_name = %s and c.co_name = %s
"""
POSITION = b"select tick_id, tick_time, fresh from pgq.get_consumer_start(%s, %s)"
IS_OURS = b"select to_regprocedure('pgq.settle_batch(bigint)') is not null as ours"
START_BATCHES = b"select * from pgq_ext.start_batches(%s, %s, %s, %s, %s)"
REOPEN_BATCH = b"select pgq.reopen_batch(%s, %s, %s, %s, %s, %s, %s)"
SETTLE_BATCH = b"select pgq.settle_batch(%s)"
BEGIN_BATCH = b"select * from pgq_ext.begin_batch(%s, %s, %s, %s, %s, %s, %s)"
END_BATCH = b"select pgq_ext.end_batch(%s, %s, %s, %s, %s, %s, %s::text::txid_snapshot, %s)"
BEGIN_EVENT = b"select pgq_ext.begin_event(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
END_EVENT = b"select pgq_ext.end_event(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
