create or replace function pgq_task.release(claimant text, ids bigint[], versions int4[], delays interval[] default null)
returns setof bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.release(4)
--
--      Gives tasks back as if the claimant had not claimed them: the attempt does not count. Tasks that were cancelled
--      meanwhile go to the error queue.
--
-- Parameters:
--      claimant    - the claimant of the tasks
--      ids         - their ids
--      versions    - their versions, as claim() or renew() returned them
--      delays      - one for each, or null: time until the task is available again; null for its previous position
-- Returns:
--      The ids of the tasks that were not given back, because another claimant has them, or has finished them.
-- Errors:
--      PQ072 lists of different length, a negative delay
-- Tables:
--      updates pgq_task.task
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    v_now       constant bigint := pgq_task.position_now();
    v_done      bigint[];
    v_queues    int4[];
    v_lanes     int4[];
    v_cancelled constant boolean := exists (select from pgq_task.cancellation c where c.id = any (ids));
begin
    perform pgq_task.require_same_length(ids, versions), pgq_task.require_one_each('delays', cardinality(delays), ids);
    if v_cancelled then
        select array_agg(t.queue_id), array_agg(t.priority::int4) into v_queues, v_lanes
          from pgq_task.task t
         where t.id = any (ids) and t.claimant = release.claimant and pgq_task.cancelled(t.id) is not null;
        if v_queues is not null then
            perform pgq_task.make_error_queues(v_queues, v_lanes);
        end if;
    end if;
    with given as (
        select t.id, d.delay
          from unnest(release.ids, release.versions, release.delays) d (id, version, delay)
          join pgq_task.task t on t.id = d.id and t.version = d.version
          join pgq_task.queue q
            on q.queue_id = t.queue_id and (not q.queue_restricted or pgq_task.require_right(t.queue_id, 'claim'))
         where t.claimant = release.claimant and t.lease is not null
         order by t.id
           for no key update of t),
    back as (
        update pgq_task.task t
           set version = t.version + 1, lease = null, claimant = null, attempts = greatest(t.attempts - 1, 0),
               pos = case when given.delay <> interval '0' then pgq_task.position_at(null, given.delay)
                          else least(t.pos, v_now) end
          from given
         where t.id = given.id
        returning t.id, t.queue_id, t.priority, t.pos),
    -- Claims must look for the tasks at their positions.
    ahead as (
        select setval(l.lane_ahead, b.pos)
          from (select queue_id, priority, min(pos) as pos from back where pos <= v_now group by queue_id, priority) b
          join pgq_task.lane l using (queue_id, priority)
         where b.pos < pg_sequence_last_value(l.lane_ahead)),
    woken as (
        select pgq_task.wake_workers(q.queue_id, q.queue_name)
          from pgq_task.queue q
         where q.queue_id in (select queue_id from back))
    select array_agg(back.id), array_agg(back.queue_id) into v_done, v_queues
      from back, (select count(*) from ahead) a, (select count(*) from woken) w;
    perform pgq_task.count_each('released', v_queues);
    if v_cancelled then
        perform pgq_task.bury(d.id, pgq_task.cancelled(d.id))
           from (select u.id from unnest(v_done) u (id) order by u.id) d
          where pgq_task.cancelled(d.id) is not null;
    end if;
    if coalesce(cardinality(v_done), 0) < cardinality(ids) then
        return query select d.id from unnest(ids) d (id) where d.id <> all (coalesce(v_done, '{}'));
    end if;
end;
$$;
