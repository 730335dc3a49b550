create or replace function pgq_task._finished_number(i_keep interval, i_time timestamptz)
returns int4
language sql stable
as $$
-- Returns the number of the table that is written at a given time, for a queue that keeps tasks for this long. Tables
-- change at intervals of at least a minute, so that none becomes completely old only between two calls of
-- pgq_task.sweep().
    select (pg_catalog.floor(extract(epoch from i_time) / greatest(extract(epoch from i_keep) / 3, 60)) % 5)::int4;
$$;

create or replace function pgq_task._make_finished_tables()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger on pgq_task.queue: creates the tables for a queue that keeps finished tasks.
declare
    v_table text;
begin
    if to_regclass(format('pgq_task.finished_%s_0', new.queue_id)) is not null then
        return null;
    end if;
    for n in 0 .. 4
    loop
        v_table := format('pgq_task.finished_%s_%s', new.queue_id, n);
        execute format('create table %s (check (queue_id = %s)) inherits (pgq_task.finished)'
                       ' with (fillfactor = 100, autovacuum_enabled = off, toast.autovacuum_enabled = off)', v_table, new.queue_id);
        execute format('create index on %s (id)', v_table);
        execute format('create index on %s (finished)', v_table);
    end loop;
    return null;
end;
$$;

create or replace trigger make_finished_tables
    after insert or update of queue_keep on pgq_task.queue
    for each row when (new.queue_keep > interval '0')
    execute function pgq_task._make_finished_tables();

create or replace function pgq_task._keep_finished(
    i_tasks pgq_task.task[], i_outcome text,
    i_ids bigint[] default null, i_versions int4[] default null, i_results jsonb[] default null, i_notes text[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Keeps these tasks if their queues keep finished tasks, and continues their flows. Every function that deletes tasks
-- calls it.
-- Parameters:
--      i_tasks     - the tasks before they were deleted
--      i_outcome   - finished, popped or deleted
--      i_ids, i_versions, i_results, i_notes   - results and notes, with the ids and versions of their tasks
declare
    v_now   constant timestamptz := clock_timestamp();
    q       record;
begin
    if exists (select from unnest(i_tasks) t where t.headers ? 'flow') then
        perform pgq_task._end_steps(i_tasks, i_outcome, i_ids, i_versions, i_results);
    end if;
    for q in
        select queue_id, queue_keep
          from pgq_task.queue
         where queue_id in (select t.queue_id from unnest(i_tasks) t) and queue_keep > interval '0'
    loop
        execute format($sql$
            insert into pgq_task.finished_%s_%s
                   (queue_id, id, priority, created, finished, outcome, claimant, attempts, last_attempt,
                    result, error, payload, headers, unique_key, order_key)
            select t.queue_id, t.id, t.priority, t.created, $1, $2, t.claimant, t.attempts, t.last_attempt,
                   r.result, coalesce(r.note, t.error), t.payload, t.headers, t.unique_key, t.order_key
              from unnest($3) t
              left join (select distinct on (id, version) * from unnest($4, $5, $6, $8) u (id, version, result, note)) r
             using (id, version)
             where t.queue_id = $7$sql$, q.queue_id, pgq_task._finished_number(q.queue_keep, v_now))
        using v_now, i_outcome, i_tasks, i_ids, i_versions, i_results, q.queue_id, i_notes;
    end loop;
end;
$$;

create or replace function pgq_task._expire_finished()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Truncates tables whose finished tasks need not be kept any longer, if they are not in use; if there are many, some of
-- them. pgq_task.sweep() calls it.
-- Returns: number of tables truncated.
declare
    v_emptied   int4 := 0;
    v_newest    timestamptz;
    f           record;
begin
    perform pgq._require_read_committed('pgq_task._expire_finished()');
    for f in
        select q.queue_keep, c.oid::regclass as name, q as queue
          from pg_inherits i
          join pg_class c on c.oid = i.inhrelid
          join pgq_task.queue q on q.queue_id = split_part(c.relname, '_', 2)::int4
         where i.inhparent = 'pgq_task.finished'::regclass and pg_relation_size(c.oid) > 0
         -- Each is locked until the end, and locks are limited.
         order by random() limit 100
    loop
        continue when not pgq_task._may_hold_up(f.queue);
        execute format('select max(finished) from %s', f.name) into v_newest;
        continue when v_newest > clock_timestamp() - f.queue_keep;
        continue when not pgq._try_lock_table(f.name::text);
        -- The sessions that were writing have ended.
        execute format('select max(finished) from %s', f.name) into v_newest;
        continue when v_newest > clock_timestamp() - f.queue_keep;
        execute format('truncate %s', f.name);
        v_emptied := v_emptied + 1;
    end loop;
    return v_emptied;
end;
$$;

create or replace function pgq_task._finished_sql(i_queue_id int4)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the query for all finished tasks of a queue that has tables for them. A query of the parent table would lock
-- the tables of all queues.
    select string_agg(format('select * from pgq_task.finished_%s_%s', i_queue_id, n), ' union all ')
      from generate_series(0, 4) n;
$$;

create or replace function pgq_task.finished_tasks(
    queue text, max_tasks int4 default 100, ids bigint[] default null,
    finished_from timestamptz default null, finished_before timestamptz default null,
    payload jsonb default null, outcome text default null)
returns setof pgq_task.finished
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the kept finished tasks of a queue, the newest first.
-- Parameters:
--      max_tasks       - maximum number of tasks; null for all
--      ids             - only these
--      finished_from, finished_before  - only those that were finished between these times
--      payload         - only those whose payload contains this, by jsonb's operator @>
--      outcome         - only those that were finished (by finish), popped (by pop) or deleted
-- Returns: the tasks in their final state, with result and time; none if the queue keeps nothing.
-- Errors: 42501 no right to read it, PQ072 an invalid limit or outcome
declare
    q   constant pgq_task.queue := pgq_task._find_queue(queue, 'read');
begin
    perform pgq_task._require_limit(max_tasks);
    if outcome not in ('finished', 'popped', 'deleted') then
        perform pgq_task._raise_invalid(format('outcome %L', outcome), 'There are finished, popped and deleted.');
    end if;
    if to_regclass(format('pgq_task.finished_%s_0', q.queue_id)) is null then
        return;
    end if;
    return query execute format($sql$
        select f.*
          from (%s) f
         where f.finished > $1
           and ($2 is null or f.id = any ($2))
           and ($3 is null or f.finished >= $3)
           and ($4 is null or f.finished < $4)
           and ($5 is null or f.payload @> $5)
           and ($6 is null or f.outcome = $6)
         order by f.finished desc, f.id desc
         limit $7$sql$, pgq_task._finished_sql(q.queue_id))
        using clock_timestamp() - q.queue_keep, ids, finished_from, finished_before, payload, outcome, max_tasks;
end;
$$;

create or replace function pgq_task.get_result(task_id bigint)
returns table (queue text, status text, result jsonb, error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Returns the status and the result of a task.
-- Parameters:
--      task_id - its id
-- Returns:
--      queue   - queue of the task, now or at its end
--      status  - uncommitted: pushed or changed by the caller's own transaction; waiting, claimed; failed: it is in an
--                error queue; finished, popped, deleted: its queue keeps finished tasks, or it belongs to a flow
--      result  - its result
--      error   - the error of the task, or of its last attempt
--      No row if the task does not exist (any more) and was not kept, or its queue was dropped.
-- Errors: 42501 no right to read the queue
#variable_conflict use_column
declare
    q   record;
begin
    return query
        select q.queue_name,
               case when t.xmin::text::bigint = pg_current_xact_id_if_assigned()::text::bigint & 4294967295 then 'uncommitted'
                    when t.lease > clock_timestamp() then 'claimed' when t.headers ? 'failed_at' then 'failed' else 'waiting' end,
               null::jsonb, coalesce(t.error, t.headers ->> 'reason')
          from pgq_task.task t
          join pgq_task.queue q on q.queue_id = t.queue_id + 0
         where t.id = get_result.task_id
           and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'read'));
    if found then
        return;
    end if;
    for q in
        select u.queue_id, u.queue_name, u.queue_keep, u.queue_restricted from pgq_task.queue u where u.queue_keep > interval '0'
    loop
        -- Tables that are read are locked, and locks are limited: a rollback to a savepoint releases them.
        begin
            execute format('select f.outcome, f.result, f.error from (%s) f where f.id = $1 and f.finished > $2'
                           ' order by f.finished desc limit 1', pgq_task._finished_sql(q.queue_id))
               into status, result, error using get_result.task_id, clock_timestamp() - q.queue_keep;
            if status is null then
                raise no_data_found;
            end if;
        exception when no_data_found or undefined_table then
            continue;
        end;
        if q.queue_restricted then
            perform pgq_task._require_right(q.queue_id, 'read');
        end if;
        queue := q.queue_name;
        return next;
        return;
    end loop;
    return query
        select s.queue_name, s.outcome, s.result, null::text
          from pgq_task.flow_step s
         where s.id = get_result.task_id and s.outcome is not null
           and (select bool_and(pgq_task._may_read(u.id) or u.queue_id is not null and pgq_task._require_right(u.id, 'read'))
                  from (select i.id, q.queue_id
                          from unnest(array[s.queue_id, s.ended_in]) i (id)
                          left join pgq_task.queue q on q.queue_id = i.id) u);
end;
$$;
