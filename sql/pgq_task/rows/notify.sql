create or replace function pgq_task.notify_workers(i_table regclass, names jsonb default '{}')
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Adds triggers to a table that notify workers when there are rows to process. Without them workers look once a second.
-- There are no notifications while workers are looking anyway: a sequence that belongs to next_attempt says until when.
-- Inserts directly into a partition do not notify. Call it as the owner of the table.
-- Parameters:
--      i_table     - table with the columns of pgq_task.add_columns(5)
--      names       - names of these columns
-- Returns: false if it has the triggers already.
-- Errors: as pgq_task.describe_table(2), 42501 not the owner
declare
    v_next      constant text := pgq_task._column_names(names) ->> 'next_attempt';
    v_suffix    constant text := to_hex(hashtext(v_next));
    v_seq       text;
begin
    perform pgq_task.describe_table(i_table, names);
    if pgq_task._quiet_sequence(i_table, v_next) is not null then
        return false;
    end if;
    select format('%I.%I', n.nspname, left(c.relname, 20) || '_quiet_' || v_suffix || '_' || c.oid)
      into v_seq
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
     where c.oid = i_table;
    -- Milliseconds since 1970.
    execute format('create sequence %s minvalue 0 start 0 owned by %s.%I', v_seq, i_table, v_next);
    -- The triggers run as this role.
    execute format('grant select, update on sequence %s to pgq_owner', v_seq);
    execute format(
        'create trigger %I after insert on %s'
        ' for each statement execute function pgq_task._notify_of_table(%L)',
        'pgq_task_insert_' || v_suffix, i_table, v_next);
    -- The changes that workers make when a row is done need no notification.
    execute format(
        'create trigger %1$I after update of %2$I on %3$s'
        ' for each row when (new.%2$I is not null and new.%2$I is distinct from old.%2$I)'
        ' execute function pgq_task._notify_of_table(%2$L)',
        'pgq_task_update_' || v_suffix, v_next, i_table);
    return true;
end;
$$;

create or replace function pgq_task._notify_of_table()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger of pgq_task.notify_workers(2): notifies the channel pgq_task_table, with the table's signal as payload,
-- unless the workers want quiet. A transaction notifies once, and always if it changes many rows: it may commit long
-- after the workers looked.
declare
    v_key       constant text := tg_relid || ' ' || tg_argv[0];
    v_told      constant text := current_setting('pgq_task.told_of_table', true);
    v_table     regclass;
    v_until     bigint;
    v_now       bigint;
begin
    if v_told = v_key then
        return null;
    end if;
    v_table := coalesce(pg_partition_root(tg_relid), tg_relid);
    v_now := date_part('epoch', clock_timestamp()) * 1000;
    if tg_op = 'INSERT' or v_told is distinct from 'quiet ' || v_key then
        v_until := pg_sequence_last_value(pgq_task._quiet_sequence(v_table, tg_argv[0]));
    end if;
    -- Later than any worker asks for: the clock was set back.
    if v_until between v_now and v_now + 1000 then
        perform set_config('pgq_task.told_of_table', 'quiet ' || v_key, true);
    else
        perform pg_notify('pgq_task_table', pgq_task._table_signal(v_table, tg_argv[0]));
        perform set_config('pgq_task.told_of_table', v_key, true);
    end if;
    return null;
end;
$$;

create or replace function pgq_task.want_quiet(i_table regclass, i_next text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Suppresses notifications: a worker is about to look for rows, and will look again in 50 milliseconds, so until then
-- it needs no notification.
-- Parameters:
--      i_next      - name of its column next_attempt
-- Returns: false if it has no triggers, see pgq_task.notify_workers(2), or the caller may not change its rows, and so is no
--      worker of it.
declare
    v_seq   constant regclass := pgq_task._quiet_sequence(i_table, i_next);
begin
    if v_seq is null or not has_any_column_privilege(pgq._caller(), i_table, 'update') then
        return false;
    end if;
    perform setval(v_seq, (date_part('epoch', clock_timestamp()) * 1000)::bigint + 50);
    return true;
end;
$$;

create or replace function pgq_task._quiet_sequence(i_table regclass, i_next text)
returns regclass
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the sequence that belongs to a table's column next_attempt, if there is one.
    select d.objid::regclass
      from pg_depend d
      join pg_class s on s.oid = d.objid and s.relkind = 'S'
      join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
     where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
       and d.refobjid = i_table and a.attname = i_next and d.deptype = 'a';
$$;

create or replace function pgq_task._table_signal(i_table regclass, i_next text)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the payload on the channel pgq_task_table for a table.
    select i_table::oid || ' ' || i_next;
$$;
