create or replace function pgq._check_name(i_what text, i_name text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ003 for a name that a queue or consumer cannot have.
begin
    if i_name is null or i_name = '' or pg_catalog.octet_length(i_name) > 255 then
        raise exception using errcode = 'PQ003',
            message = pg_catalog.format('invalid %s name: %s', i_what, case
                when i_name is null then 'NULL'
                when i_name = '' then 'it is empty'
                else pg_catalog.format('%s bytes are too long', pg_catalog.octet_length(i_name)) end),
            hint = case i_what when 'task queue'
                then 'A name has 1 to 248 bytes, of any characters; one that ends in .failed, as an error queue''s does, up to 255.'
                else 'A name has 1 to 255 bytes, of any characters.' end;
    end if;
end;
$$;

create or replace function pgq.create_queue(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates a queue: its settings, event tables and sequences, and its first tick.
-- Returns: 1 if it was created, 0 if it existed.
-- Errors: PQ007 this database is a leaf of the queue, which keeps no events
declare
    here        record;
    id          int4;
    prefix      text;
    names       text[];
    seq         text;
    q           pgq.queue;
    spare       pgq.spare_slots;
begin
    -- In one function: each step relies on the locks of those before it.
    perform pgq._check_name('queue', i_queue_name);
    if exists (select from pgq.queue where queue_name = i_queue_name) then
        return 0;
    end if;
    here := pgq._node_here(i_queue_name);
    if here.node_type is not null then
        raise exception using errcode = 'PQ007',
            message = format('this database is %s %s of queue %L, and keeps no events',
                             here.node_type, here.node_name, i_queue_name),
            hint = format('Insert at the root, which `pgqpy node status %s` shows.', i_queue_name);
    end if;
    -- Create queues one at a time: attaching tables takes a lock that all queues share, and two transactions that
    -- create several queues must not deadlock. And the ticker, which does not see the queue yet, must not go to sleep
    -- without it.
    perform pg_advisory_xact_lock(pgq._lock_key('create queue'));
    if exists (select from pgq.queue where queue_name = i_queue_name) then
        return 0;
    end if;

    insert into pgq.log (log_name, log_seq)
    values ('tick', 'pgq.tick_log_seq'), ('position', 'pgq.position_log_seq'), ('moved', 'pgq.moved_log_seq')
    on conflict do nothing;

    perform pgq._note_cluster();
    id := nextval('pgq.queue_queue_id_seq');
    prefix := 'pgq.event_' || id;
    q.queue_name := i_queue_name;
    q.queue_data_pfx := prefix;
    q.queue_restricted := exists (select from pgq.restricted_queue r where r.queue_name = i_queue_name);
    names := pgq._sequence_names(q);
    foreach seq in array names loop
        -- The schema pgq may have been dropped without the others.
        if to_regclass(seq) is not null then
            execute format('drop sequence %s cascade', seq);
        end if;
        execute format('create sequence %s', seq);
    end loop;
    execute format('create sequence %s_tick_seq', prefix);

    insert into pgq.queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_tick_seq, queue_restricted,
                           queue_slot0, queue_slot_seq, queue_event_seq_id, queue_tick_seq_id)
    values (id, i_queue_name, prefix, names[1], prefix || '_tick_seq', q.queue_restricted,
            - id, names[2]::regclass, names[1]::regclass, (prefix || '_tick_seq')::regclass)
    returning * into q;

    delete from pgq.spare_slots
     where slot0 = (select slot0 from pgq.spare_slots
                     where ntables = q.queue_ntables
                     order by slot0 limit 1 for update skip locked)
    returning * into spare;
    q.queue_slot0 := coalesce(spare.slot0, nextval('pgq.slot_seq'));
    update pgq.queue set queue_slot0 = q.queue_slot0 where queue_id = id;
    perform setval(q.queue_slot_seq,
                   pgq._slot_state(0, pg_sequence_last_value('pgq.ticker_sleep_seq') = 2, q.queue_slot0));

    for n in 0 .. q.queue_ntables - 1 loop
        if spare.slot0 is null then
            perform pgq._create_event_table(q.queue_slot0 + n);
        end if;
        execute format('alter table pgq.event_spare_%s rename to event_%s_%s', q.queue_slot0 + n, id, n);
        execute format('alter index pgq.event_spare_%s_txid_idx rename to event_%s_%s_txid_idx', q.queue_slot0 + n, id, n);
        execute format('alter table %s_%s alter column ev_id set default nextval(%L)', prefix, n, q.queue_event_seq);
        execute format('create trigger event_table_guard before insert on %s_%s '
                       'for each statement execute function pgq._event_table_guard(%s, %s)', prefix, n, id, n);
    end loop;

    execute format('create view %s as %s', prefix,
                   (select string_agg(format('select ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data, '
                                             'ev_extra1, ev_extra2, ev_extra3, ev_extra4 from %s_%s', prefix, n), ' union all ')
                      from generate_series(0, q.queue_ntables - 1) n));

    perform pgq._create_relation(q);
    perform pgq.grant_perms(i_queue_name);
    perform pgq.tune_storage(i_queue_name);
    perform pgq._make_ticks(array[id], array[false], array[0], array[0]);
    return 1;
end;
$$;

create or replace function pgq.queue_relation(queue text)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the relation of a queue, into which events are inserted: pgq_queue.<queue>, or pgq.queue_<id> if the queue's
-- name is too long for one. Give ev_type, ev_data, ev_extra1 .. ev_extra4. It shows the events that are stored.
-- Returns: the relation's name, quoted, with schema.
-- Errors: PQ001 no such queue
declare
    q   constant pgq.queue := pgq._find_queue(queue);
begin
    return case when octet_length(queue) < 60 then format('pgq_queue.%I', queue) else 'pgq.queue_' || q.queue_id end;
end;
$$;

create or replace function pgq._create_relation(i_queue pgq.queue)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the relation of a queue, in two views. The inner one, for pgq_owner alone, has defaults that do what
-- pgq.insert_event(7) does. In the outer one only the content can be written; the rest are expressions, which PostgreSQL
-- refuses to write and which cost nothing. Rights on columns would not do: anyone can make a view of the relation, and
-- the defaults of its columns need no right.
--
-- A security barrier, because without pruning (a setting of the session) the tables of other queues would be scanned as
-- well, and a function in the caller's condition would see their rows first.
declare
    v_inner constant text := 'pgq.queue_defaults_' || i_queue.queue_id;
begin
    execute format('create view %s as '
                   'select ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot '
                   'from pgq.event where ev_slot >= %s and ev_slot < %s',
                   v_inner, i_queue.queue_slot0, i_queue.queue_slot0 + i_queue.queue_ntables);
    execute format('alter view %s alter column ev_id set default pg_catalog.nextval(%L), alter column ev_slot set default '
                   'pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(%L), 2147483647)), '
                   'pgq._cluster_tag()), alter column ev_type set default pgq._require_type(%L)',
                   v_inner, i_queue.queue_event_seq_id, i_queue.queue_slot_seq, i_queue.queue_name);
    execute format('create view %s with (security_barrier) as '
                   'select coalesce(ev_id) as ev_id, coalesce(ev_time) as ev_time, coalesce(ev_txid) as ev_txid, '
                   'coalesce(ev_retry) as ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from %s',
                   pgq.queue_relation(i_queue.queue_name), v_inner);
end;
$$;

create or replace function pgq._create_event_table(i_slot int4)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the partition of pgq.event for one ev_slot, as pgq.event_spare_<slot>. It is attached later: that takes a
-- lock that does not block inserts, while creating it as a partition would block them.
declare
    bucket_size constant int4 := 32 * 16;
    bucket      constant int4 := i_slot / bucket_size;
begin
    execute format('create table pgq.event_spare_%s (like pgq.event including defaults)', i_slot);
    execute format('alter table pgq.event_spare_%s alter column ev_slot set default %s, replica identity full', i_slot, i_slot);
    execute format('create index event_spare_%s_txid_idx on pgq.event_spare_%s (ev_txid)', i_slot, i_slot);
    execute format('create rule refuse_insert as on insert to pgq.event_spare_%s '
                   'where pgq._refuse_insert(''pgq.event_spare_%s'') do instead nothing', i_slot, i_slot);
    if bucket = 0 then
        execute format('alter table pgq.event attach partition pgq.event_spare_%s for values from (%s) to (%s)',
                       i_slot, i_slot, i_slot + 1);
        return;
    end if;
    if to_regclass('pgq.event_bucket_' || bucket) is null then
        execute format('create table pgq.event_bucket_%s (like pgq.event including defaults) partition by list (ev_slot)', bucket);
        execute format('alter table pgq.event attach partition pgq.event_bucket_%s for values from (%s) to (%s)',
                       bucket, bucket * bucket_size, (bucket + 1) * bucket_size);
    end if;
    execute format('alter table pgq.event_bucket_%s attach partition pgq.event_spare_%s for values in (%s)', bucket, i_slot, i_slot);
end;
$$;

create or replace function pgq.drop_queue(x_queue_name text, x_force boolean)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Drops a queue with all its events. Its tables are emptied and kept for the next queue: dropping a partition would
-- stop the producers of other queues. Grants on its name, and a restriction, stay for a queue of this name; its
-- contracts do not.
-- Parameters:
--      x_force         - drop it even if it has registered consumers, delayed events, dead letters or captured tables;
--                        captured tables are released first, which only their owner or a superuser may do. Views of
--                        its relation, and functions whose bodies PostgreSQL has parsed, are dropped as well
-- Returns: 1
-- Errors: PQ007 queue is in use
begin
    -- Tables are captured by members of pgq_writer; the right to administer a queue does not need that role.
    if x_force and has_function_privilege('pgq._capture_release_queue(text)', 'execute') then
        perform pgq._capture_release_queue(x_queue_name);
    end if;
    return pgq._remove_queue(x_queue_name, x_force);
end;
$$;

create or replace function pgq._remove_queue(x_queue_name text, x_force boolean)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the part of pgq.drop_queue(2) that needs the rights of the owner of the queue's tables.
declare
    v_cascade constant text := case when x_force then ' cascade' else '' end;
    q       pgq.queue;
    users   text;
    waiting bigint;
begin
    select * into q from pgq.queue where queue_name = x_queue_name for update;
    if not found then
        perform pgq._raise_queue_not_found(x_queue_name);
    end if;
    perform pgq._require_right(q.queue_id, '{admin}'), pgq._require_no_node(x_queue_name);

    if coalesce(x_force, false) then
        perform pgq.drop_group(x_queue_name, group_name, true) from pgq.consumer_group where group_queue = q.queue_id;
        perform pgq.unregister_consumer(f.queue_name, f.consumer_name) from pgq.get_consumer_info(x_queue_name) f;
    else
        select string_agg(quote_literal(f.consumer_name), ', ') into users from pgq.get_consumer_info(x_queue_name) f;
        if users is not null then
            raise exception using errcode = 'PQ007',
                message = format('queue %L still has consumers: %s', x_queue_name, users),
                hint = 'Unregister them first, or drop with force: pgq.drop_queue(queue, true).';
        end if;
        select count(*) into waiting from pgq.waiting_event where ev_queue = q.queue_id;
        if waiting > 0 then
            raise exception using errcode = 'PQ007',
                message = format('queue %L still has %s delayed events', x_queue_name, waiting),
                hint = 'Wait for them, cancel them with pgq.cancel_event(queue, id), or drop with force: pgq.drop_queue(queue, true).';
        end if;
        select count(*) into waiting from pgq._dead_letter where dl_queue = x_queue_name;
        if waiting > 0 then
            raise exception using errcode = 'PQ007',
                message = format('queue %L still has %s dead letters', x_queue_name, waiting),
                hint = 'Look at pgq.dead_letter; replay or purge them, or drop with force: pgq.drop_queue(queue, true).';
        end if;
    end if;

    perform pgq._capture_refuse_drop(x_queue_name, coalesce(x_force, false)), pgq._apply_contracts(q, i_is_dropped => true);

    perform pgq._announce_lock('sequences', q.queue_id);
    -- Any role can make something of its own depend on these, and on the sequences: a view, or a default that is the name.
    execute format('drop view %s, %s, pgq.queue_defaults_%s%s', q.queue_data_pfx, pgq.queue_relation(x_queue_name), q.queue_id, v_cascade);
    for n in 0 .. q.queue_ntables - 1 loop
        execute format('truncate only %s_%s', q.queue_data_pfx, n);
        execute format('drop trigger event_table_guard on %s_%s', q.queue_data_pfx, n);
        execute format('alter table %s_%s alter column ev_id drop default', q.queue_data_pfx, n);
        perform pgq._revoke_all(format('%s_%s', q.queue_data_pfx, n)::regclass);
        execute format('alter index %s_%s_txid_idx rename to event_spare_%s_txid_idx', q.queue_data_pfx, n, q.queue_slot0 + n);
        execute format('alter table %s_%s rename to event_spare_%s', q.queue_data_pfx, n, q.queue_slot0 + n);
    end loop;
    insert into pgq.spare_slots (slot0, ntables) values (q.queue_slot0, q.queue_ntables);

    perform pgq._drop_event_keys(q);
    delete from pgq._dead_letter where dl_queue = x_queue_name;
    delete from pgq.late_write where late_queue = q.queue_id;
    delete from pgq.forced_tick where forced_queue = q.queue_id;
    delete from pgq.tick_0 where tick_queue = q.queue_id;
    delete from pgq.tick_1 where tick_queue = q.queue_id;
    delete from pgq.queue where queue_id = q.queue_id;
    perform pgq._notify_consumers(q.queue_id);
    execute format('drop sequence %s, %s, %s%s', q.queue_event_seq_id, q.queue_tick_seq_id, q.queue_slot_seq, v_cascade);
    if to_regclass(format('pgq_slots.%I', x_queue_name)) is not null then
        execute format('drop sequence pgq_slots.%I cascade', x_queue_name);
    end if;
    return 1;
end;
$$;

create or replace function pgq.drop_queue(x_queue_name text)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Drops a queue that is not in use; see pgq.drop_queue(2).
begin
    return pgq.drop_queue(x_queue_name, false);
end;
$$;

create or replace function pgq.set_queue_config(x_queue_name text, x_param_name text, x_param_value text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sets one parameter of a queue.
-- Parameters:
--      x_param_name    - ticker_max_count, ticker_max_lag, ticker_idle_period, ticker_paused,
--                        ticker_latency, rotation_period, external_ticker, per_tx_limit, disable_insert, key_window,
--                        keep, keep_bytes
--      x_param_value   - the value as text; null is allowed for ticker_latency (no early ticks), per_tx_limit (no
--                        limit), key_window (no keys), keep (events are kept only for consumers) and keep_bytes (any)
-- Returns: 1
-- Errors: PQ011 unknown parameter or bad value
declare
    params  constant text[] := array['ticker_max_count', 'ticker_max_lag', 'ticker_idle_period', 'ticker_paused',
                                     'ticker_latency', 'rotation_period', 'external_ticker', 'per_tx_limit', 'disable_insert',
                                     'key_window', 'keep', 'keep_bytes'];
begin
    if x_param_name is null or x_param_name <> all (params) then
        raise exception using errcode = 'PQ011',
            message = format('there is no queue parameter %s', coalesce(quote_literal(x_param_name), 'NULL')),
            hint = 'Parameters: ' || array_to_string(params, ', ') || '.';
    end if;
    perform pgq._require_right((pgq._find_queue(x_queue_name)).queue_id, '{admin}');

    if x_param_name in ('per_tx_limit', 'disable_insert') then
        -- The trigger takes it too, but after the row. A session that sets several queues must take it before their
        -- rows.
        perform pg_advisory_xact_lock(pgq._lock_key('slots'));
    end if;
    begin
        if x_param_name in ('ticker_max_lag', 'ticker_idle_period', 'ticker_latency', 'rotation_period', 'key_window', 'keep')
           and (x_param_value::interval not between interval '0' and interval '1000 years'
                or 0 > any (array[date_part('year', x_param_value::interval), date_part('month', x_param_value::interval),
                                  date_part('day', x_param_value::interval), date_part('hour', x_param_value::interval)]))
        then
            -- Clients could not read longer intervals, and least of all infinite ones. Those that add days to what they take
            -- in years lead out of all times, and so end the maintenance of all queues.
            raise exception using errcode = 'interval_field_overflow', message = 'it is not from 0 to 1000 years';
        end if;
        execute format('update pgq.queue set %I = %L where queue_name = %L', 'queue_' || x_param_name, x_param_value, x_queue_name);
    exception when data_exception or not_null_violation or check_violation then
        raise exception using errcode = 'PQ011',
            message = format('queue parameter %s cannot be %s', x_param_name, coalesce(quote_literal(x_param_value), 'NULL')),
            detail = sqlerrm,
            hint = case
                when x_param_name = 'keep' then 'Give more than 0 and at most 1000 years, such as ''7 days''; null keeps events only until all consumers have them.'
                when x_param_name = 'keep_bytes' then 'Give a whole number of bytes, more than 0; null for any.'
                when x_param_name in ('per_tx_limit', 'ticker_max_count') then 'Give a whole number from 1 on.'
                when x_param_name in ('ticker_paused', 'external_ticker', 'disable_insert') then 'Give true or false.'
                else 'Intervals are written like ''3 seconds'', from 0 to 1000 years.' end;
    end;

    if x_param_name = 'external_ticker' and not (pgq._find_queue(x_queue_name)).queue_external_ticker then
        perform pgq._require_writable(x_queue_name);
    end if;
    if x_param_name = 'key_window' then
        perform pgq._set_event_keys(x_queue_name);
    end if;

    -- If the time that events may wait is set explicitly, there are no earlier ticks; ticker_latency turns them on
    -- again.
    if x_param_name = 'ticker_max_lag' then
        update pgq.queue set queue_ticker_latency = null where queue_name = x_queue_name;
    end if;
    return 1;
end;
$$;
