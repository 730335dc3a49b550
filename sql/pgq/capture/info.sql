create or replace function pgq._capture_columns(
    i_table oid, i_options jsonb, out columns text[], out exclude text[], out key text[])
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the columns that options name, under their present names; none if one cannot be identified. A capture that
-- one owner has broken or faked must not hide the captures of all others.
declare
    v_then  constant oid := i_options ->> 'table_oid';
begin
    if i_options ? 'columns' then
        columns := array(select n.attname from pgq._capture_names(i_table, i_options -> 'columns', v_then) n);
    end if;
    if i_options ? 'exclude' then
        exclude := array(select n.attname from pgq._capture_names(i_table, i_options -> 'exclude', v_then) n);
    end if;
    key := array(select jsonb_array_elements_text(pgq._capture_shape(i_table, i_options) -> 'key'));
exception
    when sqlstate 'PQ024' then
        columns := null;
        exclude := null;
        key := '{}';
end;
$$;

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
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the captured tables and the options of each capture.
-- Parameters:
--      i_table     - table; null for all
-- Returns:
--      table_name          - with schema, quoted if needed
--      operations .. key_changes - the options of pgq.capture_table(11); key is
--                            the columns that identify a row now
--      trigger_function    - the generated function
--      runs_as             - its owner
--      enabled             - true if the triggers are enabled
--      partitions_missing  - partitions whose direct writes are not captured:
--                            call pgq.capture_new_partitions(1)
    select format('%I.%I', r.nspname, t.relname),
           c.capture_queue,
           array(select o from jsonb_array_elements_text(c.capture_options -> 'operations') o where o is not null),
           d.columns,
           d.exclude,
           d.key,
           coalesce(c.capture_options ->> 'old_values', 'none'),
           c.capture_options ->> 'condition',
           c.capture_options ->> 'format',
           coalesce(c.capture_options ->> 'key_changes', 'split'),
           format('%I.%I', n.nspname, p.proname),
           c.capture_role::text,
           c.capture_enabled,
           (select count(*)::int4 from pgq._capture_missing_partitions(c.capture_table, c.capture_function))
      from pgq.capture c
      join pg_class t on t.oid = c.capture_table
      join pg_namespace r on r.oid = t.relnamespace
      join pg_proc p on p.oid = c.capture_function
      join pg_namespace n on n.oid = p.pronamespace
     cross join lateral pgq._capture_columns(c.capture_table, c.capture_options) d
     where i_table is null or c.capture_table = i_table
     order by 1, 2;
$$;
