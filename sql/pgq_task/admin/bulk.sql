create or replace function pgq_task.change_tasks(
    queue text, filter jsonb, change jsonb, max_tasks int4 default null, claimed boolean default false)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Applies one change to all tasks of a queue that match a filter.
-- Parameters:
--      filter      - as for pgq_task.list_tasks(3); null for all
--      change      - as in the changes of pgq_task.modify(7), without id and version: {"delay": "1 hour"},
--                    {"queue": "slow", "priority": 3}, {"stop": true}, ...
--      max_tasks   - maximum number of tasks, those with the lowest ids; null for all
--      claimed     - include claimed tasks; otherwise they are skipped
-- Returns: number of tasks. Steps that wait for others of their flow get no time.
-- Errors: PQ071 another task has the unique_key, PQ072 invalid arguments, 42501 no right to do this, or no right to
--      read, which any filter except by ids needs
#variable_conflict use_variable
declare
    v_ids   bigint[];
begin
    if jsonb_typeof(change) is distinct from 'object' or change ?| '{id,version}' or change = '{}' then
        perform pgq_task._raise_invalid('the change says nothing, or names a task', 'Give an object like {"delay": "1 hour"}.');
    end if;
    perform pgq_task._require_modification('change', jsonb_build_array(change || '{"id": 0, "version": 0}'));
    perform pg_current_xact_id();
    v_ids := pgq_task._lock_found('change', queue, filter, max_tasks, claimed);
    -- Check this even if it finds no tasks.
    if change ->> 'queue' is not null then
        perform pgq_task._find_or_add(change ->> 'queue');
    end if;
    if coalesce(change ->> 'at', change ->> 'delay') is not null then
        perform pgq_task._position_at((change ->> 'at')::timestamptz, (change ->> 'delay')::interval);
        v_ids := pgq_task._startable(v_ids);
    end if;
    for n in 1 .. coalesce(cardinality(v_ids), 0) by 10000
    loop
        perform pgq_task._change_locked(v_ids[n : n + 9999], null, change);
    end loop;
    return coalesce(cardinality(v_ids), 0);
end;
$$;

create or replace function pgq_task.remove_tasks(
    queue text, filter jsonb, max_tasks int4 default null, claimed boolean default false)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Deletes all tasks of a queue that match a filter.
-- Parameters:
--      filter      - as for pgq_task.list_tasks(3); null for all
--      max_tasks   - maximum number of tasks, those with the lowest ids; null for all
--      claimed     - include claimed tasks; otherwise they are skipped
-- Returns: number of tasks.
-- Errors: PQ072 invalid arguments, 42501 no right to do this, or no right to read, which any filter except by ids needs
#variable_conflict use_variable
declare
    v_ids   bigint[];
begin
    v_ids := pgq_task._lock_found('delete', queue, filter, max_tasks, claimed);
    for n in 1 .. coalesce(cardinality(v_ids), 0) by 10000
    loop
        perform pgq_task._delete_locked(v_ids[n : n + 9999]);
    end loop;
    return coalesce(cardinality(v_ids), 0);
end;
$$;

create or replace function pgq_task.requeue(queue text, filter jsonb default null, max_tasks int4 default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sends tasks of an error queue back to the queues where they failed: available at once, with attempts reset to 0, and
-- with their previous headers and unique_key.
-- Parameters:
--      queue       - name of the error queue
--      filter      - as for pgq_task.list_tasks(3); null for all
--      max_tasks   - maximum number of tasks, those with the lowest ids; null for all
-- Returns: number of tasks. Tasks that did not come from another queue stay, and so do tasks whose unique_key another
--      task has now.
-- Errors: or the queue that a task came from no longer exists; PQ072 invalid arguments; 42501 no right to change tasks
--      here, and to claim or read them, or to insert them there
#variable_conflict use_variable
declare
    v_found     bigint[];
    v_ids       bigint[];
    v_changes   jsonb[];
    v_count     bigint := 0;
begin
    perform pg_current_xact_id();
    v_found := pgq_task._lock_found('change', queue, coalesce(filter, '{}'), max_tasks, false,
                                    's.headers ?& ''{origin,failed_at}''');
    for n in 1 .. coalesce(cardinality(v_found), 0) by 10000
    loop
        select array_agg(w.id), array_agg(jsonb_build_object(
                   'queue', w.origin, 'delay', '0', 'unique_key', w.key,
                   'headers', nullif(w.headers - pgq_task._failure_headers() || coalesce(w.headers -> 'before', '{}'), '{}')))
          into v_ids, v_changes
          from (select t.id, t.headers, t.headers ->> 'origin' as origin, t.headers ->> 'unique_key' as key,
                       row_number() over (partition by t.headers ->> 'origin', t.headers ->> 'unique_key' order by t.id) as nr
                  from pgq_task.task t
                 where t.id = any (v_found[n : n + 9999])) w
          left join pgq_task.queue q on q.queue_name = w.origin
         where w.key is null
            or w.nr = 1 and not exists (select from pgq_task.task o where o.queue_id = q.queue_id and o.unique_key = w.key);
        perform pgq_task._change_locked(v_ids, v_changes);
        v_count := v_count + coalesce(cardinality(v_ids), 0);
    end loop;
    return v_count;
end;
$$;

create or replace function pgq_task._lock_found(
    i_action text, i_queue text, i_filter jsonb, i_max_tasks int4, i_claimed boolean, i_condition text default 'true')
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- Locks the tasks of a queue that match a filter, in the order of their ids. Claimed tasks, and tasks locked by a
-- session that is about to claim or finish them, are included only on request.
declare
    v_where constant text := pgq_task._filter_sql(i_filter);
    q       pgq_task.queue;
    v_ids   bigint[];
begin
    perform pgq_task._require_limit(i_max_tasks);
    if pgq_task._nothing_failed_yet(i_queue) then
        return null;
    end if;
    q := pgq_task._find_queue(i_queue, i_action);
    -- The number of tasks that match a filter reveals their contents.
    if i_filter - 'ids' <> '{}' then
        perform pgq_task._find_queue(i_queue, 'read');
    end if;
    -- All at once: changing one of them may change others of them too, which a cursor would then skip.
    execute format(
        'select array_agg(f.id) from (select s.id from pgq_task.task_status s where s.queue_id%s = %s and %s and %s and %s'
        ' order by s.id limit %s for update %s) f',
        case when i_filter ? 'ids' then ' + 0' end, q.queue_id, v_where, i_condition,
        case when i_claimed then 'true' else '(s.lease is null or s.lease <= statement_timestamp())' end,
        coalesce(i_max_tasks::text, 'all'), case when i_claimed then '' else 'skip locked' end)
        into v_ids;
    return v_ids;
end;
$$;
