create or replace function pgq.capture_partitions(i_table regclass)
returns setof regclass
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_partitions(1)
--
--      The partitions of a table, at all levels, that can have triggers with
--      transition tables: all but foreign tables.
-- ----------------------------------------------------------------------
    select p.relid
      from pg_partition_tree(i_table) p
      join pg_class c on c.oid = p.relid
     where p.relid <> i_table and c.relkind in ('r', 'p');
$$;

create or replace function pgq.capture_add_triggers(i_table regclass, i_function text, i_operations text[], i_argument text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_add_triggers(4)
--
--      Creates the statement triggers of one table or partition. Each is named
--      after the function, so several captures of a table do not collide.
--
-- Parameters:
--      i_table         - the table
--      i_function      - name of the trigger function, quoted and with schema
--      i_operations    - operations to capture
--      i_argument      - argument for the triggers; null for none
-- ----------------------------------------------------------------------
declare
    v_operation text;
    v_name      text := (parse_ident(i_function))[2];
begin
    foreach v_operation in array i_operations
    loop
        execute format('create trigger %I after %s on %s %s for each statement execute function %s(%s)',
            v_name || '_' || v_operation, v_operation, i_table,
            case v_operation
                when 'insert' then 'referencing new table as new_rows'
                when 'update' then 'referencing old table as old_rows new table as new_rows'
                when 'delete' then 'referencing old table as old_rows'
                else ''
            end,
            i_function, quote_literal(i_argument));
    end loop;
end;
$$;

create or replace function pgq.capture_new_partitions(i_table regclass default null)
returns integer
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_new_partitions(1)
--
--      Extends the capture of partitioned tables to partitions that were
--      created or attached since. Statements that name the partitioned table
--      are captured anyway; this is for those that name a partition.
--      Call it after making partitions, as the owner of the table. Maintenance
--      calls it for all tables that its role may change.
--
-- Parameters:
--      i_table     - captured table; null for all that the caller owns
-- Returns:
--      How many partitions were added.
-- ----------------------------------------------------------------------
declare
    c       record;
    v_count integer := 0;
begin
    for c in
        select p.relid, k.capture_function::regproc::text as function,
               array(select jsonb_array_elements_text(k.capture_options -> 'operations')) as operations
          from pgq.capture k
          join pg_class r on r.oid = k.capture_table
         cross join lateral pgq.capture_partitions(k.capture_table) as p (relid)
         where r.relkind = 'p'
           and (i_table is null or k.capture_table = i_table)
           and (i_table is not null or pg_has_role(r.relowner, 'usage'))
           and not exists (select from pg_trigger t where t.tgrelid = p.relid and t.tgfoid = k.capture_function)
    loop
        perform pgq.capture_add_triggers(c.relid, c.function, c.operations, 'partition');
        v_count := v_count + 1;
    end loop;
    return v_count;
end;
$$;
