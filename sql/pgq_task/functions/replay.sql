create or replace function pgq_task.replay(
    queue text, target text default null, ids bigint[] default null,
    finished_from timestamptz default null, finished_before timestamptz default null,
    payload jsonb default null, outcome text default null, max_tasks int4 default null)
returns setof bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.replay(8)
--
--      Pushes kept finished tasks again, as new tasks, in the order in which they were finished. The new tasks have the
--      payload, priority and keys of the old ones, and headers that identify these: origin (the queue), replay_of (the
--      id) and finished_at.
--
-- Parameters:
--      queue       - the queue whose finished tasks to push
--      target      - the queue to push to; null for the same one
--      others      - the tasks, as in pgq_task.finished_tasks(7); if there are more than max_tasks, those finished
--                    last; null for all
-- Returns:
--      The ids of the new tasks. If the target already has a task with the same unique_key, the id of that task.
-- Errors:
--      PQ070 no such queue, 42501 no right to read the queue or insert into the target, PQ072 an invalid limit or
--      outcome
-- Tables:
--      inserts into pgq_task.task
-- ----------------------------------------------------------------------
begin
    -- Check this even if there is nothing to push.
    if target is not null then
        perform pgq_task.require_insert(array[target]);
    end if;
    return query
        select pgq_task.push(coalesce(target, queue), f.payload, priority => f.priority, unique_key => f.unique_key,
                             order_key => f.order_key,
                             headers => coalesce(nullif(f.headers, 'null'), '{}') || jsonb_build_object(
                                 'origin', queue, 'replay_of', f.id, 'finished_at', f.finished))
          from (select k.*
                  from pgq_task.finished_tasks(queue, max_tasks, ids, finished_from, finished_before, payload, outcome) k
                 order by k.finished, k.id) f;
end;
$$;
