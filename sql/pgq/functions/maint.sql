create or replace function pgq.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_operations(0)
--
--      What maintenance has to do now, in this order, each in a transaction of its own.
--
-- Returns:
--      func_name   - function to call, or 'vacuum'
--      func_arg    - its argument, null for none; for 'vacuum' the table
-- ----------------------------------------------------------------------
declare
    op  record;
begin
    return query
    select 'pgq.maint_rotate_tables_step1', queue_name
      from pgq.queue
     where queue_switch_step2 is not null
       and queue_switch_time + queue_rotation_period < current_timestamp
     order by queue_name;
    if found or exists (select from pgq.queue where queue_switch_step2 is null) then
        return query select 'pgq.maint_rotate_tables_step2', null::text;
    end if;

    if exists (select from pgq.log l
                where pg_relation_size(format('pgq.%I', l.log_name || '_' || pg_sequence_last_value(l.log_seq) % 2)::regclass)
                      > greatest(l.log_rotate_bytes, 2 * l.log_carried_bytes)
                   or pg_relation_size(format('pgq.%I', l.log_name || '_' || (pg_sequence_last_value(l.log_seq) + 1) % 2)::regclass) > 0)
    then
        return query select 'pgq.maint_rotate_logs', null::text;
    end if;

    -- Who uses it does this, unless all do so in REPEATABLE READ.
    if exists (select from pgq_ext.log
                where pgq_ext.log_size((pg_sequence_last_value('pgq_ext.log_seq') % 2)::text)
                      > greatest(log_rotate_bytes, 2 * log_carried_bytes))
    then
        return query select 'pgq_ext.rotate', null::text;
    end if;

    if exists (select from pg_inherits where inhparent = 'pgq.delayed'::regclass
                and pg_relation_size(inhrelid) > 0
                and pg_table_size(inhrelid) > pgq.delayed_rotate_bytes())
    then
        return query select 'pgq.maint_rotate_delayed', null::text;
    end if;

    -- twice: to empty a table, and to move on to it
    return query
    select 'pgq.maint_rotate_keys', queue_name
      from pgq.queue, generate_series(1, 2)
     where queue_key_switch_time + queue_key_window < current_timestamp
     order by queue_name;

    return query
    select capture.func, null::text
      from unnest(array['pgq.maint_capture', 'pgq.capture_new_partitions']) capture (func)
     where exists (select from pg_proc where pronamespace = 'pgq_capture'::regnamespace);

    return query
    select 'pgq.maint_staging', null::text
     where exists (select from pg_class where relnamespace = 'pgq_staging'::regnamespace);

    return query
    select extra.func, q.queue_name
      from pgq.queue q
     cross join unnest(q.queue_extra_maint) with ordinality extra (func, nr)
     order by q.queue_name, extra.nr;

    -- Workers do this; tasks whose workers are all gone are looked after, too.
    return query
    select 'pgq_task.sweep', null::text
     where exists (select from pgq_task.queue);

    return query select 'vacuum', f from pgq.maint_tables_to_vacuum() f;

    -- what other parts of the family want done, if they are installed
    if to_regprocedure('pgq_node.maint_watermark(text)') is not null then
        return query execute $sql$select 'pgq_node.maint_watermark', queue_name from pgq_node.node_info where node_type = 'root'$sql$;
    end if;
    if to_regprocedure('londiste.root_check_seqs(text)') is not null then
        return query execute
            $sql$select distinct 'londiste.root_check_seqs', s.queue_name
                   from londiste.seq_info s join pgq_node.node_info n using (queue_name)
                  where s.local and n.node_type = 'root'$sql$;
    end if;
    if to_regprocedure('londiste.periodic_maintenance()') is not null then
        return query select 'londiste.periodic_maintenance', null::text;
    end if;
end;
$$;

create or replace function pgq.maint_tables_to_vacuum()
returns setof text
language sql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_tables_to_vacuum(0)
--
--      The small tables in which rows die, to be vacuumed where autovacuum is off.
--
-- Returns:
--      Table names with schema.
-- ----------------------------------------------------------------------
    select format('%I.%I', n.nspname, c.relname)
      from (values ('pgq', 'queue'), ('pgq', 'log'), ('pgq', 'consumer'), ('pgq', 'registration'),
                   ('pgq', 'late_write'), ('pgq', 'stream_writer'), ('pgq', 'ticker_failure'),
                   ('pgq', 'group_member'), ('pgq', 'group_partition'), ('pgq', 'parked_key'), ('pgq', 'parked_event'), ('pgq', 'dead_letter'),
                   ('pgq_ext', 'completed_tick'), ('pgq_ext', 'completed_batch'),
                   ('pgq_ext', 'completed_event'), ('pgq_ext', 'partial_batch'),
                   ('pgq_node', 'local_state'), ('londiste', 'seq_info'), ('londiste', 'completed')) v (nsp, rel)
      join pg_namespace n on n.nspname = v.nsp
      join pg_class c on c.relnamespace = n.oid and c.relname = v.rel and c.relkind = 'r'
     where current_setting('autovacuum') <> 'on';
$$;

create or replace function pgq.grant_perms(x_queue_name text)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.grant_perms(1)
--
--      Grants the rights on a queue's tables and sequences to the roles. A writer may give the content
--      of events, but not the transaction id that decides who sees them.
--
-- Parameters:
--      x_queue_name    - name of the queue
-- Returns:
--      1
-- Errors:
--      PQ001 queue does not exist
-- ----------------------------------------------------------------------
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_name = x_queue_name;
    if not found then
        perform pgq.raise_queue_not_found(x_queue_name);
    end if;
    execute format('grant select on %s, %s, %s to public', q.queue_event_seq, q.queue_tick_seq, q.queue_slot_seq);
    execute format('grant usage on %s to pgq_writer, pgq_admin', q.queue_event_seq);
    execute format('grant select on %s to pgq_reader', q.queue_data_pfx);
    for n in 0 .. q.queue_ntables - 1 loop
        execute format('grant select on %s_%s to pgq_reader', q.queue_data_pfx, n);
        execute format('grant insert (ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) '
                       'on %s_%s to pgq_writer', q.queue_data_pfx, n);
        execute format('grant select, insert, truncate on %s_%s to pgq_admin', q.queue_data_pfx, n);
    end loop;
    return 1;
end;
$$;

create or replace function pgq._grant_perms_from(src_schema text, src_table text, dst_schema text, dst_table text)
returns integer
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._grant_perms_from(4)
--
--      Grants on one table what is granted on another.
--
-- Parameters:
--      src_schema, src_table   - the table to look at
--      dst_schema, dst_table   - the table to change
-- Returns:
--      Number of grants.
-- ----------------------------------------------------------------------
declare
    g   record;
    n   int4 := 0;
begin
    for g in
        select grantee, privilege_type, is_grantable
          from information_schema.table_privileges
         where table_schema = src_schema
           and table_name = src_table
    loop
        execute pg_catalog.format('grant %s on %I.%I to %s%s', g.privilege_type, dst_schema, dst_table,
                                  case g.grantee when 'PUBLIC' then 'public' else pg_catalog.quote_ident(g.grantee) end,
                                  case g.is_grantable when 'YES' then ' with grant option' else '' end);
        n := n + 1;
    end loop;
    return n;
end;
$$;

create or replace function pgq.tune_storage(i_queue_name text)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.tune_storage(1)
--
--      Storage parameters of event tables: no row dies in them, so they need neither free space nor vacuum.
--
-- Parameters:
--      i_queue_name    - name of the queue
-- Returns:
--      1, 0 without such a queue.
-- ----------------------------------------------------------------------
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_name = i_queue_name;
    if not found then
        return 0;
    end if;
    for n in 0 .. q.queue_ntables - 1 loop
        execute format('alter table %s_%s set (fillfactor = 100, autovacuum_enabled = off, toast.autovacuum_enabled = off)',
                       q.queue_data_pfx, n);
    end loop;
    return 1;
end;
$$;

create or replace function pgq.upgrade_schema()
returns integer
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.upgrade_schema(0)
--
--      Does nothing; here migrations upgrade the schema (pgqpy migrate).
--
-- Returns:
--      0
-- ----------------------------------------------------------------------
    select 0;
$$;
