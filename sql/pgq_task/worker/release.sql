create or replace function pgq_task.release(
    claimant text, ids bigint[], versions int4[], delays interval[] default null, reasons text[] default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Releases tasks, as if the claimant had not claimed them: the attempt does not count. Tasks that were cancelled
-- meanwhile go to the error queue.
-- Parameters:
--      versions    - their versions, as claim() or renew() returned them
--      delays      - one for each, or null: time until the task is available again; null for its previous position
--      reasons     - one for each, or null: the error that the tasks are shown with; null keeps it
-- Returns: the ids of the tasks that were not released, because another claimant has them, or has finished them.
-- Errors: PQ072 lists of different length, a negative delay
#variable_conflict use_column
declare
    v_now       constant bigint := pgq_task._position_now();
    v_done      bigint[];
    v_queues    int4[];
    v_cancelled constant boolean := exists (select from pgq_task.cancellation c where c.id = any (ids));
begin
    perform pgq_task._require_same_length(ids, versions), pgq_task._require_one_each('delays', cardinality(delays), ids),
            pgq_task._require_one_each('reasons', cardinality(reasons), ids);
    if v_cancelled then
        select array_agg(t.queue_id) into v_queues
          from pgq_task.task t
         where t.id = any (ids) and t.claimant = release.claimant and pgq_task._cancelled(t.id) is not null;
        if v_queues is not null then
            perform pgq_task._make_error_queues(v_queues);
        end if;
    end if;
    with given as (
        select t.id, d.delay, d.reason
          from unnest(release.ids, release.versions, release.delays, release.reasons) d (id, version, delay, reason)
          join pgq_task.task t on t.id = any (array[d.id]) and t.version = d.version
          join pgq_task.queue q
            on q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._require_right(t.queue_id, 'claim'))
         where t.claimant = release.claimant and t.lease is not null
         order by d.id
           for no key update of t),
    back as (
        update pgq_task.task t
           set version = t.version + 1, lease = null, claimant = null, attempts = greatest(t.attempts - 1, 0),
               error = coalesce(given.reason, t.error),
               pos = case when given.delay <> interval '0' then pgq_task._position_at(null, given.delay)
                          else least(t.pos, v_now) end
          from given
         where t.id = any (array[given.id])
        returning t.id, t.queue_id, t.priority, t.pos),
    -- Claims must look for the tasks at their positions.
    ahead as (
        insert into pgq_task.mark (queue_id, priority, generation, low, ahead)
        select l.queue_id, l.priority, l.generation, l.low, b.pos
          from (select queue_id, priority, min(pos) as pos from back where pos <= v_now group by queue_id, priority) b
          join pgq_task.marked_lane l using (queue_id, priority)
         where b.pos < l.ahead),
    woken as (
        select pgq_task._wake_workers(q.queue_id, q.queue_name)
          from pgq_task.queue q
         where q.queue_id in (select queue_id from back))
    select array_agg(back.id), array_agg(back.queue_id) into v_done, v_queues
      from back, (select count(*) from woken) w;
    perform pgq_task._count_each('released', v_queues);
    if v_cancelled then
        perform pgq_task._to_error_queue(d.id, pgq_task._cancelled(d.id))
           from (select u.id from unnest(v_done) u (id) order by u.id) d
          where pgq_task._cancelled(d.id) is not null;
    end if;
    if coalesce(cardinality(v_done), 0) < cardinality(ids) then
        return query select d.id from unnest(ids) d (id) where d.id <> all (coalesce(v_done, '{}'));
    end if;
end;
$$;

create or replace function pgq_task.get_leases(claimant text, ids bigint[], lock boolean default false)
returns table (id bigint, version int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns which of these tasks the claimant has, and their versions: for a worker that does not know whether its last
-- renewal succeeded.
-- Parameters:
--      lock        - prevent renewals from changing them until the transaction ends
-- Returns: the tasks that were not claimed or changed by others since, even if their leases have ended. Tasks of queues
--      that the caller may not claim from are left out.
#variable_conflict use_column
begin
    if lock then
        perform from pgq_task.task t
           join pgq_task.queue q on q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._has_right(t.queue_id, 'claim'))
          where t.id = any (get_leases.ids) and t.claimant = get_leases.claimant and t.lease is not null
          order by t.id
            for no key update of t;
    end if;
    return query
        select t.id, t.version
          from pgq_task.task t
          join pgq_task.queue q on q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._has_right(t.queue_id, 'claim'))
         where t.id = any (get_leases.ids) and t.claimant = get_leases.claimant and t.lease is not null;
end;
$$;

create or replace function pgq_task.pop(queue text, max_tasks int4 default 1, claimant text default 'pop')
returns setof pgq_task.claimed
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes available tasks from a queue, those that have been available for longest first. When the transaction commits
-- they are gone: they are processed at most once. A rollback puts them back.
-- Parameters:
--      max_tasks   - maximum number of tasks
--      claimant    - name of the claimant, for the history
-- Returns: the tasks, those of the highest priority first. No row if none is available, or the queue is paused.
-- Errors: 42501 no right to claim from it, PQ072 a limit that is not positive, an empty claimant
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
         where t.id = any (array(select c.id from unnest(v_claimed) c))
        returning t.*)
    select array_agg(g::pgq_task.task) into v_tasks from gone g;
    perform pgq_task._count_each('popped', array(select t.queue_id from unnest(v_tasks) t));
    perform pgq_task._keep_finished(v_tasks, 'popped');
    perform pgq_task._release_after(v_tasks);
    return query select * from unnest(v_claimed);
end;
$$;
