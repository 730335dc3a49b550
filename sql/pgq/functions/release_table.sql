create or replace function pgq.release_table(i_table regclass, i_queue_name text default null)
returns integer
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.release_table(2)
--
--      Ends the capture of a table and of its partitions. Call it as the owner of the table. Captured events stay in
--      the queue.
--
-- Parameters:
--      i_table         - table
--      i_queue_name    - queue; null for all queues that it is captured into
-- Returns:
--      Number of captures ended.
-- Errors:
--      PQ024 the table is not captured
-- ----------------------------------------------------------------------
declare
    v_functions oid[];
    t           record;
begin
    perform pg_advisory_xact_lock(1886875905, hashoid(i_table));  -- as in pgq.capture_table(11)
    select array_agg(c.capture_function)
      into v_functions
      from pgq.capture c
     where c.capture_table = i_table and (i_queue_name is null or c.capture_queue = i_queue_name);
    if v_functions is null then
        raise exception using
            errcode = 'PQ024',
            message = format('table %s is not captured%s', i_table, coalesce(format(' into queue %L', i_queue_name), '')),
            hint = 'pgq.capture_info() lists what is captured.';
    end if;

    -- Include detached partitions. Lock a table before its partitions, in the order of inserts. Tables of other owners
    -- may have triggers that only look like ours.
    for t in
        select g.tgname, g.tgrelid::regclass as relid
          from pg_trigger g
          join pg_class c on c.oid = g.tgrelid
         where g.tgfoid = any (v_functions)
           and (g.tgrelid = i_table or pg_has_role(c.relowner, 'usage'))
         order by (select count(*) from pg_partition_ancestors(g.tgrelid)), g.tgrelid
    loop
        execute format('drop trigger %I on %s', t.tgname, t.relid);
    end loop;
    perform pgq.capture_drop_unused(v_functions);
    return cardinality(v_functions);
end;
$$;
