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
--      Pushes finished tasks that are kept again, as new tasks, in the order in which they were finished. They
--      have payload, priority and keys of those that they repeat, and headers that say which: origin (the
--      queue), replay_of (the id) and finished_at.
--
-- Parameters:
--      queue       - the queue whose tasks are to be repeated
--      target      - the queue to push to; null for the same one
--      others      - which, as in pgq_task.finished_tasks(7): of more than max_tasks those finished last; null for all
-- Returns:
--      The ids of the new tasks. Where the target has a task with the same unique_key already, that one's.
-- Errors:
--      PQ070 no such queue, 42501 no right to read the one or insert into the other, PQ072 a limit or an outcome
--      that makes no sense
-- Tables:
--      inserts into pgq_task.task
-- ----------------------------------------------------------------------
begin
    -- Also if there is nothing to push.
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
