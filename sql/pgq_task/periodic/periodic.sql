create or replace function pgq_task.set_periodic(
    name text, queue text, cron text, time_zone text, payload jsonb, priority int4 default 0, missed text default 'last',
    headers jsonb default null, unique_key text default null, order_key text default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates or changes a task that is pushed periodically. Workers of pgqpy push the runs, whichever queues they serve.
-- They also evaluate the cron expression, which is not checked here. They notice changes within 30 seconds.
-- Parameters:
--      name        - unique name of the periodic task
--      queue       - queue to push to
--      cron        - cron expression: minute, hour, day, month, day of the week; or six fields, with the second first; or
--                    an interval in seconds, such as @every 90s
--      time_zone   - time zone of the cron expression
--      payload, priority, headers, unique_key, order_key   - of each task, as in pgq_task.push(8): with a
--                    unique_key a run is skipped while the queue still has the previous one
--      missed      - the runs to push of those that were due while no worker was running: the last one (last), all of
--                    them (all), or none (skip)
-- Returns: 1 if it was created, 0 if it existed. If its schedule has changed, an existing one is due from now on;
--      otherwise it continues where it was.
-- Errors: PQ072 invalid arguments, 42501 no right to insert into the queue, or into the previous one
#variable_conflict use_column
declare
    v_payload   constant jsonb := coalesce(set_periodic.payload, 'null');
    v_priority  constant int4 := coalesce(set_periodic.priority, 0);
    v_headers   constant jsonb := nullif(set_periodic.headers, 'null');
    v_queue     int4;
begin
    if coalesce(set_periodic.name, '') = '' or coalesce(set_periodic.cron, '') = '' or coalesce(set_periodic.time_zone, '') = '' then
        perform pgq_task._raise_invalid('a periodic task without name, cron expression or time zone', 'Give all of them.');
    elsif greatest(length(set_periodic.cron), length(set_periodic.time_zone)) > 1000 then
        -- Workers of all queues evaluate it.
        perform pgq_task._raise_invalid('a cron expression or time zone that is too long', 'Each has at most 1000 characters.');
    elsif coalesce(set_periodic.missed, '') not in ('last', 'all', 'skip') then
        perform pgq_task._raise_invalid(format('missed is %L', set_periodic.missed), 'One of last, all, skip.');
    end if;
    perform pgq_task._require_priority(v_priority);
    perform pgq_task._require_attributes(set_periodic.headers, set_periodic.unique_key, set_periodic.order_key);
    select q.queue_id into v_queue
      from pgq_task.queue q
     where q.queue_name = set_periodic.queue
       and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'insert'))
       for key share;
    if not found then
        v_queue := pgq_task._add_tenant(set_periodic.queue);
    end if;
    loop
        insert into pgq_task.periodic (periodic_name, queue_id, cron, time_zone, payload, priority, headers, unique_key,
                                       order_key, missed, last_due)
        values (set_periodic.name, v_queue, set_periodic.cron, set_periodic.time_zone, v_payload, v_priority, v_headers,
                set_periodic.unique_key, set_periodic.order_key, set_periodic.missed, clock_timestamp())
        on conflict (periodic_name) do nothing;
        if found then
            return 1;
        end if;
        perform from pgq_task.periodic p where p.periodic_name = set_periodic.name for no key update;
        exit when found;
        -- It was dropped just now.
    end loop;
    -- Changing one made by another role needs the right to push to its previous queue. Look when it is locked: that role
    -- may have made or moved it until then.
    perform pgq_task._require_right(q.queue_id, 'insert')
       from pgq_task.periodic p
       join pgq_task.queue q using (queue_id)
      where p.periodic_name = set_periodic.name and q.queue_restricted;
    update pgq_task.periodic p
       set queue_id = v_queue, cron = set_periodic.cron, time_zone = set_periodic.time_zone, payload = v_payload,
           priority = v_priority, headers = v_headers, unique_key = set_periodic.unique_key,
           order_key = set_periodic.order_key, missed = set_periodic.missed,
           last_due = case when (p.cron, p.time_zone) = (set_periodic.cron, set_periodic.time_zone) then p.last_due
                           else clock_timestamp() end
     where p.periodic_name = set_periodic.name
       and (p.queue_id, p.cron, p.time_zone, p.payload, p.priority, p.headers, p.unique_key, p.order_key, p.missed)
           is distinct from (v_queue, set_periodic.cron, set_periodic.time_zone, v_payload, v_priority, v_headers,
                             set_periodic.unique_key, set_periodic.order_key, set_periodic.missed);
    return 0;
end;
$$;

create or replace function pgq_task.push_periodic(name text, previous timestamptz, last_due timestamptz, due timestamptz[])
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pushes runs of a periodic task, unless another worker has pushed them. Workers of pgqpy call it.
-- Parameters:
--      previous    - its last_due, as returned by pgq_task.get_periodic_info()
--      last_due    - the last run that is due now
--      due         - the runs to push; other runs up to last_due are skipped
-- Returns: false if the periodic task was changed since the caller read it, or is paused; then nothing was done.
-- Errors: PQ072 invalid times, 42501 no right to insert into its queue
#variable_conflict use_column
declare
    p   record;
begin
    -- Nor null: PostgreSQL would quote the row that it refuses.
    if (push_periodic.last_due > push_periodic.previous
        and push_periodic.last_due <= clock_timestamp() + interval '1 second') is not true
       or exists (select from unnest(push_periodic.due) d
                   where (d > push_periodic.previous and d <= push_periodic.last_due) is not true)
    then
        perform pgq_task._raise_invalid('runs that are not due, or were pushed', 'Give times between the last run and now.');
    end if;
    perform pgq_task._lock_queue_of(push_periodic.name);
    update pgq_task.periodic u
       set last_due = push_periodic.last_due,
           last_run = greatest(last_run, (select max(d) from unnest(push_periodic.due) d))
      from pgq_task.queue q
     where u.periodic_name = push_periodic.name and u.last_due = push_periodic.previous and u.paused is null
       and q.queue_id = u.queue_id
    returning u.*, q.queue_name, q.queue_restricted into p;
    if not found then
        return false;
    elsif p.queue_restricted then
        -- Skipping runs needs the same right as pushing them.
        perform pgq_task._require_right(p.queue_id, 'insert');
    end if;
    perform pgq_task._push_run(push_periodic.name, d) from unnest(push_periodic.due) d;
    return true;
end;
$$;

create or replace function pgq_task._lock_queue_of(i_periodic text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Waits for a session that drops the queue of a periodic task, before this one holds anything that the other waits for.
-- Raises 42501 before it holds the queue, which administrators wait for.
begin
    perform pgq_task._require_right(q.queue_id, 'insert')
       from pgq_task.periodic u
       join pgq_task.queue q using (queue_id)
      where u.periodic_name = i_periodic and q.queue_restricted;
    perform from pgq_task.queue q
      where q.queue_id = (select u.queue_id from pgq_task.periodic u where u.periodic_name = i_periodic)
        for share;
end;
$$;

create or replace function pgq_task._push_run(i_name text, i_due timestamptz)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pushes a run of a periodic task; with a unique_key only if no run before it waits, or is under way.
declare
    p           record;
    v_headers   jsonb;
begin
    select t.*, q.queue_name into p
      from pgq_task.periodic t
      join pgq_task.queue q using (queue_id)
     where t.periodic_name = i_name;
    v_headers := coalesce(p.headers, '{}') || jsonb_build_object('periodic', i_name, 'due', i_due);
    if p.unique_key is null then
        return pgq_task.push(p.queue_name, p.payload, priority => p.priority, order_key => p.order_key, headers => v_headers);
    end if;
    return u.id
      from pgq_task.push_unique(p.queue_name, p.payload, p.unique_key, 'running', priority => p.priority, order_key => p.order_key,
                                headers => v_headers) u;
end;
$$;

create or replace function pgq_task.run_periodic(name text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pushes a run of a periodic task now, even if it is paused. Its schedule does not change.
-- Returns: the task's id, as from pgq_task.push(8).
-- Errors: PQ072 there is no periodic task of this name, 42501 no right to insert into its queue
begin
    perform pgq_task._lock_queue_of(run_periodic.name);
    update pgq_task.periodic set last_run = now() where periodic_name = run_periodic.name;
    if not found then
        perform pgq_task._raise_no_periodic(name);
    end if;
    return pgq_task._push_run(name, now());
end;
$$;

create or replace function pgq_task.get_periodic_info(periodic text default null)
returns table (name text, queue text, cron text, time_zone text, payload jsonb, priority int2, missed text,
               last_due timestamptz, last_run timestamptz, paused timestamptz, headers jsonb, unique_key text, order_key text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the periodic tasks.
-- Parameters:
--      periodic    - name of a periodic task, null for all
-- Returns: their settings; last_run is the last run that was pushed, null if there was none; last_due the last one that
--      was pushed or skipped, before the first one the time of registration; paused the time since which no run is
--      pushed. payload, headers and keys are null for a restricted queue that the caller may not read.
-- Errors: PQ072 there is no periodic task of this name
#variable_conflict use_column
begin
    return query
        select p.periodic_name, q.queue_name, p.cron, p.time_zone, case when r.may then p.payload end, p.priority, p.missed,
               p.last_due, p.last_run, p.paused, case when r.may then p.headers end, case when r.may then p.unique_key end,
               case when r.may then p.order_key end
          from pgq_task.periodic p
          join pgq_task.queue q using (queue_id)
         cross join lateral (select not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read') as may) r
         where p.periodic_name = get_periodic_info.periodic or get_periodic_info.periodic is null
         order by p.periodic_name;
    if not found and get_periodic_info.periodic is not null then
        perform pgq_task._raise_no_periodic(get_periodic_info.periodic);
    end if;
end;
$$;

create or replace function pgq_task.pause_periodic(name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pauses a periodic task: from the commit on none of its runs are pushed.
-- Errors: PQ072 there is no periodic task of this name
begin
    update pgq_task.periodic set paused = coalesce(paused, now()) where periodic_name = pause_periodic.name;
    if not found then
        perform pgq_task._raise_no_periodic(name);
    end if;
end;
$$;

create or replace function pgq_task.resume_periodic(name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends the pause of a periodic task. Runs that were due during the pause are not pushed later.
-- Errors: PQ072 there is no periodic task of this name
begin
    update pgq_task.periodic
       set paused = null, last_due = case when paused is null then last_due else greatest(last_due, clock_timestamp()) end
     where periodic_name = resume_periodic.name;
    if not found then
        perform pgq_task._raise_no_periodic(name);
    end if;
end;
$$;

create or replace function pgq_task.drop_periodic(name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Deletes a periodic task. Tasks that were pushed stay. A worker whose app still defines it creates it again when it
-- starts.
-- Errors: PQ072 there is no periodic task of this name
begin
    delete from pgq_task.periodic where periodic_name = drop_periodic.name;
    if not found then
        perform pgq_task._raise_no_periodic(name);
    end if;
end;
$$;

create or replace function pgq_task._raise_no_periodic(i_name text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072.
begin
    perform pgq_task._raise_invalid(format('there is no periodic task %s', coalesce(quote_literal(i_name), 'NULL')),
                                    'pgq_task.get_periodic_info() lists those there are.');
end;
$$;
