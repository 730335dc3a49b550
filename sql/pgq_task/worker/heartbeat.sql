create or replace function pgq_task.heartbeat(
    claimant text, ids bigint[], progress_ids bigint[] default '{}', done float8[] default '{}', total float8[] default '{}',
    notes text[] default '{}')
returns table (id bigint, reason text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Reports the progress of a worker's tasks, and returns those of them that were cancelled.
-- Parameters:
--      claimant        - the worker
--      ids             - the tasks that it works on
--      progress_ids    - the tasks with progress; if one is named twice, the last entry counts
--      done, total, notes  - their progress, one for each: number done, total number, and a note; total and notes may
--                            be left out
-- Returns: the tasks that were cancelled, and the reasons. Tasks of queues that the caller may not claim from are left
--      out, as are tasks that the worker does not have.
-- Errors: PQ072 lists of different length, a task with progress but without done, numbers that are infinite or NaN
#variable_conflict use_column
begin
    perform pgq_task._require_one_each('done', coalesce(cardinality(heartbeat.done), 0), progress_ids),
            pgq_task._require_one_each('total', nullif(cardinality(heartbeat.total), 0), progress_ids),
            pgq_task._require_one_each('notes', nullif(cardinality(heartbeat.notes), 0), progress_ids);
    if cardinality(progress_ids) > 0 then
        if array_position(heartbeat.done, null) is not null then
            perform pgq_task._raise_invalid('a task does not say how far it is', 'Give a number for each in done, none of them null.');
        elsif exists (select from unnest(heartbeat.done || heartbeat.total) n where n in ('NaN', 'infinity', '-infinity')) then
            perform pgq_task._raise_invalid('a progress without end', 'Give finite numbers in done and total.');
        end if;
        insert into pgq_task.progress as p (id, claimant, done, total, note, at)
        select distinct on (t.id) t.id, heartbeat.claimant, n.done, n.total, n.note, clock_timestamp()
          from unnest(heartbeat.progress_ids, heartbeat.done, heartbeat.total, heartbeat.notes) with ordinality n (id, done, total, note, nr)
          join pgq_task.task t on t.id = any (array[n.id]) and t.claimant = heartbeat.claimant
          join pgq_task.queue q on q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._has_right(t.queue_id, 'claim'))
         order by t.id, n.nr desc
        on conflict (id) do update
           set claimant = excluded.claimant, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at;
        -- from time to time, remove the progress of tasks that are gone
        if random() < 0.01 then
            delete from pgq_task.progress p
             where p.id = any (array(select o.id from pgq_task.progress o
                                      where (select t.id from pgq_task.task t where t.id = o.id) is null
                                      limit 10000 for update skip locked));
        end if;
    end if;
    return query
        select c.id, c.reason
          from pgq_task.cancellation c
          join pgq_task.task t on t.id = any (array[c.id]) and (t.queue_id + 0, t.created) = (c.queue_id, c.created) and t.claimant = heartbeat.claimant
          join pgq_task.queue q on q.queue_id = c.queue_id and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'claim'))
         where c.id = any (heartbeat.ids);
end;
$$;

create or replace function pgq_task.get_progress(queue_name text default null, ids bigint[] default null)
returns table (id bigint, queue text, claimant text, lease timestamptz, done float8, total float8, note text, at timestamptz,
               cancelled text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the progress of claimed tasks that have reported it, or were cancelled.
-- Parameters:
--      queue_name  - only those of this queue; null for all that the caller may read
--      ids         - only these
-- Returns: the tasks, with done, total, note and the time of the report; and the reason of the cancellation, null if
--      not cancelled.
-- Errors: 42501 no right to read it
#variable_conflict use_column
begin
    if get_progress.queue_name is not null then
        perform pgq_task._find_queue(get_progress.queue_name, 'read');
    end if;
    return query
        select t.id, q.queue_name, t.claimant, t.lease, p.done, p.total, p.note, p.at, c.reason
          from pgq_task.task t
          join pgq_task.queue q on q.queue_id = t.queue_id + 0
          left join pgq_task.progress p on p.id = t.id + 0 and p.claimant = t.claimant
          left join pgq_task.cancellation c on (c.id, c.queue_id, c.created) = (t.id + 0, q.queue_id, t.created)
         where t.id = any (array(select o.id from pgq_task.progress o union select o.id from pgq_task.cancellation o))
           and t.lease > clock_timestamp()
           and (q.queue_name = get_progress.queue_name or get_progress.queue_name is null)
           and (t.id = any (get_progress.ids) or get_progress.ids is null)
           and (p.id is not null or c.id is not null)
           and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
         order by t.id;
end;
$$;
