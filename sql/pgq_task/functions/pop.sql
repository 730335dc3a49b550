create or replace function pgq_task.pop(queue text, max_tasks int4 default 1, claimant text default 'pop')
returns setof pgq_task.claimed
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.pop(3)
--
--      Removes available tasks from a queue, those that have been available for longest first. When the transaction
--      commits they are gone: they are processed at most once. A rollback puts them back.
--
-- Parameters:
--      queue       - its name
--      max_tasks   - maximum number of tasks
--      claimant    - name of the claimant, for the history
-- Returns:
--      The tasks, those of the highest priority first. No row if none is available, or the queue is paused.
-- Errors:
--      PQ070 no such queue, 42501 no right to claim from it, PQ072 a limit that is not positive, an empty claimant
-- Tables:
--      deletes from pgq_task.task
-- ----------------------------------------------------------------------
declare
    v_claimed   pgq_task.claimed[];
    v_tasks     pgq_task.task[];
begin
    v_claimed := array(select c from pgq_task.claim(array[queue], claimant, null, max_tasks, false) c);
    if v_claimed = '{}' then
        return;
    end if;
    with gone as (
        delete from pgq_task.task t
         using unnest(v_claimed) c
         where t.id = c.id
        returning t.*)
    select array_agg(g::pgq_task.task) into v_tasks from gone g;
    perform pgq_task.count_each('popped', array(select t.queue_id from unnest(v_tasks) t));
    perform pgq_task.keep_finished(v_tasks, 'popped');
    perform pgq_task.release_after(v_tasks);
    return query select * from unnest(v_claimed);
end;
$$;
