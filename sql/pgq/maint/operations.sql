create or replace function pgq.maint_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Returns the operations that maintenance has to do now, in this order, each in a transaction of its own: those for
-- pgq's own tables, those named by queue_extra_maint, and those of other parts of the PgQ family, if installed.
--
-- The caller runs the operations with its own rights. So a foreign function is listed only if the caller may trust the
-- role that made it: a role that could act as the caller, pgq_owner or a superuser. The other functions are listed as
-- pgq.maint_refused(1), with the reason.
-- Returns:
--      func_name   - function to call, or 'vacuum'
--      func_arg    - its argument, null for none; for 'vacuum' the table
declare
    v_extra     record;
    v_part      record;
    -- They come last, since pgqd starts over after an operation that fails.
    v_refused   text[] := '{}';
begin
    return query select * from pgq._maint_own_operations();

    for v_extra in
        select q.queue_name, extra.func
          from pgq.queue q
         cross join unnest(q.queue_extra_maint) with ordinality extra (func, nr)
         order by q.queue_name, extra.nr
    loop
        begin
            func_name := pgq._maint_function(v_extra.func);
            func_arg := v_extra.queue_name;
            return next;
        exception when others then
            v_refused := v_refused || format('%s of queue %L: %s', v_extra.func, v_extra.queue_name, sqlerrm);
        end;
    end loop;

    return query select 'vacuum', f from pgq.maint_tables_to_vacuum() f;

    for v_part in
        select p.schema, p.func, p.arguments, p.relations, p.query
          from (values
                ('pgq_node', 'maint_watermark', 'text', '{pgq_node.node_info}'::text[],
                 $q$select queue_name from pgq_node.node_info where node_type = 'root'$q$),
                ('londiste', 'root_check_seqs', 'text', '{londiste.seq_info,pgq_node.node_info}',
                 $q$select distinct s.queue_name
                      from londiste.seq_info s join pgq_node.node_info n using (queue_name)
                     where s.local and n.node_type = 'root'$q$),
                ('londiste', 'periodic_maintenance', '', '{}',
                 'select null::text')) p (schema, func, arguments, relations, query)
          join pg_namespace n on n.nspname = p.schema
         where exists (select
                         from pg_proc f
                        where f.pronamespace = n.oid
                          and f.proname = p.func
                          and oidvectortypes(f.proargtypes) = p.arguments)
    loop
        begin
            perform pgq._require_trusted(v_part.schema, v_part.func, true);
            perform pgq._require_trusted(split_part(r, '.', 1), split_part(r, '.', 2), false) from unnest(v_part.relations) r;
            func_name := format('%s.%s', v_part.schema, v_part.func);
            for func_arg in execute v_part.query loop
                return next;
            end loop;
        exception when others then
            v_refused := v_refused || format('%s.%s: %s', v_part.schema, v_part.func, sqlerrm);
        end;
    end loop;

    return query select 'pgq.maint_refused', r from unnest(v_refused) r;
end;
$$;

create or replace function pgq._trusts_owner(i_owner oid)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether the current role may run functions made by another role. It may if that role could act as the current
-- role anyway, or owns this schema, and so gains nothing; a superuser can do both.
-- Parameters:
--      i_owner     - the other role; 0 for everyone; pg_database_owner means the database's owner
    select o.owner = 'pgq_owner'::regrole
        or coalesce(pg_has_role(nullif(o.owner, 0), current_user,
                                case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end),
                    false)
      from (select case i_owner when 'pg_database_owner'::regrole then d.datdba else i_owner end as owner
              from pg_database d
             where d.datname = current_database()) o;
$$;

create or replace function pgq._require_trusted(i_schema text, i_name text, i_is_function boolean)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises 42501 unless the current role may trust the object that a foreign name means. The schema's owner counts too,
-- since it may put another object there. For the name of a function all functions of this name count, whatever their
-- arguments, and a type of this name, since a call with an untyped constant may mean these. If there is no such schema,
-- the database counts.
-- Parameters:
--      i_schema, i_name    - the name, as in the catalog
--      i_is_function       - false for a relation
declare
    v_schema    constant oid := (select oid from pg_namespace where nspname = i_schema);
    v_reason    text;
begin
    select string_agg(o.says || case o.role when 0 then 'PUBLIC' else o.role::regrole::text end, ', ' order by o.nr, o.role)
      into v_reason
      from (select 1, 'it belongs to ', p.proowner
              from pg_proc p
             where p.pronamespace = v_schema
               and p.proname = i_name
               and i_is_function
             union all
            select 1, 'it belongs to ', t.typowner
              from pg_type t
             where t.typnamespace = v_schema
               and t.typname = i_name
               and i_is_function
             union all
            select 1, 'it belongs to ', c.relowner
              from pg_class c
             where c.relnamespace = v_schema
               and c.relname = i_name
               and not i_is_function
             union all
            select 2, 'its schema belongs to ', n.nspowner
              from pg_namespace n
             where n.oid = v_schema
             union all
            select 3, 'its schema lets create ', a.grantee
              from pg_namespace n, aclexplode(n.nspacl) a
             where n.oid = v_schema
               and a.privilege_type = 'CREATE'
             union all
            select 4, 'its schema could be created by ', a.grantee
              from pg_database d, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
             where d.datname = current_database()
               and a.privilege_type = 'CREATE'
               and v_schema is null) o (nr, says, role)
     where not pgq._trusts_owner(o.role);
    if v_reason is not null then
        raise exception using errcode = 'insufficient_privilege',
            message = format('%s could make %s do anything: %s', i_schema || '.' || i_name, current_user, v_reason);
    end if;
end;
$$;

create or replace function pgq._maint_function(i_name text)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Checks the name of a foreign function, with a text parameter, that maintenance is to run.
-- Parameters:
--      i_name      - schema.name; without schema it means public
-- Returns: the name.
declare
    v_parts text[];
begin
    -- This ticker reads a name as SQL does; PgQ's ticker takes it literally.
    begin
        v_parts := parse_ident(i_name);
    exception when invalid_parameter_value then
        v_parts := null;
    end;
    if cardinality(v_parts) > 2 then
        raise exception 'it has more parts than a schema and a name'
            using errcode = 'invalid_name';
    end if;
    if v_parts is not null then
        perform pgq._require_trusted(case cardinality(v_parts) when 1 then 'public' else v_parts[1] end,
                                     v_parts[cardinality(v_parts)], true);
    end if;
    perform pgq._require_trusted(case strpos(i_name, '.') when 0 then 'public' else split_part(i_name, '.', 1) end,
                                 substr(i_name, strpos(i_name, '.') + 1), true);
    return i_name;
end;
$$;

create or replace function pgq.maint_refused(i_reason text)
returns integer
language plpgsql
as $$
-- Stands in the list of operations for one that is not run, and fails so that the failure is noticed.
-- Parameters:
--      i_reason    - the operation that is not run, and the reason
-- Errors: 55000 always
begin
    raise exception 'maintenance does not run %', i_reason
        using errcode = 'object_not_in_prerequisite_state',
              hint = 'A function that maintenance runs must belong to the role that runs maintenance, to pgq_owner or to a '
                     'superuser, and so must its schema, in which no other role may create.';
end;
$$;

create or replace function pgq._maint_own_operations(out func_name text, out func_arg text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the operations that maintenance has to do on pgq's own relations. Internal: pgq.maint_operations() adds the
-- rest.
-- Returns:
--      func_name   - function to call
--      func_arg    - its argument, null for none
begin
    return query
    select 'pgq.maint_rotate_tables_step1', q.queue_name
      from pgq.queue q
     where pgq._is_rotation_due(q)
     order by q.queue_name;
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

    -- Each session that uses it does this, unless all use REPEATABLE READ.
    if exists (select from pgq_ext.log
                where pgq_ext._log_size((pg_sequence_last_value('pgq_ext.log_seq') % 2)::text)
                      > greatest(log_rotate_bytes, 2 * log_carried_bytes))
    then
        return query select 'pgq_ext.rotate', null::text;
    end if;

    if exists (select from pg_inherits where inhparent = 'pgq.delayed'::regclass
                and pg_relation_size(inhrelid) > 0
                and pg_table_size(inhrelid) > pgq._delayed_rotate_bytes())
    then
        return query select 'pgq.maint_rotate_delayed', null::text;
    end if;

    -- twice: to empty a table, and to move on to it
    return query
    select 'pgq.maint_rotate_keys', queue_name
      from pgq.queue, generate_series(1, 2)
     where queue_key_switch_time + queue_key_window < current_timestamp
        or queue_key_switch_time > current_timestamp
     order by queue_name;

    return query
    select capture.func, null::text
      from unnest(array['pgq.maint_capture', 'pgq.capture_new_partitions']) capture (func)
     where exists (select from pg_proc p where p.prorettype = 'trigger'::regtype and p.prosrc like '-- pgq.capture {%');

    return query
    select 'pgq.maint_guards', null::text
     where pg_relation_size('pgq.event_guard_0') + pg_relation_size('pgq.event_guard_1') + pg_relation_size('pgq.limit_log') > 0;

    return query
    select 'pgq.maint_row_counts', null::text
     where pgq._row_counts_have_grown();

    return query
    select 'pgq.maint_staging', null::text
     where exists (select from pg_class where relnamespace = 'pgq_staging'::regnamespace);

    -- Workers do this; this covers tasks whose workers are all gone.
    return query
    select 'pgq_task.sweep', null::text
     where exists (select from pgq_task.queue);
end;
$$;

create or replace function pgq.maint_tables_to_vacuum()
returns setof text
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the small tables in which rows die, to be vacuumed where autovacuum is off.
-- Returns: table names with schema.
    select format('%I.%I', n.nspname, c.relname)
      from (values ('pgq', 'queue'), ('pgq', 'log'), ('pgq', 'consumer'), ('pgq', 'registration'),
                   ('pgq', 'late_write'), ('pgq', 'forced_tick'), ('pgq', 'stream_writer'), ('pgq', 'ticker_failure'), ('pgq', 'consumer_failure'),
                   ('pgq', 'group_member'), ('pgq', 'group_partition'), ('pgq', '_parked_key'), ('pgq', '_parked_event'), ('pgq', '_dead_letter'),
                   ('pgq_ext', 'completed_tick'), ('pgq_ext', 'completed_batch'),
                   ('pgq_ext', 'completed_event'), ('pgq_ext', 'partial_batch'),
                   ('pgq_node', 'local_state'), ('londiste', 'seq_info'), ('londiste', 'completed')) v (nsp, rel)
      join pg_namespace n on n.nspname = v.nsp
      join pg_class c on c.relnamespace = n.oid and c.relname = v.rel and c.relkind = 'r'
     where current_setting('autovacuum') <> 'on'
       and pgq._trusts_owner(n.nspowner)
       and pgq._trusts_owner(c.relowner);
$$;

create or replace function pgq._grant_perms_from(src_schema text, src_table text, dst_schema text, dst_table text)
returns integer
language plpgsql strict set search_path = pg_catalog, pg_temp
as $$
-- Copies the grants of one table to another, as far as the caller may.
-- Parameters:
--      src_schema, src_table   - the table to look at
--      dst_schema, dst_table   - the table to change
-- Returns: 1
declare
    g   record;
begin
    for g in
        select a.grantee, a.privilege_type, a.is_grantable
          from pg_class c
          join pg_namespace n on n.oid = c.relnamespace,
               aclexplode(c.relacl) a
         where n.nspname = src_schema
           and c.relname = src_table
    loop
        execute format('grant %s on %I.%I to %s%s', g.privilege_type, dst_schema, dst_table,
                       case g.grantee when 0 then 'public' else g.grantee::regrole::text end,
                       case when g.is_grantable then ' with grant option' else '' end);
    end loop;
    return 1;
end;
$$;

create or replace function pgq.tune_storage(i_queue_name text)
returns integer
language plpgsql strict security definer set search_path = pg_catalog, pg_temp
as $$
-- Sets the storage parameters of event tables: no row dies in them, so they need neither free space nor vacuum.
-- Returns: 1, or 0 if there is no such queue.
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
-- Does nothing; here migrations upgrade the schema (pgqpy migrate).
-- Returns: 0
    select 0;
$$;
