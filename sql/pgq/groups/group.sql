create or replace function pgq._find_group(i_queue_name text, i_group_name text)
returns pgq.consumer_group
language plpgsql
as $$
-- Returns a consumer group; raises PQ001 or PQ036 if there is none.
declare
    g   pgq.consumer_group;
begin
    select cg.* into g
      from pgq.consumer_group cg
      join pgq.queue q on q.queue_id = cg.group_queue
     where q.queue_name = i_queue_name
       and cg.group_name = i_group_name;
    if not found then
        perform pgq._find_queue(i_queue_name);
        raise exception using errcode = 'PQ036',
            message = pg_catalog.format('there is no consumer group %s on queue %L',
                                        coalesce(pg_catalog.quote_literal(i_group_name), 'NULL'), i_queue_name),
            hint = 'Create it with pgq.create_group(queue, group, partitions, key); pgq.get_group_info() lists the groups there are.';
    end if;
    return g;
end;
$$;

create or replace function pgq._own_group(i_queue_name text, i_group_name text)
returns pgq.consumer_group
language plpgsql
as $$
-- Returns a consumer group as which the caller may consume; raises PQ001, PQ036 or 42501.
declare
    g   constant pgq.consumer_group := pgq._find_group(i_queue_name, i_group_name);
begin
    perform pgq._require_group(g);
    return g;
end;
$$;

create or replace function pgq._check_partition_names(g pgq.consumer_group, i_first int4, i_last int4)
returns void
language plpgsql
as $$
-- Raises PQ038 if a consumer has the name of a partition that is to be added.
declare
    taken   text;
begin
    select co_name into taken
      from pg_catalog.generate_series(i_first, i_last) nr
      join pgq.consumer on co_name = g.group_name || '#' || nr
      join pgq.registration on sub_consumer = co_id and sub_queue = g.group_queue
     order by nr limit 1;
    if found then
        raise exception using errcode = 'PQ038',
            message = pg_catalog.format('consumer %L is registered on queue %L already', taken,
                                        (select queue_name from pgq.queue where queue_id = g.group_queue)),
            hint = 'The partitions of a group are consumers of that name: unregister this one, or give the group another name.';
    end if;
end;
$$;

create or replace function pgq._add_group_partition(g pgq.consumer_group, i_nr int4, i_tick_id bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a partition of a group after a tick.
declare
    q           constant pgq.queue := pgq._keep_queue((select queue_name from pgq.queue where queue_id = g.group_queue));
    consumer    constant text := format('%s#%s', g.group_name, i_nr);
    r           pgq.registration;
begin
    if pgq._register(q, consumer, i_tick_id, i_noted => false) = 0 then
        perform pgq._check_partition_names(g, i_nr, i_nr);
    end if;
    r := pgq._find_registration(q.queue_name, consumer);
    update pgq.registration
       set sub_id = g.group_sub_id, reg_is_partition = true, reg_roles = pgq._consume_roles(g.group_queue, g.group_name)
     where reg_id = r.reg_id;
    insert into pgq.group_partition (part_group, part_nr, part_reg) values (g.group_id, i_nr, r.reg_id);
end;
$$;

create or replace function pgq._remove_group_partition(i_group_id int4, i_nr int4)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes a partition and its registration.
declare
    r   pgq.registration;
begin
    delete from pgq.group_partition p
     using pgq.registration pr
     where p.part_group = i_group_id and p.part_nr = i_nr and pr.reg_id = p.part_reg
    returning pr.* into r;
    perform pgq._lock_position(r.reg_id);
    delete from pgq.registration where reg_id = r.reg_id;
    -- Do not wait for a session that has locked the consumer: it may be waiting for the position.
    perform pgq._forget_consumer(r.sub_consumer);
end;
$$;

create or replace function pgq.create_group(
    i_queue_name text, i_group_name text, i_partitions int4, i_key text,
    i_lease interval default '15 seconds', i_park_limit int4 default 10000, i_tick_id bigint default null,
    i_start text default 'now')
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates a consumer group, whose partitions divide a queue's events by a key. The events of one key are processed in
-- order, different keys in parallel.
-- Parameters:
--      i_group_name    - name of the group; its partitions are the consumers <name>#0, <name>#1, ...
--      i_partitions    - number of partitions, 1 to 1024; the maximum number of workers that can be busy at once
--      i_key           - an immutable SQL expression over ev_type, ev_data, ev_extra1 to ev_extra4, or pkey for the
--                        primary key of captured rows. An event for which it is null, or fails, has a key of its own
--      i_lease         - time without a heartbeat after which a worker loses its partitions
--      i_park_limit    - number of parked events at which a partition takes no more batches
--      i_tick_id       - tick to start after; null for
--      i_start         - where its events begin, as for pgq.find_tick()
-- Returns: 1 if it was created, 0 if it existed with this key; its other settings are not changed then.
-- Errors: PQ008 tick or events are not available, PQ011 invalid value, PQ015 queue has no tick, PQ038 the group exists
--      with another key, or a consumer has the name of a partition
declare
    q       pgq.queue;
    g       pgq.consumer_group;
    key     constant text := case when i_key = 'pkey' then 'pgq.event_pkey(ev_type, ev_data)' else i_key end;
    tick    bigint;
begin
    perform pgq._check_name('group', i_group_name);
    perform pgq._check_name('consumer', i_group_name || '#1023');
    q := pgq._keep_queue(i_queue_name);
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{consume}', i_group_name);
    end if;
    if i_key is null then
        perform pgq._check_group_key(null);
    end if;
    begin
        insert into pgq.consumer_group (group_queue, group_name, group_sub_id, group_partitions, group_key, group_key_sql,
                                        group_lease, group_park_limit)
        values (q.queue_id, i_group_name, nextval('pgq.subscription_sub_id_seq'), i_partitions, i_key, '',
                i_lease, i_park_limit)
        on conflict do nothing
        returning * into g;
    exception when check_violation or not_null_violation then
        raise exception using errcode = 'PQ011',
            message = format('group %L cannot have %s partitions, a lease of %s and a limit of %s parked events',
                             i_group_name, coalesce(i_partitions::text, 'NULL'), coalesce(i_lease::text, 'NULL'),
                             coalesce(i_park_limit::text, 'NULL')),
            hint = 'Give 1 to 1024 partitions, a lease of 100 milliseconds to 1 day, and a limit of 0 or more.';
    end;
    if g.group_id is null then
        g := pgq._find_group(i_queue_name, i_group_name);
        if g.group_key <> i_key then
            raise exception using errcode = 'PQ038',
                message = format('consumer group %L on queue %L has the key %s, not %s',
                                 i_group_name, i_queue_name, g.group_key, i_key),
                hint = 'A key is fixed when the group is created. Give that one, or another name, or drop the group.';
        end if;
        return 0;
    end if;
    update pgq.consumer_group
       set group_key_sql = pgq._make_group_key(g.group_id, key)
     where group_id = g.group_id;
    tick := coalesce(i_tick_id, pgq.find_tick(i_queue_name, i_start));
    for n in 0 .. i_partitions - 1 loop
        perform pgq._add_group_partition(g, n, tick);
    end loop;
    perform pgq._note_move(pgq._find_registration(i_queue_name, i_group_name || '#0'), null, tick);
    return 1;
end;
$$;

create or replace function pgq.drop_group(i_queue_name text, i_group_name text, i_force boolean default false)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops a consumer group with the positions of its partitions.
-- Parameters:
--      i_force         - drop it even if it has parked events, which are then lost
-- Returns: 1
-- Errors: PQ036 group does not exist, PQ039 it has parked events
declare
    g       pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
    parked  bigint;
begin
    perform from pgq.consumer_group where group_id = g.group_id for no key update;
    if not found then
        -- Another session has dropped it meanwhile.
        return pgq.drop_group(i_queue_name, i_group_name, i_force);
    end if;
    -- From here on no session opens or finishes a batch.
    perform pgq._lock_position(part_reg) from pgq.group_partition where part_group = g.group_id order by part_reg;
    select count(*) into parked
      from pgq._parked_key join pgq._parked_event on pe_key = parked_id
     where parked_group = g.group_id;
    if parked > 0 and i_force is not true then
        raise exception using errcode = 'PQ039',
            message = format('consumer group %L on queue %L has %s parked events', i_group_name, i_queue_name, parked),
            hint = 'Let them be processed first, or drop with force: pgq.drop_group(queue, group, true).';
    end if;
    -- Its retries now belong to no consumer, and are skipped when they are due.
    perform pgq._remove_group_partition(part_group, part_nr) from pgq.group_partition where part_group = g.group_id;
    delete from pgq.consumer_group where group_id = g.group_id;
    if g.group_key_sql like 'pgq._group_key_%' then
        execute format('drop function pgq._group_key_%s, pgq._group_key_%1$s_expression cascade', g.group_id);
    end if;
    return 1;
end;
$$;

create or replace function pgq.set_group_config(i_queue_name text, i_group_name text, i_param text, i_value text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sets one parameter of a consumer group.
-- Parameters:
--      i_param         - lease or park_limit
--      i_value         - the value as text
-- Returns: 1
-- Errors: PQ011 unknown parameter or bad value, PQ036 group does not exist
declare
    g   pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
begin
    if (i_param = any (array['lease', 'park_limit'])) is not true then
        raise exception using errcode = 'PQ011',
            message = format('there is no group parameter %s', coalesce(quote_literal(i_param), 'NULL')),
            hint = 'Parameters: lease, park_limit. The number of partitions is changed by pgq.resize_group(queue, group, n).';
    end if;
    execute format('update pgq.consumer_group set %I = %L where group_id = %s', 'group_' || i_param, i_value, g.group_id);
    return 1;
exception when data_exception or not_null_violation or check_violation then
    raise exception using errcode = 'PQ011',
        message = format('group parameter %s cannot be %s', i_param, coalesce(quote_literal(i_value), 'NULL')),
        detail = sqlerrm,
        hint = 'A lease is an interval of 100 milliseconds to 1 day, a park_limit a number of 0 or more.';
end;
$$;

create or replace function pgq._group_partition_guard()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Prevents the partitions of groups from being unregistered one by one.
declare
    g   record;
begin
    select group_name, queue_name into g
      from pgq.group_partition
      join pgq.consumer_group on group_id = part_group
      join pgq.queue on queue_id = group_queue
     where part_reg = old.reg_id;
    if found then
        raise exception using errcode = 'PQ038',
            message = format('this consumer is a partition of group %L on queue %L', g.group_name, g.queue_name),
            hint = 'Drop the group with pgq.drop_group(queue, group), or resize it with pgq.resize_group(queue, group, n).';
    end if;
    return old;
end;
$$;

create or replace trigger group_partition_guard
    before delete on pgq.registration
    for each row execute function pgq._group_partition_guard();
