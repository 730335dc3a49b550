create or replace function pgq_task.get_result(task_id bigint)
returns table (queue text, status text, result jsonb, error text)
language plpgsql
stable
security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.get_result(1)
--
--      Returns the status and the result of a task.
--
-- Parameters:
--      task_id - its id
-- Returns:
--      queue   - queue of the task, now or at its end
--      status  - uncommitted: pushed or changed by the caller's own transaction; waiting, claimed; failed: it is in an
--                error queue; finished, popped, deleted: its queue keeps finished tasks
--      result  - its result
--      error   - the error of the task, or of its last attempt
--      No row if the task does not exist (any more) and was not kept.
-- Errors:
--      42501 no right to read the queue
-- Tables:
--      reads pgq_task.task, pgq_task.finished
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    q   record;
begin
    return query
        select q.queue_name,
               case when t.xmin::text::bigint = pg_current_xact_id_if_assigned()::text::bigint & 4294967295 then 'uncommitted'
                    when t.lease > clock_timestamp() then 'claimed' when t.headers ? 'buried_at' then 'failed' else 'waiting' end,
               null::jsonb, coalesce(t.error, t.headers ->> 'reason')
          from pgq_task.task t
          join pgq_task.queue q using (queue_id)
         where t.id = get_result.task_id
           and (not q.queue_restricted or pgq_task.require_right(q.queue_id, 'read'));
    if found then
        return;
    end if;
    for q in
        select u.queue_id, u.queue_name, u.queue_keep, u.queue_restricted from pgq_task.queue u where u.queue_keep > interval '0'
    loop
        -- Tables that are read are locked, and locks are limited: a rollback to a savepoint releases them.
        begin
            execute format('select f.outcome, f.result, f.error from (%s) f where f.id = $1 and f.finished > $2'
                           ' order by f.finished desc limit 1', pgq_task.finished_sql(q.queue_id))
               into status, result, error using get_result.task_id, clock_timestamp() - q.queue_keep;
            if status is null then
                raise no_data_found;
            end if;
        exception when no_data_found or undefined_table then
            continue;
        end;
        if q.queue_restricted then
            perform pgq_task.require_right(q.queue_id, 'read');
        end if;
        queue := q.queue_name;
        return next;
        return;
    end loop;
end;
$$;
