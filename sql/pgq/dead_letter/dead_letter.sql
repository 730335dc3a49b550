create or replace function pgq.event_dead_letter_many(
    x_batch_id bigint, x_event_ids bigint[], x_reasons text[], x_tracebacks text[] default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Gives up events of an open batch: each is kept as a dead letter of this consumer, with the reason. It takes one pass
-- over the batch, however many events there are. Other consumers are not affected.
-- Parameters:
--      x_event_ids     - ids of its events
--      x_reasons       - the reasons, one for each event
--      x_tracebacks    - the tracebacks, one for each event, each may be null; null for none at all
-- Returns: number of dead letters.
-- Errors: PQ004 batch is not open, PQ005 an event is not in it, PQ011 arrays differ in length, or a reason is null
declare
    b       record;
    owner   text;
    of_group text;
    found   bigint[];
    missing bigint;
begin
    if cardinality(x_event_ids) is distinct from cardinality(x_reasons)
       or cardinality(x_event_ids) <> coalesce(cardinality(x_tracebacks), cardinality(x_event_ids))
       or array_position(x_reasons, null) is not null
    then
        raise exception using errcode = 'PQ011',
            message = 'event_dead_letter_many: there must be one reason for each event',
            hint = 'Give arrays of the same length, and no reason that is null.';
    end if;
    select * into b from pgq._open_batch(x_batch_id);
    -- If several workers share a position, take the consumer that owns it: replayed events are for all of them.
    select c.co_name, case when r.reg_is_partition then pgq._consumer_of(r) end into owner, of_group
      from pgq.registration r
      join pgq.consumer c on c.co_id = r.sub_consumer
     where r.sub_id = b.sub_id
     order by r.reg_id
     limit 1;

    execute format($sql$
        with letter as (
            select distinct on (id) id, reason, traceback
              from unnest($1, $2, $3) w (id, reason, traceback)
             order by id),
        given_up as (
            insert into pgq._dead_letter (dl_queue, dl_consumer, dl_group, dl_batch, dl_attempts, dl_reason, dl_traceback,
                                         ev_id, ev_time, ev_txid, ev_retry,
                                         ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
            select $4, $5, $7, $6, coalesce(e.ev_retry, 0) + 1, l.reason, l.traceback,
                   e.ev_id, e.ev_time, e.ev_txid, e.ev_retry,
                   e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
              from (%s) e
              join letter l on l.id = e.ev_id
             order by e.ev_id
            returning ev_id)
        select array_agg(ev_id) from given_up$sql$,
        pgq._range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id))
    into found
    using x_event_ids, x_reasons, x_tracebacks, (b.queue).queue_name, owner, x_batch_id, of_group;

    select id into missing from (select unnest(x_event_ids) except select unnest(found)) m (id) limit 1;
    if missing is not null or x_event_ids is null or array_position(x_event_ids, null) is not null then
        raise exception using errcode = 'PQ005',
            message = format('event %s is not in batch %s', coalesce(missing::text, 'NULL'), x_batch_id),
            hint = 'Only events of the open batch can become dead letters, before it is finished.';
    end if;
    return coalesce(cardinality(found), 0);
end;
$$;

create or replace function pgq.event_dead_letter(x_batch_id bigint, x_event_id bigint, x_reason text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Gives up one event of an open batch; see pgq.event_dead_letter_many().
-- Returns: 1
begin
    return pgq.event_dead_letter_many(x_batch_id, array[x_event_id], array[x_reason]);
end;
$$;

create or replace function pgq._lock_dead_letters(i_ids bigint[])
returns bigint[]
language plpgsql
as $$
-- Locks dead letters until the end of the transaction; raises 42501 unless the caller may administer their queues, or
-- consume as their consumers by a grant.
-- Returns: the ids of those that were locked. Others may be there by now, for which no right was checked.
declare
    l       record;
    v_ids   bigint[];
begin
    -- In a fixed order, so that two sessions at once wait for each other and do not deadlock.
    v_ids := array(select dl_id from pgq._dead_letter where dl_id = any (i_ids) order by dl_id for update);
    for l in
        select distinct queue_id, coalesce(dl_group, dl_consumer) as consumer
          from pgq._dead_letter
          left join pgq.queue on queue_name = dl_queue
         where dl_id = any (v_ids)
    loop
        perform pgq._require_right(l.queue_id, '{consume}', l.consumer);
    end loop;
    return v_ids;
end;
$$;

create or replace function pgq._merged(i_value jsonb, i_patch jsonb)
returns jsonb
language plpgsql
as $$
-- Returns a JSON value with a JSON Merge Patch (RFC 7396).
begin
    if jsonb_typeof(i_patch) <> 'object' then
        return i_patch;
    end if;
    return (select coalesce(jsonb_object_agg(key, case when p.value is null then v.value else pgq._merged(v.value, p.value) end), '{}')
              from jsonb_each(case when jsonb_typeof(i_value) = 'object' then i_value else '{}' end) v
              full join jsonb_each(i_patch) p using (key)
             where p.value is distinct from 'null'::jsonb);
end;
$$;

create or replace function pgq._patched_payload(i_letter bigint, i_data text, i_patch jsonb)
returns text
language plpgsql
as $$
-- Returns the payload of a dead letter with a JSON Merge Patch.
declare
    v_value jsonb;
begin
    begin
        v_value := i_data::jsonb;
    exception when data_exception or statement_too_complex then
        v_value := null;
    end;
    if v_value is null then
        raise exception using errcode = 'PQ011',
            message = format('the payload of dead letter %s is not JSON', i_letter),
            hint = 'Replay it with another payload, or as it is; nothing was replayed.';
    end if;
    return pgq._merged(v_value, i_patch);
end;
$$;

create or replace function pgq.replay_dead_letters(i_ids bigint[], i_data text default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Delivers dead letters again, each only to the consumer that gave it up, as events with their old ids and an ev_retry
-- of 0. Like retries, they are delivered when maintenance next runs. Any condition can select them:
--     select pgq.replay_dead_letters(array(select dl_id from pgq.dead_letter where dl_queue = 'orders'))
-- Parameters:
--      i_ids   - ids of dead letters; those that do not exist (any more) are skipped
--      i_data  - payload in place of the event's, for one dead letter; null for its own
-- Returns: number of events that will be delivered again. Several dead letters of one event for one consumer deliver it
--      once; so do a dead letter and a waiting retry.
-- Errors: PQ002 the consumer is not registered any more, PQ011 one payload for several, or for an event that waits
declare
    n       int4;
    locked  bigint[];
begin
    if i_data is not null and cardinality(i_ids) > 1 then
        raise exception using errcode = 'PQ011',
            message = format('one payload for %s dead letters', cardinality(i_ids)),
            hint = 'Replay them one by one, or change all by pgq.replay_dead_letters_patched().';
    end if;
    locked := pgq._lock_dead_letters(i_ids);
    n := pgq._replay_locked(locked, i_data, null);
    if i_data is not null and locked <> '{}' and n = 0 then
        raise exception using errcode = 'PQ011',
            message = 'the event waits for a retry already, with its own payload',
            hint = 'Wait until that is done, or replay the dead letter as it is.';
    end if;
    return n;
end;
$$;

create or replace function pgq.replay_dead_letters_patched(i_ids bigint[], i_patch jsonb)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does what pgq.replay_dead_letters(2) does, and changes each payload, which is JSON, by a JSON Merge Patch (RFC 7396):
--     select pgq.replay_dead_letters_patched('{17,18}', '{"currency": "EUR", "customer": {"name": null}}')
-- Parameters:
--      i_ids   - ids of dead letters; those that do not exist (any more) are skipped
--      i_patch - a JSON object: its members replace those of the payload, or are added; a null removes
-- Returns: number of events that will be delivered again. An event that waits for a retry comes with its own payload.
-- Errors: PQ002 the consumer is not registered any more, PQ011 the patch is no object, or a payload is not JSON
begin
    if jsonb_typeof(i_patch) is distinct from 'object' then
        raise exception using errcode = 'PQ011',
            message = 'a patch is a JSON object',
            hint = 'Give one like {"currency": "EUR"}.';
    end if;
    return pgq._replay_locked(pgq._lock_dead_letters(i_ids), null, i_patch);
end;
$$;

create or replace function pgq._replay_locked(i_ids bigint[], i_data text, i_patch jsonb)
returns integer
language plpgsql
as $$
-- Replays locked dead letters, with a payload in place of their own, or with a patch of it.
declare
    l       record;
    n       int4;
begin
    select dl_queue, dl_consumer into l
      from pgq._dead_letter
      join pgq.queue on queue_name = dl_queue
      join pgq.consumer on co_name = dl_consumer
      join pgq.registration on sub_queue = queue_id and sub_consumer = co_id
     where dl_id = any (i_ids)
       and reg_is_partition <> (dl_group is not null)
     limit 1;
    if found then
        raise exception using errcode = 'PQ002',
            message = format('consumer %L of queue %L is not the one that gave up these events', l.dl_consumer, l.dl_queue),
            hint = 'One is a partition of a consumer group and the other is not. Read the events in pgq.dead_letter, and purge them.';
    end if;
    with replayed as (
        delete from pgq._dead_letter where dl_id = any (i_ids) returning *),
    waiting as (
        select q.queue_name, c.co_name, w.ev_id
          from pgq.retry_queue w
          join pgq.queue q on q.queue_id = w.ev_queue
          join pgq.registration r on r.sub_queue = w.ev_queue and r.sub_id = w.ev_owner
          join pgq.consumer c on c.co_id = r.sub_consumer
         where w.ev_id in (select ev_id from replayed)),
    event as (
        select distinct on (dl_queue, dl_consumer, ev_id) *
          from replayed
         where (dl_queue, dl_consumer, ev_id) not in (select queue_name, co_name, ev_id from waiting)
         order by dl_queue, dl_consumer, ev_id, dl_id)
    select count(pgq.event_retry_raw(e.dl_queue, e.dl_consumer, current_timestamp, e.ev_id, e.ev_time, 0,
                                     e.ev_type, case when i_patch is null then coalesce(i_data, e.ev_data)
                                                     else pgq._patched_payload(e.dl_id, e.ev_data, i_patch) end,
                                     e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4))
      into n
      from event e;
    return n;
end;
$$;

create or replace function pgq.purge_dead_letters(i_ids bigint[])
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Deletes dead letters. Any condition can select them:
--     select pgq.purge_dead_letters(array(
--         select dl_id from pgq.dead_letter where dl_time < now() - interval '90 days'))
-- Parameters:
--      i_ids   - ids of dead letters; those that do not exist (any more) are skipped
-- Returns: number of dead letters deleted.
declare
    locked  constant bigint[] := pgq._lock_dead_letters(i_ids);
    n       int4;
begin
    delete from pgq._dead_letter where dl_id = any (locked);
    get diagnostics n = row_count;
    return n;
end;
$$;

create or replace function pgq.get_dead_letter_info(
    i_queue_name text default null,
    out queue_name text, out consumer_name text, out dead_letters bigint)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of dead letters of each consumer that has any, also of those that are not registered any more. It
-- counts all of them.
-- Parameters:
--      i_queue_name    - the queue; null for all
begin
    return query
    select dl_queue, dl_consumer, count(*)
      from pgq._dead_letter
     where i_queue_name is null or dl_queue = i_queue_name
     group by 1, 2
     order by 1, 2;
end;
$$;
