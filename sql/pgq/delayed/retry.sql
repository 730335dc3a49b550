create or replace function pgq.event_retry_many(x_batch_id bigint, x_event_ids bigint[], x_retry_times timestamptz[])
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Retries events of an open batch: they are delivered again to this consumer, later, with ev_retry increased by one. It
-- takes one pass over the batch, however many events there are.
-- Parameters:
--      x_event_ids     - ids of its events
--      x_retry_times   - time of each retry; an array of the same length
-- Returns: number of retries, without those that were requested before.
-- Errors: PQ004 batch is not open, PQ005 an event is not in it, PQ011 arrays differ in length, PQ050 infinite time
declare
    b       record;
    d       record;
    m       constant pgq.moved_0 := pgq._last_move();
    found   bigint[];
    missing bigint;
    n       int4;
begin
    if cardinality(x_event_ids) is distinct from cardinality(x_retry_times)
       or array_position(x_retry_times, null) is not null
    then
        raise exception using errcode = 'PQ011',
            message = 'event_retry_many: there must be one time for each event',
            hint = 'Give two arrays of the same length, without nulls.';
    end if;
    perform pgq._check_delivery_time('event_retry_many', x_retry_times);
    select * into b from pgq._open_batch(x_batch_id);
    select * into d from pgq._delayed_target();

    execute format($sql$
        with wanted as (
            select id, min(at) as at from unnest($1, $2) w (id, at) group by id),
        event as (
            select e.*, w.at from (%s) e join wanted w on w.id = e.ev_id),
        retry as (
            insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_owner, ev_batch, ev_retry,
                                     ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
            select greatest(at, $6), $3, ev_id, ev_time, $4, $5, coalesce(ev_retry, 0) + 1,
                   ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, pgq._delayed_slot(greatest(at, $6), $7)
              from event e
             where not exists (select from pgq.delayed d
                                where d.ev_id = e.ev_id and d.ev_queue = $3 and d.ev_owner = $4
                                  and not pgq._is_moved(d.due, d.due_nr, d.due_txid, $8))
            on conflict do nothing
            returning ev_id)
        select (select array_agg(ev_id) from event), (select count(*) from retry)$sql$,
        pgq._range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id))
    into found, n
    using x_event_ids, x_retry_times, (b.queue).queue_id, b.sub_id, x_batch_id, d.earliest, d.parity, m;

    select id into missing from unnest(x_event_ids) id where id <> all (coalesce(found, '{}')) limit 1;
    if missing is not null or x_event_ids is null or array_position(x_event_ids, null) is not null then
        raise exception using errcode = 'PQ005',
            message = format('event %s is not in batch %s', coalesce(missing::text, 'NULL'), x_batch_id),
            hint = 'Only events of the open batch can be retried, before it is finished.';
    end if;
    return n;
end;
$$;

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_time timestamptz)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Retries one event at a given time; see pgq.event_retry_many().
-- Returns: 1, or 0 if the retry was requested before.
begin
    return pgq.event_retry_many(x_batch_id, array[x_event_id], array[x_retry_time]);
end;
$$;

create or replace function pgq.event_retry(x_batch_id bigint, x_event_id bigint, x_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Retries one event after a number of seconds; see pgq.event_retry_many().
-- Returns: 1, or 0 if the retry was requested before.
begin
    return pgq.event_retry_many(x_batch_id, array[x_event_id],
                                array[current_timestamp + make_interval(secs => x_retry_seconds)]);
end;
$$;

create or replace function pgq.batch_retry(i_batch_id bigint, i_retry_seconds integer)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Retries all events of an open batch after a number of seconds.
-- Returns: number of retries, without those that were requested before.
-- Errors: PQ004 batch is not open
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
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts an event, with all its fields given, into a consumer's retry queue.
-- Parameters:
--      x_retry_after       - time of the retry
--      x_ev_id             - event id, null for the next one
-- Returns: the event's id.
-- Errors: PQ002 consumer not registered, PQ050 infinite time, 23505 the event is waiting already
declare
    r   pgq.registration := pgq._find_registration(x_queue, x_consumer);
    m   constant pgq.moved_0 := pgq._last_move();
    d   record;
    id  bigint := x_ev_id;
begin
    perform pgq._check_delivery_time('event_retry_raw', array[coalesce(x_retry_after, now())]);
    if id is null then
        select nextval(queue_event_seq_id) into id from pgq.queue where queue_id = r.sub_queue;
    end if;
    select * into d from pgq._delayed_target();
    if exists (select from pgq.delayed w
                where w.ev_id = id and w.ev_queue = r.sub_queue and w.ev_owner = r.sub_id
                  and not pgq._is_moved(w.due, w.due_nr, w.due_txid, m))
    then
        raise exception using errcode = 'unique_violation',
            message = format('event %s waits already to come again to consumer %L', id, x_consumer),
            hint = 'See pgq.retry_queue.';
    end if;
    insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_owner, ev_retry,
                             ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
    values (greatest(x_retry_after, d.earliest), r.sub_queue, id, x_ev_time, r.sub_id, x_ev_retry,
            x_ev_type, x_ev_data, x_ev_extra1, x_ev_extra2, x_ev_extra3, x_ev_extra4,
            pgq._delayed_slot(greatest(x_retry_after, d.earliest), d.parity));
    return id;
end;
$$;

create or replace function pgq._retry_view_write()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger of pgq.retry_queue: an inserted row is a waiting retry, deleting a row cancels it, and updating a row
-- replaces it.
declare
    q   text;
    c   text;
    w   pgq.delayed;
begin
    if tg_op <> 'INSERT' then
        select * into w
          from pgq.delayed d
         where d.ev_id = old.ev_id and d.ev_queue = old.ev_queue and d.ev_owner = old.ev_owner
           and d.due = old.ev_retry_after
         order by d.due_nr desc limit 1
           for update;
        if not found
           or pgq._is_moved(w.due, w.due_nr, w.due_txid, pgq._last_move())
           or not pgq._is_read_committed() and w.due < (pgq._delayed_target()).earliest
        then
            perform pgq._raise_stale_snapshot();
        end if;
        delete from pgq.delayed where ev_id = w.ev_id and due_slot = w.due_slot and due_nr = w.due_nr;
        if tg_op = 'DELETE' then
            return old;
        end if;
    end if;
    select queue_name, co_name into q, c
      from pgq.registration r
      join pgq.queue on queue_id = r.sub_queue
      join pgq.consumer on co_id = r.sub_consumer
     where r.sub_queue = new.ev_queue
       and r.sub_id = new.ev_owner
     order by r.reg_id
     limit 1;
    if not found then
        raise exception using errcode = 'PQ002',
            message = format('no consumer of queue %s has the subscription %s', new.ev_queue, coalesce(new.ev_owner::text, 'NULL')),
            hint = 'See sub_queue and sub_id of pgq.subscription.';
    end if;
    perform pgq.event_retry_raw(q, c, new.ev_retry_after, new.ev_id, new.ev_time, new.ev_retry,
                                new.ev_type, new.ev_data, new.ev_extra1, new.ev_extra2, new.ev_extra3, new.ev_extra4);
    return new;
end;
$$;

create or replace function pgq.maint_retry_events()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves due events into their queues, a limited number per call; see pgq.maint_delayed_events().
-- Returns: number of events moved; call it again until this is 0.
begin
    return (pgq.maint_delayed_events()).moved;
end;
$$;
