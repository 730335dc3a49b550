-- A captured table's columns are a contract by themselves: of type schema.table, for captures in JSON. A version is added
-- when the trigger function is made, and made again because the table was altered. No event is checked against it, so it
-- makes no difference that any writer can have one, of any type: with a table, and a schema, of its own.

create or replace function pgq._column_schema(i_type oid, i_modifier int4, i_format text, i_nullable boolean)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the JSON Schema of a column's values, as a capture writes them. What "type" cannot say is in "format".
-- Parameters:
--      i_format    - row_json, jsontriga
    select case when i_nullable and s.type ? 'type' then jsonb_set(s.type, '{type}', jsonb_build_array(s.type -> 'type', 'null')) else s.type end
      from (select case
                   when i_format = 'row_json' and t.typtype = 'd' then pgq._column_schema(t.typbasetype, t.typtypmod, i_format, false)
                   when t.oid = 'bool'::regtype then '{"type": "boolean"}'
                   when t.oid::regtype in ('int2'::regtype, 'int4', 'int8') then '{"type": "integer"}'
                   when t.oid::regtype in ('float4'::regtype, 'float8', 'numeric') then
                       jsonb_build_object('type', case i_format when 'row_json' then 'number' else 'string' end,
                                          'format', case t.typname when 'numeric' then replace(format_type(t.oid, i_modifier), 'numeric', 'decimal')
                                                    else 'double' end)
                   when t.oid = 'date'::regtype then '{"type": "string", "format": "date"}'
                   when t.oid = 'timestamptz'::regtype then '{"type": "string", "format": "date-time"}'
                   when t.oid = 'timestamp'::regtype then '{"type": "string", "format": "date-time-local"}'
                   when i_format = 'jsontriga' then '{"type": "string"}'
                   when t.typcategory = 'A' then
                       jsonb_build_object('type', 'array', 'items', pgq._column_schema(t.typelem, i_modifier, i_format, true))
                   when t.typtype = 'c' then '{"type": "object"}'
                   -- Types of users may have casts to json.
                   when t.typname in ('json', 'jsonb') or t.oid >= 16384 and t.typtype = 'b' then '{}'
                   else '{"type": "string"}'
                   end as type
              from pg_type t
             where t.oid = i_type) s;
$$;

create or replace function pgq._may_capture(i_role name, i_queue_name text)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a role that owns tables may capture them into a queue.
    select pg_has_role(i_role, 'pgq_writer', 'usage')
       and exists (select from pgq.queue q
                    where q.queue_name = i_queue_name
                      and (not q.queue_restricted or pgq._role_has_right(i_role, q.queue_id, '{insert}', null)));
$$;

create or replace function pgq._capture_contract(i_function oid, i_wait boolean)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adds a version to the contract of a captured table, if its columns differ from those of the last one. It can be called
-- by any writer, so it believes the catalog alone: that the owner of the table captures it, and may write to the queue.
-- Parameters:
--      i_function  - the trigger function
--      i_wait      - whether to wait while the queue is being changed
-- Returns: false if the queue is being changed.
declare
    v_queue     int4;
    v_type      text;
    v_schema    jsonb;
    v_last      pgq.contract;
    most        constant int4 := 100;
begin
    select q.queue_id, (s.shape ->> 'schema') || '.' || (s.shape ->> 'table'),
           -- Types by their numbers: to look one up by its name takes a right on its schema.
           (select jsonb_build_object('type', 'object', 'required', jsonb_agg(a.attname order by a.attnum),
                                      'properties', jsonb_object_agg(a.attname,
                       pgq._column_schema(a.atttypid, a.atttypmod, t.capture_options ->> 'format', not a.attnotnull)))
              from jsonb_array_elements(s.shape -> 'columns') as c (value)
              join pg_attribute a on a.attrelid = t.capture_table and a.attname = c.value ->> 'name'
            having count(*) > 0)
      into v_queue, v_type, v_schema
      from pgq.capture t
      join pg_class r on r.oid = t.capture_table and pg_get_userbyid(r.relowner) = t.capture_role and r.relpersistence <> 't'
      join pgq.queue q on q.queue_name = t.capture_queue
      cross join lateral (select pgq._capture_shape(t.capture_table, t.capture_options)) s (shape)
     where t.capture_function = i_function
       and t.capture_options ->> 'format' <> 'logutriga'
       and pgq._may_capture(t.capture_role, q.queue_name);
    select * into v_last from pgq.contract c
     where c.contract_queue = v_queue and c.contract_type = v_type order by c.contract_version desc limit 1;
    if v_schema is null or v_last.contract_schema = v_schema or not v_last.contract_captured then
        return true;
    end if;
    if i_wait then
        perform from pgq.queue where queue_id = v_queue for key share;
    else
        -- Here an application's statement would wait.
        perform from pgq.queue where queue_id = v_queue for key share skip locked;
    end if;
    if found then
        insert into pgq.contract (contract_queue, contract_type, contract_version, contract_schema, contract_compatibility,
                                  contract_enforced, contract_captured)
        select v_queue, v_type, coalesce(v_last.contract_version, 0) + 1, v_schema, 'none', false, true
         -- set_contract() may have taken it over since.
         where not exists (select from pgq.contract c
                            where c.contract_queue = v_queue and c.contract_type = v_type and not c.contract_captured)
        on conflict do nothing;
        delete from pgq.contract
         where contract_queue = v_queue
           and contract_type = v_type
           and contract_version <= v_last.contract_version + 1 - most
           and contract_captured;
        return true;
    end if;
    return false;
end;
$$;
