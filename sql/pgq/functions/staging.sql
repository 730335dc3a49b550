create or replace function pgq.create_staging(i_job text, i_role name default current_user)
returns text
language plpgsql
volatile
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.create_staging(2)
--
--      Creates a table for events that a job will send when all of it is done. Fill it in the same
--      transaction: as long as that is open, the job counts as running. It belongs to pgq_owner and can be
--      filled, read and emptied by the given role alone, and it is unlogged, so a crash of the server
--      empties it: whoever sends the events must know how many there are.
--
-- Parameters:
--      i_job   - name of the job: letters, digits and _, at most 43
--      i_role  - role of the job; by default the caller's, which the default is computed as
-- Returns:
--      The table's name, with schema, without quotes. Its columns are ev_type, ev_data, ev_extra1 .. ev_extra4.
-- Errors:
--      PQ003 invalid name
-- Tables:
--      creates pgq_staging.<job>_<seconds since 1970>_<transaction>
-- ----------------------------------------------------------------------
declare
    v_table text;
begin
    if coalesce(i_job, '') !~ '^[a-z0-9_]{1,43}$' then
        raise exception using
            errcode = 'PQ003',
            message = format('invalid name of a job: %s', coalesce(quote_literal(i_job), 'NULL')),
            hint = 'A name has 1 to 43 small letters, digits and underscores.';
    elsif not exists (select from pg_roles where rolname = i_role) then
        raise exception using
            errcode = 'PQ003',
            message = format('there is no role %s', quote_nullable(i_role)),
            hint = 'Leave the role out: then it is yours.';
    end if;
    -- Shared by all of the job's transactions; pgq.maint_staging() wants it for itself.
    perform pg_advisory_xact_lock_shared(1886875909, hashtext(i_job));
    v_table := format('%s_%s_%s', i_job, trunc(extract(epoch from now())), right(txid_current()::text, 8));
    execute format('create unlogged table pgq_staging.%I (ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, '
                   'ev_extra3 text, ev_extra4 text) with (autovacuum_enabled = off)', v_table);
    execute format('grant insert, select, truncate on pgq_staging.%I to %I', v_table, i_role);
    return 'pgq_staging.' || v_table;
end;
$$;

create or replace function pgq.staging_tables(i_job text)
returns setof text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '3s'
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.staging_tables(1)
--
--      The tables of a job that pgq.create_staging(2) has made, to be dropped when the job is done. Waits for
--      its transactions that are still writing, such as the other tasks of one that has failed: three
--      seconds, what they leave later is for pgq.maint_staging(1).
--
-- Parameters:
--      i_job   - name of the job
-- Returns:
--      Names of tables, as that function returned them.
-- ----------------------------------------------------------------------
begin
    begin
        perform pg_advisory_xact_lock(1886875909, hashtext(i_job));
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
language plpgsql
volatile
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.drop_staging(1)
--
--      Drops a staging table that is empty: TRUNCATE it in the same transaction, which is the job's right alone.
--
-- Parameters:
--      i_table - a table's name as pgq.create_staging(2) returned it
-- Returns:
--      true if it was dropped, false if it is gone already
-- Errors:
--      55006 there are rows in it
-- ----------------------------------------------------------------------
declare
    v_table     constant oid := (select oid from pg_class
                                  where relnamespace = 'pgq_staging'::regnamespace
                                    and relkind = 'r'
                                    and 'pgq_staging.' || relname = i_table);
begin
    -- Without a lock first: a table that others are still to read is not held up.
    if pg_relation_size(v_table) = 0 then
        execute format('lock table %s in access exclusive mode', v_table::regclass);
    end if;
    if pg_relation_size(v_table) > 0 then
        raise exception using
            errcode = 'object_in_use',
            message = format('staging table %s is not empty', i_table),
            hint = 'As the role of its job, truncate it in the same transaction.';
    end if;
    if v_table is null then
        return false;
    end if;
    execute format('drop table %s', v_table::regclass);
    return true;
end;
$$;

create or replace function pgq.maint_staging(i_age interval default '1 day')
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
-- The tables that others are reading are left for the next time.
set lock_timeout = '100ms'
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_staging(1)
--
--      Drops the staging tables of jobs that were killed: those with no transaction that is writing, and
--      no table that is younger than the given age. A job that is hit nevertheless, since it has paused
--      for longer, fails and sends nothing.
--
-- Parameters:
--      i_age   - how long ago the job's last table was created
-- Returns:
--      How many tables were dropped.
-- ----------------------------------------------------------------------
declare
    v_job       record;
    v_table     name;
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
        continue when not pg_try_advisory_xact_lock(1886875909, hashtext(v_job.name));
        foreach v_table in array v_job.tables
        loop
            begin
                execute format('drop table pgq_staging.%I', v_table);
                v_count := v_count + 1;
            exception when lock_not_available or undefined_table or dependent_objects_still_exist then
                null;
            end;
        end loop;
    end loop;
    return v_count;
end;
$$;
