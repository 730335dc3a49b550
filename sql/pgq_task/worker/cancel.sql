create or replace function pgq_task.cancel(id bigint, reason text default 'cancelled')
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Cancels a task. A task that is not claimed is deleted at once. If it is claimed, its worker learns of the
-- cancellation within about a second, and the job is interrupted if possible. A job that does not check runs to its
-- end. But the task is not retried: if this attempt fails, or is released or lost, the task goes to the error queue.
-- Parameters:
--      id      - id of the task
--      reason  - the reason
-- Returns: "deleted", or "asked" if it is claimed
-- Errors: PQ071 there is no such task, 42501 no right to delete tasks of its queue
#variable_conflict use_column
declare
    t   record;
begin
    select c.created, c.lease > clock_timestamp() as claimed, q.queue_restricted, q.queue_id into t
      from pgq_task.task c
      join pgq_task.queue q on q.queue_id = c.queue_id + 0
     where c.id = cancel.id
       for update of c skip locked;
    if not found then
        -- It is locked: it is about to be finished, or claimed.
        select c.created, true as claimed, q.queue_restricted, q.queue_id into t
          from pgq_task.task c
          join pgq_task.queue q on q.queue_id = c.queue_id + 0
         where c.id = cancel.id;
        if not found then
            raise exception using errcode = 'PQ071',
                message = format('there is no task %s', coalesce(cancel.id::text, 'NULL')),
                detail = jsonb_build_array(jsonb_build_object('id', cancel.id, 'reason', 'missing')),
                hint = 'It is finished or deleted, or its id is another one; pgq_task.get_result() returns what is kept of it.';
        end if;
    end if;
    if t.queue_restricted then
        perform pgq_task._require_right(t.queue_id, 'delete');
    end if;
    if not coalesce(t.claimed, false) then
        perform pgq_task._delete_locked(array[cancel.id]);
        return 'deleted';
    end if;
    -- Where no worker looks for cancellations, no other session removes them.
    perform pgq_task._forget_cancelled();
    insert into pgq_task.cancellation as c (id, queue_id, created, reason)
    values (cancel.id, t.queue_id, t.created, coalesce(cancel.reason, 'cancelled'))
    on conflict (id) do update
       set queue_id = excluded.queue_id, created = excluded.created, reason = excluded.reason, cancelled_at = excluded.cancelled_at
     where (c.queue_id, c.created) <> (excluded.queue_id, excluded.created);
    perform pg_notify('pgq_task_cancel', '');
    return 'asked';
end;
$$;

create or replace function pgq_task._cancelled(i_id bigint)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the reason of a cancellation, worded for the error queue; null if the task was not cancelled.
begin
    return (select concat_ws(': ', 'cancelled', nullif(c.reason, 'cancelled'))
              from pgq_task.cancellation c
              join pgq_task.task t on (t.queue_id + 0, t.created) = (c.queue_id, c.created)
             where c.id = i_id and t.id = i_id);
end;
$$;

create or replace function pgq_task._cancelled_to_error_queue(i_ids bigint[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Sends tasks to their error queues that were cancelled while claimed, and are not claimed now: of these, or of all.
declare
    v_id    bigint;
begin
    if exists (select from pgq_task.cancellation) then
        for v_id in
            select t.id
              from pgq_task.cancellation c
              join pgq_task.task t on t.id = any (array[c.id]) and (t.queue_id + 0, t.created) = (c.queue_id, c.created)
             where (i_ids is null or c.id = any (i_ids))
               and (t.lease is null or t.lease <= clock_timestamp())
             order by c.id
               for update of t skip locked
        loop
            perform pgq_task._lost_to_error_queue(v_id);
        end loop;
        perform pgq_task._forget_cancelled(i_ids);
    end if;
end;
$$;

create or replace function pgq_task._forget_cancelled(i_ids bigint[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Removes the cancellations of tasks that are gone or in another queue: of the given tasks, or of all. Every function
-- that moves tasks calls it, so that they can come back.
begin
    if exists (select from pgq_task.cancellation) then
        delete from pgq_task.cancellation c
         where c.id = any (array(select o.id from pgq_task.cancellation o
                                  where (i_ids is null or o.id = any (i_ids))
                                    and (select t.id from pgq_task.task t
                                          where (t.id, t.queue_id + 0, t.created) = (o.id, o.queue_id, o.created)) is null
                                    for update skip locked));
    end if;
end;
$$;
