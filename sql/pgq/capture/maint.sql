create or replace function pgq.maint_capture()
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
-- One owner's lock must not hold up maintenance.
set lock_timeout = '1s'
as $$
-- Drops the trigger functions that dropped tables have left, if the caller may drop them.
-- Returns: number of functions dropped.
begin
    return pgq._capture_drop_unused(null);
end;
$$;

create or replace function pgq._capture_drop_unused(i_functions oid[])
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Drops trigger functions that no table uses, if the caller may drop them.
-- Parameters:
--      i_functions - the functions; null for all
-- Returns: number of functions dropped.
declare
    v_function  regprocedure;
    v_count     integer := 0;
begin
    for v_function in
        select p.oid
          from pg_proc p
         where p.prorettype = 'trigger'::regtype
           and p.prosrc like '-- pgq.capture {%'
           and pgq._capture_options(p.prosrc) is not null
           and (i_functions is null or p.oid = any (i_functions))
           and pg_has_role(p.proowner, 'usage')
           and not exists (select from pg_trigger t where t.tgfoid = p.oid)
    loop
        begin
            execute format('drop function %s', v_function);
            v_count := v_count + 1;
        exception when others then
            -- Another session has dropped it, or an object that its owner has made depends on it.
            raise warning using
                message = format('function %s is not dropped: %s', v_function, sqlerrm),
                hint = 'No table uses it any more.';
        end;
    end loop;
    return v_count;
end;
$$;

create or replace function pgq._capture_release_queue(i_queue_name text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Releases the tables that are captured into a queue, if the caller may.
declare
    v_table regclass;
begin
    for v_table in
        select distinct c.capture_table
          from pgq.capture c
          join pg_class t on t.oid = c.capture_table
         where c.capture_queue = i_queue_name
           and pg_has_role(t.relowner, 'usage')
    loop
        perform pgq.release_table(v_table, i_queue_name);
    end loop;
end;
$$;

create or replace function pgq._capture_refuse_drop(i_queue_name text, i_force boolean)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Refuses, for pgq.drop_queue(), to drop a queue that tables are captured into: otherwise no role could write to these
-- tables.
-- Parameters:
--      i_force         - the caller has released the tables that it may release
declare
    v_tables    text;
begin
    select string_agg(distinct case when i_force then format('%s of %I', c.capture_table, pg_get_userbyid(t.relowner))
                                    else c.capture_table::text end, ', ')
      into v_tables
      from pgq.capture c
      join pg_class t on t.oid = c.capture_table
     where c.capture_queue = i_queue_name
       -- What may not write is not a capture, or a capture that fails anyway. A temporary table is not waited for.
       and pgq._may_capture(c.capture_role, i_queue_name)
       and t.relpersistence <> 't';
    if v_tables is not null then
        raise exception using errcode = 'PQ007',
            message = format('tables are captured into queue %L: %s', i_queue_name, v_tables),
            hint = case when i_force then 'Only their owners, or a superuser, can release them: pgq.release_table(table, queue).'
                   else 'Release them with pgq.release_table(table, queue), or drop the queue with force.' end;
    end if;
end;
$$;
