create or replace function pgq_ext.rotate()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Keeps the remembered progress small; see tables.sql. Each function that appends calls it, in a transaction that may
-- have effects of its own and may be long. So it never waits for a lock, and takes one step per transaction, so that no
-- session waits for the end of this one:
--
-- 1. Copy each tracker's newest state, and the events of its current batch, out of the tables that are no longer
--    written, after all transactions that wrote there have ended.
-- 2. Empty these tables. No session needs them any more.
-- 3. When the current tables have grown, write to the empty ones from now on.
--
-- In REPEATABLE READ it does nothing. pgqpy's consumers with that isolation level call it between batches, and the
-- ticker calls it if this database has one.
-- Returns: true if there was something to do.
declare
    rotations   constant bigint := pg_sequence_last_value('pgq_ext.log_seq');
    cur         constant text := rotations % 2;
    other       constant text := (rotations + 1) % 2;
    size        constant bigint := pgq_ext._log_size(cur);
    l           pgq_ext.log;
    other_size  bigint;
begin
    if not pgq._is_read_committed() then
        return false;
    end if;
    select * into l from pgq_ext.log;
    if l.log_rotations = rotations and size <= greatest(l.log_rotate_bytes, 2 * l.log_carried_bytes) then
        return false;
    end if;
    select * into l from pgq_ext.log for update skip locked;
    if not found or l.log_changed_by = txid_current() or pg_sequence_last_value('pgq_ext.log_seq') <> rotations then
        return false;
    end if;
    if l.log_rotations <> rotations then
        -- The transaction of the third step failed, and a sequence is not rolled back.
        update pgq_ext.log set log_rotations = rotations, log_carried_bytes = 0;
        return true;
    end if;

    other_size := pgq_ext._log_size(other);
    if other_size = 0 then
        update pgq_ext.log
           set log_rotations = rotations + 1,
               log_carried_bytes = 0,
               log_changed_by = txid_current();
        perform setval('pgq_ext.log_seq', rotations + 1);
        return true;
    end if;

    begin
        -- A session that still writes may commit after this look, and its newest state would then be hidden by the
        -- copied one.
        execute format('lock table pgq_ext.progress_%1$s, pgq_ext.event_%1$s in share mode nowait', other);
        raise exception using errcode = 'PQZZZ', message = 'none does, and the lock goes with this';
    exception
        when lock_not_available then
            return false;
        when sqlstate 'PQZZZ' then
            null;
    end;
    if not pgq_ext._carry_over(other, cur) then
        if not pgq._try_lock_table(format('pgq_ext.progress_%1$s, pgq_ext.event_%1$s', other)) then
            return false;
        end if;
        -- Rows that were uncommitted when the copy looked for them, and are committed now.
        perform pgq_ext._carry_over(other, cur);
        execute format('truncate pgq_ext.progress_%1$s, pgq_ext.event_%1$s', other);
    end if;
    update pgq_ext.log
       set log_changed_by = txid_current(),
           log_carried_bytes = log_carried_bytes + pgq_ext._log_size(cur) - size;
    return true;
end;
$$;

create or replace function pgq_ext._log_size(i_number text)
returns bigint
language sql stable
as $$
-- Returns the size in bytes of the tables with this number.
    select case i_number
           when '0' then pg_catalog.pg_relation_size('pgq_ext.progress_0') + pg_catalog.pg_relation_size('pgq_ext.event_0')
           else pg_catalog.pg_relation_size('pgq_ext.progress_1') + pg_catalog.pg_relation_size('pgq_ext.event_1')
           end;
$$;

create or replace function pgq_ext._carry_over(i_from text, i_to text)
returns boolean
language plpgsql
as $$
-- Copies the rows that are still needed from the tables of one number to those of the other.
-- Returns: true if a row was not there yet.
declare
    states  bigint;
    events  bigint;
begin
    execute pg_catalog.format($sql$
        insert into pgq_ext.progress_%2$s
        select p.*
          from pgq_ext.tracker
         cross join lateral (
               select * from pgq_ext.progress_%1$s where prg_tracker = trk_id order by prg_nr desc limit 1) p
         where not exists (select from pgq_ext.progress_%2$s where prg_tracker = p.prg_tracker and prg_nr > p.prg_nr)
        on conflict do nothing$sql$, i_from, i_to);
    get diagnostics states = row_count;
    execute pg_catalog.format($sql$
        insert into pgq_ext.event_%2$s
        select e.*
          from pgq_ext.tracker
         cross join lateral (
               select * from pgq_ext.progress_%2$s where prg_tracker = trk_id order by prg_nr desc limit 1) p
          join pgq_ext.event_%1$s e on e.evt_tracker = p.prg_tracker and e.evt_nr = p.prg_event_nr
        on conflict do nothing$sql$, i_from, i_to);
    get diagnostics events = row_count;
    return states + events > 0;
end;
$$;
