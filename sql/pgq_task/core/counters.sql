create or replace function pgq_task._count(i_what text, i_queue_id int4, i_tasks bigint default 1)
returns bigint
language plpgsql
as $$
-- Counts an operation on a number of tasks, in the log whose turn it is: every 20 seconds the other one. Returns the
-- number.
begin
    if i_what = 'pushed' then
        -- Lock the queue's sequences in the order in which push() and drop_queue() do.
        perform pg_catalog.pg_sequence_last_value(pgq_task._living(q.queue_pushed)) from pgq_task.queue q where q.queue_id = i_queue_id;
    end if;
    if pg_catalog.int8(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())) / 20 % 2 = 0 then
        insert into pgq_task.count_log_even (queue_id, what, tasks) values (i_queue_id, i_what, i_tasks);
    else
        insert into pgq_task.count_log_odd (queue_id, what, tasks) values (i_queue_id, i_what, i_tasks);
    end if;
    return i_tasks;
end;
$$;

create or replace function pgq_task._count_each(i_what text, i_queue_ids int4[])
returns void
language plpgsql
as $$
-- Counts operations on tasks of these queues; each queue is named once per operation.
begin
    perform pgq_task._count(i_what, q.id, q.tasks)
       from (select u.id, count(*) as tasks from unnest(i_queue_ids) u (id) where u.id is not null group by u.id) q;
end;
$$;

create or replace function pgq_task._add_counted(i_now timestamptz default clock_timestamp(), i_bytes bigint default 8388608)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adds the log whose turn is over to the sums, and truncates it; if it is in use, or the caller may not hold up all
-- queues, and it has become large, what is visible is deleted. pgq_task.sweep(0) calls it.
declare
    v_now       constant bigint := floor(date_part('epoch', i_now));
    v_log       constant text := case when v_now / 20 % 2 = 0 then 'pgq_task.count_log_odd' else 'pgq_task.count_log_even' end;
    v_size      constant bigint := pg_relation_size(v_log::regclass);
    v_locked    boolean;
begin
    -- Not when its turn is about to come: sessions that count would wait.
    if v_now % 20 < 15 and v_size > 0 then
        v_locked := not exists (select from pgq_task.queue q
                                 where q.queue_restricted and q.queue_parent is null and not pgq_task._may_hold_up(q))
                    and pgq._try_lock_table(v_log);
        if v_locked or v_size > i_bytes then
            execute format('with l as (%s) insert into pgq_task.counted as c (queue_id, what, tasks)'
                           ' select l.queue_id, l.what, sum(l.tasks) from l join pgq_task.queue q using (queue_id) group by 1, 2'
                           ' on conflict on constraint counted_pkey do update set tasks = c.tasks + excluded.tasks, changed = now()',
                           format(case when v_locked then 'table %s' else 'delete from %s returning *' end, v_log));
            delete from pgq_task.counted c where not exists (select from pgq_task.queue q where q.queue_id = c.queue_id);
        end if;
        if v_locked then
            execute format('truncate %s', v_log);
        end if;
    end if;
end;
$$;

create or replace function pgq_task._counts_of(i_queue text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the counts of a queue, or of all, by its number and by what was counted; on a standby without the logs, which
-- it does not have. A rollback to a savepoint releases the locks on the logs, so that a session that looks, and stays in
-- its transaction, does not keep them from being truncated.
declare
    v_counts    jsonb;
begin
    execute format(
        'select jsonb_object_agg(s.queue_id, s.counts)'
        '  from (select c.queue_id, jsonb_object_agg(c.what, c.tasks) as counts'
        '          from (select l.queue_id, l.what, sum(l.tasks) as tasks from (select queue_id, what, tasks from pgq_task.counted %s) l'
        '                 where $1 is null or l.queue_id = (select q.queue_id from pgq_task.queue q where q.queue_name = $1)'
        '                 group by 1, 2) c'
        '         group by 1) s',
        case when not pg_is_in_recovery() then 'union all table pgq_task.count_log_even union all table pgq_task.count_log_odd' end)
       into v_counts using i_queue;
    raise no_data_found;
exception when no_data_found then
    return coalesce(v_counts, '{}');
end;
$$;

create or replace function pgq_task._pushed_of(i_pushed regclass)
returns bigint
language plpgsql
as $$
-- Returns the number of tasks that push() has counted with the sequence queue_pushed of a queue; null if it is gone. It
-- gives its lock back at once, as pgq_task._counts_of(1) does: locks are limited.
declare
    v_last  bigint;
begin
    -- pg_sequence_last_value() would keep its lock.
    execute (select pg_catalog.format('select last_value & 1099511627775 from %s', s)
               from pgq_task._living(i_pushed) s where s is not null)
       into v_last;
    raise no_data_found;
exception
    when no_data_found then
        return v_last;
    when undefined_table or null_value_not_allowed then
        return null;
end;
$$;

create or replace function pgq_task.get_statistics(queue text default null)
returns table (
    queue_name text, pushed bigint, claimed bigint, finished bigint, popped bigint, failed_attempts bigint, failed bigint,
    released bigint, moved bigint, deleted bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of operations of each kind on tasks of a queue since the queue was created,
-- or since pgq_task.reset_statistics(1).
-- Parameters:
--      queue       - its name; a pattern, in which an asterisk stands for any characters, or null, for all queues that
--                    the caller may read
-- Returns:
--      queue_name
--      pushed      - tasks put into it: by push(), push_many(), modify() and replay()
--      claimed     - attempts: claims, and pops
--      finished    - by finish()
--      popped      - by pop()
--      failed_attempts - including the last ones
--      failed      - tasks that went to the error queue: their attempts were used up, or were not to be repeated
--      released    - tasks that were released: the attempt did not count
--      moved       - tasks moved to another queue by modify() and the functions that use it
--      deleted     - by modify() and remove_tasks()
--      Sessions do not wait for each other to count. Operations count when they are committed; only push() of a task
--      without options counts at once, and is not taken back if it is rolled back. A crash of the server loses the
--      counts since the last sweeps, of less than a minute, and makes those of push() jump ahead, by up to 32.
-- Errors: 42501 no right to read it
declare
    v_counts    jsonb;
    v_several   constant bool := queue is null or queue like '%*%';
begin
    if not v_several then
        perform pgq_task._require_queues(array[queue]);
    end if;
    v_counts := pgq_task._counts_of(case when not v_several then queue end);
    return query
        select q.queue_name,
               -- Null if the queue is gone, and visible to an old snapshot only.
               pgq_task._pushed_of(q.queue_pushed) + coalesce((n.c ->> 'pushed')::int8, 0),
               coalesce((n.c ->> 'claimed')::int8, 0) + coalesce((n.c ->> 'finished and claimed')::int8, 0),
               coalesce((n.c ->> 'finished')::int8, 0) + coalesce((n.c ->> 'finished and claimed')::int8, 0),
               coalesce((n.c ->> 'popped')::int8, 0), coalesce((n.c ->> 'failed_attempts')::int8, 0),
               coalesce((n.c ->> 'failed')::int8, 0), coalesce((n.c ->> 'released')::int8, 0),
               coalesce((n.c ->> 'moved')::int8, 0), coalesce((n.c ->> 'deleted')::int8, 0)
          from pgq_task.queue q
         cross join lateral (select v_counts -> q.queue_id::text as c) n
         where q.queue_name = get_statistics.queue and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'read'))
            or (get_statistics.queue is null or pgq_task._matches(q.queue_name, get_statistics.queue))
           and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
         order by q.queue_name;
end;
$$;

create or replace function pgq_task.reset_statistics(queue text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets the numbers of pgq_task.get_statistics(1) begin at 0 again, from the commit on.
-- Parameters:
--      queue       - its name, or a pattern like there; null for all queues
begin
    perform pgq_task._count(c.what, q.queue_id, -c.tasks::bigint)
       from pgq_task.get_statistics(queue) s
       join pgq_task.queue q using (queue_name)
      cross join jsonb_each_text(to_jsonb(s) - 'queue_name') c (what, tasks)
      where c.tasks <> '0';
end;
$$;
