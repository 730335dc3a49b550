-- Access to the tick log. A consumer's transaction may be long and holds a lock on each table that it has read, which
-- keeps rotation of the log from emptying it: so these functions read the current table first, and the other one only
-- if necessary.

create or replace function pgq._get_tick(i_queue_id int4, i_tick_id bigint)
returns pgq.tick_0
language plpgsql
as $$
-- Returns a tick.
-- Returns: the tick's row, or null if there is none.
declare
    t pgq.tick_0;
begin
    -- Look twice: between two statements rotation may carry the tick from one table to the other.
    for attempt in 1..2 loop
        if pg_catalog.pg_sequence_last_value('pgq.tick_log_seq') % 2 = 0 then
            select * into t from pgq.tick_0 where tick_queue = i_queue_id and tick_id = i_tick_id;
            exit when found;
            select * into t from pgq.tick_1 where tick_queue = i_queue_id and tick_id = i_tick_id;
        else
            select * into t from pgq.tick_1 where tick_queue = i_queue_id and tick_id = i_tick_id;
            exit when found;
            select * into t from pgq.tick_0 where tick_queue = i_queue_id and tick_id = i_tick_id;
        end if;
        exit when found;
    end loop;
    if t.tick_id is null then
        perform pgq._check_log_snapshot('tick');
    end if;
    return t;
end;
$$;

create or replace function pgq._first_tick(
    i_queue_id int4, i_after bigint, i_nominal boolean, i_min_seq bigint default null, i_min_time timestamptz default null,
    i_max_time timestamptz default null)
returns pgq.tick_0
language plpgsql
as $$
-- Returns the first tick after a given one that is far enough from it.
-- Parameters:
--      i_after     - tick to start after
--      i_nominal   - only nominal ticks
--      i_min_seq   - only ticks with at least this event sequence,
--      i_min_time  - or at least this time (either will do),
--      i_max_time  - and no later one; null for any
-- Returns: the tick's row, or null if there is none.
declare
    t       pgq.tick_0;
    cur     int4 := pg_catalog.pg_sequence_last_value('pgq.tick_log_seq') % 2;
    logs    int4[];
begin
    -- Ticks that follow a tick of the current table are in the current table.
    if cur = 0 then
        perform from pgq.tick_0 where tick_queue = i_queue_id and tick_id = i_after;
    else
        perform from pgq.tick_1 where tick_queue = i_queue_id and tick_id = i_after;
    end if;
    logs := case when found then array[cur] else array[1 - cur, cur] end;

    for i in 1 .. pg_catalog.cardinality(logs) loop
        if logs[i] = 0 then
            select * into t
              from pgq.tick_0
             where tick_queue = i_queue_id
               and tick_id > i_after
               and (not i_nominal or not tick_early)
               and ((i_min_seq is null and i_min_time is null)
                    or tick_event_seq >= i_min_seq
                    or tick_time >= i_min_time and tick_time <= i_max_time is not false)
             order by tick_id
             limit 1;
        else
            select * into t
              from pgq.tick_1
             where tick_queue = i_queue_id
               and tick_id > i_after
               and (not i_nominal or not tick_early)
               and ((i_min_seq is null and i_min_time is null)
                    or tick_event_seq >= i_min_seq
                    or tick_time >= i_min_time and tick_time <= i_max_time is not false)
             order by tick_id
             limit 1;
        end if;
        exit when found;
    end loop;
    return t;
end;
$$;

create or replace function pgq._last_tick(i_queue_id int4, i_before bigint default null)
returns pgq.tick_0
language plpgsql
as $$
-- Returns the newest tick of a queue, or the newest before a given one.
-- Returns: the tick's row, or null if there is none.
declare
    t   pgq.tick_0;
    cur int4;
begin
    for attempt in 1..2 loop
        cur := pg_catalog.pg_sequence_last_value('pgq.tick_log_seq') % 2;
        for i in 0..1 loop
            if (cur + i) % 2 = 0 then
                select * into t
                  from pgq.tick_0
                 where tick_queue = i_queue_id
                   and tick_id < coalesce(i_before, 9223372036854775807)
                 order by tick_id desc
                 limit 1;
            else
                select * into t
                  from pgq.tick_1
                 where tick_queue = i_queue_id
                   and tick_id < coalesce(i_before, 9223372036854775807)
                 order by tick_id desc
                 limit 1;
            end if;
            if found then
                return t;
            end if;
        end loop;
    end loop;
    return null;
end;
$$;

create or replace function pgq._lock_tick_log()
returns int4
language plpgsql
as $$
-- Locks the table of the tick log that takes new ticks, until the end of the transaction: rotation empties a table only
-- if no other session has a lock on it, and never the current one.
-- Returns: its number.
declare
    rotations   bigint;
begin
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq.tick_log_seq');
        if rotations % 2 = 0 then
            lock table pgq.tick_0 in row exclusive mode;
        else
            lock table pgq.tick_1 in row exclusive mode;
        end if;
        exit when pg_catalog.pg_sequence_last_value('pgq.tick_log_seq') = rotations;
    end loop;
    return rotations % 2;
end;
$$;

create or replace function pgq._append_ticks(
    i_queues int4[], i_ticks bigint[], i_time timestamptz, i_event_seqs bigint[], i_early boolean[], i_fences bigint[],
    i_heartbeats int4[] default '{}', i_writer bigint default null)
returns bigint[]
language plpgsql
as $$
-- Stores ticks with the present snapshot, and notifies consumers. The caller holds the queues' tick locks and has a
-- transaction id.
-- Parameters:
--      i_queues, i_event_seqs, i_early     - the parts of a tick, one for each queue
--      i_ticks                             - tick ids, one for each queue; null for the queue's next id
--      i_fences                            - fences, one for each queue; null for the id of this transaction. Producers
--                                            draw their transaction id before the event id, so a transaction that has
--                                            drawn an event id up to the event sequence has a lower id than this one
--      i_time                              - time of the ticks
--      i_heartbeats                        - queues whose tick brings no events, so that no consumer is notified
--      i_writer                            - this transaction's id, if it may insert events as well
-- Returns: the tick ids.
declare
    res         bigint[];
    notified    bigint;
begin
    if pgq._lock_tick_log() = 0 then
        with tick as (
            insert into pgq.tick_0 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early, tick_fence)
            select q.queue_id, coalesce(n.tick_id, pg_catalog.nextval(q.queue_tick_seq_id)), i_time,
                   case when i_writer is null then pg_catalog.txid_current_snapshot() else (select pgq._snapshot_without(i_writer)) end,
                   n.event_seq, n.early, coalesce(n.fence, pg_catalog.txid_current())
              from rows from (pg_catalog.unnest(i_queues), pg_catalog.unnest(i_ticks), pg_catalog.unnest(i_event_seqs),
                              pg_catalog.unnest(i_early), pg_catalog.unnest(i_fences))
                   n (queue_id, tick_id, event_seq, early, fence)
             cross join lateral (select * from pgq.queue where pgq.queue.queue_id = n.queue_id limit 1) q
            returning tick_queue, tick_id)
        select pg_catalog.array_agg(tick_id),
               pg_catalog.count(case when tick_queue operator(pg_catalog.<>) all (i_heartbeats)
                                     then pg_catalog.pg_notify('pgq_tick_' || tick_queue, tick_id::text)::pg_catalog.text end)
          into res, notified
          from tick;
    else
        with tick as (
            insert into pgq.tick_1 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early, tick_fence)
            select q.queue_id, coalesce(n.tick_id, pg_catalog.nextval(q.queue_tick_seq_id)), i_time,
                   case when i_writer is null then pg_catalog.txid_current_snapshot() else (select pgq._snapshot_without(i_writer)) end,
                   n.event_seq, n.early, coalesce(n.fence, pg_catalog.txid_current())
              from rows from (pg_catalog.unnest(i_queues), pg_catalog.unnest(i_ticks), pg_catalog.unnest(i_event_seqs),
                              pg_catalog.unnest(i_early), pg_catalog.unnest(i_fences))
                   n (queue_id, tick_id, event_seq, early, fence)
             cross join lateral (select * from pgq.queue where pgq.queue.queue_id = n.queue_id limit 1) q
            returning tick_queue, tick_id)
        select pg_catalog.array_agg(tick_id),
               pg_catalog.count(case when tick_queue operator(pg_catalog.<>) all (i_heartbeats)
                                     then pg_catalog.pg_notify('pgq_tick_' || tick_queue, tick_id::text)::pg_catalog.text end)
          into res, notified
          from tick;
    end if;
    return coalesce(res, '{}');
end;
$$;

create or replace function pgq._snapshot_without(i_txid bigint)
returns txid_snapshot
language plpgsql stable
as $$
-- Returns the present snapshot with this transaction, too, among the running ones. PostgreSQL leaves it out, so that
-- its events would count as seen once another transaction with a later id has ended.
declare
    now_seen    constant txid_snapshot := pg_catalog.txid_current_snapshot();
begin
    if not pg_catalog.txid_visible_in_snapshot(i_txid, now_seen) then
        return now_seen;
    end if;
    return pg_catalog.format('%s:%s:%s', least(pg_catalog.txid_snapshot_xmin(now_seen), i_txid), pg_catalog.txid_snapshot_xmax(now_seen), (
        select pg_catalog.string_agg(x::text, ',' order by x)
          from (select pg_catalog.txid_snapshot_xip(now_seen) union all select i_txid) running (x)));
end;
$$;

create or replace function pgq._tick_view_write()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes pgq.tick writable, like the table that it is in PgQ, for the tools of cascaded queues.
begin
    if tg_op <> 'INSERT' then
        delete from pgq.tick_0 where tick_queue = old.tick_queue and tick_id = old.tick_id;
        delete from pgq.tick_1 where tick_queue = old.tick_queue and tick_id = old.tick_id;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    if pg_sequence_last_value('pgq.tick_log_seq') % 2 = 0 then
        insert into pgq.tick_0 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
        values (new.tick_queue, new.tick_id, coalesce(new.tick_time, now()),
                coalesce(new.tick_snapshot, txid_current_snapshot()), new.tick_event_seq);
    else
        insert into pgq.tick_1 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
        values (new.tick_queue, new.tick_id, coalesce(new.tick_time, now()),
                coalesce(new.tick_snapshot, txid_current_snapshot()), new.tick_event_seq);
    end if;
    return new;
end;
$$;
