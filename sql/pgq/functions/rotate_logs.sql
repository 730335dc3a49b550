create or replace function pgq.maint_rotate_logs()
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.maint_rotate_logs(0)
--
--      Keeps the logs of ticks and positions small; see structure/log.sql. Empties the table that is not
--      current, after carrying over what is needed, and moves on when the current one has grown. Never
--      waits for a lock; what is not possible now is tried again at the next call.
--
--      Needed are the newest position of each registration; the ticks that positions name; of the other
--      ticks the nominal ones, for as long as the queue has their events; and each queue's newest.
--
-- Returns:
--      Number of tables emptied.
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
            -- From here on nobody can find anything in it that he has not committed to already.
            if l.log_name = 'tick' then
                execute format($sql$
                    insert into %1$s
                    select t.*
                      from %2$s t
                      join pgq.queue q on q.queue_id = t.tick_queue
                     where t.tick_id >= least(q.queue_horizon_tick,
                                              (select min(s.sub_last_tick) from pgq.subscription s where s.sub_queue = q.queue_id))
                       and (not t.tick_early
                            or exists (select from pgq.subscription s
                                        where s.sub_queue = q.queue_id
                                          and t.tick_id in (s.sub_last_tick, s.sub_next_tick)))
                        or t.tick_id = (select max(l.tick_id) from pgq.tick_log l where l.tick_queue = t.tick_queue)
                    on conflict do nothing$sql$, cur, other);
            else
                execute format($sql$
                    insert into %1$s
                    select p.*
                      from pgq.registration r
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
