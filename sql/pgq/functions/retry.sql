create or replace function pgq.event_retry_many(x_batch_id bigint, x_event_ids bigint[], x_retry_times timestamptz[])
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.event_retry_many(3)
--
--      Lets events of an open batch come again to this consumer, later, with ev_retry one higher. One
--      pass over the batch, however many events.
--
-- Parameters:
--      x_batch_id      - an open batch
--      x_event_ids     - ids of its events
--      x_retry_times   - when each shall come again; an array of the same length
-- Returns:
--      Number of events that will come again; those that were going to already are not counted.
-- Errors:
--      PQ004 batch is not open, PQ005 an event is not in it, PQ011 arrays differ in length
-- Tables:
--      inserts into pgq.retry_queue
-- ----------------------------------------------------------------------
declare
    b       record;
    found   bigint[];
    missing bigint;
    n       int4;
begin
    if cardinality(x_event_ids) is distinct from cardinality(x_retry_times)
       or array_position(x_retry_times, null) is not null
    then
        raise exception using
            errcode = 'PQ011',
            message = 'event_retry_many: there must be one time for each event',
            hint = 'Give two arrays of the same length, without nulls.';
    end if;
    select * into b from pgq.open_batch(x_batch_id);

    execute format($sql$
        with wanted as (
            select id, min(at) as at from unnest($1, $2) w (id, at) group by id),
        event as (
            select e.*, w.at from (%s) e join wanted w on w.id = e.ev_id),
        retry as (
            insert into pgq.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_owner, ev_retry,
                                         ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
            select at, $3, ev_id, ev_time, $4, coalesce(ev_retry, 0) + 1,
                   ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4
              from event
            on conflict do nothing
            returning ev_id)
        select (select array_agg(ev_id) from event), (select count(*) from retry)$sql$,
        pgq.range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id))
    into found, n
    using x_event_ids, x_retry_times, (b.queue).queue_id, b.sub_id;

    select id into missing from unnest(x_event_ids) id where id <> all (coalesce(found, '{}')) limit 1;
    if missing is not null or x_event_ids is null or array_position(x_event_ids, null) is not null then
        raise exception using
            errcode = 'PQ005',
            message = format('event %s is not in batch %s', coalesce(missing::text, 'NULL'), x_batch_id),
            hint = 'Only events of the open batch can be retried, before it is finished.';
    end if;
    return n;
end;
$$;

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.event_retry(3)
--
--      Lets one event come again at a time; see pgq.event_retry_many().
--
-- Returns:
--      1, or 0 if it was going to come again already.
-- ----------------------------------------------------------------------
begin
    return pgq.event_retry_many(x_batch_id, array[x_event_id], array[x_retry_time]);
end;
$$;

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_seconds integer)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.event_retry(3)
--
--      Lets one event come again after some seconds; see pgq.event_retry_many().
--
-- Returns:
--      1, or 0 if it was going to come again already.
-- ----------------------------------------------------------------------
begin
    return pgq.event_retry_many(x_batch_id, array[x_event_id],
                                array[current_timestamp + make_interval(secs => x_retry_seconds)]);
end;
$$;

create or replace function pgq.batch_retry(i_batch_id bigint, i_retry_seconds integer)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.batch_retry(2)
--
--      Lets all events of an open batch come again after some seconds.
--
-- Returns:
--      Number of events that will come again; those that were going to already are not counted.
-- Errors:
--      PQ004 batch is not open
-- ----------------------------------------------------------------------
declare
    at  timestamptz := current_timestamp + make_interval(secs => i_retry_seconds);
    ids bigint[];
begin
    execute format('select coalesce(array_agg(ev_id), ''{}'') from (%s) e', pgq.batch_event_sql(i_batch_id)) into ids;
    return pgq.event_retry_many(i_batch_id, ids, array_fill(at, array[cardinality(ids)]));
end;
$$;

create or replace function pgq.event_retry_raw(
    x_queue text, x_consumer text, x_retry_after timestamptz,
    x_ev_id bigint, x_ev_time timestamptz, x_ev_retry integer, x_ev_type text, x_ev_data text,
    x_ev_extra1 text, x_ev_extra2 text, x_ev_extra3 text, x_ev_extra4 text)
returns bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.event_retry_raw(12)
--
--      Puts an event, given in full, into a consumer's retry queue.
--
-- Parameters:
--      x_queue, x_consumer - whose
--      x_retry_after       - when it shall come
--      x_ev_id             - event id, null for the next one
--      others              - the event
-- Returns:
--      The event's id.
-- Errors:
--      PQ001 queue does not exist, PQ002 consumer not registered
-- Tables:
--      inserts into pgq.retry_queue
-- ----------------------------------------------------------------------
declare
    r   pgq.registration := pgq.find_registration(x_queue, x_consumer);
    id  bigint := x_ev_id;
begin
    if id is null then
        select nextval(queue_event_seq_id) into id from pgq.queue where queue_id = r.sub_queue;
    end if;
    insert into pgq.retry_queue (ev_retry_after, ev_queue, ev_id, ev_time, ev_owner, ev_retry,
                                 ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    values (x_retry_after, r.sub_queue, id, x_ev_time, r.sub_id, x_ev_retry,
            x_ev_type, x_ev_data, x_ev_extra1, x_ev_extra2, x_ev_extra3, x_ev_extra4);
    return id;
end;
$$;

create or replace function pgq.maint_retry_events()
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_retry_events(0)
--
--      Moves events whose time has come from the retry queue back into their queues, up to 1000 a call.
--
-- Returns:
--      Number of events moved; call it again until that is 0.
-- Tables:
--      pgq.retry_queue, pgq.event
-- ----------------------------------------------------------------------
declare
    n   int4;
begin
    perform pgq.check_native_txid();  -- draws the transaction id, before the current tables are looked up
    with due as (
        select ev_owner, ev_id
          from pgq.retry_queue
         where ev_retry_after <= current_timestamp
         order by ev_retry_after
         limit 1000
           for update skip locked),
    moved as (
        delete from pgq.retry_queue r
         using due
         where r.ev_owner = due.ev_owner and r.ev_id = due.ev_id
        returning r.*),
    inserted as (
        insert into pgq.event (ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data,
                               ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
        select m.ev_id, m.ev_time, m.ev_owner, m.ev_retry, m.ev_type, m.ev_data,
               m.ev_extra1, m.ev_extra2, m.ev_extra3, m.ev_extra4,
               pgq.state_slot(q.queue_slot_seq)
          from moved m
          join pgq.queue q on q.queue_id = m.ev_queue),
    -- Events keep their ids. The sequence has to move all the same, so that a tick becomes due.
    announced as (
        select nextval(q.queue_event_seq_id)
          from pgq.queue q
         where q.queue_id in (select ev_queue from moved))
    select (select count(*) from moved) + 0 * (select count(nextval) from announced) into n;
    if n > 0 and pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;
    return n;
end;
$$;
