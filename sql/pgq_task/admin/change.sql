create or replace function pgq_task.stop(id bigint, version int4 default null)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Stops a task: it cannot be claimed until start() or another change gives it a time.
-- Parameters:
--      version - its version; null for any
-- Returns: its new version.
-- Errors: PQ071 there is no such task in this version, or it is claimed
begin
    return pgq_task._change_one(stop.id, stop.version, '{"stop": true}');
end;
$$;

create or replace function pgq_task.start(id bigint, version int4 default null)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a stopped or scheduled task available now.
-- Parameters:
--      version - its version; null for any
-- Returns: its new version.
-- Errors: PQ071 there is no such task in this version, or it is claimed; PQ072 it waits for other steps of its flow
begin
    if pgq_task._startable(array[start.id]) = '{}' then
        perform pgq_task._raise_invalid(format('task %s waits for other steps of its flow', start.id),
                                        'It begins when they are finished, with their results.');
    end if;
    return pgq_task._change_one(start.id, start.version, '{"delay": "0"}');
end;
$$;

create or replace function pgq_task._startable(i_ids bigint[])
returns bigint[]
language plpgsql stable
set enable_seqscan = off set jit = off
as $$
-- Returns tasks without those that wait for other steps of their flows.
begin
    return array(
        select u.id
          from pg_catalog.unnest(i_ids) with ordinality u (id, nr)
         where not exists (select from pgq_task.flow_step s where s.id = u.id and s.waits_for is not null)
         order by u.nr);
end;
$$;

create or replace function pgq_task._change_one(i_id bigint, i_version int4, i_change jsonb)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Changes one task that is not claimed; without a version, in any version.
declare
    v_version   int4 := i_version;
begin
    if i_id is null then
        perform pgq_task._raise_invalid('the id of the task is NULL', 'Give the id that push() has returned.');
    elsif v_version is null then
        select version into v_version from pgq_task.task where id = i_id for update;
        v_version := coalesce(v_version, 0);
    end if;
    return m.version
      from pgq_task.modify(session_user::text, changes => jsonb_build_array(
               jsonb_build_object('id', i_id, 'version', v_version) || i_change)) m;
end;
$$;

create or replace function pgq_task._change_locked(
    i_ids bigint[], i_changes jsonb[], i_common jsonb default null, i_inserts jsonb default null)
returns table (id bigint, version int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Changes tasks that the caller has locked: each by its own change, or all by a common one. If changes collide, so may
-- the inserts that follow; then they are only reported.
#variable_conflict use_column
declare
    v_queues    constant text[] := array(select distinct c ->> 'queue' from unnest(i_changes || i_common) c where c ->> 'queue' is not null);
begin
    perform pgq_task._find_or_add(q.name) from (select n as name from unnest(v_queues) n order by 1) q;
    if v_queues <> '{}' then
        -- Where it goes, others read it.
        perform pgq_task._has_right(f.queue_id, 'claim') or pgq_task._require_right(f.queue_id, 'read')
           from (select distinct q.queue_id
                   from unnest(i_ids, i_changes) w (id, change)
                   join pgq_task.task t on t.id = any (array[w.id])
                   join pgq_task.queue q on q.queue_id = t.queue_id + 0
                  where q.queue_restricted and coalesce(w.change, i_common) ->> 'queue' <> q.queue_name) f;
    end if;
    if v_queues = '{}' and not exists (select from unnest(i_changes || i_common) c where c ->> 'unique_key' is not null) then
        return query select * from pgq_task._apply_changes(i_ids, i_changes, i_common);
        return;
    end if;
    begin
        return query select * from pgq_task._apply_changes(i_ids, i_changes, i_common);
    exception when unique_violation then
        perform pgq_task._raise_modify_conflict(coalesce(
            pgq_task._collisions_of(
                i_inserts,
                (select jsonb_agg(coalesce(w.change, i_common) || jsonb_build_object('id', w.id)) from unnest(i_ids, i_changes) w (id, change)),
                '{}'),
            -- with a task that is not visible yet
            jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                'kind', 'change', 'reason', 'collision', 'unique_key', i_common ->> 'unique_key')))));
    end;
end;
$$;

create or replace function pgq_task._apply_changes(i_ids bigint[], i_changes jsonb[], i_common jsonb)
returns table (id bigint, version int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Does the work of pgq_task._change_locked(4) for queues that are known to exist.
#variable_conflict use_column
declare
    v_now_pos   constant bigint := pgq_task._position_now();
    v_ids       bigint[];
    v_versions  int4[];
    v_queues    int4[];
    v_lanes     int4[];
    v_left      int4[];
    v_keyed     bigint[];
    v_released  jsonb;
begin
    -- In one function: most of it is one statement.
    with changed as (
        update pgq_task.task t
           set version = t.version + 1,
               queue_id = o.new_queue_id,
               priority = coalesce((o.c ->> 'priority')::int2, t.priority),
               -- Never use a position in the past: the lane's mark may have passed it.
               pos = case when o.kept then greatest(pgq_task._position_of(t.lease), v_now_pos)
                          when (o.c ->> 'stop')::boolean then 9223372036854775807
                          when o.timed then pgq_task._position_at((o.c ->> 'at')::timestamptz, (o.c ->> 'delay')::interval)
                          when t.lease is not null or t.pos is null and o.moved or pgq_task._is_parked(t.pos)
                            or pgq_task._is_turn(t.pos) then v_now_pos
                          when t.pos is not null then greatest(t.pos, v_now_pos) end,
               lease = case when o.kept then t.lease end,
               claimant = case when o.kept then t.claimant end,
               payload = case when o.c ? 'payload' then o.c -> 'payload' else t.payload end,
               headers = case when o.c ? 'headers' then pgq_task._new_headers(t.headers, nullif(o.c -> 'headers', 'null')) else t.headers end,
               attempts = coalesce((o.c ->> 'attempts')::int4, case when o.new_queue_id = t.queue_id then t.attempts else 0 end),
               error = case when o.c ? 'error' then o.c ->> 'error' else t.error end,
               lost = case when o.kept then t.lost else 0 end,
               unique_key = case when o.c ? 'unique_key' then o.c ->> 'unique_key' else t.unique_key end,
               order_key = o.new_order_key,
               is_late = case when o.moved and o.new_order_key is not null then true else t.is_late end
          from (select o.id, o.queue_id, o.order_key, d.c, n.*,
                       n.new_queue_id <> o.queue_id or n.new_order_key is distinct from o.order_key as moved,
                       coalesce(d.c ->> 'at', d.c ->> 'delay') is not null as timed,
                       coalesce((d.c ->> 'keep_lease')::boolean and o.lease is not null, false) as kept
                  from unnest(i_ids, i_changes) with ordinality w (id, change, nr)
                  join pgq_task.task o on o.id = any (array[w.id])
                 cross join lateral (select coalesce(w.change, i_common) as c) d
                  left join pgq_task.queue q on q.queue_name = d.c ->> 'queue'
                 cross join lateral (
                       select case when d.c ->> 'queue' is null then o.queue_id
                                   else coalesce(q.queue_id, (pgq_task._find_queue(d.c ->> 'queue')).queue_id) end as new_queue_id,
                              case when d.c ? 'order_key' then d.c ->> 'order_key' else o.order_key end as new_order_key) n
                 -- Tasks that get the same time stay in their order.
                 order by w.nr) o
         where t.id = any (array[o.id])
        returning t.id, t.version, t.queue_id, t.priority, nullif(o.queue_id, t.queue_id) as left_queue,
                  case when t.order_key is not null and t.pos is not null then t.id end as keyed,
                  case when o.moved and o.order_key is not null then
                      jsonb_build_object('queue_id', o.queue_id, 'order_key', o.order_key, 'id', t.id) end as released)
    select array_agg(c.id), array_agg(c.version), array_agg(c.queue_id), array_agg(c.priority::int4), array_agg(c.left_queue),
           array_agg(c.keyed) filter (where c.keyed is not null),
           jsonb_agg(c.released order by c.id) filter (where c.released is not null)
      into v_ids, v_versions, v_queues, v_lanes, v_left, v_keyed, v_released
      from changed c;
    perform pgq_task._count_each('moved', v_left);
    -- A cancelled task whose claim ends in this way, or that is moved to where it is, is not retried.
    perform pgq_task._cancelled_to_error_queue(v_ids);
    if v_keyed is not null then
        perform pgq_task._hold_back_all(v_keyed);
    end if;
    if v_released is not null then
        perform pgq_task._release_after(array(
            select jsonb_populate_record(null::pgq_task.task, r) from jsonb_array_elements(v_released) r));
    end if;
    perform pgq_task._show_tasks(v_queues, v_lanes);
    return query select * from unnest(v_ids, v_versions);
end;
$$;

create or replace function pgq_task._new_headers(i_old jsonb, i_new jsonb)
returns jsonb
language sql immutable
as $$
-- Returns the headers that replace others: a task stays in its flow. Inlined.
    select case when i_old ? 'flow' then coalesce(i_new, '{}') || pg_catalog.jsonb_build_object('flow', i_old -> 'flow') else i_new end;
$$;

create or replace function pgq_task.replay(
    queue text, target text default null, ids bigint[] default null,
    finished_from timestamptz default null, finished_before timestamptz default null,
    payload jsonb default null, outcome text default null, max_tasks int4 default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pushes kept finished tasks again, as new tasks, in the order in which they were finished. The new tasks have the
-- payload, priority and keys of the old ones, and headers that identify these: origin (the queue), replay_of (the id)
-- and finished_at.
-- Parameters:
--      queue       - the queue whose finished tasks to push
--      target      - the queue to push to; null for the same one
--      others      - the tasks, as in pgq_task.finished_tasks(7); if there are more than max_tasks, those finished
--                    last; null for all
-- Returns: the ids of the new tasks. If the target already has a task with the same unique_key, the id of that task.
-- Errors: 42501 no right to read the queue or insert into the target, PQ072 an invalid limit or outcome
begin
    -- Check this even if there is nothing to push.
    if target is not null then
        perform pgq_task._find_or_add(target);
    end if;
    return query
        select pgq_task.push(coalesce(target, queue), f.payload, priority => f.priority, unique_key => f.unique_key,
                             order_key => f.order_key,
                             headers => coalesce(nullif(f.headers, 'null'), '{}') || jsonb_build_object(
                                 'origin', queue, 'replay_of', f.id, 'finished_at', f.finished))
          from (select k.*
                  from pgq_task.finished_tasks(queue, max_tasks, ids, finished_from, finished_before, payload, outcome) k
                 order by k.finished, k.id) f;
end;
$$;
