create or replace function pgq_task.create_queue(queue text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates a task queue; with the settings of its parent, if it is that of a tenant: see pgq_task._parent_of(1).
-- Returns: 1 if it was created, 0 if it existed.
-- Errors: PQ072 a name of more than 248 bytes, or without a tenant
declare
    p       pgq_task.queue;
    v_id    int4;
begin
    perform pgq_task._require_queue_name('task queue', queue);
    insert into pgq_task.queue (queue_name) values (queue)
    on conflict do nothing
    returning queue_id into v_id;
    if v_id is null then
        return 0;
    end if;
    -- Unlogged, since idle workers set it with each task. PostgreSQL 14 has no such sequences.
    execute format('create %s sequence pgq_task.waiting_%s minvalue 0 start 0',
                   case when current_setting('server_version_num')::int4 >= 150000 then 'unlogged' end, v_id);
    perform setval(format('pgq_task.waiting_%s', v_id)::regclass, 0);
    perform pgq_task._add_lane(v_id, 0::int2);
    update pgq_task.queue
       set queue_waiting = format('pgq_task.waiting_%s', v_id), queue_pushed = pgq_task._add_pushed(v_id, create_queue.queue)
     where queue_id = v_id;
    p := pgq_task._parent_of(queue);
    if p.queue_id is not null then
        update pgq_task.queue
           set queue_parent = p.queue_id, queue_paused = p.queue_paused, queue_lease = p.queue_lease,
               queue_time_limit = p.queue_time_limit, queue_max_attempts = p.queue_max_attempts,
               queue_error_queue = p.queue_error_queue, queue_keep = p.queue_keep, queue_restricted = p.queue_restricted,
               queue_weight = p.queue_weight
         where queue_id = v_id;
        perform pgq_task.set_limits(queue, l.max_running, l.max_running_per_key, l.rate, l.rate_per_key, l.rate_period)
           from pgq_task.queue_limit l where l.queue_id = p.queue_id;
        -- The first push notifies the parent's workers.
        perform setval(format('pgq_task.waiting_%s', v_id)::regclass, 1);
    end if;
    perform pgq_task._grant_sequences(v_id);
    return 1;
end;
$$;

create or replace function pgq_task._require_queue_name(i_what text, i_name text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ003 or PQ072 for a name that a task queue cannot have.
begin
    perform pgq._check_name(i_what, i_name);
    if octet_length(i_name) > 248 and i_name !~ '[.]failed$' then
        perform pgq_task._raise_invalid(format('the name of a task queue has %s bytes', octet_length(i_name)),
                                        'Give one of at most 248 bytes, so that its error queue can be named after it.');
    end if;
end;
$$;

create or replace function pgq_task._grant_sequences(i_queue_id int4)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Grants the rights on a queue's sequences that pgq_task.push(8) needs to run as its caller; none if the queue is
-- restricted.
declare
    q   pgq_task.queue;
begin
    select * into q from pgq_task.queue where queue_id = i_queue_id;
    if q.queue_restricted then
        execute format('revoke all on sequence %s, %s from pgq_writer', q.queue_waiting, q.queue_pushed);
    else
        execute format('grant select on sequence %s to pgq_writer', q.queue_waiting);
        execute format('grant usage on sequence %s to pgq_writer', q.queue_pushed);
    end if;
end;
$$;

create or replace function pgq_task._add_pushed(i_queue_id int4, i_queue text)
returns regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the sequence queue_pushed of a queue.
declare
    -- PostgreSQL truncates names, so two might become the same.
    v_by_name   constant boolean := octet_length(i_queue) < 60 and i_queue_id < 8388608;
    v_name      constant text := case when v_by_name then format('pgq_task_queues.%I', i_queue)
                                      else format('pgq_task.pushed_%s', i_queue_id) end;
    v_first     constant bigint := case when v_by_name then i_queue_id::bigint << 40 else 0 end;
begin
    -- The schema pgq_task may have been dropped without the other one.
    if to_regclass(v_name) is not null then
        execute format('drop sequence %s cascade', v_name);
    end if;
    execute format('create sequence %s minvalue %s maxvalue %s cycle', v_name, v_first, v_first | 1099511627775);
    perform setval(v_name::regclass, v_first);
    return v_name;
end;
$$;

create or replace function pgq_task._retire_pushed(i_seq regclass, i_queue_id int4)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Takes the sequence queue_pushed from a queue that is being dropped. It waits for transactions that have pushed.
-- Transactions that wait meanwhile to push draw a negative number from it, which tells them; if it were dropped, they
-- would fail with an internal error. So it is kept, until another queue is dropped when no session can refer to it any
-- more.
declare
    v_name  text;
begin
    for v_name in
        select format('pgq_task_queues.%I', c.relname)
          from pg_class c
         where c.relnamespace = 'pgq_task_queues'::regnamespace and c.relname ~ '^dropped_[0-9]+_+$' and octet_length(c.relname) = 60
           and age(c.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)
           and not exists (select from pg_locks k
                            where k.locktype = 'relation' and k.relation = c.oid
                              and k.database = (select d.oid from pg_database d where d.datname = current_database()))
           and pg_try_advisory_xact_lock(pgq._lock_key('dropped task queues'))
    loop
        execute format('drop sequence if exists %s cascade', v_name);
    end loop;
    -- No queue's sequence has a name as long as that.
    execute format('alter sequence %s rename to %I', i_seq, rpad(format('dropped_%s_', i_queue_id), 60, '_'));
    execute format('alter sequence %s set schema pgq_task_queues', i_seq);
    execute format('alter sequence %s increment -1 minvalue -9223372036854775807 maxvalue -1 start -1 restart -1', i_seq);
end;
$$;

create or replace function pgq_task._add_lane(i_queue_id int4, i_priority int2)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adds the lane for a priority unless the queue has it. Call it after inserting the task: see pgq_task._close_lanes(0).
begin
    if not exists (
        select from pgq_task.lane n
         where n.queue_id = i_queue_id and n.priority = i_priority and n.closed is null
           -- An old snapshot would not show that the lane was closed.
           and (pgq._is_read_committed() or n.xmin::text::bigint = pg_current_xact_id()::text::bigint & 4294967295))
    then
        insert into pgq_task.lane (queue_id, priority) values (i_queue_id, i_priority);
        insert into pgq_task.mark (queue_id, priority, generation, low, ahead) values (i_queue_id, i_priority, 0, 0, 0);
    end if;
end;
$$;

create or replace function pgq_task._close_lanes()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Removes lanes that are empty, so that claims do not look at them, and those of dropped queues: pgq_task.sweep(0) calls
-- it. A transaction that pushes inserts its task, and so has an id, before it looks for the lane. If it does not see that
-- the lane was closed, then it began before the next call of this function, which writes down up to which ids. When all
-- of these have ended, and the lane is still empty, the lane is removed. Lanes that are not empty are opened again.
begin
    with found as materialized (
        select n.queue_id, n.priority, n.lane_id, n.closed, e.is_empty, r.again,
               r.again or q.queue_id is null
                 or e.is_empty and n.closed between '1' and pg_snapshot_xmin(pg_current_snapshot())
                    -- The mark may have passed some, until the next round of sweeps.
                    and (select t.id from pgq_task.task t
                          where t.queue_id = n.queue_id and t.priority = n.priority
                          order by t.queue_id, t.priority, t.pos
                          limit 1) is null as over
          from (select *, row_number() over (partition by queue_id, priority, closed is null order by lane_id) as nr
                  from pgq_task.lane) n
          left join pgq_task.queue q using (queue_id)
         cross join lateral (
               select (select t.id from pgq_task.task t
                        where t.queue_id = n.queue_id and t.priority = n.priority
                          and t.pos >= (select m.low from pgq_task.marked_lane m
                                         where m.queue_id = n.queue_id and m.priority = n.priority limit 1)
                        order by t.queue_id, t.priority, t.pos
                        limit 1) is null
                  and (select t.id from pgq_task.task t
                        where t.queue_id = n.queue_id and t.priority = n.priority and t.pos is null
                        limit 1) is null as is_empty) e
         cross join lateral (select n.closed is null and n.nr > 1 as again) r
         where n.priority <> 0 or q.queue_id is null),
    removed as (
        delete from pgq_task.lane n
         using found f
         where (n.queue_id, n.priority, n.lane_id) = (f.queue_id, f.priority, f.lane_id) and f.over),
    unmarked as (
        delete from pgq_task.mark k
         using (select f.queue_id, f.priority from found f group by 1, 2 having bool_and(coalesce(f.over, false))) g
         where k.queue_id = g.queue_id and k.priority = g.priority)
    update pgq_task.lane n
       set closed = case when f.is_empty then case when f.closed is null then '0'::xid8 else pg_snapshot_xmax(pg_current_snapshot()) end end
      from found f
     where (n.queue_id, n.priority, n.lane_id) = (f.queue_id, f.priority, f.lane_id)
       and f.over is not true and case when f.is_empty then f.closed is null or f.closed = '0' else f.closed is not null end;
end;
$$;

create or replace function pgq_task.drop_queue(queue text, force boolean default false)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops a task queue. It waits for open transactions that have used the queue; later pushes fail. If its payloads are
-- indexed, it waits for all transactions that have used any tasks, and others wait behind it: drop the index first, at
-- a quiet time.
-- Parameters:
--      force   - drop it even if it, or a tenant, has tasks, which are then lost
-- Returns: 1
-- Errors: PQ073 it, or a tenant, has tasks; PQ012 not in READ COMMITTED
#variable_conflict use_column
declare
    v_id            int4;
    v_pushed        regclass;
    v_restricted    boolean;
    v_tasks         bigint;
    v_steps         pgq_task.task[];
    s               regclass;
begin
    perform pgq._require_read_committed('pgq_task.drop_queue()');
    -- Claims that read the queue's limits end before these are dropped, or find that they are gone.
    perform pg_advisory_xact_lock(pgq._lock_key('task limits'), q.queue_id) from pgq_task.queue q where q.queue_name = drop_queue.queue and q.queue_limited;
    select q.queue_id, q.queue_pushed into v_id, v_pushed
      from pgq_task.queue q where q.queue_name = drop_queue.queue for no key update;
    if v_id is null then
        perform pgq_task._raise_queue_not_found(queue);
    end if;
    perform pgq_task.drop_queue(t.queue_name, drop_queue.force)
       from (select q.queue_name from pgq_task.queue q where q.queue_parent = v_id order by q.queue_id) t;
    perform pgq_task.drop_payload_index(queue);
    -- This waits for transactions that have pushed; later pushes do not find the sequences: see
    -- pgq_task._wake_workers(). Lock them in the order in which pushes do.
    perform pgq_task._retire_pushed(v_pushed, v_id);
    -- Any role can make something of its own depend on it, as by a default that is its name.
    execute format('drop sequence pgq_task.waiting_%s cascade', v_id);
    delete from pgq_task.queue where queue_id = v_id returning queue_restricted into v_restricted;
    if v_restricted then
        perform pgq_task._guard_inbox();
    end if;
    select count(*) into v_tasks from (select from pgq_task.task t where t.queue_id = v_id limit 1000) t;
    if v_tasks > 0 and drop_queue.force is not true then
        raise exception using errcode = 'PQ073',
            message = format('task queue %L has %s', queue, case v_tasks when 1 then 'a task' when 1000 then '1000 tasks or more'
                                                             else v_tasks || ' tasks' end),
            hint = 'Finish or move them, or drop it with force => true, which deletes them.';
    end if;
    with gone as (delete from pgq_task.task t where t.queue_id = v_id returning t.*)
    select array_agg(g::pgq_task.task) into v_steps from gone g where g.headers ? 'flow';
    if v_steps is not null then
        perform pgq_task._end_steps(v_steps, 'deleted');
    end if;
    for s in
        select c.oid from pg_class c
         where c.relnamespace = 'pgq_task'::regnamespace and c.relkind = 'r' and c.relname ~ format('^(finished|limit)_%s_[0-9]$', v_id)
         order by c.relname
    loop
        execute format('drop table %s cascade', s);
    end loop;
    return 1;
end;
$$;

create or replace function pgq_task.set_queue_config(queue text, param text, value text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sets one parameter of a task queue.
-- Parameters:
--      param   - lease         default duration of a lease
--                time_limit    duration of an attempt after which its lease is renewed no more; null: none
--                max_attempts  attempts after which a task goes to the error queue; null: no limit for those that
--                              fail, and 5 for workers in a row that are lost with the task
--                error_queue   name of the error queue; null: <queue>.failed
--                keep          time for which finished tasks are kept; 0: not at all
--                weight        its share of claims from several queues, compared with the others' weights: 1 to 1000
--                keep_tenants  the queue has tenants: the first push to <queue>/<tenant> creates this queue, with the
--                              settings of this one; it is dropped when it was empty for this time. Null: no tenants
--      value   - as text
--      It is set for those tenants, too, that had the same value as their parent.
-- Returns: 1
-- Errors: PQ072 unknown parameter or bad value, PQ003 invalid name of an error queue
declare
    params  constant text[] := '{lease,time_limit,max_attempts,error_queue,keep,weight,keep_tenants}';
    q       pgq_task.queue;
begin
    if param is null or param <> all (params) then
        perform pgq_task._raise_invalid(format('there is no task queue parameter %s', coalesce(quote_literal(param), 'NULL')),
                                        'Parameters: ' || array_to_string(params, ', ') || '.');
    end if;
    q := pgq_task._lock_queue(queue);
    if param = 'error_queue' and value is null and coalesce(q.queue_keep_tenants::text, q.queue_parent::text) is not null then
        value := coalesce((select p.queue_error_queue from pgq_task.queue p where p.queue_id = q.queue_parent), queue || '.failed');
    elsif param = 'keep_tenants' then
        perform pgq_task._set_tenants(q, value is not null);
    end if;
    begin
        execute format('update pgq_task.queue t set %1$I = %2$L from pgq_task.queue p where p.queue_id = %3$s and (t.queue_id = %3$s'
                       ' or t.queue_parent = %3$s and t.%1$I is not distinct from p.%1$I)', 'queue_' || param, value, q.queue_id);
    exception when data_exception or not_null_violation then
        perform pgq_task._raise_invalid(
            format('task queue parameter %s cannot be %s', param, coalesce(quote_literal(value), 'NULL')),
            'Intervals are written like ''30 seconds'', numbers like 5.');
    end;
    select * into q from pgq_task.queue t where t.queue_id = q.queue_id;
    perform pgq_task._require_lease(q.queue_lease), pgq_task._require_lease(q.queue_time_limit, 'a time limit');
    if q.queue_max_attempts < 1 then
        perform pgq_task._raise_invalid(format('a limit of %s attempts', q.queue_max_attempts), 'Give 1 or more, or null for no limit.');
    elsif q.queue_keep < interval '0' or q.queue_keep > interval '10 years' then
        perform pgq_task._raise_invalid(format('finished tasks cannot be kept for %s', q.queue_keep),
                                        'Give an interval like 7 days, or 0 to keep none.');
    elsif q.queue_weight not between 1 and 1000 then
        perform pgq_task._raise_invalid(format('a weight of %s', q.queue_weight), 'Give a whole number between 1 and 1000.');
    elsif q.queue_keep_tenants <= interval '0' or q.queue_keep_tenants > interval '10 years' then
        perform pgq_task._raise_invalid(format('empty tenants cannot be kept for %s', q.queue_keep_tenants),
                                        'Give an interval like 1 day, or null for a queue without tenants.');
    elsif param in ('error_queue', 'max_attempts') then
        perform pgq_task._require_end_of_errors(q.queue_name);
    end if;
    return 1;
end;
$$;

create or replace function pgq_task._require_end_of_errors(i_queue text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 if failed tasks would come back to the queue through its error queue, or through that queue's error
-- queue.
declare
    v_queue text := i_queue;
    v_error text;
    v_seen  text[] := '{}';
begin
    while v_queue <> all (v_seen)
    loop
        v_seen := v_seen || v_queue;
        select q.queue_error_queue into v_error from pgq_task.queue q where q.queue_name = v_queue;
        -- A missing queue may be created, unless its name would be too long.
        exit when not found and octet_length(v_queue) > 248;
        v_queue := coalesce(v_error, v_queue || '.failed');
        perform pgq_task._require_queue_name('error queue', v_queue);
        if v_queue = i_queue then
            perform pgq_task._raise_invalid(format('what fails in task queue %L would come back to it', i_queue),
                                            'Name an error queue whose own error queue is another one.');
        end if;
    end loop;
end;
$$;

create or replace function pgq_task.pause_queue(queue text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pauses a queue and its tenants: from the commit on their tasks cannot be claimed. Claimed tasks are finished as usual,
-- and tasks are pushed as usual.
declare
    q   constant pgq_task.queue := pgq_task._lock_queue(queue);
begin
    update pgq_task.queue t
       set queue_paused = coalesce(q.queue_paused, now())
     where t.queue_paused is null and q.queue_id in (t.queue_id, t.queue_parent);
end;
$$;

create or replace function pgq_task.resume_queue(queue text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends the pause of a queue, and of the tenants that were paused with it.
declare
    q   constant pgq_task.queue := pgq_task._lock_queue(queue);
begin
    update pgq_task.queue t
       set queue_paused = null
     where t.queue_paused = q.queue_paused and q.queue_id in (t.queue_id, t.queue_parent);
    perform pg_notify('pgq_task', queue);
end;
$$;
