-- Access to the remembered progress. The tables that are not being written are touched only if necessary: rotation
-- needs them exclusively.

create or replace function pgq_ext._find_tracker(i_consumer text, i_subconsumer text)
returns int4
language plpgsql
as $$
-- Returns the tracker of a consumer, or null if nothing was ever remembered.
begin
    return (select trk_id from pgq_ext.tracker where consumer_id = i_consumer and subconsumer_id = i_subconsumer);
end;
$$;

create or replace function pgq_ext._lock_tracker(i_consumer text, i_subconsumer text)
returns int4
language plpgsql
as $$
-- Locks the tracker of a consumer until the end of the transaction, and creates it if there is none.
declare
    id      int4;
begin
    loop
        id := pgq_ext._find_tracker(i_consumer, i_subconsumer);
        if id is null then
            perform pgq._check_name('consumer', i_consumer);
            if i_subconsumer is null then
                perform pgq._check_name('subconsumer', i_subconsumer);
            end if;
            insert into pgq_ext.log (log_name) values ('progress') on conflict do nothing;
            insert into pgq_ext.tracker (consumer_id, subconsumer_id) values (i_consumer, i_subconsumer)
            on conflict do nothing;
            continue;
        end if;
        perform pg_catalog.pg_advisory_xact_lock(pgq._lock_key('pgq_ext progress'), id);
        perform from pgq_ext.tracker where trk_id = id;
        exit when found;
        -- It was forgotten while we waited.
    end loop;
    perform pgq_ext._check_snapshot();
    return id;
end;
$$;

create or replace function pgq_ext._check_snapshot()
returns void
language plpgsql
as $$
-- Raises 40001 if a rotation took a step after this transaction's snapshot: a row that is not found may then still
-- exist.
begin
    if not pgq._is_read_committed()
       and (coalesce((select log_rotations from pgq_ext.log), 0) <> pg_catalog.pg_sequence_last_value('pgq_ext.log_seq')
            -- The table was emptied: the snapshot sees the old file, the function the new one.
            or exists (select from pg_catalog.pg_class
                        where oid in ('pgq_ext.progress_0'::pg_catalog.regclass, 'pgq_ext.progress_1'::pg_catalog.regclass)
                          and relfilenode <> pg_catalog.pg_relation_filenode(oid)))
    then
        perform pgq._raise_stale_snapshot();
    end if;
end;
$$;

create or replace function pgq_ext._get_progress(i_tracker int4)
returns pgq_ext.progress_0
language plpgsql
as $$
-- Returns the newest state of a tracker, or null if there is none.
declare
    p   pgq_ext.progress_0;
begin
    -- Look twice: between two statements rotation may carry the row from one table to the other.
    for attempt in 1..2 loop
        if pg_catalog.pg_sequence_last_value('pgq_ext.log_seq') % 2 = 0 then
            select * into p from pgq_ext.progress_0 where prg_tracker = i_tracker order by prg_nr desc limit 1;
            exit when found;
            select * into p from pgq_ext.progress_1 where prg_tracker = i_tracker order by prg_nr desc limit 1;
        else
            select * into p from pgq_ext.progress_1 where prg_tracker = i_tracker order by prg_nr desc limit 1;
            exit when found;
            select * into p from pgq_ext.progress_0 where prg_tracker = i_tracker order by prg_nr desc limit 1;
        end if;
        exit when found;
    end loop;
    if p.prg_nr is null then
        perform pgq_ext._check_snapshot();
    end if;
    return p;
end;
$$;

create or replace function pgq_ext._require_durable()
returns void
language plpgsql
as $$
-- Makes the commit wait until the transaction is on disk. The batch is finished in another database next, and after a
-- crash it must not be finished there and missing here.
begin
    if pg_catalog.current_setting('synchronous_commit') in ('off', 'local') then
        perform pg_catalog.set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

create or replace function pgq_ext._append_progress(p pgq_ext.progress_0)
returns void
language plpgsql
as $$
-- Stores the new state of a tracker that the caller has locked.
-- Parameters:
--      p           - the previous state with the changes applied; fields without a previous value are null
declare
    rotations   bigint;
begin
    perform pgq_ext._require_durable();
    p.prg_nr := coalesce(p.prg_nr, 0) + 1;
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq_ext.log_seq');
        begin
            if rotations % 2 = 0 then
                insert into pgq_ext.progress_0 select p.*;
            else
                insert into pgq_ext.progress_1 select p.*;
            end if;
        exception when unique_violation then
            -- Happens only under an old snapshot, which sees an old state.
            perform pgq._raise_stale_snapshot();
        end;
        -- Now we hold a lock on the table. A row in both does no harm.
        exit when pg_catalog.pg_sequence_last_value('pgq_ext.log_seq') = rotations;
    end loop;
    -- The conflicting row may be in the other table.
    perform pgq_ext._check_snapshot();
    perform pgq_ext.rotate();
end;
$$;

create or replace function pgq_ext._has_event(p pgq_ext.progress_0, i_event bigint, i_retry int4, i_time timestamptz)
returns boolean
language plpgsql
as $$
-- Returns whether an event of a tracker's current batch is done.
-- Parameters:
--      p           - the tracker's state
--      i_event, i_retry, i_time    - the event; null for any time
declare
    cur     int4;
    is_here boolean;
begin
    for attempt in 1..2 loop
        cur := pg_catalog.pg_sequence_last_value('pgq_ext.log_seq') % 2;
        -- The events are in the same table as the row that began the batch. Look for the row first: rotation carries
        -- both over together.
        if cur = 0 then
            perform from pgq_ext.progress_0 where prg_tracker = p.prg_tracker and prg_nr = p.prg_event_nr;
        else
            perform from pgq_ext.progress_1 where prg_tracker = p.prg_tracker and prg_nr = p.prg_event_nr;
        end if;
        is_here := found;
        for n in 0..1 loop
            if (cur + n) % 2 = 0 then
                perform from pgq_ext.event_0
                 where evt_tracker = p.prg_tracker and evt_nr = p.prg_event_nr and evt_id = i_event and evt_retry = i_retry
                   and (evt_time = coalesce(i_time, evt_time) or evt_time = '-infinity');
            else
                perform from pgq_ext.event_1
                 where evt_tracker = p.prg_tracker and evt_nr = p.prg_event_nr and evt_id = i_event and evt_retry = i_retry
                   and (evt_time = coalesce(i_time, evt_time) or evt_time = '-infinity');
            end if;
            if found then
                return true;
            end if;
            exit when is_here;
        end loop;
        exit when is_here;
    end loop;
    perform pgq_ext._check_snapshot();
    return false;
end;
$$;

create or replace function pgq_ext._append_event(p pgq_ext.progress_0, i_event bigint, i_retry int4, i_time timestamptz)
returns void
language plpgsql
as $$
-- Stores that an event is done; the caller has locked the tracker.
declare
    rotations   bigint;
begin
    perform pgq_ext._require_durable();
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq_ext.log_seq');
        if rotations % 2 = 0 then
            insert into pgq_ext.event_0 (evt_tracker, evt_nr, evt_id, evt_retry, evt_time)
            values (p.prg_tracker, p.prg_event_nr, i_event, i_retry, coalesce(i_time, '-infinity'))
            on conflict do nothing;  -- only under an old snapshot, and then it is 40001
        else
            insert into pgq_ext.event_1 (evt_tracker, evt_nr, evt_id, evt_retry, evt_time)
            values (p.prg_tracker, p.prg_event_nr, i_event, i_retry, coalesce(i_time, '-infinity'))
            on conflict do nothing;  -- only under an old snapshot, and then it is 40001
        end if;
        exit when pg_catalog.pg_sequence_last_value('pgq_ext.log_seq') = rotations;
    end loop;
    perform pgq_ext.rotate();
end;
$$;
