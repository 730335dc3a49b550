-- The query of a batch: the events that are visible in one tick's snapshot and not in that of an earlier tick.
--
-- Let `last` and `cur` be the two snapshots. An event with transaction id x belongs to the batch if x is
-- visible in cur and not in last. Looking at all ids from xmin(last) on would read everything since the
-- oldest transaction that was open then, at each batch for as long as it stays open. So there are two parts:
--
--   1. the range xmax(last) <= x < xmax(cur), by index: ids that were given out between the two ticks;
--   2. one by one, the ids that were running at last and had ended by cur: xip(last) without xip(cur).
--
-- Ids of part 2 that lie close below the range are cheaper to read with it, so the range is extended to include them;
-- then rows that were visible in last must be filtered out.

create or replace function pgq._snapshot_condition(i_last txid_snapshot, i_cur txid_snapshot, i_alias text)
returns text[]
language plpgsql immutable
as $$
-- Returns the conditions for events between two snapshots; see the top of this file.
-- Returns: one or two SQL conditions, whose results are disjoint; literals only.
declare
    -- A few index entries more cost less than another index descent.
    near        constant bigint := 100;
    range_from  bigint := pg_catalog.txid_snapshot_xmax(i_last);
    range_to    constant bigint := pg_catalog.txid_snapshot_xmax(i_cur);
    x           bigint;
    others      bigint[] := '{}';
    res         text;
begin
    if pg_catalog.txid_snapshot_xmin(i_last) < range_from then
        for x in
            select a from pg_catalog.txid_snapshot_xip(i_last) a
            except
            select b from pg_catalog.txid_snapshot_xip(i_cur) b
            order by 1 desc
        loop
            if x >= range_from - near then
                range_from := x;
            else
                others := others || x;
            end if;
        end loop;
    end if;

    -- The query runs on its reader's search_path, which may have operators of others before pg_catalog's.
    res := pg_catalog.format('%1$s.ev_txid operator(pg_catalog.>=) %2$s and %1$s.ev_txid operator(pg_catalog.<) %3$s',
                             i_alias, range_from, range_to);
    if range_from < pg_catalog.txid_snapshot_xmax(i_last) then
        res := res || pg_catalog.format(' and not pg_catalog.txid_visible_in_snapshot(%s.ev_txid, %L::pg_catalog.txid_snapshot)',
                                        i_alias, i_last::text);
    end if;
    if pg_catalog.txid_snapshot_xmin(i_cur) < range_to then
        res := res || pg_catalog.format(' and pg_catalog.txid_visible_in_snapshot(%s.ev_txid, %L::pg_catalog.txid_snapshot)',
                                        i_alias, i_cur::text);
    end if;

    if pg_catalog.cardinality(others) = 0 then
        return array[res];
    end if;
    return array[res, pg_catalog.format('%s.ev_txid operator(pg_catalog.=) any (%L::pg_catalog.int8[])', i_alias, others::text)];
end;
$$;

create or replace function pgq._range_tables(q pgq.queue, i_last pgq.tick_0, i_cur pgq.tick_0)
returns int4[]
language plpgsql
as $$
-- Returns the tables of a queue that can hold events between two ticks.
--
-- Rotation draws one id in the transaction that moves to the next table (step 1) and one after that has committed (step
-- 2). A transaction writes into the old table only if its id is below step 2, and its rows in the new table are visible
-- in no snapshot whose xmax is below step 1.
-- Returns: table numbers, ascending.
declare
    xmin    constant bigint := pg_catalog.txid_snapshot_xmin(i_last.tick_snapshot);
    prev    constant int4 := (q.queue_cur_table + q.queue_ntables - 1) % q.queue_ntables;
    res     int4[];
    late    int4;
begin
    if xmin > q.queue_switch_step2 then
        res := array[q.queue_cur_table];
    elsif xmin <= q.queue_previous_step2 then
        res := array(select n from pg_catalog.generate_series(0, q.queue_ntables - 1) n);
    elsif pg_catalog.txid_snapshot_xmax(i_cur.tick_snapshot) < q.queue_switch_step1 then
        res := array[prev];
    else
        res := array[prev, q.queue_cur_table];
    end if;

    if pgq._state_rotations(q.queue_slot_seq) = q.queue_rotations + 1 then
        -- If a rotation fails at its very end, producers already write to the next table.
        res := res || (q.queue_cur_table + 1) % q.queue_ntables;
    end if;
    for late in
        select late_table
          from pgq.late_write
         where late_queue = q.queue_id
           and late_txid < pg_catalog.txid_snapshot_xmax(i_cur.tick_snapshot)
           and pg_catalog.txid_visible_in_snapshot(late_txid, i_cur.tick_snapshot)
           and not pg_catalog.txid_visible_in_snapshot(late_txid, i_last.tick_snapshot)
    loop
        res := res || late;
    end loop;
    if pg_catalog.cardinality(res) > 1 then
        res := array(select distinct n from pg_catalog.unnest(res) n order by n);
    end if;
    return res;
end;
$$;

create or replace function pgq._assert_readable(i_queue_id int4, i_rotation bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Checks, as part of the batch query, that the tables were not truncated. When it runs, the tables are locked and
-- cannot be truncated any more. If they were truncated before, an older snapshot sees them empty; only the sequence
-- tells.
-- Parameters:
--      i_rotation  - the rotation that truncates the first of the tables
-- Returns: true
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_id = i_queue_id;
    if q.queue_id is null or pgq._state_rotations(q.queue_slot_seq) >= i_rotation then
        raise exception using errcode = 'PQ008',
            message = format('rotation has removed events of this range from queue %s', coalesce(quote_literal(q.queue_name), i_queue_id::text)),
            hint = 'The batch was finished elsewhere, or no consumer was registered to keep these events. '
                   'Begin a new transaction and ask for the next batch.';
    end if;
    return true;
end;
$$;

create or replace function pgq._range_sql(q pgq.queue, i_last pgq.tick_0, i_cur pgq.tick_0, i_owner int4)
returns text
language plpgsql
as $$
-- Returns the SELECT for the events between two ticks.
-- Parameters:
--      i_owner     - subscription whose retries to include; null for none
-- Returns: SQL with literals only, that ends with ' order by 1'.
declare
    tables      constant int4[] := pgq._range_tables(q, i_last, i_cur);
    conditions  constant text[] := pgq._snapshot_condition(i_last.tick_snapshot, i_cur.tick_snapshot, 'ev');
    owner       constant text := case when i_owner is null then 'ev.ev_owner is null'
                                      else '(ev.ev_owner is null or ev.ev_owner operator(pg_catalog.=) ' || i_owner || ')' end;
    -- The last visible rotation. A rotation that is not visible yet (it is in progress, has failed at its end, or is
    -- newer than the snapshot) removes nothing from a range that begins after the last visible one.
    rotation    constant bigint := q.queue_rotations
        + (pgq._state_rotations(q.queue_slot_seq) = q.queue_rotations + 1
           and pg_catalog.txid_snapshot_xmin(i_last.tick_snapshot) > coalesce(q.queue_switch_step2, 9223372036854775807))::int4;
    gone        bigint;
    n           int4;
    condition   text;
    res         text;
begin
    -- Table n is truncated by the next rotation whose number is n modulo queue_ntables.
    foreach n in array tables loop
        gone := least(gone, rotation + 1 + (n - (rotation + 1) % q.queue_ntables + q.queue_ntables) % q.queue_ntables);
    end loop;

    foreach n in array tables loop
        foreach condition in array conditions loop
            res := pg_catalog.concat(res || ' union all ', pg_catalog.format(
                'select ev.ev_id, ev.ev_time, ev.ev_txid, ev.ev_retry, ev.ev_type, ev.ev_data,'
                ' ev.ev_extra1, ev.ev_extra2, ev.ev_extra3, ev.ev_extra4'
                ' from %s ev where %s and %s and (select pgq._assert_readable(%s, %s))',
                pgq.quote_fqname(q.queue_data_pfx || '_' || n), condition, owner, q.queue_id, gone));
        end loop;
    end loop;
    return res || ' order by 1';
end;
$$;

create or replace function pgq.batch_event_sql(x_batch_id bigint)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the query that reads a batch. It contains literals only, so it gives the same rows on any connection, also on
-- a standby, as long as the batch is open.
-- Returns: SQL with the columns of pgq.get_batch_events(); it ends with ' order by 1'.
-- Errors: PQ004 batch is not open
declare
    b   record;
begin
    select * into b from pgq._open_batch(x_batch_id);
    return pgq._range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id);
end;
$$;

create or replace function pgq.batch_event_tables(x_batch_id bigint)
returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the tables that may contain a batch's events.
-- Returns: table names with schema.
-- Errors: PQ004 batch is not open
declare
    b   record;
begin
    select * into b from pgq._open_batch(x_batch_id);
    return query
    select (b.queue).queue_data_pfx || '_' || n
      from unnest(pgq._range_tables(b.queue, b.last_tick, b.next_tick)) n;
end;
$$;

create or replace function pgq.snapshot_range_sql(
    i_queue_name text, i_from_tick bigint, i_from_snapshot txid_snapshot, i_to_tick bigint, i_to_snapshot txid_snapshot,
    i_consumer_name text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the query for the events after one tick up to another, for a caller that has kept the ticks' snapshots. The
-- ticks themselves may be forgotten by then, as early ticks are when the tick log rotates.
-- Parameters:
--      i_from_tick     - tick to start after
--      i_from_snapshot - its snapshot
--      i_to_tick       - last tick
--      i_to_snapshot   - its snapshot
--      i_consumer_name - consumer whose retries to include; null for none
-- Returns: SQL as from pgq.batch_event_sql().
-- Errors: PQ002 consumer is not registered, PQ008 a tick is not available, PQ011 the range ends before it begins
declare
    q           constant pgq.queue := pgq._find_queue(i_queue_name);
    last_tick   pgq.tick_0;
    cur_tick    pgq.tick_0;
    owner       int4;
begin
    if i_from_tick > i_to_tick then
        raise exception using errcode = 'PQ011',
            message = format('tick range from %s to %s runs backwards', i_from_tick, i_to_tick),
            hint = 'Give the earlier tick first.';
    end if;
    if i_from_snapshot is null or (i_from_tick < q.queue_horizon_tick) is not false then
        perform pgq._raise_tick_not_found(i_queue_name, i_from_tick);
    end if;
    if i_to_snapshot is null then
        perform pgq._raise_tick_not_found(i_queue_name, i_to_tick);
    end if;
    if i_consumer_name is not null then
        owner := (pgq._find_registration(i_queue_name, i_consumer_name)).sub_id;
    end if;
    last_tick.tick_snapshot := i_from_snapshot;
    cur_tick.tick_snapshot := i_to_snapshot;
    return pgq._range_sql(q, last_tick, cur_tick, owner);
end;
$$;

create or replace function pgq.tick_range_sql(i_queue_name text, i_from_tick bigint, i_to_tick bigint)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the query for the events after one tick up to another, independently of any consumer. It does not include
-- retries: each belongs to one consumer.
-- Parameters:
--      i_from_tick     - tick to start after
--      i_to_tick       - last tick
-- Returns: SQL as from pgq.batch_event_sql().
-- Errors: PQ008 a tick is not available, PQ011 the range ends before it begins
declare
    id  constant int4 := (select queue_id from pgq.queue where queue_name = i_queue_name);
begin
    return pgq.snapshot_range_sql(i_queue_name, i_from_tick, (pgq._get_tick(id, i_from_tick)).tick_snapshot,
                                  i_to_tick, (pgq._get_tick(id, i_to_tick)).tick_snapshot);
end;
$$;
