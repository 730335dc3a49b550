create or replace function pgq.key_partition(i_key text, i_partitions int4)
returns int4
language sql immutable parallel safe
as $$
-- Returns the partition of a key, counted from 0. PostgreSQL's own hash partitioning uses the same function, so its
-- results are the same in all versions.
-- Parameters:
--      i_key           - the key
--      i_partitions    - number of partitions
    select pg_catalog.int4(pg_catalog.int8mod(
               pg_catalog.int8and(pg_catalog.hashtextextended(i_key collate pg_catalog."C", 0), 9223372036854775807), i_partitions));
$$;

create or replace function pgq._group_sql(g pgq.consumer_group, i_part int4, i_range_sql text, i_types text[], i_but_parked boolean)
returns text
language plpgsql
as $$
-- Returns the query for the events of a partition.
-- Parameters:
--      i_range_sql     - the query for all events
--      i_types         - types of the wanted events; null for all
--      i_but_parked    - without the events of the keys that are parked now. They are literals: what a server that reads
--                        the batch later knows of them, such as a standby, is of another time
declare
    parked  text[];
begin
    if i_but_parked then
        parked := array(select k.parked_key from pgq._parked_key k
                         where k.parked_group = g.group_id and k.parked_part = i_part order by 1);
    end if;
    -- The hash of pgq.key_partition() is repeated here: a call for each event would cost more than the hash itself. The
    -- query runs on its reader's search_path, on which there may be operators that fit bigint and int better.
    return pg_catalog.format(
        'select ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from (%s) ev'
        ' where pg_catalog.hashtextextended(%s collate pg_catalog."C", 0) operator(pg_catalog.&) 9223372036854775807'
        ' operator(pg_catalog.%%) %s operator(pg_catalog.=) %s%s%s order by 1',
        i_range_sql, g.group_key_sql, g.group_partitions, i_part,
        ' and ev_type operator(pg_catalog.=) any (' || pg_catalog.quote_literal(i_types) || '::pg_catalog.text[])',
        case when pg_catalog.cardinality(parked) > 0 then pg_catalog.format(
            ' and not %s collate pg_catalog."C" operator(pg_catalog.=) any (%L::pg_catalog.text[])', g.group_key_sql, parked) end);
end;
$$;

create or replace function pgq.next_group_batch(
    i_member_id int4, i_max_count int4, i_min_lag interval default null, i_types text[] default null,
    i_most_inline int4 default 0, i_after int4 default -1, i_not int4[] default '{}', i_parked boolean default true,
    out partition int4, out generation bigint, out owned int4[], out full_partitions int4[], out parked boolean,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint,
    out batch_sql text, out events bytea[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Opens a batch of one of a member's partitions, or returns the one that is open. Partitions change owners in this
-- call, so the member must have finished or given up all its earlier batches. Read the batch after this call, and
-- finish it with pgq.finish_group_batch().
-- Parameters:
--      i_member_id     - from pgq.join_group()
--      i_max_count     - as for pgq.next_batch_upto(), counting all keys; null for one nominal tick
--      i_min_lag       - take no events younger than this, or null
--      i_types         - only events of these types, null for all
--      i_most_inline   - approximate maximum number of the partition's events to return in this call; -1 for none
--      i_after         - look at the partitions after this one first
--      i_not           - partitions to skip
--      i_parked        - if a parked key is due, return parked = true instead of opening a batch
-- Returns:
--      partition, generation   - the batch's partition and its generation; null if there is no batch
--      owned                   - the member's partitions
--      full_partitions         - those of them that take no batch because too much is parked
--      parked                  - true if pgq.open_parked() has something to do
--      The other columns are those of pgq.open_next_batch(); the query gives the partition's events, without those of
--      parked keys.
-- Errors: PQ008 the position is gone, PQ011 i_max_count is not positive, PQ035 not a member any more
declare
    g       pgq.consumer_group;
    q       pgq.queue;
    part    pgq.group_partition;
    b       record;
begin
    -- In one function: most of it fills the columns of its result.
    if i_max_count < 1 then
        raise exception using errcode = 'PQ011',
            message = format('a batch of up to %s events is not possible', i_max_count),
            hint = 'Give i_max_count of 1 or more.';
    end if;
    select cg.* into g
      from pgq.group_member m
      join pgq.consumer_group cg on cg.group_id = m.member_group
     where m.member_id = i_member_id;
    if not found then
        perform pgq._raise_member_gone(i_member_id);
    end if;
    select * into q from pgq.queue where queue_id = g.group_queue;
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{consume}', g.group_name);
    end if;
    if g.group_resize_to is not null and pgq._switch_group(g.group_id) then
        select * into g from pgq.consumer_group where group_id = g.group_id;
    end if;
    perform pgq._balance_group(g.group_id, i_member_id);

    owned := array(select part_nr from pgq.group_partition
                    where part_group = g.group_id and part_member = i_member_id order by part_nr);
    full_partitions := '{}';
    parked := g.group_paused is null and exists (select from pgq._parked_key
                       where parked_group = g.group_id and parked_part = any (owned) and parked_next <= clock_timestamp());
    if parked and i_parked then
        return;
    end if;

    for part in
        select * from pgq.group_partition
         where part_group = g.group_id and part_member = i_member_id
         order by part_nr <= i_after, part_nr
    loop
        if (select count(*)
              from (select from pgq._parked_key join pgq._parked_event on pe_key = parked_id
                     where parked_group = g.group_id and parked_part = part.part_nr
                     limit g.group_park_limit::int8 + 1) e) > g.group_park_limit
        then
            full_partitions := full_partitions || part.part_nr;
            continue;
        end if;
        continue when part.part_nr = any (i_not);
        select * into b from pgq._open_partition_batch(g, q, part, i_max_count, i_min_lag, i_types, i_most_inline);
        if b.batch_id is not null then
            partition := part.part_nr;
            generation := part.part_generation;
            batch_id := b.batch_id;
            cur_tick_id := (b.cur_tick).tick_id;
            cur_tick_time := (b.cur_tick).tick_time;
            cur_tick_event_seq := greatest((b.cur_tick).tick_event_seq, 1);
            prev_tick_id := (b.last_tick).tick_id;
            prev_tick_time := (b.last_tick).tick_time;
            prev_tick_event_seq := greatest((b.last_tick).tick_event_seq, 1);
            batch_sql := b.batch_sql;
            events := b.events;
            return;
        end if;
    end loop;
end;
$$;

create or replace function pgq._open_partition_batch(
    g pgq.consumer_group, q pgq.queue, part pgq.group_partition,
    i_max_count int4, i_min_lag interval, i_types text[], i_most_inline int4,
    out batch_id bigint, out last_tick pgq.tick_0, out cur_tick pgq.tick_0, out batch_sql text, out events bytea[])
language plpgsql
as $$
-- Opens the next batch of a partition; all null if there is none yet or the partition has another owner. It skips
-- ranges without an event for the partition.
declare
    p           pgq.position_0 := pgq._get_position(part.part_reg);
    locked      pgq.position_0;
    but_parked  constant boolean := exists (select from pgq._parked_key where parked_group = g.group_id and parked_part = part.part_nr);
    last_id     bigint;
    is_empty    boolean := false;
begin
    -- In one function: it is one loop, as in pgq.open_next_batch(9).
    loop
        last_tick := pgq._get_tick(q.queue_id, p.pos_last_tick);
        if last_tick.tick_id is null then
            perform pgq._raise_tick_not_found(q.queue_name, p.pos_last_tick);
        end if;

        if p.pos_batch is null then
            exit when g.group_paused is not null;
            cur_tick := pgq._next_batch_tick(q.queue_id, last_tick, i_min_lag, null, null, i_max_count);
            exit when cur_tick.tick_id is null;

            -- Lock only now, since mostly there is nothing new. A session that holds other partitions must not wait for
            -- this one: another session may hold it and wait for those. If another session was faster, look again.
            exit when not pgq._try_lock_position(part.part_reg);
            locked := pgq._lock_position(part.part_reg);
            exit when locked.pos_nr is null;
            if locked.pos_nr <> p.pos_nr then
                p := locked;
                continue;
            end if;
            -- Under the lock no session takes the partition away, or resizes the group; one may have since g was read.
            if pgq._is_read_committed() then
                select group_resize_tick into last_id
                  from pgq.group_partition
                  join pgq.consumer_group on group_id = part_group
                 where part_reg = part.part_reg and part_generation = part.part_generation and group_partitions = g.group_partitions;
            else
                -- An old snapshot does not see such a change; then this fails, without waiting for a session that waits
                -- for this one.
                select group_resize_tick into last_id
                  from pgq.group_partition
                  join pgq.consumer_group on group_id = part_group
                 where part_reg = part.part_reg and part_generation = part.part_generation and group_partitions = g.group_partitions
                   for share skip locked;
            end if;
            exit when not found;
            if last_id < cur_tick.tick_id then
                exit when last_id <= last_tick.tick_id;
                cur_tick := pgq._get_tick(q.queue_id, last_id);
            end if;
        else
            -- the open batch again; while it is open no session resizes the group
            exit when (select group_partitions from pgq.consumer_group where group_id = g.group_id) <> g.group_partitions;
            cur_tick := pgq._get_tick(q.queue_id, p.pos_next_tick);
            if cur_tick.tick_id is null then
                perform pgq._raise_tick_not_found(q.queue_name, p.pos_next_tick);
            end if;
        end if;

        batch_sql := pgq._group_sql(g, part.part_nr, pgq._range_sql(q, last_tick, cur_tick, g.group_sub_id), i_types, but_parked);
        events := null;
        if cur_tick.tick_event_seq - last_tick.tick_event_seq <= i_most_inline * g.group_partitions then
            events := pgq._small_batch(batch_sql);
        end if;
        if p.pos_batch is not null then
            batch_id := p.pos_batch;
            return;
        end if;
        if not but_parked then
            if events is null then
                execute pg_catalog.format('select not exists (%s)', batch_sql) into is_empty;
            else
                is_empty := events = '{}';
            end if;
        end if;
        if is_empty then
            perform pgq._append_position(part.part_reg, p.pos_nr + 1, cur_tick.tick_id, null, null);
            p := pgq._get_position(part.part_reg);
            continue;
        end if;
        -- as in pgq.open_next_batch()
        if pg_catalog.current_setting('synchronous_commit') in ('off', 'local') then
            perform pg_catalog.set_config('synchronous_commit', 'on', true);
        end if;
        batch_id := pg_catalog.nextval('pgq.batch_id_seq');
        perform pgq._append_position(part.part_reg, p.pos_nr + 1, p.pos_last_tick, batch_id, cur_tick.tick_id);
        return;
    end loop;
end;
$$;

create or replace function pgq._fence_partition(i_registration int4, i_generation bigint)
returns pgq.group_partition
language plpgsql
as $$
-- Locks a partition until the end of the transaction, if its owner has not changed. The session ends if it is idle in
-- this transaction for longer than the group's lease.
declare
    part    pgq.group_partition;
begin
    perform pgq._lock_position(i_registration);
    if pgq._is_read_committed() then
        select * into part from pgq.group_partition where part_reg = i_registration;
    else
        -- An old snapshot does not see the present owner; a change meanwhile raises 40001.
        select * into part from pgq.group_partition where part_reg = i_registration for share;
    end if;
    if (part.part_generation = i_generation) is not true then
        raise exception using errcode = 'PQ035',
            message = case when part.part_nr is null then 'the batch is of no partition of a consumer group'
                           else pg_catalog.format('partition %s of consumer group %L has another owner now', part.part_nr,
                                                  (select group_name from pgq.consumer_group where group_id = part.part_group)) end,
            hint = 'Roll back: the owner gets the same batch. A worker has to call pgq.group_heartbeat() within the group''s lease.';
    end if;
    -- Only the commit is left. A session that hangs before that must not keep the partition from the other members.
    perform pg_catalog.set_config('idle_in_transaction_session_timeout',
                                  pg_catalog.ceil(extract(epoch from group_lease) * 1000)::text, true)
       from pgq.consumer_group
      where group_id = part.part_group
        and pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval not between '1 ms' and group_lease;
    return part;
end;
$$;

create or replace function pgq.finish_group_batch(
    i_batch_id bigint, i_generation bigint,
    i_failed bigint[] default '{}', i_errors text[] default '{}', i_delays interval[] default '{}', i_types text[] default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Finishes the open batch of a partition. Call it in the transaction that processed the events. It parks the keys of
-- the events that failed, from these events on, and the events of the keys that are parked already.
-- Parameters:
--      i_generation    - the generation under which it was opened
--      i_failed        - ids of events that failed; no later event of their keys may have been processed
--      i_errors        - the errors, one for each failed event
--      i_delays        - the delay after which each is retried; null for only on request
--      i_types         - the types given to pgq.next_group_batch()
-- Returns: number of events that were parked.
-- Errors: PQ005 an event is not in the batch, PQ011 arrays differ in length, PQ035 the partition has another owner, or
--      the batch is not open any more: roll back, PQ050 infinite delay
declare
    part    pgq.group_partition := pgq._fence_partition(pgq._find_batch(i_batch_id), i_generation);
    p       pgq.position_0 := pgq._get_position(part.part_reg);
    n       int4 := 0;
begin
    if p.pos_batch = i_batch_id is not true then
        raise exception using errcode = 'PQ035',
            message = format('batch %s of partition %s is not open any more', i_batch_id, part.part_nr),
            hint = 'It was finished already: roll back.';
    end if;
    if coalesce(cardinality(i_failed), 0) <> cardinality(i_errors) or coalesce(cardinality(i_failed), 0) <> cardinality(i_delays)
       or cardinality(i_failed) > 0 and array_position(i_failed, null) is not null
    then
        raise exception using errcode = 'PQ011',
            message = 'finish_group_batch: there must be one error and one delay for each event that failed',
            hint = 'Give three arrays of the same length, and no event that is null.';
    end if;
    if cardinality(i_failed) > 0
       or exists (select from pgq._parked_key where parked_group = part.part_group and parked_part = part.part_nr)
    then
        n := pgq._park_events(part, i_batch_id, i_failed, i_errors, i_delays, i_types);
    end if;
    perform pgq._append_position(part.part_reg, p.pos_nr + 1, p.pos_next_tick, null, null, clock_timestamp());
    return n;
end;
$$;

create or replace function pgq.group_batch_keys(i_batch_id bigint, out ev_id bigint, out key text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the keys of the events in an open batch of a partition. If an event fails, later events with the same key
-- must not be processed.
-- Errors: PQ004 batch is not open
declare
    b   record;
    g   pgq.consumer_group;
    nr  int4;
begin
    select * into b from pgq._open_batch(i_batch_id);
    select part_nr into nr from pgq.group_partition where part_reg = pgq._find_batch(i_batch_id);
    select * into g from pgq.consumer_group
     where group_id = (select part_group from pgq.group_partition where part_reg = pgq._find_batch(i_batch_id));
    if found then
        return query execute format('select ev_id, %s from (%s) ev', g.group_key_sql,
                                    pgq._group_sql(g, nr, pgq._range_sql(b.queue, b.last_tick, b.next_tick, b.sub_id), null, false));
    end if;
end;
$$;
