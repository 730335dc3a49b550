create or replace function pgq_task.sweep()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
set lock_timeout = '100ms'
as $$
-- Moves the lanes' marks low past dead rows, and moves away the tasks before them: active claims move to the end of
-- their lease, tasks held back by an earlier one with the same order_key leave the lane until that one is gone, and
-- tasks whose attempts are used up go to the error queue. Workers call it when they are idle, and about once a second
-- when they are busy; and so does the ticker. Afterwards tasks that became visible behind the marks can be claimed.
--
-- A mark must not pass a task that becomes visible later. So it stays before the time of the previous sweep. A session
-- that writes a position draws a transaction id first and then reads the clock; so does each sweep. So a task before
-- the last sweep's time that is not visible yet belongs to a transaction with a lower id than that sweep's, which this
-- sweep's snapshot shows as running. These transactions are remembered; when one has ended, the lanes are walked again
-- from the position where it may have written. Locked tasks are passed too, and the transactions that hold the locks
-- are remembered in the same way.
--
-- A task whose lease has ended is behind all tasks that were pushed before that. If tasks are waiting it is moved
-- before them; only once, as it may be the task that crashes workers.
--
-- A lane is idle, and left alone, if no task is there from its mark low to the present, and no claim has guessed: then
-- at most the dead rows of a few claims follow the mark. Every 10 minutes all lanes are swept: tasks may have been
-- deleted without claims.
--
-- A call looks at 2000 lanes, or works for 100 ms, and the next call continues from there; "a sweep" above is a round of
-- calls. The marks and the remembered transactions are committed together.
-- Returns: false if another sweep is running, or there was one just before.
-- Errors: PQ012 not in READ COMMITTED
declare
    at_once constant int4 := 2000;
    -- before this transaction has an id
    v_drawn constant bigint := case when pg_current_xact_id_if_assigned() is null
                                    then coalesce(pg_sequence_last_value('pgq_task.task_id_seq'), 0) end;
    p       pgq_task.sweep;  -- the previous one
    n       pgq_task.sweep;  -- this one
    v_now   bigint;
    v_anew  boolean;
    v_lanes int4 := 0;
    v_more  boolean := false;
    l       record;
    h       record;
begin
    -- In one function: it fills the fields of one row, in the order in which clock, id and snapshot are taken.
    perform pgq._require_read_committed('pgq_task.sweep()');
    if not pg_try_advisory_xact_lock(pgq._lock_key('sweep'), 0) then
        return false;
    end if;
    n.sweep_time := clock_timestamp();
    select * into p from pgq_task.sweep order by sweep_id desc limit 1;
    -- Thousands of lanes take long: do not use all of the time for them.
    if n.sweep_time >= p.sweep_time
       and n.sweep_time < p.sweep_time + least(greatest(interval '100 milliseconds', 10 * p.sweep_took), interval '1 second')
    then
        return false;
    end if;

    n.sweep_id := coalesce(p.sweep_id, 0) + 1;
    perform pg_current_xact_id();
    n.sweep_pushed := pg_sequence_last_value('pgq_task.task_id_seq');
    n.sweep_busy := coalesce(case when n.sweep_pushed is not distinct from p.sweep_pushed then p.sweep_busy end,
                             pgq_task._position_of(n.sweep_time));
    v_anew := p.sweep_id is null or p.sweep_time > n.sweep_time;
    -- A session that pushes draws a transaction id before that of the task.
    n.sweep_settled := p.sweep_settled;
    n.sweep_drawn := p.sweep_drawn;
    n.sweep_drawn_before := p.sweep_drawn_before;
    if p.sweep_drawn_before <= pg_snapshot_xmin(pg_current_snapshot()) then
        n.sweep_settled := coalesce(p.sweep_drawn, p.sweep_settled);
        n.sweep_drawn_before := null;
    end if;
    -- In a database that was restored in another cluster it may be an id that is not drawn yet.
    if coalesce(n.sweep_drawn_before > pg_current_xact_id(), true) then
        n.sweep_drawn := v_drawn;
        n.sweep_drawn_before := pg_current_xact_id();
    end if;
    if p.sweep_time > n.sweep_time + interval '1 second' then
        perform pgq_task._set_clock_back(p.sweep_time);
    end if;
    perform pgq_task._release_late(), pgq_task._cancelled_to_error_queue();

    if p.sweep_queue is not null and not v_anew then
        n.sweep_began := p.sweep_began;
        n.sweep_bound := p.sweep_bound;
        n.sweep_from := p.sweep_from;
        n.sweep_open := p.sweep_open;
        n.sweep_open_pos := p.sweep_open_pos;
        n.sweep_mark := p.sweep_mark;
        n.sweep_old_mark := p.sweep_old_mark;
    else
        p.sweep_queue := null;
        v_anew := v_anew or p.sweep_anew not between n.sweep_time - interval '10 minutes' and n.sweep_time;
        n.sweep_mark := pg_sequence_last_value('pgq_task.mark_id_seq');
        n.sweep_old_mark := case when v_anew then 0 else coalesce(p.sweep_mark, 0) end;
        n.sweep_began := n.sweep_time;
        n.sweep_bound := case when p.sweep_began <= n.sweep_time then pgq_task._position_of(p.sweep_began) else 0 end;
        -- A database that was restored in another cluster may remember ids that are not drawn yet.
        select coalesce(array_agg(o.xid) filter (where o.open), '{}'), coalesce(array_agg(o.pos) filter (where o.open), '{}'),
               case when v_anew then 0 else min(o.pos) filter (where not o.open) end
          into n.sweep_open, n.sweep_open_pos, n.sweep_from
          from (select x.xid, min(x.pos) as pos,
                       x.xid < pg_current_xact_id() and coalesce(pg_xact_status(x.xid) = 'in progress', false) as open
                  from (select * from unnest(p.sweep_open, p.sweep_open_pos)
                        union all
                        select xid, coalesce(p.sweep_bound, 0) from pg_snapshot_xip(pg_current_snapshot()) xid) x (xid, pos)
                 group by x.xid) o;
    end if;
    n.sweep_anew := case when v_anew then n.sweep_time else p.sweep_anew end;
    v_now := pgq_task._position_of(n.sweep_time);

    for l in
        select v.*, n.sweep_from is not distinct from 0 or m.mark_id > m.generation or m.low < m.ahead
                    or exists (select from pgq_task.task k
                                where k.queue_id = v.queue_id and k.priority = v.priority
                                  and k.pos >= least(m.low, n.sweep_from) and k.pos <= v_now) as is_active
          from (select distinct o.queue_id, o.priority, q.queue_max_attempts as max_attempts
                  from pgq_task.lane o
                  join pgq_task.queue q using (queue_id)
                 where p.sweep_queue is null or (o.queue_id, o.priority) > (p.sweep_queue, p.sweep_priority)
                 order by o.queue_id, o.priority
                 limit at_once) v
         cross join lateral (
               select * from pgq_task.marked_lane o where o.queue_id = v.queue_id and o.priority = v.priority limit 1) m
         order by v.queue_id, v.priority
    loop
        v_lanes := v_lanes + 1;
        continue when not l.is_active;
        select * into h from pgq_task._sweep_lane(n, l.queue_id, l.priority, l.max_attempts);
        n.sweep_open := n.sweep_open || h.xids;
        n.sweep_open_pos := n.sweep_open_pos || h.positions;
        v_more := clock_timestamp() > n.sweep_time + interval '100 milliseconds';
        exit when v_more;
    end loop;
    if v_more or v_lanes = at_once then
        n.sweep_queue := l.queue_id;
        n.sweep_priority := l.priority;
    end if;
    if v_anew then
        -- of claims from queues that were being dropped
        delete from pgq_task.mark k where not exists (select from pgq_task.queue q where q.queue_id = k.queue_id);
    end if;
    n.sweep_took := greatest(clock_timestamp() - n.sweep_time, '0');
    insert into pgq_task.sweep select n.*;
    -- Not from the beginning, where the dead rows are.
    delete from pgq_task.sweep s
     where s.sweep_id between case when v_anew then 0 else n.sweep_id - 200 end and n.sweep_id - 100;
    if n.sweep_id % 20 = 0 then
        perform pgq_task._close_lanes(), pgq_task._add_counted(), pgq_task._expire_finished(), pgq_task._drop_idle_tenants();
        delete from pgq_task.flow f
         where f.flow_id = any (array(select o.flow_id from pgq_task.flow o where o.flow_ended < n.sweep_time - interval '1 day'
                                       limit 100 for update skip locked));
        delete from pgq_task.unique_period u
         where u.ctid = any (array(select o.ctid from pgq_task.unique_period o
                                    where o.until <= n.sweep_time
                                      and o.queue_id in (select q.queue_id from pgq_task.queue q
                                                          where exists (select from pgq_task.unique_period e
                                                                         where e.queue_id = q.queue_id and e.until <= n.sweep_time)
                                                            and pgq_task._may_hold_up(q))
                                    limit 10000 for update skip locked));
        delete from pgq_task.key_low k where k.noted < n.sweep_time - interval '10 minutes';
        delete from pgq_task.reserved_id r
         where r.ctid = any (array(select o.ctid from pgq_task.reserved_id o where o.until <= n.sweep_time
                                    limit 10000 for update skip locked));
    end if;
    return true;
end;
$$;

create or replace function pgq_task._sweep_lane(
    n pgq_task.sweep, i_queue_id int4, i_priority int2, i_max_attempts int4, out xids xid8[], out positions bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of a sweep for one lane: moves its marks, and the tasks before them.
-- Returns: open transactions whose tasks may become visible before the mark low, each with the position from which on.
declare
    v_now       constant timestamptz := n.sweep_time;
    m           pgq_task.marked_lane;
    v_low       bigint := n.sweep_bound;
    v_ahead     bigint;
    v_mark      bigint;
    v_stop      bigint;
    v_free      boolean := false;
    v_holders   xid8[];
    c           record;
    t           pgq_task.task;
begin
    -- In one function: it is one loop, whose branches decide where the mark stops.
    xids := '{}';
    positions := '{}';
    select * into m from pgq_task.marked_lane l where l.queue_id = i_queue_id and l.priority = i_priority limit 1;
    if m.ahead < n.sweep_bound then
        perform pgq_task._bring_forward(n, i_queue_id, i_priority, i_max_attempts, m.ahead);
    end if;
    for c in
        select k.id, k.pos, k.lease, k.last_attempt, k.order_key, k.xmax <> '0' as touched,
               k.lease <= v_now and pgq_task._comes_again(k, i_max_attempts) as again
          from pgq_task.task k
         where k.queue_id = i_queue_id and k.priority = i_priority
           and k.pos >= least(m.low, n.sweep_from) and k.pos < n.sweep_bound
         order by k.queue_id, k.priority, k.pos
    loop
        v_low := c.pos;
        v_free := c.lease is null or c.again;
        exit when v_free and c.order_key is null and not c.touched;
        if c.lease > v_now and c.last_attempt between v_now - interval '1 second' and v_now then
            -- A task claimed just now may be gone soon, and then the next one with its key will be claimed just now:
            -- hold the others back.
            exit when c.order_key is null;
            v_stop := coalesce(v_stop, c.pos);
            v_low := n.sweep_bound;
            v_free := false;
            continue;
        end if;
        select * into t from pgq_task.task k where k.id = c.id for no key update skip locked;
        if not found then
            v_holders := pgq_task._holders_of(c.id);
            exit when v_holders = '{}';
            if not v_holders <@ xids then
                xids := xids || v_holders;
                positions := positions || array_fill(c.pos, array[cardinality(v_holders)]);
            end if;
        elsif t.pos is distinct from c.pos or t.queue_id <> i_queue_id or t.priority <> i_priority then
            null; -- it has another position by now
        elsif t.lease > v_now then
            update pgq_task.task k set pos = pgq_task._position_of(k.lease) where k.id = t.id;
        elsif t.lease is not null and not pgq_task._comes_again(t, i_max_attempts) then
            exit when not pgq_task._lost_to_error_queue(t.id);
        elsif t.order_key is not null and pgq_task._hold_back(t.id) then
            -- Where one is held back others are to be: those that were scheduled, mostly.
            perform pgq_task._hold_back_all(array(
                select k.id from pgq_task.task k
                 where k.queue_id = i_queue_id and k.priority = i_priority and k.pos > c.pos and k.pos < n.sweep_bound
                   and k.order_key is not null and k.lease is null
                 order by k.queue_id, k.priority, k.pos
                 limit 10000
                   for no key update skip locked));
            -- This must not take long, and most tasks are held back when they are pushed: the next sweep continues here.
            exit when clock_timestamp() > v_now + interval '200 milliseconds';
        else
            v_free := true;
            exit;
        end if;
        v_low := n.sweep_bound;
        v_free := false;
    end loop;
    v_ahead := case when v_free and v_low < m.ahead then v_low else m.ahead end;
    v_low := least(v_low, v_stop);
    -- While nothing happens the marks need not move. The guesses of claims are gathered.
    if v_low < m.low or v_low > m.low and m.low < greatest(n.sweep_busy, m.ahead) or v_ahead < m.ahead or m.mark_id > m.generation then
        v_mark := nextval('pgq_task.mark_id_seq');
        insert into pgq_task.mark (queue_id, priority, generation, mark_id, low, ahead)
        values (i_queue_id, i_priority, v_mark, v_mark, v_low, greatest(v_low, v_ahead));
        -- Not from the beginning, where the dead rows are.
        delete from pgq_task.mark k
         where k.queue_id = i_queue_id and k.priority = i_priority and k.generation >= n.sweep_old_mark and k.generation < v_mark;
    end if;
end;
$$;

create or replace function pgq_task._bring_forward(
    n pgq_task.sweep, i_queue_id int4, i_priority int2, i_max_attempts int4, i_pos bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves tasks of a lane whose first lease has ended lately before those that wait, and sends tasks whose attempts are
-- used up to the error queue.
declare
    v_now   constant timestamptz := n.sweep_time;
    t       pgq_task.task;
begin
    for t in
        select * from pgq_task.task k
         where k.queue_id = i_queue_id and k.priority = i_priority
           and k.pos between greatest(n.sweep_bound, pgq_task._position_of(v_now - interval '1 minute')) and pgq_task._position_of(v_now)
           and k.lease <= v_now and (k.attempts = 1 or not pgq_task._comes_again(k, i_max_attempts))
           for no key update skip locked
    loop
        if not pgq_task._comes_again(t, i_max_attempts) then
            exit when not pgq_task._lost_to_error_queue(t.id);
        else
            update pgq_task.task k set pos = i_pos where k.id = t.id;
        end if;
    end loop;
end;
$$;

create or replace function pgq_task.catch_up(queues text[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
set lock_timeout = '100ms'
as $$
-- Makes those tasks claimable that otherwise the next pgq_task.sweep(0) makes claimable: tasks that became visible
-- behind the marks, and tasks that are held back, though all earlier ones with the same order_key are gone. If
-- pgq_task.claim(5) then finds nothing, in the same transaction, no task is available. It waits for a sweep that is
-- running, but not for long, so call it before anything else of its transaction, and again if it fails.
-- Parameters:
--      queues  - names of the queues
-- Errors: PQ012 not in READ COMMITTED, 55P03 another session has locked what it needs
declare
    v_now   timestamptz;
    v_from  bigint;
    v_first bigint;
    v_mark  bigint;
    l       record;
begin
    perform pgq._require_read_committed('pgq_task.catch_up()');
    perform pg_advisory_xact_lock(pgq._lock_key('sweep'), 0);
    perform pgq_task._release_late(array(select q.queue_id from pgq_task.served_queue q where q.served_as = any (queues)));
    v_now := clock_timestamp();
    -- As in a sweep: the position from which on transactions wrote that have ended since.
    select case when s.sweep_id is null or s.sweep_time > v_now then 0
                else least(case when s.sweep_queue is not null then s.sweep_from end,
                           (select min(o.pos) from unnest(s.sweep_open, s.sweep_open_pos) o (xid, pos)
                             where case when o.xid < pg_current_xact_id() then pg_xact_status(o.xid) end is distinct from 'in progress'))
           end
      into v_from
      from (select) one
      left join (select * from pgq_task.sweep order by sweep_id desc limit 1) s on true;
    for l in
        select n.queue_id, n.priority, n.low, n.ahead
          from pgq_task.served_lane n
         where n.served_as = any (queues) and v_from is not null
         order by n.queue_id, n.priority
    loop
        select k.pos into v_first
          from pgq_task.task k
         where k.queue_id = l.queue_id and k.priority = l.priority and k.pos >= v_from and k.pos < l.low
           and (k.lease is null or k.lease <= v_now)
         order by k.queue_id, k.priority, k.pos
         limit 1;
        if found then
            v_mark := nextval('pgq_task.mark_id_seq');
            insert into pgq_task.mark (queue_id, priority, generation, mark_id, low, ahead)
            values (l.queue_id, l.priority, v_mark, v_mark, v_first, l.ahead);
        end if;
    end loop;
end;
$$;

create or replace function pgq_task._holders_of(i_id bigint)
returns xid8[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the running transactions that have locked a task; null if it does not exist any more. An xmax is either 32
-- bits of a transaction id or the number of a multixact, and does not say which.
declare
    v_xmax      xid;
    v_members   xid[];
    v_id        text;
    v_holders   xid8[] := '{}';
begin
    select t.xmax into v_xmax from pgq_task.task t where t.id = i_id;
    if not found then
        return null;
    end if;
    v_members := array[v_xmax];
    for n in 1 .. 2 loop
        for v_id in select pgq_task._full_xid(m) from unnest(v_members) m
        loop
            begin
                if pg_xact_status(v_id::xid8) = 'in progress' then
                    v_holders := v_holders || v_id::xid8;
                end if;
            exception when invalid_parameter_value then
                null; -- no transaction has it yet
            end;
        end loop;
        exit when n = 2 or v_holders <> '{}';
        begin
            v_members := array(select m.xid from pg_get_multixact_members(v_xmax) m);
        exception when invalid_parameter_value or internal_error then
            exit; -- no multixact has it
        end;
    end loop;
    return v_holders;
end;
$$;

create or replace function pgq_task._full_xid(i_xid xid, i_next xid8 default null)
returns xid8
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the transaction id with these 32 bits that is nearest to i_next, before or after it; without i_next, nearest
-- to the present one.
    select greatest(n.next + ((i_xid::text::bigint - n.next + 2147483648) & 4294967295) - 2147483648, 0)::text::xid8
      from (select coalesce(i_next, pg_snapshot_xmax(pg_current_snapshot()))::text::bigint as next) n;
$$;

create or replace function pgq_task._set_clock_back(i_was timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adapts positions after the server's clock was set back: available tasks are available again, and leases end at the
-- right time after their claims. Locked tasks are skipped.
declare
    v_now   constant timestamptz := clock_timestamp();
    v_back  constant bigint := pgq_task._position_of(i_was) - pgq_task._position_of(v_now);
begin
    update pgq_task.task t
       set lease = v_now + (t.lease - t.last_attempt),
           pos = case when t.lease is null then t.pos - v_back
                      when t.pos > pgq_task._position_of(v_now) then pgq_task._position_of(v_now + (t.lease - t.last_attempt))
                      else t.pos end
      from (select c.id from pgq_task.task c
             where c.lease is null and c.created > v_now
               and c.pos between pgq_task._position_of(v_now) and pgq_task._position_of(i_was)
                or c.lease is not null and c.last_attempt > v_now
               for no key update skip locked) c
     where t.id = c.id;
end;
$$;
