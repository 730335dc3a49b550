-- Parked keys. A key is parked from the failure of one of its events until its last parked event is done. Only the
-- owner of its partition parks and processes events; other sessions may request a retry, and discard events.

create or replace function pgq._park_events(
    part pgq.group_partition, i_batch_id bigint, i_failed bigint[], i_errors text[], i_delays interval[], i_types text[])
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Parks the keys of events that failed, and stores all events of parked keys.
-- Returns: number of events.
declare
    g       pgq.consumer_group;
    b       record;
    n       int4;
    missing bigint;
begin
    select * into g from pgq.consumer_group where group_id = part.part_group;
    select * into b from pgq._open_batch(i_batch_id);
    execute format($sql$
        with event as materialized (
            select e.*, %s as key from (%s) e),
        failed as (
            select distinct on (e.key) e.key, e.ev_id, f.error, f.delay
              from unnest($1, $2, $3) f (id, error, delay)
              join event e on e.ev_id = f.id
             order by e.key, e.ev_id),
        parked as (
            insert into pgq._parked_key (parked_group, parked_part, parked_key, parked_next, parked_error)
            select $4, $5, key, pgq._retry_time(delay), error
              from failed
            returning parked_id, parked_key),
        kept as (
            insert into pgq._parked_event (pe_key, ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data,
                                          ev_extra1, ev_extra2, ev_extra3, ev_extra4)
            select k.parked_id, e.ev_id, e.ev_time, e.ev_txid, e.ev_retry, e.ev_type, e.ev_data,
                   e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
              from (select parked_id, parked_key, ev_id from parked join failed on key = parked_key
                     union all
                    select parked_id, parked_key, 0 from pgq._parked_key where parked_group = $4 and parked_part = $5
                   ) k (parked_id, key, first)
              join event e on e.key = k.key and e.ev_id >= k.first
             order by e.ev_id
            returning 1)
        select (select count(*) from kept), (select f from unnest($1) f where f not in (select ev_id from event) limit 1)$sql$,
        g.group_key_sql,
        pgq._group_sql(g, part.part_nr, pgq._range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id), i_types, false))
    into n, missing
    using i_failed, i_errors, i_delays, g.group_id, part.part_nr;
    if missing is not null then
        raise exception using errcode = 'PQ005',
            message = format('event %s is not in batch %s', missing, i_batch_id),
            hint = 'Only events of the partition''s open batch can have failed in it.';
    end if;
    return n;
end;
$$;

create or replace function pgq.open_parked(
    i_member_id int4, i_most int4 default 100,
    out parked_id bigint, out partition int4, out generation bigint, out first_time timestamptz,
    out pe_ids bigint[], out ev_ids bigint[], out events bytea[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the first events of a parked key that is due, of one of a member's partitions. Process them in this order, up
-- to the first that fails, then call pgq.finish_parked() in the same transaction.
-- Parameters:
--      i_member_id     - from pgq.join_group()
--      i_most          - maximum number of events; fewer are returned if they are large
-- Returns:
--      parked_id, partition, generation    - for pgq.finish_parked(); null if no key is due
--      first_time                          - ev_time of the first event
--      pe_ids, ev_ids                      - ids of the events: as parked, and the original ones
--      events                              - the events, as from pgq.open_next_batch(). The ev_retry of the first
--                                            includes its failures
declare
    room        int8 := 65536;
    attempts    int4;
    event       record;
    encoding    constant text := current_setting('client_encoding');
    g           pgq.consumer_group;
begin
    select cg.* into g
      from pgq.group_member m
      join pgq.consumer_group cg on cg.group_id = m.member_group
     where m.member_id = i_member_id;
    perform pgq._require_group(g);
    -- There a text may not exist in the client's encoding: the client gets the bytes.
    if getdatabaseencoding() = 'SQL_ASCII' then
        perform set_config('client_encoding', 'SQL_ASCII', true);
    end if;
    select k.parked_id, k.parked_part, p.part_generation, k.parked_attempts
      into parked_id, partition, generation, attempts
      from pgq.group_partition p
      join pgq._parked_key k on k.parked_group = p.part_group and k.parked_part = p.part_nr
     where p.part_group = g.group_id
       and p.part_member = i_member_id
       and k.parked_next <= clock_timestamp()
     order by k.parked_next, k.parked_id
     limit 1;
    pe_ids := '{}';
    ev_ids := '{}';
    events := '{}';
    for event in
        select e.pe_id, e.ev_id, e.ev_time, e.ev_txid, coalesce(e.ev_retry, 0) as ev_retry, e.ev_type, e.ev_data,
               e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
          from pgq._parked_event e
         where e.pe_key = open_parked.parked_id
         order by e.pe_id
         limit i_most
    loop
        room := room - octet_length(concat(event.ev_data, event.ev_extra1, event.ev_extra2, event.ev_extra3, event.ev_extra4));
        exit when room < 0 and cardinality(events) > 0;
        if cardinality(events) = 0 then
            first_time := event.ev_time;
            event.ev_retry := event.ev_retry + attempts;
        end if;
        pe_ids := pe_ids || event.pe_id;
        ev_ids := ev_ids || event.ev_id;
        events := events || record_send(row(event.ev_id, event.ev_time, event.ev_txid, event.ev_retry, event.ev_type, event.ev_data,
                                            event.ev_extra1, event.ev_extra2, event.ev_extra3, event.ev_extra4));
    end loop;
    if getdatabaseencoding() = 'SQL_ASCII' then
        perform set_config('client_encoding', encoding, true);
    end if;
end;
$$;

create or replace function pgq._retry_time(i_delay interval)
returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Returns the time after a delay, null for none. Raises PQ050 if it has no end.
declare
    v_time  constant timestamptz := clock_timestamp() + i_delay;
begin
    perform pgq._check_delivery_time('a retry', array[coalesce(v_time, now())]);
    return v_time;
end;
$$;

create or replace function pgq.finish_parked(
    i_parked_id bigint, i_generation bigint, i_done bigint[],
    i_failed boolean default false, i_error text default null, i_delay interval default null,
    i_given_up bigint[] default '{}', i_reasons text[] default '{}', i_tracebacks text[] default '{}')
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes parked events that are done, and the key when no event is left. Call it in the transaction that processed the
-- events.
-- Parameters:
--      i_parked_id, i_generation   - from pgq.open_parked()
--      i_done                      - pe_ids of the events
--      i_failed                    - true if the event after them has failed
--      i_error, i_delay            - the error, and the delay until the retry; null for only on request
--      i_given_up                  - pe_ids of events to make dead letters, with i_reasons and i_tracebacks
-- Returns: number of parked events of the key that are left.
-- Errors: PQ035 the partition has another owner, or events were given up meanwhile: roll back; PQ050 infinite delay
declare
    r       int4;
    part    pgq.group_partition;
    n       bigint;
begin
    select part_reg into r
      from pgq._parked_key
      join pgq.group_partition on part_group = parked_group and part_nr = parked_part
     where parked_id = i_parked_id;
    part := pgq._fence_partition(r, i_generation);
    -- Lock in the same order as pgq.give_up_parked().
    perform from pgq._parked_key where parked_id = i_parked_id for update;
    n := pgq._parked_to_dead_letters(i_parked_id, i_given_up, i_reasons, i_tracebacks);
    with gone as (
        delete from pgq._parked_event where pe_key = i_parked_id and pe_id = any (i_done) returning 1)
    select n + count(*) into n from gone;
    if n < (select count(distinct id) from unnest(i_done || i_given_up) id) then
        raise exception using errcode = 'PQ035',
            message = format('parked events of partition %s are not there any more', part.part_nr),
            hint = 'They were given up while they were processed. Roll back: the rest of the key comes again.';
    end if;
    select count(*) into n from pgq._parked_event where pe_key = i_parked_id;
    if n = 0 then
        delete from pgq._parked_key where parked_id = i_parked_id;
        -- A batch that was read while the key was parked lacks the key's events, so it must not be finished.
        update pgq.group_partition set part_generation = default where part_reg = part.part_reg;
    elsif i_failed then
        update pgq._parked_key
           set parked_attempts = 1 + case when cardinality(i_done || i_given_up) = 0 then parked_attempts else 0 end,
               parked_next = pgq._retry_time(i_delay),
               parked_error = i_error
         where parked_id = i_parked_id;
    else
        update pgq._parked_key set parked_attempts = 0, parked_next = clock_timestamp() where parked_id = i_parked_id;
    end if;
    return n;
end;
$$;

create or replace function pgq._parked_to_dead_letters(i_parked_id bigint, i_ids bigint[], i_reasons text[], i_tracebacks text[])
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes parked events of a key dead letters of their group.
-- Returns: number of events.
declare
    n   int4;
begin
    with gone as (
        delete from pgq._parked_event where pe_key = i_parked_id and pe_id = any (i_ids) returning *),
    letter as (
        select distinct on (id) id, reason, traceback
          from unnest(i_ids, i_reasons, i_tracebacks) l (id, reason, traceback)
         order by id)
    insert into pgq._dead_letter (dl_queue, dl_consumer, dl_group, dl_batch, dl_attempts, dl_reason, dl_traceback,
                                 ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    select q.queue_name, cg.group_name || '#0', cg.group_name, 0, coalesce(e.ev_retry, 0) + greatest(k.parked_attempts, 1), l.reason, l.traceback,
           e.ev_id, e.ev_time, e.ev_txid, e.ev_retry, e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4
      from gone e
      join letter l on l.id = e.pe_id
      join pgq._parked_key k on k.parked_id = e.pe_key
      join pgq.consumer_group cg on cg.group_id = k.parked_group
      join pgq.queue q on q.queue_id = cg.group_queue
     order by e.pe_id;
    get diagnostics n = row_count;
    return n;
end;
$$;

create or replace function pgq.unpark_key(i_queue_name text, i_group_name text, i_key text default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Retries the events of a parked key now, in their order, by the worker that owns the partition.
-- Parameters:
--      i_key           - the key; null for all
-- Returns: number of keys.
-- Errors: PQ036 group does not exist
declare
    g   pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
    n   int4;
begin
    update pgq._parked_key k
       set parked_next = clock_timestamp(), parked_attempts = 0
     where parked_group = g.group_id
       and (i_key is null or k.parked_key = i_key);
    get diagnostics n = row_count;
    return n;
end;
$$;

create or replace function pgq.give_up_parked(i_queue_name text, i_group_name text, i_key text, i_most int4 default 1)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes the first events of a parked key dead letters. The remaining events are retried now.
-- Parameters:
--      i_key           - the key
--      i_most          - number of events; null for all
-- Returns: number of events.
-- Errors: PQ036 group does not exist
declare
    g       pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
    k       pgq._parked_key;
    ids     bigint[];
    n       int4;
begin
    -- This lock does not block a session that parks more events of the key.
    select * into k from pgq._parked_key where parked_group = g.group_id and parked_key = i_key for no key update;
    if not found then
        return 0;
    end if;
    ids := array(select pe_id from pgq._parked_event where pe_key = k.parked_id order by pe_id limit i_most);
    n := pgq._parked_to_dead_letters(k.parked_id, ids, array_fill(coalesce(k.parked_error, 'given up by hand'), array[cardinality(ids)]), null);
    perform pgq.unpark_key(i_queue_name, i_group_name, i_key);
    return n;
end;
$$;
