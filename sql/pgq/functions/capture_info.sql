create or replace function pgq.capture_info(i_table regclass default null)
returns table (
    table_name          text,
    queue_name          text,
    operations          text[],
    columns             text[],
    exclude             text[],
    key                 text[],
    old_values          text,
    condition           text,
    format              text,
    key_changes         text,
    trigger_function    text,
    runs_as             text,
    enabled             boolean,
    partitions_missing  integer)
language sql
stable
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_info(1)
--
--      What is captured, and how.
--
-- Parameters:
--      i_table     - table; null for all
-- Returns:
--      table_name          - with schema, quoted where needed
--      operations .. key_changes - the options of pgq.capture_table(11); key is
--                            what identifies a row now
--      trigger_function    - the generated function
--      runs_as             - its owner
--      enabled             - whether the triggers are
--      partitions_missing  - partitions whose direct writes are not captured:
--                            call pgq.capture_new_partitions(1)
-- ----------------------------------------------------------------------
    select format('%I.%I', s.shape ->> 'schema', s.shape ->> 'table'),
           c.capture_queue,
           array(select jsonb_array_elements_text(c.capture_options -> 'operations')),
           case when c.capture_options ? 'columns' then array(
               select n.attname from pgq.capture_names(c.capture_table, c.capture_options -> 'columns', o.table_then) n) end,
           case when c.capture_options ? 'exclude' then array(
               select n.attname from pgq.capture_names(c.capture_table, c.capture_options -> 'exclude', o.table_then) n) end,
           array(select jsonb_array_elements_text(s.shape -> 'key')),
           coalesce(c.capture_options ->> 'old_values', 'none'),
           c.capture_options ->> 'condition',
           c.capture_options ->> 'format',
           coalesce(c.capture_options ->> 'key_changes', 'split'),
           c.capture_function::regproc::text,
           c.capture_role::text,
           c.capture_enabled,
           (select count(*)::int4
              from pgq.capture_partitions(c.capture_table) as p (relid)
             where not exists (select from pg_trigger t where t.tgrelid = p.relid and t.tgfoid = c.capture_function))
      from pgq.capture c
     cross join lateral (select (c.capture_options ->> 'table_oid')::oid) as o (table_then)
     cross join lateral (select pgq.capture_shape(c.capture_table, c.capture_options)) as s (shape)
     where i_table is null or c.capture_table = i_table
     order by 1, 2;
$$;
