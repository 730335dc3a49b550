create or replace function pgq.maint_rotate_logs()
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_rotate_logs(0)
--
--      Keeps the logs of ticks, positions and moves small; see structure/log.sql. It truncates the table that is not
--      current, after carrying over the rows that are needed, and switches tables when the current one has grown. It
--      never waits for a lock; the next call tries again what is not possible now.
--
--      The rows needed are the newest position of each registration and of each member of a group, the ticks that
--      positions name, the other nominal ticks as long as the queue has their events, and the newest tick of each
--      queue.
--
-- Returns:
--      Number of tables truncated.
-- Errors:
--      PQ012 not in READ COMMITTED
-- ----------------------------------------------------------------------
declare
    l       pgq.log;
    cur     text;
    other   text;
    n       int4 := 0;
    used    boolean;
begin
    perform pgq.require_read_committed('rotation');
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
            begin
                execute format('lock table %s in access exclusive mode nowait', other);
            exception when lock_not_available then
                continue;
            end;
            -- From here on no session can find a row in it that was not committed before.
            if l.log_name = 'tick' then
                -- Never process it row by row with a lookup for each: all sessions wait for this.
                execute format($sql$
                    insert into %1$s
                    select t.*
                      from %2$s t
                      join (select q.queue_id, least(q.queue_horizon_tick, min(s.sub_last_tick)) as tick_id
                              from pgq.queue q
                              left join pgq.subscription s on s.sub_queue = q.queue_id
                             group by q.queue_id) since on since.queue_id = t.tick_queue
                     where t.tick_id >= since.tick_id
                       and not t.tick_early
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
