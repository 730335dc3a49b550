create or replace function pgq.maint_capture()
returns integer
language plpgsql
volatile
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_capture(0)
--
--      Drops trigger functions that no table has any more: those of dropped
--      and released tables.
--
-- Returns:
--      How many functions were dropped.
-- ----------------------------------------------------------------------
declare
    v_function  regprocedure;
    v_count     integer := 0;
begin
    -- Two at once would drop the same; the other one does it for both.
    if not pg_try_advisory_xact_lock('pgq.capture'::regclass::oid::int8) then
        return 0;
    end if;
    for v_function in
        select p.oid
          from pg_proc p
         where p.pronamespace = 'pgq_capture'::regnamespace
           and pgq.capture_options(p.prosrc) is not null
           and not exists (select from pg_trigger t where t.tgfoid = p.oid)
    loop
        -- The schema's owner may drop what others have in it.
        execute format('drop function %s', v_function);
        v_count := v_count + 1;
    end loop;
    return v_count;
end;
$$;

create or replace function pgq.capture_drop_queue(i_queue_name text, i_force boolean)
returns void
language plpgsql
volatile
security definer set search_path = pg_catalog, pg_temp
set client_min_messages = warning
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_drop_queue(2)
--
--      For pgq.drop_queue(): a queue that tables are captured into cannot go,
--      or no one could write to these tables. Internal.
--
-- Parameters:
--      i_queue_name    - queue
--      i_force         - release the tables instead of raising
-- Errors:
--      PQ007 tables are captured into the queue
-- ----------------------------------------------------------------------
declare
    v_function  regprocedure;
    v_tables    text;
begin
    select string_agg(c.capture_table::text, ', ' order by c.capture_table::text)
      into v_tables
      from pgq.capture c
     where c.capture_queue = i_queue_name;
    if v_tables is null then
        return;
    elsif not i_force then
        raise exception using
            errcode = 'PQ007',
            message = format('tables are captured into queue %L: %s', i_queue_name, v_tables),
            hint = 'Release them with pgq.release_table(table, queue), or drop the queue with force.';
    end if;
    for v_function in select c.capture_function from pgq.capture c where c.capture_queue = i_queue_name
    loop
        -- The triggers of other owners' tables go with it.
        execute format('drop function %s cascade', v_function);
    end loop;
end;
$$;
