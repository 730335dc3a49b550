create or replace function pgq_task.held(claimant text, ids bigint[], lock boolean default false)
returns table (id bigint, version int4)
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.held(3)
--
--      Returns which of these tasks the claimant has, and their versions: for a worker that does not know whether its
--      last renewal succeeded.
--
-- Parameters:
--      claimant    - the claimant of the tasks
--      ids         - their ids
--      lock        - prevent renewals from changing them until the transaction ends
-- Returns:
--      The tasks that were not claimed or changed by others since, even if their leases have ended. Tasks of queues
--      that the caller may not claim from are left out.
-- Tables:
--      reads pgq_task.task, pgq_task.queue
-- ----------------------------------------------------------------------
#variable_conflict use_column
begin
    if lock then
        perform from pgq_task.task t
           join pgq_task.queue q on q.queue_id = t.queue_id and (not q.queue_restricted or pgq_task.has_right(t.queue_id, 'claim'))
          where t.id = any (held.ids) and t.claimant = held.claimant and t.lease is not null
          order by t.id
            for no key update of t;
    end if;
    return query
        select t.id, t.version
          from pgq_task.task t
          join pgq_task.queue q on q.queue_id = t.queue_id and (not q.queue_restricted or pgq_task.has_right(t.queue_id, 'claim'))
         where t.id = any (held.ids) and t.claimant = held.claimant and t.lease is not null;
end;
$$;
