create or replace function pgq_task.finish_and_claim(
    claimant text, id bigint, version int4, queue text, result jsonb default null, lease interval default null,
    random_choice boolean default true)
returns pgq_task.claimed
language plpgsql
security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.finish_and_claim(7)
--
--      Finishes a task and claims the next one of a queue, in one round trip and one transaction.
--
-- Parameters:
--      claimant, id, version, result   - as in pgq_task.finish(4)
--      queue                           - name of the queue to claim from
--      lease, random_choice            - as in pgq_task.claim(5)
-- Returns:
--      The task; all null if none is available, or the queue is paused.
-- Errors:
--      Those of both functions; then nothing was finished and nothing claimed.
-- Tables:
--      reads pgq_task.queue, pgq_task.lane; deletes from and updates pgq_task.task
-- Notes:
--      Workers that take one task at a time call nothing else. So the usual case is done here without function calls,
--      which cost as much as the work itself: a task of a queue without limits, rights or history, and the next task in
--      the highest lane. All other cases are left to finish(4) and claim(5).
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    choice      constant int4 := 8;
    at_times    constant int4 := 32;
    v_now       constant timestamptz := clock_timestamp();
    v_now_pos   constant bigint := pgq_task.position_of(v_now);
    v_start     bigint;
    v_take      int4;
    v_salt      bigint;
    v_count     bigint;
    l           record;
    v_task      pgq_task.claimed;
begin
    if finish_and_claim.lease is not null then
        perform pgq_task.require_lease(lease);
    end if;
    select q.queue_id, q.queue_name, q.queue_claimed, q.queue_finished, n.priority, n.lane_ahead, n.lane_low,
           v_now + coalesce(finish_and_claim.lease, q.queue_lease) as lease, q.queue_max_attempts as max_attempts
      into l
      from pgq_task.queue q
      join pgq_task.lane n using (queue_id)
     where q.queue_name = finish_and_claim.queue and finish_and_claim.claimant <> ''
       and q.queue_paused is null and not q.queue_restricted and not q.queue_limited and q.queue_keep = interval '0'
       -- Wait for a session that drops the queue, and look afterwards: the queue's sequences would be gone.
       and case when pg_relation_is_updatable(n.lane_low, false) is not null then pg_relation_filenode(n.lane_low) end is not null
     order by n.queue_id desc, n.priority desc
     limit 1;
    delete from pgq_task.task t
     where t.id = finish_and_claim.id and t.version = finish_and_claim.version
       and t.queue_id = l.queue_id and t.order_key is null
       and (t.claimant = finish_and_claim.claimant or t.lease is null or t.lease <= v_now);
    -- Reading the marks locks them. A session that drops the queue locks its tasks first, so do the same here.
    if found then
        v_count := nextval(l.queue_finished);
        v_start := greatest(pg_sequence_last_value(l.lane_low), pg_sequence_last_value(l.lane_ahead));
    else
        perform pgq_task.finish(claimant, id, version, result);
        if pgq_task.living(l.lane_low) is not null then
            v_start := greatest(pg_sequence_last_value(l.lane_low), pg_sequence_last_value(l.lane_ahead));
        end if;
    end if;
    v_take := case when random_choice and v_start < v_now_pos - 100000 * 256 then 1 else choice end;
    v_salt := random() * 9e18;
    -- See claim(5).
    loop
        update pgq_task.task t
           set version = t.version + 1, lease = l.lease, claimant = finish_and_claim.claimant,
               attempts = t.attempts + 1, last_attempt = v_now, lost = case when t.lease is null then t.lost else t.lost + 1 end,
               error = case when t.lease is null then t.error else pgq_task.lost_error() end
         where t.ctid = (select c.ctid
                           from pgq_task.task c
                          where c.queue_id = l.queue_id and c.priority = l.priority
                            and c.pos >= v_start
                            and c.pos <= v_now_pos
                            and (v_take = choice or (hashint8extended(c.id, v_salt) & (choice - 1)) < v_take)
                            and (c.lease is null or c.lease <= v_now and pgq_task.comes_again(c, l.max_attempts))
                            and (c.order_key is null or pgq_task.is_first(c.queue_id, c.order_key, c.id))
                          order by c.queue_id, c.priority, c.pos
                          limit 1
                            for no key update skip locked)
        returning t.id, t.version, l.queue_name, t.priority, t.attempts, t.lease, t.created,
                  t.payload, t.headers, t.error, t.unique_key, t.order_key into v_task;
        exit when found or v_take = choice;
        v_take := choice;
    end loop;
    if v_task.id is null then
        select * into v_task from pgq_task.claim(array[queue], claimant, lease, 1, random_choice);
    else
        v_count := nextval(l.queue_claimed);
        if random() * at_times < 1 and pgq.is_read_committed() then
            perform pgq_task.move_ahead(l.queue_id, l.priority, l.lane_ahead, v_start, v_now);
        end if;
    end if;
    return v_task;
end;
$$;
