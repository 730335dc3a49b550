create or replace function pgq_task.claim(
    queues text[], claimant text, lease interval default null, max_tasks int4 default 1,
    random_choice boolean default true)
returns setof pgq_task.claimed
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Claims available tasks: until the lease ends no other claimant gets them. A task whose lease has ended is available
-- again.
-- Parameters:
--      queues          - names of the queues; those with tenants stand for these, too. If several have tasks, these
--                        are shared in proportion to the queues' weights
--      claimant        - name of the claimant
--      lease           - duration of the lease; null for that of the queue's settings
--      max_tasks       - maximum number of tasks
--      random_choice   - choose at random among the 8 or so tasks that have waited longest in their lane, so that tasks
--                        that crash workers do not block the others; false for the order in which they became available
-- Returns: the tasks, those of the highest priority first. No row if none is available, or the queues are paused.
-- Errors: 42501 no right to claim from it, PQ072 a limit or lease that is not positive, an empty claimant
#variable_conflict use_column
declare
    choice      constant int4 := 8;
    at_times    constant int4 := 32;
    v_lanes     refcursor;
    v_below     int4 := 32768;
    v_left      int4 := max_tasks;
    -- The lanes of one priority share what is to be claimed: number and size of the shares, those given so far; and what
    -- is set aside while one lane has its shares.
    v_priority  int4;
    v_shares    int4;
    v_share     int4;
    v_given     int4;
    v_new       int4;
    v_offset    float8;
    v_aside     int4;
    -- Some lanes have more tasks than shares: they fill the rest.
    v_more      boolean;
    v_fill      boolean;
    v_may       int4;
    v_found     int4;
    v_take      int4;
    v_salt      bigint;
    v_now       timestamptz;
    v_now_pos   bigint;
    v_start     bigint;
    v_before    int4;
    v_count     bigint;
    l           record;
begin
    -- In one function: a call for each lane would cost as much as the claim itself.
    if max_tasks is null or max_tasks < 1 then
        perform pgq_task._raise_invalid(format('a limit of %s tasks', coalesce(max_tasks::text, 'NULL')), 'Claim one task or more.');
    elsif coalesce(claim.claimant, '') = '' then
        perform pgq_task._raise_invalid('the claimant has no name', 'Give a name that tells this worker from the others.');
    elsif coalesce(cardinality(queues), 0) = 0 then
        perform pgq_task._raise_invalid('no queues are given', 'Name one or more task queues.');
    elsif claim.lease is not null then
        perform pgq_task._require_lease(claim.lease);
    end if;
    loop
        if cardinality(queues) = 1 and l is null then
            -- The highest lane of one queue: mostly the only one.
            select queues[1] as queue_name, q.queue_id, n.priority, n.generation, n.low, n.ahead, q.queue_restricted, q.queue_limited,
                   least(coalesce(claim.lease, q.queue_lease), q.queue_time_limit) as lease, q.queue_max_attempts as max_attempts,
                   q.queue_id as served_id, q.queue_paused is not null or q.queue_keep_tenants is not null as skip, q.queue_keep_tenants
              into l
              from pgq_task.queue q
             cross join lateral (
                   select * from pgq_task.mark k
                    where k.queue_id = q.queue_id
                    order by k.queue_id desc, k.priority desc, k.generation desc, k.mark_id desc
                    limit 1) n
             where q.queue_name = queues[1];
            if not found then
                perform pgq_task._raise_queue_not_found(queues[1]);
            end if;
        else
            if v_lanes is null then
                if cardinality(queues) = 1 then
                    v_below := case when l.queue_keep_tenants is null then l.priority else v_below end;
                    exit when not exists (select from pgq_task.lane n where n.queue_id = l.queue_id and n.priority < v_below);
                end if;
                v_now_pos := pgq_task._position_of(clock_timestamp());
                open v_lanes scroll for
                    select s.*, sum(s.weight) over (partition by s.priority order by s.turn)::float8
                                / nullif(sum(s.weight) over (partition by s.priority), 0) as upto
                      from (select u.queue_name as served_as, q.served_id, q.queue_name, q.queue_id, n.priority, n.generation, n.low, n.ahead,
                                   q.queue_paused is not null as skip, q.queue_restricted, q.queue_limited,
                                   least(coalesce(claim.lease, q.queue_lease), q.queue_time_limit) as lease, q.queue_max_attempts as max_attempts,
                                   case when q.queue_paused is null then coalesce(q.queue_weight, 1) else 0 end as weight,
                                   -- in this order, each of those left is the next one in proportion to its weight
                                   -ln(1 - random()) / q.queue_weight as turn
                              from unnest(queues) u (queue_name)
                              left join pgq_task.served_queue q on q.served_as = u.queue_name
                              -- Offsets and limits keep the planner from looking at all lanes and tasks at once.
                              left join lateral (select * from pgq_task.marked_lane m
                                                  where m.queue_id = q.queue_id and m.priority < v_below offset 0) n on true
                             where q.queue_id is null
                                or q.queue_restricted and q.queue_id = q.served_id
                                or q.queue_paused is null
                                   -- A look costs a tenth of trying to claim.
                                   and (exists (select from pgq_task.task c
                                                 where c.queue_id = n.queue_id and c.priority = n.priority and c.pos between n.ahead and v_now_pos)
                                        or n.low < n.ahead
                                           and exists (select from pgq_task.task c
                                                        where c.queue_id = n.queue_id and c.priority = n.priority and c.pos between n.low and v_now_pos)
                                        or q.queue_limited
                                           and (select c.id from pgq_task.task c
                                                 where c.queue_id = n.queue_id and c.priority = n.priority
                                                   and c.pos between 4611686018427387904 and 9223372036854775806 limit 1) is not null)) s
                     order by s.priority desc nulls first, s.turn;
            else
                v_more := v_more or v_left = 0;
                v_left := v_left + v_aside;
            end if;
            fetch v_lanes into l;
            if v_more and v_fill is null and (not found or l.priority < v_priority) then
                v_fill := true;
                v_aside := 0;
                move absolute 0 from v_lanes;
                continue;
            end if;
            exit when not found;
            if v_fill is null then
                if l.priority is distinct from v_priority then
                    v_priority := l.priority;
                    v_share := (v_left + at_times - 1) / at_times;
                    v_shares := (v_left + v_share - 1) / v_share;
                    v_given := 0;
                    v_offset := random();
                end if;
                v_new := floor(coalesce(l.upto, 0) * v_shares + v_offset) - v_given;
                v_given := v_given + v_new;
                v_aside := greatest(v_left - v_new * v_share, 0);
                v_left := v_left - v_aside;
                continue when v_left = 0;
            end if;
        end if;
        if l.queue_id is null then
            perform pgq_task._raise_queue_not_found(l.served_as);
        elsif l.queue_restricted and l.served_id is distinct from v_may then
            perform pgq_task._require_right(l.served_id, 'claim');
            v_may := l.served_id;
        end if;
        continue when l.skip;
        if l.queue_limited then
            if v_lanes is not null and (v_fill is null or v_left < max_tasks)
               and not pg_try_advisory_xact_lock(pgq._lock_key('task limits'), l.queue_id)
            then
                -- Another session claims from it: wait for that only if there is nothing else.
                v_more := true;
                continue;
            -- Wait for a session that drops the queue: its tables would be gone.
            elsif pgq_task._living(to_regclass('pgq_task.waiting_' || l.queue_id)) is null then
                perform pgq_task._raise_queue_not_found(l.queue_name);
            end if;
            return query
                select * from pgq_task._claim_limited(l.queue_id, l.queue_name, l.priority, claim.claimant, l.lease,
                                                      l.max_attempts, v_left, random_choice);
            get diagnostics v_found = row_count;
            v_left := v_left - v_found;
            exit when v_left = 0 and (v_aside > 0) is not true;
            continue;
        end if;
        v_now := clock_timestamp();
        v_now_pos := pgq_task._position_of(v_now);
        v_start := l.ahead;
        -- This number of 8 tasks, by a hash of their ids that differs each time. If no task has waited for a tenth of a
        -- second, there are too few.
        v_take := case when random_choice and v_start < v_now_pos - 100000 * 256 then least(v_left, choice) else choice end;
        v_salt := random() * 9e18;
        v_before := v_left;
        loop
            return query
                update pgq_task.task t
                   set version = t.version + 1, lease = v_now + l.lease, claimant = claim.claimant,
                       attempts = t.attempts + 1, last_attempt = v_now, lost = case when t.lease is null then t.lost else t.lost + 1 end,
                       error = case when t.lease is null then t.error else pgq_task._lost_error() end
                  from (select c.ctid
                          from pgq_task.task c
                         where c.queue_id = l.queue_id and c.priority = l.priority
                           and c.pos >= v_start
                           and c.pos <= v_now_pos
                           and (v_take = choice or (hashint8extended(c.id, v_salt) & (choice - 1)) < v_take)
                           and (c.lease is null or c.lease <= v_now and pgq_task._comes_again(c, l.max_attempts))
                           and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
                         order by c.queue_id, c.priority, c.pos
                         limit v_left
                           for no key update skip locked) c
                 where t.ctid = c.ctid
                returning t.id, t.version, l.queue_name, t.priority, t.attempts, t.lease, t.created,
                          t.payload, t.headers, t.error, t.unique_key, t.order_key;
            get diagnostics v_found = row_count;
            v_left := v_left - v_found;
            exit when v_left = 0;
            if v_take < choice then
                v_take := choice;
            elsif v_left = v_before and l.low < v_start then
                -- The mark is a guess: a lane is known to be empty only after a look from its low end.
                v_start := l.low;
            else
                exit;
            end if;
        end loop;
        if v_left < v_before then
            v_count := pgq_task._count('claimed', l.queue_id, v_before - v_left);
        end if;
        -- Move the mark from time to time, so that other claims need not step over dead rows; sooner after many tasks.
        if random() * at_times < v_before - v_left and pgq._is_read_committed() then
            perform pgq_task._move_ahead(l.queue_id, l.priority, l.generation, l.low, l.ahead, v_now);
        end if;
        exit when v_left = 0 and (v_aside > 0) is not true;
    end loop;
    if v_lanes is not null then
        close v_lanes;
    end if;
end;
$$;

create or replace function pgq_task._move_ahead(
    i_queue_id int4, i_priority int2, i_generation bigint, i_low bigint, i_from bigint, i_now timestamptz)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Moves a lane's mark ahead, which was at a given position, to the first waiting task, so that other claims need not step
-- over dead rows. Do not call it in a transaction with an earlier snapshot.
declare
    v_now_pos   constant bigint := pgq_task._position_of(i_now);
    v_first     bigint;
begin
    select c.pos into v_first
      from pgq_task.task c
     where c.queue_id = i_queue_id and c.priority = i_priority and c.pos between i_from and v_now_pos
       and (c.lease is null or c.lease <= i_now)
     order by c.queue_id, c.priority, c.pos
     limit 1;
    -- Tasks pushed in the last hundredth of a second may not be visible yet.
    v_first := least(v_first, v_now_pos - 10000 * 256);
    if v_first > i_from then
        insert into pgq_task.mark (queue_id, priority, generation, low, ahead)
        values (i_queue_id, i_priority, i_generation, i_low, v_first);
    end if;
end;
$$;

create or replace function pgq_task._is_first(i_queue_id int4, i_order_key text, i_id bigint)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a task is the earliest one with its order_key. This is a function, so that claims of tasks without a
-- key do not pay for it.
begin
    -- Look backwards from its own position: tasks that ended long ago, whose dead rows are still there, come last.
    return (select e.id
              from pgq_task.task e
             where e.queue_id = i_queue_id and e.order_key = i_order_key and e.id + 0 < i_id
               and e.id + 0 >= pgq_task._key_low(i_queue_id, i_order_key)
             order by e.queue_id desc, e.order_key desc, (e.id + 0) desc
             limit 1) is null;
end;
$$;

create or replace function pgq_task._require_lease(i_lease interval, i_what text default 'a lease')
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 unless a lease is null, or positive and no longer than 10 years.
begin
    if i_lease <= interval '0' or i_lease > interval '10 years' then
        perform pgq_task._raise_invalid(format('%s of %s', i_what, i_lease), 'Give an interval of more than 0 and at most 10 years, such as 30 seconds.');
    end if;
end;
$$;
