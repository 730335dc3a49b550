-- Access to the tick log. A consumer's transaction may be long and holds a lock on each table that it has
-- read, which keeps rotation of the log from emptying it: so these functions read the current table first
-- and touch the other one only when they must.

create or replace function pgq.get_tick(i_queue_id int4, i_tick_id bigint)
returns pgq.tick_0
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.get_tick(2)
--
--      One tick. Internal.
--
-- Returns:
--      The tick's row, null if there is none.
-- Tables:
--      reads pgq.tick_0, pgq.tick_1
-- ----------------------------------------------------------------------
declare
    t pgq.tick_0;
begin
    -- Twice: between two statements rotation may carry the tick from one table to the other.
    for attempt in 1..2 loop
        if pg_sequence_last_value('pgq.tick_log_seq') % 2 = 0 then
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
        perform pgq.check_log_snapshot('tick');
    end if;
    return t;
end;
$$;

create or replace function pgq.first_tick(
    i_queue_id int4, i_after bigint, i_nominal boolean, i_min_seq bigint default null, i_min_time timestamptz default null)
returns pgq.tick_0
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.first_tick(5)
--
--      The first tick after a given one that is far enough from it. Internal.
--
-- Parameters:
--      i_queue_id  - queue
--      i_after     - tick to start behind
--      i_nominal   - only nominal ticks
--      i_min_seq   - only ticks with at least this event sequence,
--      i_min_time  - or at least this time (either will do)
-- Returns:
--      The tick's row, null if there is none.
-- Tables:
--      reads pgq.tick_0, pgq.tick_1
-- ----------------------------------------------------------------------
declare
    t       pgq.tick_0;
    cur     int4 := pg_sequence_last_value('pgq.tick_log_seq') % 2;
    logs    int4[];
begin
    -- What follows a tick of the current table is in the current table.
    if cur = 0 then
        perform from pgq.tick_0 where tick_queue = i_queue_id and tick_id = i_after;
    else
        perform from pgq.tick_1 where tick_queue = i_queue_id and tick_id = i_after;
    end if;
    logs := case when found then array[cur] else array[1 - cur, cur] end;

    for i in 1 .. cardinality(logs) loop
        if logs[i] = 0 then
            select * into t
              from pgq.tick_0
             where tick_queue = i_queue_id
               and tick_id > i_after
               and (not i_nominal or not tick_early)
               and ((i_min_seq is null and i_min_time is null)
                    or tick_event_seq >= i_min_seq
                    or tick_time >= i_min_time)
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
                    or tick_time >= i_min_time)
             order by tick_id
             limit 1;
        end if;
        exit when found;
    end loop;
    return t;
end;
$$;

create or replace function pgq.last_tick(i_queue_id int4, i_before bigint default null)
returns pgq.tick_0
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.last_tick(2)
--
--      The newest tick of a queue, or the newest before a given one. Internal.
--
-- Returns:
--      The tick's row, null if there is none.
-- Tables:
--      reads pgq.tick_0, pgq.tick_1
-- ----------------------------------------------------------------------
declare
    t   pgq.tick_0;
    cur int4;
begin
    for attempt in 1..2 loop
        cur := pg_sequence_last_value('pgq.tick_log_seq') % 2;
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

create or replace function pgq.append_tick(
    i_queue_id int4, i_tick_id bigint, i_time timestamptz, i_event_seq bigint, i_early boolean, i_fence bigint)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.append_tick(6)
--
--      Stores a tick with the snapshot of this moment. The caller holds the
--      queue's tick lock. Internal.
--
-- Tables:
--      inserts into pgq.tick_0 or pgq.tick_1
-- ----------------------------------------------------------------------
declare
    rotations   bigint;
begin
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq.tick_log_seq');
        if rotations % 2 = 0 then
            insert into pgq.tick_0 (tick_queue, tick_id, tick_time, tick_event_seq, tick_early, tick_fence)
            values (i_queue_id, i_tick_id, i_time, i_event_seq, i_early, i_fence);
        else
            insert into pgq.tick_1 (tick_queue, tick_id, tick_time, tick_event_seq, tick_early, tick_fence)
            values (i_queue_id, i_tick_id, i_time, i_event_seq, i_early, i_fence);
        end if;
        -- From here we hold a lock on the table. If the log was rotated before we had it, the row may
        -- stand in a table that is already left: then once more, in the new one.
        exit when pg_catalog.pg_sequence_last_value('pgq.tick_log_seq') = rotations;
        if rotations % 2 = 0 then
            delete from pgq.tick_0 where tick_queue = i_queue_id and tick_id = i_tick_id;
        else
            delete from pgq.tick_1 where tick_queue = i_queue_id and tick_id = i_tick_id;
        end if;
    end loop;
end;
$$;

create or replace function pgq.tick_view_write()
returns trigger
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.tick_view_write(0)
--
--      Lets pgq.tick be written as the table that it is in PgQ, which the
--      tools of cascaded queues do.
-- ----------------------------------------------------------------------
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
