create or replace function pgq.create_staging(i_job text, i_role name default current_user)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates a table for events that a job will send when the whole job is done. Fill it in the same transaction: as long
-- as that is open, the job counts as running. The table belongs to pgq_owner, and only the given role can fill, read
-- and empty it. It is unlogged, so a crash of the server empties it: the program that sends the events must know how
-- many there are.
-- Parameters:
--      i_job   - name of the job: letters, digits and _, at most 43
--      i_role  - role of the job; by default the caller's role
-- Returns: the table's name, with schema, without quotes. Its columns are ev_type, ev_data, ev_extra1 .. ev_extra4.
declare
    v_table text;
begin
    if coalesce(i_job, '') !~ '^[a-z0-9_]{1,43}$' then
        raise exception using errcode = 'PQ003',
            message = format('invalid name of a job: %s', coalesce(quote_literal(i_job), 'NULL')),
            hint = 'A name has 1 to 43 small letters, digits and underscores.';
    elsif not exists (select from pg_roles where rolname = i_role) then
        raise exception using errcode = 'PQ003',
            message = format('there is no role %s', quote_nullable(i_role)),
            hint = 'Leave the role out: then it is yours.';
    end if;
    -- Shared by all of the job's transactions; pgq.maint_staging() takes it exclusively.
    perform pg_advisory_xact_lock_shared(pgq._lock_key('staging'), hashtext(i_job));
    v_table := format('%s_%s_%s', i_job, trunc(extract(epoch from now())), right(txid_current()::text, 8));
    execute format('create unlogged table pgq_staging.%I (ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, '
                   'ev_extra3 text, ev_extra4 text) with (autovacuum_enabled = off)', v_table);
    execute format('grant insert, select, truncate on pgq_staging.%I to %I', v_table, i_role);
    return 'pgq_staging.' || v_table;
end;
$$;

create or replace function pgq.staging_tables(i_job text)
returns setof text
language plpgsql set search_path = pg_catalog, pg_temp
set lock_timeout = '3s'
as $$
-- Returns the tables that pgq.create_staging(2) has created for a job, to be dropped when the job is done. It waits up
-- to three seconds for the job's transactions that are still writing, such as those of other tasks after one has
-- failed. Tables that they leave later are dropped by pgq.maint_staging(1).
-- Parameters:
--      i_job   - name of the job
-- Returns: names of tables, as returned by pgq.create_staging(2).
begin
    begin
        perform pg_advisory_xact_lock(pgq._lock_key('staging'), hashtext(i_job));
    exception when lock_not_available then
        null;
    end;
    return query
    select 'pgq_staging.' || relname
      from pg_class
     where relnamespace = 'pgq_staging'::regnamespace
       and starts_with(relname::text, i_job || '_')
       and substr(relname::text, length(i_job) + 2) ~ '^[0-9]{1,10}_[0-9]+$';
end;
$$;

create or replace function pgq.drop_staging(i_table text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops a staging table that is empty. TRUNCATE it first in the same transaction, which only the job's role may do.
-- Parameters:
--      i_table - name of the table, as returned by pgq.create_staging(2)
-- Returns: true if it was dropped, false if it is gone already.
-- Errors: 55006 the table has rows
declare
    v_table     constant oid := (select oid from pg_class
                                  where relnamespace = 'pgq_staging'::regnamespace
                                    and relkind = 'r'
                                    and 'pgq_staging.' || relname = i_table);
begin
    -- Look without a lock first: a table that other sessions have yet to read is not blocked.
    if pg_relation_size(v_table) = 0 then
        execute format('lock table %s in access exclusive mode', v_table::regclass);
    end if;
    if pg_relation_size(v_table) > 0 then
        raise exception using errcode = 'object_in_use',
            message = format('staging table %s is not empty', i_table),
            hint = 'As the role of its job, truncate it in the same transaction.';
    end if;
    if v_table is null then
        return false;
    end if;
    execute format('drop table %s cascade', v_table::regclass);
    return true;
end;
$$;

create or replace function pgq.maint_staging(i_age interval default '1 day')
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Leave tables that other sessions are reading for the next call.
set lock_timeout = '100ms'
as $$
-- Drops the staging tables of jobs that were killed: jobs without a transaction that is writing, and without a table
-- younger than the given age. A live job that has paused for longer may be hit: it fails and sends nothing.
-- Parameters:
--      i_age   - minimum age of the job's newest table
-- Returns: number of tables dropped; if it is 100, there may be more.
declare
    v_job       record;
    v_table     name;
    -- Each is locked until the end, and locks are limited.
    at_once     constant integer := 100;
    v_count     integer := 0;
begin
    for v_job in
        select part[1] as name, array_agg(c.relname) as tables
          from pg_class c
         cross join regexp_match(c.relname, '^([a-z0-9_]+)_([0-9]{1,10})_[0-9]+$') part
         where c.relnamespace = 'pgq_staging'::regnamespace
           and c.relkind = 'r'
           and part is not null
         group by part[1]
        having to_timestamp(max(part[2]::float8)) <= now() - i_age
    loop
        continue when not pg_try_advisory_xact_lock(pgq._lock_key('staging'), hashtext(v_job.name));
        foreach v_table in array v_job.tables
        loop
            exit when v_count = at_once;
            begin
                execute format('drop table pgq_staging.%I cascade', v_table);
                v_count := v_count + 1;
            exception when lock_not_available or undefined_table then
                null;
            end;
        end loop;
    end loop;
    return v_count;
end;
$$;
