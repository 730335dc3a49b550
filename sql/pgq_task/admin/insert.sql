create or replace function pgq_task.reserve_ids(count int4 default 1)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Reserves ids for inserts of pgq_task.modify(7), so that tasks can refer to each other in their payloads. No other
-- task gets them. The same role can use each of them once, for a week from the commit on.
-- Parameters:
--      count   - number of ids
-- Returns: the ids.
-- Errors: PQ072 a count that is not positive
declare
    v_role  constant name := pgq._caller();
begin
    if count is null or count < 1 then
        perform pgq_task._raise_invalid(format('%s ids', coalesce(count::text, 'NULL')), 'Reserve one id or more.');
    end if;
    return query
        insert into pgq_task.reserved_id (id, role, until)
        select nextval('pgq_task.task_id_seq'), v_role, now() + interval '7 days' from generate_series(1, count)
        returning reserved_id.id;
end;
$$;

create or replace function pgq_task._insert_tasks(i_inserts jsonb)
returns table (kind text, nr int4, id bigint, version int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Does the inserts of pgq_task.modify(7).
#variable_conflict use_column
declare
    v_chosen    constant bigint[] := array(select (v ->> 'id')::bigint from jsonb_array_elements(i_inserts) v where v ->> 'id' is not null);
    v_strict    constant int4[] := array(select i.nr::int4 from jsonb_array_elements(i_inserts) with ordinality i (v, nr)
                                          where (i.v ->> 'skip_collisions')::boolean is not true);
    v_reserved  bigint[] := '{}';
    v_wrong     bigint;
    v_ids       bigint[];
    v_done      bigint[];
    v_left      int4[];
    v_queues    int4[];
    v_lanes     int4[];
    v_conflicts jsonb;
    v_refused   jsonb;
begin
    -- In one function: most of it is two statements in a loop.
    perform pgq_task._find_or_add(q.name) from (select distinct v ->> 'queue' as name from jsonb_array_elements(i_inserts) v order by 1) q;
    perform pgq_task._require_named_once(v_chosen, 'inserted');
    if 0 <= any (v_chosen) then
        v_reserved := array(select r.id from pgq_task.reserved_id r
                             where r.id = any (v_chosen) and r.role = pgq._caller()
                             order by r.id for update);
    end if;
    select array_agg(coalesce((v ->> 'id')::bigint, nextval('pgq_task.task_id_seq')) order by nr), array_agg(nr::int4)
      into v_ids, v_left
      from jsonb_array_elements(i_inserts) with ordinality i (v, nr);

    if exists (select from jsonb_array_elements(i_inserts) v where v ->> 'unique_key' is not null and (v ->> 'skip_collisions')::boolean) then
        -- As in pgq_task.push_unique(11): a worker may not know the new state.
        update pgq_task.task t
           set unique_key = null
          from pgq_task.queue q, (select distinct v ->> 'queue' as name, v ->> 'unique_key' as key from jsonb_array_elements(i_inserts) v
                                     where (v ->> 'skip_collisions')::boolean) i
         where q.queue_id = t.queue_id and i.name = q.queue_name and i.key = t.unique_key and t.lease is not null;
    end if;

    loop
        -- Any other id is, or was, that of another task: its result would be taken for the other's.
        select c.id into v_wrong
          from unnest(v_chosen) c (id)
         where c.id >= 0 and c.id <> all (v_reserved) and (select t.id from pgq_task.task t where t.id = any (array[c.id])) is null
         limit 1;
        if found then
            perform pgq_task._raise_invalid(
                format('%s cannot be chosen as an id: this role has not reserved it, or has used it', v_wrong),
                'Choose a negative number, or take one from pgq_task.reserve_ids(1), as the same role.');
        end if;
        -- In the order in which all sessions insert the same keys.
        with wanted as (
            select i.v, i.nr, v_ids[i.nr] as id, coalesce(q.queue_id, (pgq_task._find_queue(i.v ->> 'queue')).queue_id) as queue_id
              from jsonb_array_elements(i_inserts) with ordinality i (v, nr)
              left join pgq_task.queue q on q.queue_name = i.v ->> 'queue'
              join unnest(v_left) l (nr) on l.nr = i.nr
             where i.v ->> 'id' is null or (i.v ->> 'id')::bigint < 0 or (i.v ->> 'id')::bigint = any (v_reserved)),
        done as (
            insert into pgq_task.task (id, queue_id, priority, pos, payload, headers, unique_key, order_key, is_late)
            select w.id, w.queue_id, coalesce((w.v ->> 'priority')::int2, 0),
                   pgq_task._position_at((w.v ->> 'at')::timestamptz, (w.v ->> 'delay')::interval)
                       + w.nr - 1 + (w.nr - 1) / 255,
                   w.v -> 'payload', nullif(w.v -> 'headers', 'null'), w.v ->> 'unique_key', w.v ->> 'order_key',
                   case when w.v ->> 'order_key' is not null then true end
              from wanted w
             order by w.queue_id, w.v ->> 'unique_key', w.id
            on conflict do nothing
            returning id, queue_id, priority)
        select array_agg(d.id), array_agg(d.queue_id), array_agg(d.priority::int4) into v_done, v_queues, v_lanes from done d;
        if exists (select from jsonb_array_elements(i_inserts) v where v ->> 'order_key' is not null) then
            perform pgq_task._hold_back_all(v_done);
        end if;
        if v_reserved <> '{}' then
            delete from pgq_task.reserved_id r where r.id = any (v_reserved) and r.id = any (v_done);
        end if;
        perform pgq_task._count_each('pushed', v_queues);
        perform pgq_task._show_tasks(v_queues, v_lanes);
        return query
            select 'insert', i.nr::int4, i.id, 1
              from unnest(v_ids) with ordinality i (id, nr)
              join unnest(v_done) d (id) using (id);
        v_left := array(select l.nr from unnest(v_left) l (nr) left join unnest(v_done) d (id) on d.id = v_ids[l.nr] where d.id is null);
        exit when v_left = '{}';

        v_conflicts := jsonb_path_query_array(pgq_task._collisions_of(i_inserts, null, '{}', true), '$[*] ? (@.nr == $left[*] && exists (@.other))',
                                              jsonb_build_object('left', v_left));
        v_refused := jsonb_path_query_array(v_conflicts, '$[*] ? (@.nr == $strict[*])', jsonb_build_object('strict', v_strict));
        if v_refused <> '[]' then
            perform pgq_task._raise_modify_conflict(v_refused);
        end if;
        return query
            select 'skip', (c ->> 'nr')::int4, (c ->> 'other')::bigint, (c ->> 'version')::int4
              from jsonb_array_elements(v_conflicts) c;
        -- If a key is free now, the other task was finished in between.
        v_left := array(select l from unnest(v_left) l except select (c ->> 'nr')::int4 from jsonb_array_elements(v_conflicts) c);
        exit when v_left = '{}';
    end loop;
end;
$$;

create or replace function pgq_task._show_tasks(i_queue_ids int4[], i_priorities int4[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates missing lanes and wakes the workers after tasks were put into these queues, with these priorities.
begin
    -- In the order in which drop_queue() locks it.
    perform pgq_task._wake_workers(w.queue_id, q.queue_name)
       from (select distinct u.queue_id from unnest(i_queue_ids) u (queue_id)) w
       left join pgq_task.queue q using (queue_id);
    perform pgq_task._add_lane(l.queue_id, l.priority)
       from (select distinct n.queue_id, n.priority::int2 as priority
               from unnest(i_queue_ids, i_priorities) n (queue_id, priority)
              order by 1, 2) l;
end;
$$;
