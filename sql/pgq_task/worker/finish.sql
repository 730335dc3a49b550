create or replace function pgq_task.finish(claimant text, id bigint, version int4, result jsonb default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
-- Finishes a task, in the caller's transaction: the transaction's other effects are committed together with it, or not
-- at all.
-- Parameters:
--      version     - its version, as claim() or renew() returned it
--      result      - its result, kept if the queue keeps finished tasks
-- Errors: PQ071 the task is claimed, or was finished, by another claimant
declare
    r       record;
    v_count bigint;
begin
    delete from pgq_task.task t
     using pgq_task.queue q
     where t.id = finish.id and t.version = finish.version
       and (t.claimant = finish.claimant or t.lease is null or t.lease <= clock_timestamp())
       and q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._require_right(t.queue_id, 'claim'))
    returning t.queue_id, t.order_key, q.queue_limited, q.queue_waiting, q.queue_name,
              q.queue_keep > interval '0' or t.headers ? 'flow' as kept,
              case when q.queue_keep > interval '0' or t.headers ? 'flow' then t end as task into r;
    if not found then
        perform pgq_task._raise_lost(claimant, array[finish.id], array[finish.version]);
    end if;
    v_count := pgq_task._count('finished', r.queue_id);
    if r.order_key is not null then
        perform pgq_task._release_next(r.queue_id, r.order_key, id);
    end if;
    if r.kept then
        perform pgq_task._keep_finished(array[r.task], 'finished', array[id], array[version],
                                        case when result is not null then array[result] end);
    end if;
    if r.queue_limited and pg_sequence_last_value(r.queue_waiting) is distinct from 0 then
        perform pgq_task._wake_workers(r.queue_id, r.queue_name);
    end if;
end;
$$;

create or replace function pgq_task.finish_many(
    claimant text, ids bigint[], versions int4[], results jsonb[] default null, notes text[] default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Finishes those of these tasks that the claimant still has.
-- Parameters:
--      versions    - their versions, as claim() or renew() returned them
--      results     - one for each, or null
--      notes       - one for each, or null: a remark about the execution, such as why the result is not kept; it
--                    becomes the error of the kept finished task
-- Returns: the ids of the tasks that were not finished, because another claimant has them, or has finished them.
-- Errors: PQ072 lists of different length
#variable_conflict use_column
declare
    v_tasks     pgq_task.task[];
    v_keys      boolean;
    v_kept      boolean;
    v_done      bigint[];
    v_queues    int4[];
    v_limited   text[];
begin
    perform pgq_task._require_same_length(ids, versions);
    if cardinality(results) <> coalesce(cardinality(ids), 0) then
        perform pgq_task._require_one_each('results', cardinality(results), ids);
    end if;
    if notes is not null then
        perform pgq_task._require_one_each('notes', cardinality(notes), ids);
    end if;
    with gone as (
        delete from pgq_task.task t
         -- in the order in which all sessions lock them
         using (select u.id, u.version from unnest(ids, versions) u (id, version) order by u.id) d
         where t.id = any (array[d.id]) and t.version = d.version
           and (t.claimant = finish_many.claimant or t.lease is null or t.lease <= clock_timestamp())
        returning t.*)
    select array_agg(g.id), array_agg(g.queue_id), bool_or(g.order_key is not null), bool_or(q.queue_keep > interval '0' or g.headers ? 'flow'),
           array_agg(g::pgq_task.task) filter (where g.order_key is not null or q.queue_keep > interval '0' or g.headers ? 'flow'),
           array_agg(q.queue_name) filter (where q.queue_limited)
      into v_done, v_queues, v_keys, v_kept, v_tasks, v_limited
      from gone g
      join pgq_task.queue q
        on q.queue_id = g.queue_id and (not q.queue_restricted or pgq_task._require_right(g.queue_id, 'claim'));
    perform pgq_task._count_each('finished', v_queues);
    if v_keys then
        perform pgq_task._release_next(t.queue_id, t.order_key, t.id)
           from unnest(v_tasks) t where t.order_key is not null;
    end if;
    if v_kept then
        perform pgq_task._keep_finished(v_tasks, 'finished', ids, versions, results, notes);
    end if;
    if v_limited is not null then
        -- There is room again.
        perform pgq_task._wake_workers(q.queue_id, q.queue_name)
           from pgq_task.queue q
          where q.queue_name = any (v_limited) and pg_sequence_last_value(q.queue_waiting) is distinct from 0;
    end if;
    if coalesce(cardinality(v_done), 0) < cardinality(ids) then
        return query select d.id from unnest(ids) d (id) where d.id <> all (coalesce(v_done, '{}'));
    end if;
end;
$$;

create or replace function pgq_task.renew(claimant text, ids bigint[], versions int4[], lease interval default null)
returns table (id bigint, version int4, lease_until timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Renews the leases of tasks: they begin again. They end with the queue's time_limit, counted from the claim.
-- Parameters:
--      lease       - duration from now; null for that of the queue's settings
-- Returns: the tasks that the claimant still has, with their versions, mostly new ones, and the ends of their leases.
--      The claimant has lost the other tasks.
-- Errors: PQ072 lists of different length, a lease that is not positive
-- Notes: it does not wait for other sessions: a task that a transaction has locked (perhaps the claimant's own, about
--      to finish it) is not changed, and counts as the claimant's until that transaction commits.
#variable_conflict use_column
declare
    v_now   constant timestamptz := clock_timestamp();
begin
    perform pgq_task._require_same_length(ids, versions);
    perform pgq_task._require_lease(renew.lease);
    return query
        with mine as materialized (
            select t.id, least(v_now + coalesce(renew.lease, q.queue_lease), t.last_attempt + q.queue_time_limit) as lease
              from unnest(ids, versions) r (id, version)
              join pgq_task.task t on t.id = any (array[r.id]) and t.version = r.version
              join pgq_task.queue q
                on q.queue_id = t.queue_id + 0 and (not q.queue_restricted or pgq_task._require_right(t.queue_id, 'claim'))
             where t.claimant = renew.claimant and t.lease is not null
               and (q.queue_time_limit is null or t.last_attempt + q.queue_time_limit > v_now)
               for no key update of t skip locked),
        renewed as (
            update pgq_task.task t
               set version = t.version + 1, lease = m.lease, pos = pgq_task._position_of(m.lease)
              from mine m
             where t.id = any (array[m.id])
            returning t.id, t.version, t.lease)
        select n.id, n.version, n.lease from renewed n
        union all
        select t.id, t.version, t.lease
          from unnest(ids, versions) r (id, version)
          join pgq_task.task t on t.id = any (array[r.id]) and t.version = r.version
          join pgq_task.queue q on q.queue_id = t.queue_id + 0
         where t.claimant = renew.claimant and t.lease is not null
           and (q.queue_time_limit is null or t.last_attempt + q.queue_time_limit > v_now)
           and t.id not in (select m.id from mine m);
end;
$$;

create or replace function pgq_task._require_same_length(i_ids bigint[], i_versions int4[])
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 unless each id has its version.
begin
    if coalesce(cardinality(i_ids), 0) <> coalesce(cardinality(i_versions), 0)
            or array_position(i_ids, null) is not null or array_position(i_versions, null) is not null then
        perform pgq_task._raise_invalid(
            format('%s ids and %s versions', coalesce(cardinality(i_ids), 0), coalesce(cardinality(i_versions), 0)),
            'Give each task''s id and the version that claim() or renew() returned, none of them null.');
    end if;
end;
$$;

create or replace function pgq_task._require_one_each(i_what text, i_number int4, i_ids bigint[])
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 unless a list has one element for each task, or is null.
begin
    if i_number <> coalesce(cardinality(i_ids), 0) then
        perform pgq_task._raise_invalid(format('%s tasks and %s %s', coalesce(cardinality(i_ids), 0), i_number, i_what),
                                        'Give one for each task, null for those that have none.');
    end if;
end;
$$;

create or replace function pgq_task._raise_lost(i_claimant text, i_ids bigint[], i_versions int4[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ071 with a reason for each of these tasks that the claimant does not have.
declare
    v_conflicts jsonb;
begin
    v_conflicts := pgq_task._conflicts_of(i_claimant, i_ids, i_versions);
    perform pgq_task._raise_conflict(
        format('%L does not have %s', i_claimant, (
            select string_agg(format('task %s in version %s', coalesce(c ->> 'id', 'NULL'), coalesce(c ->> 'version', 'NULL')), ', ')
              from jsonb_array_elements(v_conflicts) c)), v_conflicts);
end;
$$;

create or replace function pgq_task._conflicts_of(i_claimant text, i_ids bigint[], i_versions int4[])
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the reasons why a claimant must not change these tasks; null if it may.
    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'id', w.id, 'version', w.version,
               'reason', case when t.id is null or t.version is distinct from w.version then 'missing' else 'claimed' end,
               'has_version', case when r.allowed then t.version end, 'claimant', case when r.allowed then t.claimant end,
               'lease', case when r.allowed then t.lease end)) order by w.nr)
      from unnest(i_ids, i_versions) with ordinality w (id, version, nr)
      left join pgq_task.task t on t.id = any (array[w.id])
      left join pgq_task.queue q on q.queue_id = t.queue_id + 0
     cross join lateral (select not q.queue_restricted or pgq_task._has_right(t.queue_id, 'claim') as allowed) r
     where t.id is null or t.version is distinct from w.version
        or t.lease > clock_timestamp() and t.claimant is distinct from i_claimant;
$$;

create or replace function pgq_task.finish_and_claim(
    claimant text, id bigint, version int4, queue text, result jsonb default null, lease interval default null,
    random_choice boolean default true)
returns pgq_task.claimed
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Finishes a task and claims the next one of a queue, in one round trip and one transaction.
-- Parameters:
--      claimant, id, version, result   - as in pgq_task.finish(4)
--      queue                           - name of the queue to claim from
--      lease, random_choice            - as in pgq_task.claim(5)
-- Returns: the task; all null if none is available, or the queue is paused.
-- Errors: those of both functions; then nothing was finished and nothing claimed.
-- Notes: workers that take one task at a time call nothing else. So the usual case is done here without function calls,
--      which cost as much as the work itself: a task of a queue without limits, rights or history, and the next task in
--      the highest lane. All other cases are left to finish(4) and claim(5).
#variable_conflict use_column
declare
    choice      constant int4 := 8;
    at_times    constant int4 := 32;
    v_now       constant timestamptz := clock_timestamp();
    v_now_pos   constant bigint := pgq_task._position_of(v_now);
    v_finished  boolean;
    v_take      int4;
    v_salt      bigint;
    v_count     bigint;
    l           record;
    v_task      pgq_task.claimed;
begin
    -- In one function: calls cost as much as the work itself.
    if finish_and_claim.lease is not null then
        perform pgq_task._require_lease(lease);
    end if;
    select q.queue_id, q.queue_name, n.priority, n.generation, n.low, n.ahead,
           v_now + least(coalesce(finish_and_claim.lease, q.queue_lease), q.queue_time_limit) as lease, q.queue_max_attempts as max_attempts
      into l
      from pgq_task.queue q
     cross join lateral (
           select * from pgq_task.mark k
            where k.queue_id = q.queue_id
            order by k.queue_id desc, k.priority desc, k.generation desc, k.mark_id desc
            limit 1) n
     where q.queue_name = finish_and_claim.queue and finish_and_claim.claimant <> ''
       and q.queue_paused is null and not q.queue_restricted and not q.queue_limited and q.queue_keep = interval '0' and q.queue_keep_tenants is null;
    delete from pgq_task.task t
     where t.id = finish_and_claim.id and t.version = finish_and_claim.version
       and t.queue_id + 0 = l.queue_id and t.order_key is null and (t.headers ? 'flow') is not true
       and (t.claimant = finish_and_claim.claimant or t.lease is null or t.lease <= v_now);
    v_finished := found;
    if not v_finished then
        perform pgq_task.finish(claimant, id, version, result);
    end if;
    v_take := case when random_choice and l.ahead < v_now_pos - 100000 * 256 then 1 else choice end;
    v_salt := random() * 9e18;
    -- See claim(5).
    loop
        update pgq_task.task t
           set version = t.version + 1, lease = l.lease, claimant = finish_and_claim.claimant,
               attempts = t.attempts + 1, last_attempt = v_now, lost = case when t.lease is null then t.lost else t.lost + 1 end,
               error = case when t.lease is null then t.error else pgq_task._lost_error() end
         where t.ctid = (select c.ctid
                           from pgq_task.task c
                          where c.queue_id = l.queue_id and c.priority = l.priority
                            and c.pos >= l.ahead
                            and c.pos <= v_now_pos
                            and (v_take = choice or (hashint8extended(c.id, v_salt) & (choice - 1)) < v_take)
                            and (c.lease is null or c.lease <= v_now and pgq_task._comes_again(c, l.max_attempts))
                            and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
                          order by c.queue_id, c.priority, c.pos
                          limit 1
                            for no key update skip locked)
        returning t.id, t.version, l.queue_name, t.priority, t.attempts, t.lease, t.created,
                  t.payload, t.headers, t.error, t.unique_key, t.order_key into v_task;
        exit when found or v_take = choice;
        v_take := choice;
    end loop;
    if v_task.id is not null then
        v_count := pgq_task._count(case when v_finished then 'finished and claimed' else 'claimed' end, l.queue_id);
        if random() * at_times < 1 and pgq._is_read_committed() then
            perform pgq_task._move_ahead(l.queue_id, l.priority, l.generation, l.low, l.ahead, v_now);
        end if;
        return v_task;
    elsif v_finished then
        v_count := pgq_task._count('finished', l.queue_id);
    end if;
    select * into v_task from pgq_task.claim(array[queue], claimant, lease, 1, random_choice);
    return v_task;
end;
$$;
