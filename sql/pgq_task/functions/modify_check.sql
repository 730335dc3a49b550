create or replace function pgq_task.require_modification(i_kind text, i_list jsonb, i_force boolean default false)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.require_modification(3)
--
--      Raises PQ072 unless a list of modifications, of kind insert, change, delete, or depend, is valid. Internal.
-- ----------------------------------------------------------------------
declare
    v_known     constant text[] := case i_kind
        when 'insert' then '{id,queue,payload,at,delay,priority,headers,unique_key,order_key}'
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
        perform pgq_task.raise_invalid(format('the %ss are no JSON array', i_kind), format('Give an array of objects with %s.', array_to_string(v_known, ', ')));
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
               -- These only fail if they cannot be read.
               when num_nulls((e.v ->> 'id')::bigint, (e.v ->> 'version')::int4, (e.v ->> 'priority')::int2,
                              (e.v ->> 'at')::timestamptz, now() + (e.v ->> 'delay')::interval) < 0 then null
               end as problem) p
         where p.problem is not null
         order by e.nr limit 1;
    exception when data_exception then
        v_problem := format('one of the %ss cannot be read: %s', i_kind, sqlerrm);
    end;
    if v_problem is not null then
        perform pgq_task.raise_invalid(v_problem, format('Attributes of this kind: %s. Times and intervals are text, as PostgreSQL reads them.', array_to_string(v_known, ', ')));
    end if;
end;
$$;

create or replace function pgq_task.require_named_once(i_ids bigint[], i_what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.require_named_once(2)
--
--      Raises PQ072 for a task that is named twice for the same operation. Internal.
-- ----------------------------------------------------------------------
declare
    v_id    constant bigint := (select i from unnest(i_ids) i group by i having count(i) > 1 order by i limit 1);
begin
    if v_id is not null then
        perform pgq_task.raise_invalid(format('task %s is to be %s twice', v_id, i_what), 'Name each task once.');
    end if;
end;
$$;
