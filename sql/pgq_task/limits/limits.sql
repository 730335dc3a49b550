create or replace function pgq_task.set_limits(
    queue text, max_running int4 default null, max_running_per_key int4 default null,
    rate int4 default null, rate_per_key int4 default null, rate_period interval default '1 minute')
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Limits how many tasks of a queue are claimed, over all claimants. The key of a task is "limit_key" in its headers;
-- tasks without a key are subject only to the limits of the whole queue. Tasks that are claimed already count as
-- running, but not for a rate.
-- Parameters:
--      max_running         - maximum number claimed at the same time
--      max_running_per_key - the same limit for tasks with the same key
--      rate                - maximum number claimed in any period of length rate_period
--      rate_per_key        - the same limit for tasks with the same key
--      rate_period         - length of the period
--      Null means no limit; if all are null, the limits are removed. They hold for each tenant alone, and are set for
--      those that had the same ones as their parent.
-- Errors: PQ072 an invalid limit or period, PQ012 not in READ COMMITTED
#variable_conflict use_column
declare
    v_queue     constant int4 := (pgq_task._find_queue(set_limits.queue)).queue_id;
    v_limits    constant int4[] := array_remove(array[set_limits.max_running, set_limits.max_running_per_key,
                                                      set_limits.rate, set_limits.rate_per_key], null);
    v_limited   constant boolean := v_limits <> '{}';
    v_before    jsonb;
    v_written   int2;
    v_base      bigint;
    s           pgq_task.limit_log;
begin
    -- In one function: each step relies on the locks of those before it.
    perform pgq._require_read_committed('pgq_task.set_limits()');
    if 1 > any (v_limits) then
        perform pgq_task._raise_invalid(format('a limit of %s tasks', (select min(n) from unnest(v_limits) n)),
                                        'Give 1 or more, or null for no limit; to stop the queue, pause it.');
    elsif set_limits.max_running > 10000 or set_limits.max_running_per_key > 10000 then
        perform pgq_task._raise_invalid('more than 10000 tasks at a time', 'Give a lower limit, or null for none.');
    elsif set_limits.rate_period is null or set_limits.rate_period < interval '1 millisecond'
            or set_limits.rate_period > interval '100 days' then
        perform pgq_task._raise_invalid(format('a period of %s', coalesce(set_limits.rate_period::text, 'NULL')),
                                        'Give an interval between 1 millisecond and 100 days.');
    end if;
    perform pg_advisory_xact_lock(pgq._lock_key('task limits'), v_queue);
    -- Wait for a session that drops the queue now, before this session holds anything that it waits for.
    perform from pgq_task.queue where queue_id = v_queue for no key update;
    if not found then
        perform pgq_task._raise_queue_not_found(set_limits.queue);
    end if;
    select to_jsonb(l) - '{queue_id,since,written}'::text[] into v_before from pgq_task.queue_limit l where l.queue_id = v_queue;
    if v_limited then
        insert into pgq_task.queue_limit as q (queue_id, max_running, max_running_per_key, rate, rate_per_key, rate_period)
        values (v_queue, set_limits.max_running, set_limits.max_running_per_key, set_limits.rate, set_limits.rate_per_key,
                set_limits.rate_period)
        on conflict (queue_id) do update
           set max_running = excluded.max_running, max_running_per_key = excluded.max_running_per_key, rate = excluded.rate,
               rate_per_key = excluded.rate_per_key, rate_period = excluded.rate_period, since = excluded.since;
        for n in 0 .. 1
        loop
            continue when to_regclass(format('pgq_task.limit_%s_%s', v_queue, n)) is not null;
            execute format('create table pgq_task.limit_%s_%s (like pgq_task.limit_log)'
                           ' with (autovacuum_enabled = off, toast.autovacuum_enabled = off)', v_queue, n);
            execute format('alter table pgq_task.limit_%s_%s replica identity full', v_queue, n);
            execute format('create index on pgq_task.limit_%s_%s (key, at, total)', v_queue, n);
        end loop;
    else
        delete from pgq_task.queue_limit where queue_id = v_queue;
    end if;
    update pgq_task.queue set queue_limited = v_limited where queue_id = v_queue and queue_limited <> v_limited;
    if coalesce(set_limits.max_running, set_limits.max_running_per_key) is not null then
        select l.written into v_written from pgq_task.queue_limit l where l.queue_id = v_queue;
        s := pgq_task._last_of_limit(v_queue, '', v_written);
        execute format('insert into pgq_task.limit_%s_%s (key, at, total, number, ids, keys, marks, parked)'
                       ' select %L, $1, $2, 0, array_agg(t.id), array_agg(t.key), array_agg(pgq_task._parking_of(coalesce(t.key, %3$L))), $3'
                       '   from (select k.id, pgq_task._limit_key_of(k.headers) as key from pgq_task.task k'
                       '          where k.queue_id = $4 and k.lease > clock_timestamp()) t', v_queue, v_written, '')
            using greatest(clock_timestamp(), s.at), coalesce(s.total, 0), s.parked, v_queue;
    end if;
    -- The tasks that waited because of the previous limits, in their order; locked in the order in which all sessions
    -- lock them.
    v_base := pgq_task._position_now();
    perform from pgq_task.task k
      where k.queue_id = v_queue
        and (pgq_task._is_parked(k.pos) or k.pos > v_base and pgq_task._is_turn(k.pos))
      order by k.id
        for no key update;
    update pgq_task.task t
       set pos = v_base + w.nr + w.nr / 255
      from (select k.id, k.pos, row_number() over (order by not pgq_task._is_parked(k.pos), k.pos) - 1 as nr
              from pgq_task.task k
             where k.queue_id = v_queue
               and (pgq_task._is_parked(k.pos) or k.pos > v_base and pgq_task._is_turn(k.pos))) w
     where t.id = w.id and t.pos = w.pos;
    perform pgq_task._wake_workers(v_queue, set_limits.queue);
    perform pgq_task.set_limits(t.queue_name, set_limits.max_running, set_limits.max_running_per_key, set_limits.rate,
                                set_limits.rate_per_key, set_limits.rate_period)
       from (select q.queue_name
               from pgq_task.queue q
               left join pgq_task.queue_limit l using (queue_id)
              where q.queue_parent = v_queue and to_jsonb(l) - '{queue_id,since,written}'::text[] is not distinct from v_before
              order by q.queue_id) t;
end;
$$;

create or replace function pgq_task.get_limits(queue text default null)
returns table (queue_name text, max_running int4, max_running_per_key int4, rate int4, rate_per_key int4, rate_period interval,
               running int4, recent int4)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the limits of queues, as set by pgq_task.set_limits(6), and how much of them is used.
-- Parameters:
--      queue   - name of a queue, null for all
-- Returns:
--      A row for each queue that has limits:
--      running - number of tasks claimed, null if that is not limited
--      recent  - number of tasks claimed in the last rate_period
#variable_conflict use_column
begin
    if get_limits.queue is not null then
        perform pgq_task._require_queues(array[get_limits.queue]);
    end if;
    return query
        select q.queue_name, n.max_running, n.max_running_per_key, n.rate, n.rate_per_key, n.rate_period,
               case when coalesce(n.max_running, n.max_running_per_key) is not null then (
                   select count(*)::int4 from pgq_task.task t
                    where t.id = any (s.ids) and t.queue_id = q.queue_id and t.lease > clock_timestamp()) end,
               pgq_task._count_limited(q.queue_id, '', clock_timestamp() - n.rate_period, s.total)
          from pgq_task.queue_limit n
          join pgq_task.queue q using (queue_id)
         cross join lateral pgq_task._last_of_limit(q.queue_id, '', n.written) s
         where q.queue_name = get_limits.queue or get_limits.queue is null
         order by q.queue_name;
end;
$$;
