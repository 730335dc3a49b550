create or replace function pgq._check_delivery_time(i_what text, i_times timestamptz[])
returns void
language plpgsql
as $$
-- Raises PQ050 for times at which nothing can be delivered.
declare
    bad text;
begin
    select coalesce(t::text, 'NULL') into bad
      from pg_catalog.unnest(i_times) t
     where pg_catalog.isfinite(t) is not true
        -- Many clients cannot represent other dates, and one such event would hide all others from them.
        or t < '0001-01-02 00:00+00'::timestamptz
        or t >= '9999-12-31 00:00+00'::timestamptz
     limit 1;
    if found then
        raise exception using errcode = 'PQ050',
            message = pg_catalog.format('%s: an event cannot be delivered at %s', i_what, bad),
            hint = 'Give a time of the years 1 to 9999, for example now() + interval ''1 hour''; one in the past means at once.';
    end if;
end;
$$;

create or replace function pgq.insert_event_at(
    queue_name text, deliver_at timestamptz, ev_type text, ev_data text,
    ev_extra1 text default null, ev_extra2 text default null, ev_extra3 text default null, ev_extra4 text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts an event into a queue, in the caller's transaction, to be delivered at a later time to the consumers that are
-- registered then. Its ev_time will be the time when it was due.
-- Parameters:
--      deliver_at              - time of delivery; a time in the past means at once
--      ev_type                 - type of the event, for the consumer
--      ev_extra1 .. ev_extra4  - further fields
-- Returns: the event's id, also for pgq.cancel_event().
-- Errors: PQ050 null or infinite time; otherwise as pgq.insert_event(7)
#variable_conflict use_column
declare
    t   record;
    d   record;
    id  bigint;
    due timestamptz;
    v_checked boolean;
begin
    perform pgq._check_delivery_time('insert_event_at', array[insert_event_at.deliver_at]);
    select * into t from pgq._write_target(insert_event_at.queue_name);
    v_checked := pgq._hold_contracts(t.queue_id, t.ev_slot);
    select * into d from pgq._delayed_target();
    id := nextval(t.event_seq);
    due := greatest(insert_event_at.deliver_at, d.earliest);
    insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_type, ev_data,
                             ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
    values (due, t.queue_id, id, greatest(insert_event_at.deliver_at, now()), insert_event_at.ev_type,
            case when v_checked then pgq._checked_data(t.queue_id, insert_event_at.ev_type, insert_event_at.ev_data)
                 else insert_event_at.ev_data end,
            insert_event_at.ev_extra1, insert_event_at.ev_extra2, insert_event_at.ev_extra3, insert_event_at.ev_extra4,
            pgq._delayed_slot(due, d.parity));
    return id;
end;
$$;

create or replace function pgq.insert_events_at(
    i_queue_name text, i_times timestamptz[], i_types text[], i_data text[],
    i_extra1 text[] default null, i_extra2 text[] default null,
    i_extra3 text[] default null, i_extra4 text[] default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
rows 1000
as $$
-- Puts many events into a queue in one statement, each to be delivered at its time; see pgq.insert_event_at(8).
-- Parameters:
--      i_times                 - times of delivery
--      i_types, i_data         - types and payloads, arrays of the same length
--      i_extra1 .. i_extra4    - further fields, each null or an array of that length
-- Returns: the events' ids, ascending, in the order of the arrays.
-- Errors: PQ011 arrays differ in length, PQ050 null or infinite time; otherwise as pgq.insert_event(7)
declare
    n   constant int4 := coalesce(cardinality(i_times), 0);
    t   record;
    d   record;
    v_checked boolean;
begin
    perform pgq._require_equal_lengths('insert_events_at', n, coalesce(cardinality(i_types), 0), coalesce(cardinality(i_data), 0),
                                       cardinality(i_extra1), cardinality(i_extra2), cardinality(i_extra3), cardinality(i_extra4));
    perform pgq._check_delivery_time('insert_events_at', i_times);
    select * into t from pgq._write_target(i_queue_name, n);
    v_checked := pgq._hold_contracts(t.queue_id, t.ev_slot);
    select * into d from pgq._delayed_target();
    return query
    insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_type, ev_data,
                             ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
    select greatest(e.deliver_at, d.earliest), t.queue_id, nextval(t.event_seq), greatest(e.deliver_at, now()),
           e.ev_type, case when v_checked then pgq._checked_data(t.queue_id, e.ev_type, e.ev_data) else e.ev_data end,
           e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4,
           pgq._delayed_slot(greatest(e.deliver_at, d.earliest), d.parity)
      from (select unnest(i_times) as deliver_at, unnest(i_types) as ev_type, unnest(i_data) as ev_data,
                   unnest(i_extra1) as ev_extra1, unnest(i_extra2) as ev_extra2,
                   unnest(i_extra3) as ev_extra3, unnest(i_extra4) as ev_extra4) e
    returning ev_id;
end;
$$;

create or replace function pgq.cancel_event(i_queue_name text, i_event_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Cancels a delayed event, in the caller's transaction.
-- Parameters:
--      i_event_id      - id that pgq.insert_event_at() returned
-- Returns: true if the event will not be delivered, once the transaction commits; false if it was delivered or
--      cancelled before, or never existed. It is not delivered before the transaction ends.
-- Errors: 40001 the event was delivered after the transaction took its snapshot
declare
    id      constant int4 := (pgq._find_queue_for(i_queue_name, 'insert')).queue_id;
    d       pgq.delayed;
begin
    -- This waits for a pass that is just copying the event. A later pass skips locked events.
    select * into d
      from pgq.delayed
     where ev_id = i_event_id
       and ev_queue = id
       and ev_owner is null
       for update;
    -- A statement of its own, so that it sees what was committed before this session got the lock.
    if not found or pgq._is_moved(d.due, d.due_nr, d.due_txid, pgq._last_move()) then
        return false;
    end if;
    if not pgq._is_read_committed() and d.due < (pgq._delayed_target()).earliest then
        -- A pass that this snapshot does not see may have copied the event.
        perform pgq._raise_stale_snapshot();
    end if;
    delete from pgq.delayed where ev_id = i_event_id and ev_queue = id and ev_owner is null;
    return true;
end;
$$;
