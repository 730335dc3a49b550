create or replace view pgq_task.task_status as
-- tasks as the functions see them, whichever role may read them
select t.id, t.version, t.queue_id, t.priority, t.pos, t.lease, t.claimant, t.attempts, t.last_attempt, t.created,
       t.payload, t.headers, t.error, t.unique_key, t.order_key,
       case when t.lease > statement_timestamp() then 'claimed'
            when t.pos is null or pgq_task._is_parked(t.pos) then 'held'
            when t.pos = 9223372036854775807 then 'stopped'
            when t.pos > pgq_task._position_of(statement_timestamp()) then 'scheduled'
            when t.order_key is not null
             and exists (select from pgq_task.task e
                          where e.queue_id = t.queue_id and e.order_key = t.order_key and e.id + 0 < t.id) then 'held'
            else 'available' end as status,
       case when t.lease > statement_timestamp() then t.lease when not pgq_task._is_parked(t.pos) then pgq_task._time_of(t.pos) end as at,
       t.failures
  from pgq_task.task t;

create or replace function pgq_task._shown(anyelement)
returns anyelement
language sql volatile
as $$
-- Does what pgq._shown(1) does, for tasks. While no queue is restricted, pgq_task._guard_inbox(0) makes it immutable:
-- then indexes are used for conditions on all columns.
    select $1;
$$;

create or replace view pgq_task.tasks with (security_barrier) as
select s.id, pgq_task._shown(s.version) as version, q.queue_name as queue, pgq_task._shown(s.priority) as priority,
       s.status, s.at, pgq_task._shown(s.claimant) as claimant, pgq_task._shown(s.attempts) as attempts,
       pgq_task._shown(s.last_attempt) as last_attempt, pgq_task._shown(s.created) as created,
       pgq_task._shown(s.payload) as payload, pgq_task._shown(s.headers) as headers, pgq_task._shown(s.error) as error,
       pgq_task._shown(s.unique_key) as unique_key, pgq_task._shown(s.order_key) as order_key,
       pgq_task._shown(s.failures) as failures
  from pgq_task.task_status s
  join pgq_task.queue q using (queue_id)
 where (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read', current_user))
   -- Again, where tasks are scanned: EXPLAIN counts there.
   and s.queue_id <> all (array(select queue_id from pgq_task.queue
                                 where queue_restricted and not pgq_task._has_right(queue_id, 'read', current_user)));

create or replace function pgq_task.get_queue_info(queue text default null, max_count int4 default 10000, max_queues int4 default null)
returns table (
    queue_name text, created timestamptz, paused timestamptz, restricted boolean, lease interval, time_limit interval,
    max_attempts int4, error_queue text, keep interval, weight int4, keep_tenants interval, total bigint, exact boolean, available bigint, claimed bigint, scheduled bigint,
    held bigint, stopped bigint, highest_attempts int4, oldest timestamptz, next_time timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Returns the settings and sizes of task queues. It counts at most max_count tasks of each kind and priority, so that
-- the cost does not depend on the size of the queue.
-- Parameters:
--      queue               - name of a queue, or a pattern: an asterisk stands for any characters; null for all
--      max_count           - maximum number to count; null for all
--      max_queues          - maximum number of queues, those first by name; null for all
-- Returns:
--      queue_name, created, paused (start of the pause; null if not paused), restricted, lease, time_limit,
--      max_attempts, error_queue, keep, weight, keep_tenants
--      total               - tasks; estimated from PostgreSQL's statistics if not exact
--      exact               - false if there are more than were counted; then the following are at least that many
--      available           - tasks that can be claimed now
--      claimed             - claimed tasks whose lease lasts
--      scheduled           - scheduled for later
--      held                - held back by an earlier task with the same order_key, or because the maximum number with
--                            the same limit_key is running
--      stopped             - stopped tasks, which cannot be claimed
--      highest_attempts    - highest number of attempts of the counted tasks
--      oldest              - time since which the task that has waited longest is available
--      next_time           - time when the next scheduled task is due
--      The sizes are null for a restricted queue that the caller may not read.
-- Errors: PQ072 a count or limit that is not positive
#variable_conflict use_column
declare
    max_pos constant bigint := 9223372036854775807;
    v_pos   constant bigint := pgq_task._position_of(statement_timestamp());
begin
    perform pgq_task._require_limit(max_count), pgq_task._require_limit(max_queues, 'queues');
    if get_queue_info.queue not like '%*%' then
        perform pgq_task._find_queue(get_queue_info.queue);
    end if;
    return query
        select q.queue_name, q.queue_created, q.queue_paused, q.queue_restricted, q.queue_lease, q.queue_time_limit,
               q.queue_max_attempts,
               coalesce(q.queue_error_queue, q.queue_name || '.failed'), q.queue_keep,
               q.queue_weight, q.queue_keep_tenants,
               case when s.exact is false then greatest(s.total, pgq_task._estimate_total(q.queue_id)) else s.total end,
               s.exact, s.available, s.claimed, s.scheduled, s.held, s.stopped, s.attempts,
               pgq_task._time_of(s.oldest), pgq_task._time_of(s.next_time)
          from pgq_task.queue q
          left join lateral (
               select max_count is null or bool_and(n.total < max_count) as exact, sum(n.total)::int8 as total,
                      sum(n.available)::int8 as available, sum(n.claimed)::int8 as claimed, sum(n.scheduled)::int8 as scheduled,
                      sum(n.held)::int8 as held, sum(n.stopped)::int8 as stopped,
                      coalesce(max(n.attempts), 0) as attempts, min(n.oldest) as oldest, min(n.next_time) as next_time
                 from (select distinct m.priority, m.low from pgq_task.marked_lane m where m.queue_id = q.queue_id) l
                -- positions of tasks that are due, are due later, are stopped, and have none
                cross join lateral (values (l.low, v_pos), (v_pos + 1, max_pos - 1), (max_pos, max_pos), (null, null)) r (low, high)
                cross join lateral (
                      select count(*) as total, count(*) filter (where c.status = 'available') as available,
                             count(*) filter (where c.status = 'claimed') as claimed,
                             count(*) filter (where c.status = 'scheduled') as scheduled,
                             count(*) filter (where c.status = 'held') as held,
                             count(*) filter (where c.status = 'stopped') as stopped, max(c.attempts) as attempts,
                             min(c.pos) filter (where c.status = 'available') as oldest,
                             min(c.pos) filter (where c.status = 'scheduled') as next_time
                        from ((select t.status, t.attempts, t.pos from pgq_task.task_status t
                                where t.queue_id = q.queue_id and t.priority = l.priority and t.pos between r.low and r.high
                                order by t.queue_id, t.priority, t.pos limit max_count)
                              union all
                              (select t.status, t.attempts, t.pos from pgq_task.task_status t
                                where t.queue_id = q.queue_id and t.priority = l.priority and t.pos is null and r.low is null
                                limit max_count)) c) n
                having not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read')) s on true
         where q.queue_name = get_queue_info.queue or get_queue_info.queue is null or pgq_task._matches(q.queue_name, get_queue_info.queue)
         order by q.queue_name limit max_queues;
end;
$$;

create or replace function pgq_task.get_workers(max_count int4 default 1000)
returns table (claimant text, tasks bigint, queues text[], since timestamptz, lease timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Returns the workers that have tasks. As pgq_task.get_queue_info(3), it looks at no more than max_count tasks of each
-- kind and priority. Those that are claimed are among the first: the rest of a long queue has hardly any.
-- Parameters:
--      max_count   - maximum number to look at; null for all
-- Returns:
--      claimant, tasks     - the worker, and the number of its tasks
--      queues              - their queues, of those that the caller may read
--      since, lease        - start of the oldest attempt, end of the first lease
-- Errors: PQ072 a count that is not positive
declare
    v_pos   constant bigint := pgq_task._position_of(statement_timestamp());
begin
    perform pgq_task._require_limit(max_count);
    return query
        select t.claimant, count(*), array_agg(distinct q.queue_name), min(t.last_attempt), min(t.lease)
          from pgq_task.queue q
         cross join lateral (select distinct m.priority, m.low from pgq_task.marked_lane m where m.queue_id = q.queue_id) l
         -- After a sweep they are at the ends of their leases.
         cross join lateral (values (l.low, v_pos), (v_pos + 1, 9223372036854775807)) r (low, high)
         cross join lateral (
               select * from pgq_task.task c
                where c.queue_id = q.queue_id and c.priority = l.priority and c.pos between r.low and r.high
                order by c.queue_id, c.priority, c.pos limit max_count) t
         where t.lease > statement_timestamp()
           and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
         group by t.claimant
         order by 4, 1;
end;
$$;

create or replace function pgq_task._estimate_total(i_queue_id int4)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the planner's estimate of a queue's number of tasks.
declare
    v_plan  json;
begin
    execute format('explain (format json) select from pgq_task.task where queue_id = %s', i_queue_id) into v_plan;
    return v_plan -> 0 -> 'Plan' ->> 'Plan Rows';
end;
$$;

create or replace function pgq_task.queue_is_empty(queues text[], notify boolean default false)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Returns whether queues have no tasks at all: none that is available, claimed, scheduled, held or stopped.
-- Parameters:
--      notify  - the next worker that finds no task, of any queue, notifies the channel pgq_task_idle: look again then
-- Returns: true if all of them are empty, as seen by the caller's transaction.
-- Errors: PQ072 no queue given, 42501 no right to read one of them
begin
    perform pgq_task._require_queues(queues, 'read');
    if notify then
        perform setval('pgq_task.idle_watch', 1);
    end if;
    -- First a check that is fast if there are tasks, even behind dead rows; then a complete one.
    return not exists (
               select from pgq_task.served_lane l
                cross join lateral (
                      select from pgq_task.task t
                       where t.queue_id = l.queue_id and t.priority = l.priority and t.pos >= l.low
                       limit 1) t
                where l.served_as = any (queues))
       and not exists (
               select from pgq_task.served_queue q
                cross join lateral (select from pgq_task.task t where t.queue_id = q.queue_id limit 1) t
                where q.served_as = any (queues));
end;
$$;

create or replace function pgq_task.next_time(queues text[])
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Returns the time when the first task of some queues can be claimed, if all present claims continue.
-- Returns: the time, which is in the past if a task can be claimed now; null if there is no task. Pauses of queues are
--      not considered.
-- Errors: PQ072 no queue given, 42501 no right to read one of them
declare
    v_now   constant timestamptz := clock_timestamp();
begin
    perform pgq_task._require_queues(queues, 'read');
    return pgq_task._time_of(min(t.pos))
      from pgq_task.served_lane l
     cross join lateral (
           select c.pos from pgq_task.task c
            where c.queue_id = l.queue_id and c.priority = l.priority
              and c.pos >= l.low and c.pos < 4611686018427387904
              and (c.lease is null or c.lease <= v_now)
              and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
            order by c.queue_id, c.priority, c.pos limit 1) t
     where l.served_as = any (queues);
end;
$$;

create or replace function pgq_task.server_time()
returns timestamptz
language sql set search_path = pg_catalog, pg_temp
as $$
-- Returns the server's time, which leases and schedules use.
-- Returns: the present time, not that of the transaction's start.
    select clock_timestamp();
$$;
