create or replace function pgq_task.push_flow(steps jsonb)
returns table (flow bigint, id bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts tasks into queues, some of which wait until others are finished.
-- Parameters:
--      steps   - JSON array of {"queue": text}, each with further parameters of pgq_task.push(8): "payload", "at",
--                "delay", "priority", "headers", "order_key"; "name": what get_flow() calls it; "after": the numbers of
--                earlier steps, from 1, that are finished before it begins
-- Returns: the number of the flow, and the ids of the tasks, in the order of the steps. A step begins with the results
--      of those in "after" as a list in its header results. If one of them fails, it waits: requeue() continues the
--      flow; if one is removed or cancelled, it goes to the error queue.
-- Errors: 42501 no right to insert into a queue, or to read one whose results are for a step in another; PQ072 invalid
--      steps
#variable_conflict use_column
declare
    v_flow  constant bigint := nextval('pgq_task.task_id_seq');
    v_wrong int4;
    v_ids   bigint[];
begin
    if jsonb_typeof(steps) is distinct from 'array' or steps = '[]' then
        perform pgq_task._raise_invalid('the steps of a flow are no JSON array, or an empty one', 'Give [{"queue": ...}, ...].');
    end if;
    select s.nr into v_wrong
      from jsonb_array_elements(steps) with ordinality s (v, nr)
     where jsonb_typeof(s.v) <> 'object' or coalesce(jsonb_typeof(s.v -> 'after'), 'array') <> 'array' or s.v ->> 'unique_key' is not null
        or jsonb_typeof(s.v -> 'headers') not in ('object', 'null')
     limit 1;
    if found then
        perform pgq_task._raise_invalid(format('step %s of the flow is invalid', v_wrong),
                                        'A step is an object; "after" is an array, "headers" an object, and there is no "unique_key".');
    end if;
    select s.nr into v_wrong
      from jsonb_array_elements(steps) with ordinality s (v, nr),
           jsonb_array_elements(coalesce(nullif(s.v -> 'after', 'null'), '[]')) a
     where jsonb_typeof(a) <> 'number' or a::numeric not between 1 and s.nr - 1 or a::numeric <> trunc(a::numeric)
     limit 1;
    if found then
        perform pgq_task._raise_invalid(format('step %s of the flow does not come after an earlier one', v_wrong),
                                        'Give the numbers of earlier steps in "after", from 1: so a flow has no cycles.');
    end if;
    v_ids := array(select pgq_task.reserve_ids(jsonb_array_length(steps)));
    perform pgq_task.modify('flow', inserts => jsonb_agg(
                s.v - '{name,after}'::text[]
                || jsonb_build_object('id', v_ids[s.nr],
                                      'headers', coalesce(nullif(s.v -> 'headers', 'null'), '{}') || jsonb_build_object('flow', v_flow))
                order by s.nr))
       from jsonb_array_elements(steps) with ordinality s (v, nr);
    insert into pgq_task.flow (flow_id) values (v_flow);
    insert into pgq_task.flow_step (flow_id, nr, id, queue_id, queue_name, name, after, waits_for)
    select v_flow, s.nr, v_ids[s.nr], coalesce(q.queue_id, (pgq_task._find_queue(s.v ->> 'queue')).queue_id), s.v ->> 'queue',
           coalesce(s.v ->> 'name', 'step ' || s.nr), a.after, a.after[1 + floor(random() * cardinality(a.after))::int4]
      from jsonb_array_elements(steps) with ordinality s (v, nr)
      left join pgq_task.queue q on q.queue_name = s.v ->> 'queue'
     cross join lateral (
           select array(select e::int4 from jsonb_array_elements(coalesce(nullif(s.v -> 'after', 'null'), '[]')) e) as after) a;
    -- A step shows the results of those that it comes after to all that may read its queue.
    perform pgq_task._find_queue(w.queue_name, 'read')
       from (select distinct p.queue_name
               from pgq_task.flow_step s
               join pgq_task.flow_step p on p.flow_id = s.flow_id and p.nr = any (s.after) and p.queue_id <> s.queue_id
              where s.flow_id = v_flow) w;
    perform pgq_task._change_locked(array_agg(s.id), null, '{"stop": true}')
       from pgq_task.flow_step s
      where s.flow_id = v_flow and s.after <> '{}'
     having count(*) > 0;
    return query select v_flow, i from unnest(v_ids) i;
end;
$$;

create or replace function pgq_task._start_of_step(i_task bigint, i_flow bigint, i_after int4[])
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the change by which a step's task is available, with the results of the steps that it comes after; null if they
-- are too large together: that must not keep the last of these from ending.
begin
    return (select jsonb_build_object('delay', '0', 'headers', t.headers || jsonb_build_object('results', r.results))
              from pgq_task.task t,
                   (select jsonb_agg(p.result order by array_position(i_after, p.nr)) as results
                      from pgq_task.flow_step p where p.flow_id = i_flow and p.nr = any (i_after)) r
             where t.id = i_task);
exception when program_limit_exceeded then
    return null;
end;
$$;

create or replace function pgq_task._end_steps(
    i_tasks pgq_task.task[], i_outcome text, i_ids bigint[] default null, i_versions int4[] default null, i_results jsonb[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Notes that tasks of flows were deleted, with results as in pgq_task._keep_finished(6), and starts the steps that have
-- waited for them. If one of those that a step comes after was removed, the step goes to the error queue.
-- Errors: 40001 in a REPEATABLE READ transaction that does not see the end of another step
declare
    v_flows constant bigint[] := array(
        select distinct s.flow_id from unnest(i_tasks) t join pgq_task.flow_step s on s.id = t.id where s.outcome is null);
    d           record;
    v_change    jsonb;
    v_problem   text;
begin
    -- One session at a time: the last one to end a step sees that all have ended.
    perform from pgq_task.flow f where f.flow_id = any (v_flows) order by f.flow_id for no key update;
    update pgq_task.flow_step s
       set outcome = i_outcome,
           ended_in = t.queue_id,
           queue_name = coalesce((select q.queue_name from pgq_task.queue q where q.queue_id = t.queue_id), s.queue_name),
           result = (select r.result from unnest(i_ids, i_versions, i_results) r (id, version, result)
                      where r.id = t.id and r.version = t.version limit 1)
      from unnest(i_tasks) t
     where s.id = t.id and s.outcome is null;
    for d in
        select s.flow_id, s.nr, s.id, s.after, e.*
          from pgq_task.flow_step s
         cross join lateral (
               -- Not the same one for all: they would all look again when it ends.
               select (array_agg(p.nr order by random()) filter (where p.outcome is null))[1] as waits_for,
                      min(p.name) filter (where p.outcome = 'deleted') as removed
                 from pgq_task.flow_step p
                where p.flow_id = s.flow_id and p.nr = any (s.after)) e
         where s.flow_id = any (v_flows) and s.outcome is null
           and (select p.outcome from pgq_task.flow_step p where p.flow_id = s.flow_id and p.nr = s.waits_for) is not null
         order by s.id
    loop
        update pgq_task.flow_step s set waits_for = d.waits_for where s.flow_id = d.flow_id and s.nr = d.nr;
        continue when d.waits_for is not null;
        -- An administrator may have started it, or sent it to another queue.
        perform from pgq_task.task t where t.id = d.id and t.pos = 9223372036854775807 and t.lease is null for no key update;
        continue when not found;
        v_change := pgq_task._start_of_step(d.id, d.flow_id, d.after);
        v_problem := case when d.removed is not null then format('it comes after %s, which was removed', d.removed)
                          when v_change is null then 'the results of the steps that it comes after are too large together' end;
        if v_problem is not null then
            -- If it is requeued, it has the results that there are.
            update pgq_task.task t set headers = v_change -> 'headers' where t.id = d.id and v_change is not null;
            perform pgq_task._to_error_queue(d.id, v_problem);
        else
            perform pgq_task._change_locked(array[d.id], array[v_change]);
        end if;
    end loop;
    if not pgq._is_read_committed() then
        -- Its snapshot may be older than its lock on the flow: steps that still count as unfinished must be so.
        perform from pgq_task.flow_step w
          where (w.flow_id, w.nr) in (
                select s.flow_id, s.waits_for
                  from unnest(i_tasks) t
                  join pgq_task.flow_step o on o.id = t.id
                  join pgq_task.flow_step s on s.flow_id = o.flow_id and o.nr = any (s.after)
                 where s.outcome is null
                union all
                select s.flow_id, min(s.nr) from pgq_task.flow_step s where s.flow_id = any (v_flows) and s.outcome is null group by 1)
            for share of w;
    end if;
    update pgq_task.flow f
       set flow_ended = now()
     where f.flow_id = any (v_flows) and not exists (select from pgq_task.flow_step s where s.flow_id = f.flow_id and s.outcome is null);
end;
$$;

create or replace function pgq_task.get_flow(flow bigint)
returns table (nr int4, id bigint, name text, queue text, after int4[], state text, attempts int4, error text, result jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Returns the steps of a flow: of its number, or of the id of one of its tasks. It is known until a day after its end.
-- Returns: the steps, by number. state is finished, removed, failed (in the error queue), waiting (for those in after),
--      or that of the task: available, claimed, scheduled, held, stopped. name, state, attempts, error and result are
--      null if the caller may not read the queue, or it was dropped and the caller is not a member of pgq_admin.
-- Errors: PQ072 there is no such flow
#variable_conflict use_column
begin
    return query
        select s.nr, s.id, case when r.may then s.name end, coalesce(q.queue_name, s.queue_name), s.after,
               case when not r.may then null
                    when s.outcome = 'deleted' or s.outcome is null and t.id is null then 'removed'
                    when s.outcome is not null then 'finished'
                    when t.headers ? 'failed_at' then 'failed'
                    when t.status = 'stopped' and exists (
                         select from pgq_task.flow_step p
                          where p.flow_id = s.flow_id and p.nr = any (s.after) and p.outcome is null) then 'waiting'
                    else t.status end,
               case when r.may then t.attempts end, case when r.may then t.error end, case when r.may then s.result end
          from pgq_task.flow_step s
          left join lateral (select * from pgq_task.task_status u where u.id = s.id offset 0) t on true
          left join pgq_task.queue q on q.queue_id = t.queue_id
         cross join lateral (
               select bool_and(pgq_task._may_read(u.id)) as may
                 from unnest(array[t.queue_id, s.queue_id, s.ended_in]) u (id) where u.id is not null) r
         where s.flow_id = (select f.flow_id from pgq_task.flow_step f
                             where f.flow_id = get_flow.flow or f.id = get_flow.flow limit 1)
         order by s.nr;
    if not found then
        perform pgq_task._raise_invalid(format('there is no flow %s', coalesce(get_flow.flow::text, 'NULL')),
                                        'Give the number that push_flow() returned, or the id of a task. Flows are known until a day after their end.');
    end if;
end;
$$;

create or replace function pgq_task.list_flows(max_count int4 default 100)
returns table (flow bigint, created timestamptz, ended timestamptz, queue text, steps bigint, ended_steps bigint, failed bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Returns the newest flows of which the caller may read a step.
-- Parameters:
--      max_count   - maximum number of flows
-- Returns:
--      flow, created, ended    - ended: when the last step did, null if some have not
--      queue                   - that of its first step
--      steps, ended_steps      - numbers of all its steps, and of those that were finished or removed
--      failed                  - number of those in an error queue that the caller may read
-- Errors: PQ072 a count that is not positive
#variable_conflict use_column
declare
    f   record;
begin
    perform pgq_task._require_limit(max_count);
    for f in select * from pgq_task.flow order by flow_id desc loop
        select count(*), count(s.outcome), min(s.queue_name) filter (where s.nr = 1),
               count(*) filter (where s.outcome is null and t.headers ? 'failed_at' and pgq_task._may_read(t.queue_id))
          into steps, ended_steps, queue, failed
          from pgq_task.flow_step s
          left join lateral (select u.headers, u.queue_id from pgq_task.task u where s.outcome is null and u.id = s.id offset 0) t on true
         where s.flow_id = f.flow_id
        having bool_or(pgq_task._may_read(s.queue_id));
        continue when not found;
        flow := f.flow_id;
        created := f.flow_created;
        ended := f.flow_ended;
        return next;
        max_count := max_count - 1;
        exit when max_count = 0;
    end loop;
end;
$$;
