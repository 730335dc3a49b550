create or replace function pgq_task.modify(
    claimant text, inserts jsonb default null, changes jsonb default null, deletes jsonb default null,
    depends jsonb default null, skip_collisions boolean default false, force boolean default false)
returns table (kind text, nr int4, id bigint, version int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Inserts, changes and deletes any number of tasks, all of them or none: each must have the given version and not be
-- claimed by another claimant. It can also require that other tasks exist, in a version, until the transaction ends.
-- Parameters:
--      claimant        - name of the caller as a claimant
--      inserts         - JSON array of {"queue": text}, each with further parameters of pgq_task.push(8): "payload",
--                        "at", "delay", "priority", "headers", "unique_key", "order_key"; "id": a negative number of
--                        one's own, or one that pgq_task.reserve_ids(1) has returned to the same role; and
--                        "skip_collisions": true to skip this insert if its id or unique_key is taken
--      changes         - JSON array of {"id", "version"}, each with the values to change: "queue", "at", "delay",
--                        "priority", "payload", "headers", "attempts", "error", "order_key", "unique_key"; "stop": true
--                        stops the task; "keep_lease": true leaves a claim as it is, in its queue
--      deletes         - JSON array of {"id", "version"}
--      depends         - JSON array of {"id", "version"}
--      skip_collisions - do so for all inserts that do not say otherwise
--      force           - for manual use: ignore versions and claims of others
-- Returns:
--      kind            - insert, skip, change, delete
--      nr              - the place in its list, from 1
--      id              - id of the task; with skip, of the existing task
--      version         - its new version; null if it was deleted, or the caller may not read it
-- Errors: PQ071 with a reason for each task that is missing, claimed, or there already; PQ072 invalid arguments; 42501
--      no right to do this
-- Notes: a change ends the claim, unless "keep_lease" is true; without a time the task is then available at once. A
--      scheduled or stopped task stays so. In another queue its attempts begin at 0. Tasks are locked in the order of
--      their ids, so that calls do not deadlock with each other.
#variable_conflict use_column
declare
    v_kinds     text[];
    v_nrs       int4[];
    v_ids       bigint[];
    v_versions  int4[];
    v_locked    bigint[];
    v_conflicts jsonb;
    v_changes   jsonb[];
    w           record;
begin
    -- In one function: each step relies on the locks of those before it.
    if coalesce(modify.claimant, '') = '' then
        perform pgq_task._raise_invalid('the claimant has no name', 'Give a name that tells this worker from the others.');
    end if;
    perform pgq_task._require_modification('insert', inserts, force), pgq_task._require_modification('change', changes, force),
            pgq_task._require_modification('delete', deletes, force), pgq_task._require_modification('depend', depends, force);
    -- Draw the id before the clock is read for a position: see pgq_task.sweep().
    perform pg_current_xact_id();
    if skip_collisions then
        inserts := (select jsonb_agg('{"skip_collisions": true}' || v order by nr) from jsonb_array_elements(inserts) with ordinality i (v, nr));
    end if;

    select array_agg(m.kind), array_agg(m.nr), array_agg((m.v ->> 'id')::bigint), array_agg((m.v ->> 'version')::int4)
      into v_kinds, v_nrs, v_ids, v_versions
      from (select 'change' as kind, v, nr from jsonb_array_elements(changes) with ordinality c (v, nr)
            union all
            select 'delete', v, nr from jsonb_array_elements(deletes) with ordinality d (v, nr)
            union all
            select 'depend', v, nr from jsonb_array_elements(depends) with ordinality d (v, nr)) m;
    perform pgq_task._require_named_once(array(select m.id from unnest(v_kinds, v_ids) m (kind, id) where m.kind <> 'depend'),
                                         'changed or deleted');
    -- Another one may be there by now, for which no right was checked: it is missing.
    v_locked := pgq_task._lock_tasks(v_ids, array(select k = 'depend' from unnest(v_kinds) k));

    perform pgq_task._require_right(r.queue_id, case r.kind when 'depend' then 'read' else r.kind end)
       from (select distinct q.queue_id, m.kind
               from unnest(v_kinds, v_ids) m (kind, id)
               join pgq_task.task t on t.id = any (array[m.id])
               join pgq_task.queue q on q.queue_id = t.queue_id + 0
              where q.queue_restricted) r;

    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'kind', m.kind, 'id', m.id, 'version', m.version,
               'reason', case when t.id is null or t.version <> m.version and c.exact then 'missing' else 'claimed' end,
               'has_version', t.version, 'claimant', t.claimant, 'lease', t.lease)) order by m.id, m.kind)
      into v_conflicts
      from unnest(v_kinds, v_ids, v_versions) m (kind, id, version)
     cross join lateral (select m.kind = 'depend' or force is not true as exact) c
      left join unnest(v_locked) k (id) on k.id = m.id
      left join pgq_task.task t on t.id = any (array[k.id])
     where t.id is null
        or c.exact and t.version <> m.version
        or c.exact and m.kind <> 'depend' and t.lease > clock_timestamp() and t.claimant is distinct from modify.claimant;
    if v_conflicts is not null then
        perform pgq_task._raise_modify_conflict(v_conflicts || coalesce(pgq_task._collisions_of(
            inserts, changes, array(select m.id from unnest(v_kinds, v_ids) m (kind, id) where m.kind = 'delete')), '[]'));
    end if;

    if deletes is not null then
        perform pgq_task._delete_locked(array(select m.id from unnest(v_kinds, v_ids) m (kind, id) where m.kind = 'delete'));
    end if;
    if changes is not null then
        v_changes := array(select v from jsonb_array_elements(changes) v);
        return query
            select 'change', m.nr, a.id, a.version
              from pgq_task._change_locked(array(select (v ->> 'id')::bigint from unnest(v_changes) v), v_changes, null,
                                           inserts) a
              join unnest(v_kinds, v_nrs, v_ids) m (kind, nr, id) on m.id = a.id and m.kind = 'change'
             order by m.nr;
    end if;
    if deletes is not null then
        return query
            select m.kind, m.nr, m.id, null::int4 from unnest(v_kinds, v_nrs, v_ids) m (kind, nr, id)
             where m.kind = 'delete' order by m.nr;
    end if;
    if inserts is not null then
        return query select i.kind, i.nr, i.id, i.version from pgq_task._insert_tasks(inserts) i order by i.nr;
    end if;
end;
$$;

create or replace function pgq_task._lock_tasks(i_ids bigint[], i_share boolean[])
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
-- Locks tasks in the order of their ids; tasks that must only stay unchanged are locked for share.
-- Returns: the ids of those that are there, each once.
declare
    w       record;
    v_ids   bigint[] := '{}';
    v_last  bigint;
begin
    if true <> all (i_share) then
        return array(select id from pgq_task.task where id = any (i_ids) order by id for update);
    end if;
    for w in select * from unnest(i_ids, i_share) u (id, share) order by id
    loop
        if w.share then
            perform from pgq_task.task where id = w.id for share;
        else
            perform from pgq_task.task where id = w.id for update;
        end if;
        if found and w.id is distinct from v_last then
            v_ids := v_ids || w.id;
            v_last := w.id;
        end if;
    end loop;
    return v_ids;
end;
$$;

create or replace function pgq_task._collisions_of(i_inserts jsonb, i_changes jsonb, i_deleted bigint[], i_skipped boolean default false)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the inserts and changes of pgq_task.modify(7) that conflict with the id or the unique_key of a task that
-- exists and stays, or of an earlier insert or change, in queues that the caller may insert into; null if there are
-- none. Inserts that are skipped if they collide are left out unless i_skipped.
    with changed as (
        select t.id, t.version, t.queue_id as from_queue, case when c ->> 'queue' is null then t.queue_id else q.queue_id end as queue_id,
               case when c ? 'unique_key' then c ->> 'unique_key' else t.unique_key end as unique_key
          from jsonb_array_elements(i_changes) c
          join pgq_task.task t on t.id = any (array[(c ->> 'id')::bigint])
          left join pgq_task.queue q on q.queue_name = c ->> 'queue'),
    wanted as (
        select w.*, q.queue_name,
               w.unique_key is not null and row_number() over (partition by w.queue_id, w.unique_key order by w.kind, w.nr, w.id) > 1 as repeated
          from (select 'change' as kind, null::bigint as nr, c.* from changed c
                union all
                select 'insert', i.nr, (i.v ->> 'id')::bigint, null, null, q.queue_id, i.v ->> 'unique_key'
                  from jsonb_array_elements(i_inserts) with ordinality i (v, nr)
                  join pgq_task.queue q on q.queue_name = i.v ->> 'queue'
                 where i_skipped or (i.v ->> 'skip_collisions')::boolean is not true) w
          join pgq_task.queue q using (queue_id)
         where not q.queue_restricted or w.queue_id = w.from_queue or pgq_task._has_right(q.queue_id, 'insert'))
    select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'kind', w.kind, 'nr', w.nr, 'id', coalesce(w.id, o.id), 'version', coalesce(w.version, o.version),
               'reason', 'collision', 'queue', w.queue_name, 'unique_key', w.unique_key, 'other', o.id)) order by w.kind, w.nr, w.id)
      from wanted w
      left join lateral (
           select t.id, case when t.queue_id = w.queue_id or pgq_task._may_read(t.queue_id) then t.version end as version
             from pgq_task.task t
            where w.kind = 'insert' and t.id = w.id and t.id <> all (i_deleted)
           union all
           select t.id, t.version from pgq_task.task t
            where t.queue_id = w.queue_id and t.unique_key = w.unique_key and t.id is distinct from w.id and t.id <> all (i_deleted)
              -- It is gone before the inserts are done; the order among changes is not known.
              and not (w.kind = 'insert' and exists (
                       select from changed c where c.id = t.id and (c.queue_id, c.unique_key) is distinct from (t.queue_id, t.unique_key)))
           limit 1) o on true
     where o.id is not null or w.repeated;
$$;

create or replace function pgq_task._raise_modify_conflict(i_conflicts jsonb)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ071 for the conflicts of pgq_task.modify(7).
begin
    perform pgq_task._raise_conflict((
        select string_agg(concat_ws(' ', c ->> 'kind', 'of task ' || (c ->> 'id'), 'in version ' || case when c ->> 'kind' <> 'insert' then c ->> 'version' end,
                          'with unique_key ' || quote_literal(c ->> 'unique_key')) || ': ' || (c ->> 'reason'), ', ' order by n)
               || case when jsonb_array_length(i_conflicts) > 5 then format(', and %s more', jsonb_array_length(i_conflicts) - 5) else '' end
          from jsonb_array_elements(i_conflicts) with ordinality j (c, n)
         where n <= 5), i_conflicts);
end;
$$;

create or replace function pgq_task._delete_locked(i_ids bigint[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
-- Deletes tasks that the caller has locked.
declare
    v_tasks     pgq_task.task[];
    v_queues    int4[];
begin
    with gone as (
        delete from pgq_task.task where id = any (i_ids) returning *)
    select array_agg(g.queue_id), array_agg(g::pgq_task.task order by g.id) filter (where g.order_key is not null or q.queue_keep > interval '0' or g.headers ? 'flow')
      into v_queues, v_tasks
      from gone g
      join pgq_task.queue q using (queue_id);
    perform pgq_task._count_each('deleted', v_queues);
    if v_tasks is not null then
        perform pgq_task._release_after(v_tasks), pgq_task._keep_finished(v_tasks, 'deleted');
    end if;
end;
$$;

create or replace function pgq_task._require_modification(i_kind text, i_list jsonb, i_force boolean default false)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 unless a list of modifications, of kind insert, change, delete, or depend, is valid.
declare
    v_known     constant text[] := case i_kind
        when 'insert' then '{id,queue,payload,at,delay,priority,headers,unique_key,order_key,skip_collisions}'
        when 'change' then '{id,version,queue,payload,at,delay,priority,headers,unique_key,order_key,attempts,error,stop,keep_lease}'
        else '{id,version}' end;
    v_required  constant text[] := case when i_kind = 'insert' then '{queue}'
                                        when i_force and i_kind <> 'depend' then '{id}'
                                        else '{id,version}' end;
    v_problem   text;
begin
    if i_list is null then
        return;
    elsif jsonb_typeof(i_list) <> 'array' then
        perform pgq_task._raise_invalid(format('the %ss are no JSON array', i_kind),
                                        format('Give an array of objects with %s.', array_to_string(v_known, ', ')));
    end if;
    begin
        select format('%s %s %s', i_kind, e.nr, p.problem) into v_problem
          from jsonb_array_elements(i_list) with ordinality e (v, nr)
         cross join lateral (select case
               when jsonb_typeof(e.v) <> 'object' then 'is no JSON object'
               when e.v - v_known <> '{}' then format('has an unknown attribute %L', (select min(k) from jsonb_object_keys(e.v - v_known) k))
               when jsonb_strip_nulls(e.v - 'payload') ?& v_required is not true then format('lacks one of: %s', array_to_string(v_required, ', '))
               when jsonb_typeof(e.v -> 'headers') not in ('object', 'null') then 'has headers that are no JSON object'
               when octet_length(e.v ->> 'unique_key') not between 1 and 1000 or octet_length(e.v ->> 'order_key') not between 1 and 1000
                   then 'has a key that does not have 1 to 1000 bytes'
               -- Claims add to them.
               when (e.v ->> 'attempts')::int4 not between 0 and 1000000 then format('has %s attempts', e.v ->> 'attempts')
               when ((e.v ->> 'stop')::boolean)::int4 + ((e.v ->> 'keep_lease')::boolean)::int4 > 1
                 or coalesce((e.v ->> 'stop')::boolean or (e.v ->> 'keep_lease')::boolean, false)
                    and coalesce(e.v ->> 'at', e.v ->> 'delay') is not null
                   then 'has more than one of: at or delay, stop, keep_lease'
               -- The other queue may have a time_limit, or limits.
               when (e.v ->> 'keep_lease')::boolean and e.v ->> 'queue' is not null
                   then 'has both queue and keep_lease: a claim ends if its task moves'
               -- These only fail if they cannot be read.
               when num_nulls((e.v ->> 'id')::bigint, (e.v ->> 'version')::int4, (e.v ->> 'priority')::int2,
                              (e.v ->> 'at')::timestamptz, now() + (e.v ->> 'delay')::interval,
                              (e.v ->> 'skip_collisions')::boolean) < 0 then null
               end as problem) p
         where p.problem is not null
         order by e.nr limit 1;
    exception when data_exception then
        v_problem := format('one of the %ss cannot be read: %s', i_kind, sqlerrm);
    end;
    if v_problem is not null then
        perform pgq_task._raise_invalid(
            v_problem, format('Attributes of this kind: %s. Times and intervals are text, as PostgreSQL reads them.',
                              array_to_string(v_known, ', ')));
    end if;
end;
$$;

create or replace function pgq_task._require_named_once(i_ids bigint[], i_what text)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 for a task that is named twice for the same operation.
declare
    v_id    constant bigint := (select i from unnest(i_ids) i group by i having count(i) > 1 order by i limit 1);
begin
    if v_id is not null then
        perform pgq_task._raise_invalid(format('task %s is to be %s twice', v_id, i_what), 'Name each task once.');
    end if;
end;
$$;
