create or replace function pgq_task.fail(
    claimant text, id bigint, version int4, error text, delay interval default '0', final boolean default false)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends a failed attempt: the task is available again after a delay, or goes to the error queue.
-- Parameters:
--      version     - its version, as claim() or renew() returned it
--      error       - the error
--      delay       - time until the next attempt
--      final       - do not retry
-- Returns: true if the task went to the error queue, because this was its last attempt or final.
-- Errors: PQ071 the claimant does not have the task, PQ072 a negative delay
declare
    v_failed    boolean;
begin
    select f.failed into v_failed
      from pgq_task.fail_many(claimant, array[fail.id], array[fail.version], array[fail.error],
                              array[fail.delay], array[fail.final]) f;
    if not found then
        perform pgq_task._raise_lost(claimant, array[fail.id], array[fail.version]);
    end if;
    return v_failed;
end;
$$;

create or replace function pgq_task.fail_many(
    claimant text, ids bigint[], versions int4[], errors text[], delays interval[] default null, finals boolean[] default null)
returns table (id bigint, failed boolean, error_queue text, because text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Ends failed attempts of many tasks; see pgq_task.fail(6).
-- Parameters:
--      versions    - their versions, as claim() or renew() returned them
--      errors, delays, finals  - one for each, or null
-- Returns: the tasks that the claimant had, each with whether it went to an error queue, which one, and the reason: the
--      queue's max_attempts, or a cancellation; null if it was final. The claimant has lost the other tasks.
-- Errors: PQ072 lists of different length, a negative delay
#variable_conflict use_column
declare
    v_queues    int4[];
    t           record;
begin
    perform pgq_task._require_same_length(ids, versions), pgq_task._require_named_once(ids, 'failed');
    perform pgq_task._require_one_each('errors', cardinality(errors), ids),
            pgq_task._require_one_each('delays', cardinality(delays), ids),
            pgq_task._require_one_each('finals', cardinality(finals), ids);
    -- A single task needs no order.
    if cardinality(ids) > 1 then
        select array_agg(c.queue_id) into v_queues
          from unnest(ids, versions, finals) f (id, version, final)
          join pgq_task.task c on c.id = any (array[f.id]) and c.version = f.version
          join pgq_task.queue q on q.queue_id = c.queue_id + 0
         where (f.final or c.attempts >= q.queue_max_attempts or pgq_task._cancelled(c.id) is not null)
           and (c.claimant = fail_many.claimant or c.lease is null or c.lease <= clock_timestamp());
        if v_queues is not null then
            perform pgq_task._make_error_queues(v_queues);
        end if;
    end if;
    for t in
        select f.id, f.error, f.delay, c.queue_id, coalesce(q.queue_error_queue, q.queue_name || '.failed') as error_queue,
               coalesce(f.final or c.attempts >= q.queue_max_attempts, false) as failed, pgq_task._cancelled(c.id) as cancelled,
               case when f.final is not true then format('max_attempts = %s', q.queue_max_attempts) end as because
          from unnest(ids, versions, errors, delays, finals) f (id, version, error, delay, final)
          join pgq_task.task c on c.id = any (array[f.id]) and c.version = f.version
          join pgq_task.queue q
            on q.queue_id = c.queue_id + 0 and (not q.queue_restricted or pgq_task._require_right(c.queue_id, 'claim'))
         where c.claimant = fail_many.claimant or c.lease is null or c.lease <= clock_timestamp()
         order by f.id
           for no key update of c
    loop
        failed := t.failed or t.cancelled is not null;
        if failed then
            perform pgq_task._to_error_queue(t.id, case when t.cancelled is null or starts_with(t.error, t.cancelled) then t.error
                                             else concat_ws(e'\n\n', t.cancelled, t.error) end);
        else
            update pgq_task.task c
               set version = c.version + 1, lease = null, claimant = null, error = t.error, lost = 0,
                   failures = pgq_task._with_failure(c.failures, c.attempts, c.claimant, t.error),
                   pos = pgq_task._position_at(null, coalesce(t.delay, interval '0'))
             where c.id = t.id;
        end if;
        perform pgq_task._count('failed_attempts', t.queue_id);
        id := t.id;
        error_queue := case when failed then t.error_queue end;
        because := case when failed then coalesce(t.cancelled, t.because) end;
        return next;
    end loop;
    perform pgq_task._wake_workers(q.queue_id, q.queue_name)
       from pgq_task.queue q
      where q.queue_id in (select c.queue_id + 0 from pgq_task.task c where c.id = any (ids));
end;
$$;

create or replace function pgq_task._make_error_queues(i_queue_ids int4[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the missing error queues for tasks of these queues; that of a restricted queue is restricted to the same
-- roles. New objects are locked until the transaction ends, so all sessions create them in the same order, independently
-- of the order of their tasks: queues, then restrictions.
declare
    v_new   text[] := '{}';
    v_as    int4[] := '{}';
    e       record;
begin
    for e in
        select distinct on (n.name) n.name, coalesce(q.queue_parent, q.queue_id) as queue_id, q.queue_restricted
          from pgq_task.queue q
         cross join lateral (select coalesce(q.queue_error_queue, q.queue_name || '.failed') as name) n
         where q.queue_id = any (i_queue_ids) and not exists (select from pgq_task.queue o where o.queue_name = n.name)
         order by n.name, 2
    loop
        if pgq_task.create_queue(e.name) = 1 and e.queue_restricted then
            v_new := v_new || e.name;
            v_as := v_as || e.queue_id;
        end if;
    end loop;
    perform pgq_task.restrict_queue(n) from unnest(v_new) n;
    insert into pgq_task.queue_grant (queue_id, grantee, actions)
    select q.queue_id, g.grantee, g.actions
      from unnest(v_new, v_as) n (name, like_id)
      join pgq_task.queue q on q.queue_name = n.name
      join pgq_task.queue_grant g on g.queue_id = n.like_id;
end;
$$;

create or replace function pgq_task._to_error_queue(i_id bigint, i_reason text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves a task to its queue's error queue, which is created if necessary. The failure is described in headers; if the
-- task had headers of these names, they are kept in one called before. Headers that leave no room for that stay as they
-- are: then requeue() does not know where the task belongs.
declare
    q           pgq_task.queue;
    v_error     text;
    v_queue_id  int4;
    v_headers   jsonb;
    v_before    jsonb;
    t           pgq_task.task;
begin
    select * into t from pgq_task.task c where c.id = i_id for update;
    select * into q from pgq_task.queue where queue_id = t.queue_id;
    v_error := coalesce(q.queue_error_queue, q.queue_name || '.failed');
    perform pgq_task._make_error_queues(array[t.queue_id]);
    select queue_id into v_queue_id from pgq_task.queue where queue_name = v_error;
    -- As it is in memory: what is stored may be compressed.
    v_headers := coalesce(nullif(t.headers, 'null'), '{}') || '{}';
    select jsonb_build_object('before', jsonb_object_agg(h.key, h.value)) into v_before
      from jsonb_each(v_headers) h
     where h.key = any (pgq_task._failure_headers())
    having count(*) > 0;
    update pgq_task.task c
       set queue_id = v_queue_id, version = c.version + 1, lease = null, claimant = null, attempts = 0, lost = 0,
           pos = pgq_task._position_of(clock_timestamp()), error = coalesce(i_reason, c.error), unique_key = null,
           -- Without a claimant no attempt has ended: it comes after a step that failed, for instance.
           failures = case when c.claimant is null then c.failures
                           else pgq_task._with_failure(c.failures, c.attempts, c.claimant, coalesce(i_reason, c.error)) end,
           is_late = case when c.order_key is not null then true end,
           headers = case when pg_column_size(v_headers) > 268400000 then c.headers
                          else v_headers - pgq_task._failure_headers() || coalesce(v_before, '{}') || jsonb_strip_nulls(jsonb_build_object(
                              'origin', q.queue_name, 'reason', left(coalesce(i_reason, c.error), 1000), 'attempts', c.attempts,
                              'failed_at', now(), 'unique_key', c.unique_key)) end
     where c.id = i_id;
    perform pgq_task._count('failed', t.queue_id), pgq_task._forget_cancelled(array[i_id]);
    if t.order_key is not null then
        perform pgq_task._release_next(t.queue_id, t.order_key, t.id);
    end if;
    perform pgq_task._wake_workers(v_queue_id, v_error);
    perform pgq_task._add_lane(v_queue_id, t.priority);
end;
$$;

create or replace function pgq_task._with_failure(i_failures jsonb, i_attempt int4, i_claimant text, i_error text)
returns jsonb
language sql volatile
as $$
-- Returns a task's failures with one more; the oldest of more than 20 are left out, and so is the end of a long error.
    select case when pg_catalog.jsonb_array_length(i_failures) > 19 then i_failures - 0 else coalesce(i_failures, '[]') end
           || pg_catalog.jsonb_build_object('attempt', i_attempt, 'at', pg_catalog.clock_timestamp(), 'claimant', i_claimant,
                                            'error', pg_catalog.left(i_error, 1000));
$$;

create or replace function pgq_task._lost_error()
returns text
language sql immutable
as $$
-- Returns the error text for an attempt that ended without a report.
    select 'the worker was lost'::text;
$$;

create or replace function pgq_task._comes_again(i_task pgq_task.task, i_max_attempts int4)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a task whose worker was lost may be claimed again: it was not cancelled, and its queue allows more
-- attempts, or, if the queue has no limit, this was not the fifth worker in a row that was lost with it. Claims take
-- only such tasks.
begin
    return case when i_max_attempts is null then i_task.lost + 1 < 5 else i_task.attempts < i_max_attempts end
           and pgq_task._cancelled(i_task.id) is null;
end;
$$;

create or replace function pgq_task._lost_to_error_queue(i_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of pgq_task._to_error_queue(2) for a sweep, which goes on with other queues if this one's error queue
-- is locked or cannot be created. Returns false if the task was not moved.
begin
    perform pgq_task._to_error_queue(i_id, coalesce(pgq_task._cancelled(i_id), pgq_task._lost_error()));
    return true;
exception when others then
    if sqlstate <> '55P03' then
        raise warning using errcode = sqlstate, message = format('task %s cannot go to its error queue: %s', i_id, sqlerrm);
    end if;
    return false;
end;
$$;

create or replace function pgq_task._failure_headers()
returns text[]
language sql immutable
as $$
-- Returns the names of the headers that pgq_task._to_error_queue(2) writes and pgq_task.requeue(3) removes.
    select '{origin,reason,attempts,failed_at,unique_key,before}'::text[];
$$;
