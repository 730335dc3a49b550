-- A queue with queue_keep keeps the events of that time, although all consumers have passed them. The tables divide the
-- time: each is filled for an equal part of it, at least, and the oldest is truncated when its newest event is as old.
-- So what is kept is never less than queue_keep, and at most this and the time that one table is filled.

create or replace function pgq._keeps(q pgq.queue)
returns boolean
language sql stable
as $$
-- Returns whether a queue keeps events for queue_keep: not if its tables are larger than queue_keep_bytes.
    select q.queue_keep is not null
       and (q.queue_keep_bytes is null
            or q.queue_keep_bytes >= (select pg_catalog.sum(pg_catalog.pg_total_relation_size((q.queue_data_pfx || '_' || n)::regclass))
                                        from pg_catalog.generate_series(0, q.queue_ntables - 1) n));
$$;

create or replace function pgq._is_rotation_due(q pgq.queue)
returns boolean
language sql stable
as $$
-- Returns whether it is time for step 1 of a queue's rotation, or to set a switch time right that is in the future.
    select q.queue_switch_step2 is not null
       and (q.queue_switch_time > current_timestamp
            or (q.queue_switch_time + q.queue_rotation_period < current_timestamp
                and (q.queue_switch_time + q.queue_keep / (q.queue_ntables - 1) < current_timestamp is not false
                     or not pgq._keeps(q))));
$$;

create or replace function pgq.maint_rotate_tables_step1(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Truncates a queue's oldest event table and makes it the current one, when the rotation period is over, every consumer
-- has passed the events in it, and they need not be kept any longer. It never waits for a lock; the next call tries
-- again what is not possible now.
-- Call pgq.maint_rotate_tables_step2() afterwards, in another transaction.
-- Returns: 0
-- Errors: PQ009 restored from a foreign cluster, PQ012 not in READ COMMITTED
declare
    q       pgq.queue;
    oldest  pgq.tick_0;
    nr      int4;
    tbl     text;
    high    bigint;
    needed  boolean;
    horizon bigint;
begin
    -- In one function: each step relies on the checks and locks before it.
    perform pgq._require_read_committed('rotation');
    select * into q
      from pgq.queue r
     where r.queue_name = i_queue_name
       and pgq._is_rotation_due(r)
       for update skip locked;
    if not found then
        return 0;
    end if;
    if q.queue_switch_time > current_timestamp then
        -- The clock was set back. The period begins again.
        update pgq.queue set queue_switch_time = current_timestamp where queue_id = q.queue_id;
        return 0;
    end if;
    perform pgq._check_native_txid();

    if not pgq._lock_slots() then
        return 0;
    end if;

    if q.queue_rotations <> pgq._state_rotations(q.queue_slot_seq) then
        -- An earlier rotation failed at its very end: producers have moved on, the row has not. Let the row follow. A
        -- negative step 1 makes batches read both tables.
        update pgq.queue
           set queue_rotations = pgq._state_rotations(q.queue_slot_seq),
               queue_cur_table = pgq._state_rotations(q.queue_slot_seq) % q.queue_ntables,
               queue_switch_time = current_timestamp,
               queue_previous_step2 = queue_switch_step2,
               queue_switch_step1 = - txid_current(),
               queue_switch_step2 = null
         where queue_id = q.queue_id;
        return 0;
    end if;

    -- All consumers must have passed the last rotation, so that batches need the current table only.
    select t.* into oldest
      from pgq.subscription s
      join pgq.tick_log t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
     where s.sub_queue = q.queue_id
     order by t.tick_id
     limit 1;
    if exists (select from pgq.subscription s
                where s.sub_queue = q.queue_id
                  and s.sub_last_tick is not null
                  and (oldest.tick_id is null or s.sub_last_tick < oldest.tick_id))
    then
        return 0;  -- a consumer's tick is missing: lose nothing
    end if;
    if txid_snapshot_xmin(oldest.tick_snapshot) <= q.queue_switch_step2 then
        return 0;
    end if;
    if oldest.tick_id is null then
        -- No consumer is registered. One that registers now begins after the newest tick.
        oldest := pgq._last_tick(q.queue_id);
    end if;

    nr := (q.queue_cur_table + 1) % q.queue_ntables;
    tbl := q.queue_data_pfx || '_' || nr;
    if not pgq._try_lock_table(tbl) then
        return 0;
    end if;

    -- No session writes into the table now. As a safeguard, independent of the reasoning about ids: is there an event
    -- in it that a consumer has not passed?
    execute format('select max(ev_txid) from %s', tbl) into high;
    execute format('select exists (select from %s where ev_txid between txid_snapshot_xmin($1) and $2 '
                   'and not txid_visible_in_snapshot(ev_txid, $1))', tbl)
       into needed using oldest.tick_snapshot, high;
    if needed then
        return 0;
    end if;

    if high is not null then
        select min(tick_id) into horizon
          from pgq.tick_log
         where tick_queue = q.queue_id
           and txid_snapshot_xmin(tick_snapshot) > high;
        horizon := least(horizon, oldest.tick_id);
        -- After the newest event there must be ticks of that age, which are never forgotten: two, since
        -- pgq.find_tick() takes the last but one. A tick from the future was made before the clock was set back; the
        -- rotations since then have taken the time.
        if pgq._keeps(q) and not exists (
            select from pgq.tick_log
             where tick_queue = q.queue_id
               and not tick_early
               and txid_snapshot_xmin(tick_snapshot) > high
               and tick_time not between current_timestamp - q.queue_keep and clock_timestamp()
            offset 1)
        then
            return 0;
        end if;
    end if;

    execute format('truncate only %s', tbl);
    delete from pgq.late_write where late_queue = q.queue_id and late_table = nr;
    delete from pgq.forced_tick
     where forced_queue = q.queue_id
       and forced_seq <= (pgq._get_tick(q.queue_id, greatest(q.queue_horizon_tick, horizon))).tick_event_seq;
    update pgq.queue
       set queue_rotations = q.queue_rotations + 1,
           queue_cur_table = nr,
           queue_switch_time = current_timestamp,
           queue_previous_step2 = queue_switch_step2,
           queue_switch_step1 = txid_current(),
           queue_switch_step2 = null,
           queue_horizon_tick = greatest(queue_horizon_tick, horizon)
     where queue_id = q.queue_id;
    -- Do this last: a rollback does not undo it. Producers that follow it wait for the lock of this transaction.
    perform setval(q.queue_slot_seq,
                   pgq._slot_state(q.queue_rotations + 1, pgq._state_guarded(q.queue_slot_seq), q.queue_slot0 + nr));
    return 0;
end;
$$;

create or replace function pgq.maint_rotate_tables_step2()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Completes rotations: notes a transaction id that was drawn after they were committed. Producers with a higher id know
-- the new table. Queues that another session is changing are left for the next call.
-- Returns: 0
-- Errors: PQ012 not in READ COMMITTED, PQ013 in the transaction of step 1
begin
    perform pgq._require_read_committed('rotation');
    if exists (select from pgq.queue where queue_switch_step2 is null and abs(queue_switch_step1) = txid_current()) then
        raise exception using errcode = 'PQ013',
            message = 'step 2 of a rotation must not run in the transaction of step 1',
            hint = 'Commit, then call pgq.maint_rotate_tables_step2() again.';
    end if;
    -- Waiting could deadlock with a session that changes several queues in one transaction.
    update pgq.queue
       set queue_switch_step2 = txid_current()
     where queue_id = any (array(select queue_id from pgq.queue where queue_switch_step2 is null for no key update skip locked));
    return 0;
end;
$$;

create or replace function pgq.maint_rotate_logs()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Keeps the logs of ticks, positions and moves small; see core/tables.sql. It truncates the table that is not current,
-- after carrying over the rows that are needed, and switches tables when the current one has grown. It never waits for
-- a lock; the next call tries again what is not possible now.
--
-- The rows needed are the newest position of each registration and of each member of a group, the ticks that positions
-- name, the other nominal ticks as long as the queue has their events, and the newest tick of each queue. Of a queue
-- with queue_keep these could be millions: of those that all consumers have passed one is needed for each ten thousandth
-- of this time.
-- Returns: number of tables truncated.
-- Errors: PQ012 not in READ COMMITTED
declare
    l       pgq.log;
    cur     text;
    other   text;
    n       int4 := 0;
    used    boolean;
begin
    -- In one function: most of it is the statements that carry rows over.
    perform pgq._require_read_committed('rotation');
    for l in select * from pgq.log order by log_name for update loop
        if l.log_rotations <> pg_sequence_last_value(l.log_seq) then
            -- an earlier call failed at its very end
            l.log_rotations := pg_sequence_last_value(l.log_seq);
            update pgq.log set log_rotations = l.log_rotations where log_name = l.log_name;
        end if;
        cur := format('pgq.%I', l.log_name || '_' || l.log_rotations % 2);
        other := format('pgq.%I', l.log_name || '_' || (l.log_rotations + 1) % 2);

        execute format('select exists (select from %s)', other) into used;
        if used or pg_relation_size(other) > 0 then
            continue when not pgq._try_lock_table(other);
            -- From here on no session can find a row in it that was not committed before.
            if l.log_name = 'tick' then
                -- Never process it row by row with a lookup for each: all sessions wait for this.
                execute format($sql$
                    insert into %1$s
                    select t.*
                      from %2$s t
                      join (select q.queue_id,
                                   case when q.queue_keep is null then least(q.queue_horizon_tick, min(s.sub_last_tick))
                                        else min(s.sub_last_tick) end as tick_id
                              from pgq.queue q
                              left join pgq.subscription s on s.sub_queue = q.queue_id
                             group by q.queue_id) since on since.queue_id = t.tick_queue
                     where t.tick_id >= since.tick_id
                       and not t.tick_early
                     union all
                    (select distinct on (t.tick_queue, part) t.*
                       from pgq.queue q
                       join %2$s t on t.tick_queue = q.queue_id and t.tick_id >= q.queue_horizon_tick and not t.tick_early
                      cross join lateral floor(extract(epoch from t.tick_time) / extract(epoch from q.queue_keep) * 10000) part
                      where q.queue_keep is not null
                      order by t.tick_queue, part, t.tick_id)
                     union all
                    select t.*
                      from pgq.subscription s
                     cross join unnest(array[s.sub_last_tick, s.sub_next_tick]) named (tick_id)
                      join %2$s t on t.tick_queue = s.sub_queue and t.tick_id = named.tick_id
                     union all
                    select t.*
                      from pgq.queue q
                     cross join lateral (
                           select * from %2$s where tick_queue = q.queue_id order by tick_id desc limit 1) t
                     where not exists (select from %1$s where tick_queue = q.queue_id and tick_id > t.tick_id)
                    on conflict do nothing$sql$, cur, other);
            elsif l.log_name = 'moved' then
                execute format($sql$
                    insert into %1$s
                    select m.*
                      from (select * from %2$s order by moved_nr desc limit 1) m
                     where not exists (select from %1$s where moved_nr > m.moved_nr)
                    on conflict do nothing$sql$, cur, other);
            else
                execute format($sql$
                    insert into %1$s
                    select p.*
                      from (select reg_id from pgq.registration
                             union all
                            select - member_id from pgq.group_member) r
                     cross join lateral (
                           select * from %2$s where pos_registration = r.reg_id order by pos_nr desc limit 1) p
                     where not exists (select from %1$s where pos_registration = r.reg_id and pos_nr > p.pos_nr)
                    on conflict do nothing$sql$, cur, other);
            end if;
            execute format('truncate %s', other);
            n := n + 1;
            l.log_carried_bytes := pg_relation_size(cur);
            update pgq.log set log_carried_bytes = l.log_carried_bytes where log_name = l.log_name;
        end if;

        if pg_relation_size(cur) > greatest(l.log_rotate_bytes, 2 * l.log_carried_bytes) then
            update pgq.log set log_rotations = l.log_rotations + 1, log_carried_bytes = 0 where log_name = l.log_name;
            perform setval(l.log_seq, l.log_rotations + 1);
        end if;
    end loop;
    return n;
end;
$$;
