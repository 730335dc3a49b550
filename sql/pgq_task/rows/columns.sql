create or replace function pgq_task.add_columns(
    i_table regclass, names jsonb default '{}', queue_new boolean default true, queue_existing boolean default false,
    create_index boolean default true)
returns int4
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Turns an existing table of an application into a queue of its rows, by adding five columns and an index:
--
-- status          text, how the last attempt ended: new (there was none), succeeded or failed
-- next_attempt    timestamptz, from when on the row is to be processed; null: not at all
-- attempts        int4, how often it was tried
-- last_attempt    timestamptz, when it was tried last
-- last_error      text, why the last attempt that failed did
--
-- Existing columns with the right type are kept. No row is rewritten, but the table is locked exclusively for a moment:
-- set lock_timeout. Call it as the owner of the table.
-- Parameters:
--      i_table         - table with a primary key; of a partitioned table the whole
--      names           - other names for some columns: {"status": "mail_status"}
--      queue_new       - rows inserted from now on are due at once, unless they set next_attempt
--      queue_existing  - existing rows are due at once; only if next_attempt does not exist yet
--      create_index    - create the index on next_attempt, which blocks writers while it is built. For a large table
--                        pass false, and run the statement that pgq_task.table_index_sql() returns
-- Returns: number of columns added.
-- Errors: PQ072 invalid names, PQ078 not a table with a primary key, or a column of that name has another type, 42501
--      not the owner
declare
    v_names     constant jsonb := pgq_task._column_names(names);
    v_status    constant text := v_names ->> 'status';
    v_next      constant text := v_names ->> 'next_attempt';
    v_add       text[];
    v_has       text[];
    v_foreign   boolean;
begin
    perform pgq_task._require_key(i_table);
    perform pgq_task._require_types(i_table, v_names);
    v_has := array(select a.attname::text from pg_attribute a
                    where a.attrelid = i_table and a.attname in (select value from jsonb_each_text(v_names)));
    if v_status = any (v_has) and v_next <> all (v_has) then
        -- It may be a status of the application's own.
        execute format('select exists (select from %s where %I not in (%L, %L, %L))', i_table, v_status, 'new', 'succeeded', 'failed')
           into v_foreign;
        if v_foreign then
            perform pgq_task._raise_invalid(
                format('column %I of table %s holds something else', v_status, i_table),
                'Give the column another name: pgq_task.add_columns(table, ''{"status": "task_status"}'').', 'PQ078');
        end if;
    end if;

    v_add := array(
        select format('add column %I %s', value, case key
                   when 'status' then 'text not null default ''new'''
                   when 'next_attempt' then 'timestamptz' || case when queue_existing then ' default now()' else '' end
                   when 'attempts' then 'int4 not null default 0'
                   when 'last_attempt' then 'timestamptz'
                   else 'text' end)
          from jsonb_each_text(v_names)
         where value <> all (v_has)
         order by array_position(array['status', 'next_attempt', 'attempts', 'last_attempt', 'last_error'], key));
    if v_add <> '{}' then
        execute format('alter table %s %s', i_table, array_to_string(v_add, ', '));
    end if;
    if v_next <> all (v_has) then
        execute format('alter table %s alter column %I %s', i_table, v_next,
                       case when queue_new then 'set default clock_timestamp()' else 'drop default' end);
    end if;
    if create_index and not pgq_task._has_index(i_table, v_next) then
        execute pgq_task.table_index_sql(i_table, names, false);
    end if;
    return cardinality(v_add);
end;
$$;

create or replace function pgq_task.remove_columns(i_table regclass, names jsonb default '{}', force boolean default false)
returns int4
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Undoes pgq_task.add_columns(5): drops the columns, and with them the index and the objects that
-- pgq_task.notify_workers(2) added.
-- Parameters:
--      names       - the names given to pgq_task.add_columns(5)
--      force       - drop them even if rows wait to be processed
-- Returns: number of columns dropped; missing ones are skipped.
-- Errors: PQ073 rows wait to be processed, PQ072 invalid names, PQ078 a column of that name has another type, 42501 not
--      the owner
declare
    v_names     constant jsonb := pgq_task._column_names(names);
    v_next      constant text := v_names ->> 'next_attempt';
    v_drop      text[];
    v_waiting   boolean := false;
begin
    perform pgq_task._require_types(i_table, v_names);
    execute format('lock table %s in access exclusive mode', i_table);
    v_drop := array(select format('drop column %I', a.attname) from pg_attribute a
                     where a.attrelid = i_table and a.attname in (select value from jsonb_each_text(v_names)));
    if not force and exists (select from pg_attribute a where a.attrelid = i_table and a.attname = v_next) then
        execute format('select exists (select from %s where %I is not null)', i_table, v_next) into v_waiting;
    end if;
    if v_waiting then
        perform pgq_task._raise_invalid(
            format('rows of table %s wait to be processed', i_table),
            format('Process them, or set their %I to null; force => true forgets that they wait.', v_next), 'PQ073');
    end if;
    if pgq_task._quiet_sequence(i_table, v_next) is not null then
        execute format('drop trigger if exists %2$I on %1$s; drop trigger if exists %3$I on %1$s', i_table,
                       'pgq_task_insert_' || to_hex(hashtext(v_next)), 'pgq_task_update_' || to_hex(hashtext(v_next)));
    end if;
    if v_drop <> '{}' then
        execute format('alter table %s %s', i_table, array_to_string(v_drop, ', '));
    end if;
    return cardinality(v_drop);
end;
$$;

create or replace function pgq_task.table_index_sql(i_table regclass, names jsonb default '{}', online boolean default true)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the statement that creates the index on a table's next_attempt. With online = true it does not block writers,
-- but cannot run in a function or a transaction: run it by itself. Rows that are not to be processed are not in the
-- index. PostgreSQL cannot do this online for partitioned tables: pass false.
    select format('create index %1$son %2$s (%3$I) where %3$I is not null',
                  case when online then 'concurrently ' else '' end,
                  i_table, pgq_task._column_names(names) ->> 'next_attempt');
$$;

create or replace function pgq_task.describe_table(i_table regclass, names jsonb default '{}')
returns table (table_name text, key_columns text[], key_types text[], has_index boolean, signal text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns what a worker needs to know to process the rows of a table.
-- Returns: the table's name in SQL, the columns of its primary key and their types, whether next_attempt has an index,
--      and the payload on the channel pgq_task_table for this table, null if there is none.
-- Errors: PQ072 invalid names, PQ078 not a table with a primary key, or without the columns
declare
    v_names     constant jsonb := pgq_task._column_names(names);
    v_missing   text;
begin
    perform pgq_task._require_key(i_table);
    perform pgq_task._require_types(i_table, v_names);
    select string_agg(quote_ident(n.value), ', ' order by n.value) into v_missing
      from jsonb_each_text(v_names) n
     where not exists (select from pg_attribute a where a.attrelid = i_table and a.attname = n.value and not a.attisdropped);
    if v_missing is not null then
        perform pgq_task._raise_invalid(
            format('table %s has no column %s', i_table, v_missing),
            format('Add what is missing: select pgq_task.add_columns(%L). If the columns have other names, give these.', i_table), 'PQ078');
    end if;
    return query
        select i_table::text, array_agg(a.attname::text order by k.nr), array_agg(format_type(a.atttypid, a.atttypmod) order by k.nr),
               pgq_task._has_index(i_table, v_names ->> 'next_attempt'),
               case when pgq_task._quiet_sequence(i_table, v_names ->> 'next_attempt') is not null
                    then pgq_task._table_signal(i_table, v_names ->> 'next_attempt') end
          from pg_constraint c
         cross join unnest(c.conkey) with ordinality k (attnum, nr)
          join pg_attribute a on a.attrelid = i_table and a.attnum = k.attnum
         where c.conrelid = i_table and c.contype = 'p';
end;
$$;

create or replace function pgq_task.table_sizes(i_table regclass, names jsonb default '{}')
returns table (status text, stopped bigint, due bigint, scheduled bigint, attempts int4, oldest interval)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Counts the rows of a table by status. It reads the whole table, with the caller's rights.
-- Returns: for each existing status: the numbers of rows that are not to be processed (any more), due now, and due
--      later; the highest number of attempts; and how long the oldest has been due.
-- Errors: as pgq_task.describe_table(2)
declare
    n   constant jsonb := pgq_task._column_names(names);
begin
    perform pgq_task.describe_table(i_table, names);
    return query execute format(
        'select %1$I::text, count(*) filter (where %2$I is null), count(*) filter (where %2$I <= now()),'
        '       count(*) filter (where %2$I > now()), max(%3$I)::int4, now() - min(%2$I) filter (where %2$I <= now())'
        '  from %4$s group by 1 order by 1',
        n ->> 'status', n ->> 'next_attempt', n ->> 'attempts', i_table);
end;
$$;

create or replace function pgq_task.was_left(i_xmin xid, i_xmax xid)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether the last transaction that locked or changed a row did not commit. PostgreSQL stores the id of such a
-- transaction in the row. So this shows, for a row of an application's table, that a worker began with it and did not
-- finish, even if its process was killed, without any extra write.
--
-- It may be wrong: true only makes the row be processed alone, and a wrong false is checked again after the next
-- failure.
-- Parameters:
--      i_xmin      - the row's xmin
--      i_xmax      - its xmax, as it was before it was locked
declare
    v_next  constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_ago   bigint;
begin
    if i_xmax = '0' then
        return false;
    elsif age(i_xmax) > age(i_xmin) then
        -- A row cannot have been locked before it existed, so this is the number of a MultiXact: several transactions
        -- had the row at once.
        return true;
    end if;
    v_ago := (v_next - i_xmax::text::bigint) & 4294967295;
    -- A number that is still in the future was drawn since. This is asked before the row is locked. If the row can be
    -- locked afterwards, a transaction that is in progress now, or has begun since this statement started, has left it.
    return v_ago not between 1 and 2147483647 or coalesce(pg_xact_status((v_next - v_ago)::text::xid8) <> 'committed', false);
end;
$$;
