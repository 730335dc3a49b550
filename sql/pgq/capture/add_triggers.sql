create or replace function pgq._capture_partitions(i_table regclass)
returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the partitions of a table, at all levels, that can have triggers with transition tables: all but foreign
-- tables.
    -- Not pg_partition_tree(), which waits for locks on all of them: one owner's must not hold up the others.
    with recursive tree (relid, relkind) as (
        select c.oid, c.relkind
          from pg_class c
         where c.oid = i_table
         union all
        select c.oid, c.relkind
          from tree t
          join pg_inherits i on i.inhparent = t.relid
          join pg_class c on c.oid = i.inhrelid
         where t.relkind = 'p'
    )
    select relid
      from tree
     where relid <> i_table and relkind in ('r', 'p');
$$;

create or replace function pgq._capture_missing_partitions(i_table regclass, i_function oid)
returns setof oid
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the partitions of a captured table that lack its triggers.
    select p.relid
      from pgq._capture_partitions(i_table) as p (relid)
     where not exists (select from pg_trigger t where t.tgrelid = p.relid and t.tgfoid = i_function);
$$;

create or replace function pgq._capture_add_triggers(i_table oid, i_function oid, i_operations text[], i_argument text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Creates the statement triggers of one table or partition. Each is named after the function, so several captures of a
-- table do not collide.
-- Parameters:
--      i_function      - the trigger function
--      i_operations    - operations to capture
--      i_argument      - argument for the triggers; null for none
declare
    v_schema    text;
    v_name      text;
    v_planted   boolean;
    t           record;
begin
    select n.nspname, p.proname
      into v_schema, v_name
      from pg_proc p
      join pg_namespace n on n.oid = p.pronamespace
     where p.oid = i_function;
    for t in
        select o.operation, o.tables, v_name || '_' || o.operation as name
          from (values ('insert', 'referencing new table as new_rows'),
                       ('update', 'referencing old table as old_rows new table as new_rows'),
                       ('delete', 'referencing old table as old_rows'),
                       ('truncate', '')) o (operation, tables)
         where o.operation = any (i_operations)
    loop
        v_planted := exists (select from pg_trigger g where g.tgrelid = i_table and g.tgname = t.name);
        execute format('create trigger %I after %s on %s %s for each statement execute function %I.%I(%s)',
            t.name, t.operation, i_table::regclass, t.tables, v_schema, v_name, quote_literal(i_argument));
        -- Owners may rename their objects while this waits, and then the names meant other objects, perhaps another
        -- role's table. So this table must have the trigger, and not from its owner: the trigger did not exist before,
        -- and since this session has the lock that creating one takes, no other session has created it.
        if v_planted
           or not exists (select from pg_trigger g
                           where g.tgrelid = i_table and g.tgname = t.name and g.tgfoid = i_function)
           or not exists (select from pg_locks l
                           where l.locktype = 'relation'
                             and l.database = (select d.oid from pg_database d where d.datname = current_database())
                             and l.relation = i_table
                             and l.mode = 'ShareRowExclusiveLock'
                             and l.pid = pg_backend_pid())
        then
            raise exception using errcode = 'object_in_use',
                message = format('table %s or function %I.%I was renamed meanwhile', i_table::regclass, v_schema, v_name),
                hint = 'Try again.';
        end if;
    end loop;
end;
$$;

create or replace function pgq.capture_new_partitions(i_table regclass default null)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Extends the capture of partitioned tables to partitions that were created or attached since. Statements that name the
-- partitioned table are captured anyway; this is for statements that name a partition. Call it after creating
-- partitions, as the owner of the table. Maintenance calls it for all tables that its role may change.
--
-- When called for all tables it does nothing that the owner of the trigger function could not do itself, and takes
-- nothing from the function's text: the caller may be a superuser.
-- Parameters:
--      i_table     - captured table; null for all that the caller owns: then it skips, with a warning, what cannot be
--                    done at once
-- Returns: number of partitions added.
declare
    v_timeout   constant text := current_setting('lock_timeout');
    v_count     integer := 0;
    c           record;
begin
    if i_table is null then
        -- One owner's lock must not hold up the tables of all others.
        perform set_config('lock_timeout', '1s', true);
    end if;
    for c in
        select m.relid, k.capture_function::oid as function,
               array(select o.name
                       from (values ('insert', 4), ('delete', 8), ('update', 16), ('truncate', 32)) o (name, bit)
                      where exists (select
                                      from pg_trigger t
                                     where t.tgrelid = k.capture_table
                                       and t.tgfoid = k.capture_function
                                       and t.tgnargs = 0
                                       and t.tgtype & o.bit <> 0)) as operations
          from pgq.capture k
          join pg_proc p on p.oid = k.capture_function
          join pg_class r on r.oid = k.capture_table and r.relowner = p.proowner
         cross join lateral pgq._capture_missing_partitions(k.capture_table, k.capture_function) m (relid)
          join pg_class part on part.oid = m.relid
         where p.prosecdef
           and case when i_table is null then pg_has_role(r.relowner, 'usage') and pg_has_role(p.proowner, part.relowner, 'usage')
                    else k.capture_table = i_table end
    loop
        begin
            perform pgq._capture_add_triggers(c.relid, c.function, c.operations, 'partition');
            v_count := v_count + 1;
        exception when others then
            if i_table is not null then
                raise;
            end if;
            raise warning using
                message = format('partition %s is not captured: %s', c.relid::regclass, sqlerrm),
                hint = 'As its owner: select pgq.capture_new_partitions(table).';
        end;
    end loop;
    perform set_config('lock_timeout', v_timeout, true);
    return v_count;
end;
$$;
