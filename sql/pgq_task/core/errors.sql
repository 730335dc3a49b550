create or replace function pgq_task._raise_queue_not_found(i_queue text)
returns void
language plpgsql
as $$
-- Raises PQ070.
begin
    raise exception using errcode = 'PQ070',
        message = pg_catalog.format('task queue %s does not exist', coalesce(pg_catalog.quote_literal(i_queue), 'NULL')),
        hint = case
                   when i_queue like '%/%'
                   then pg_catalog.format('Create it; or let pushes create tenants: set the parameter keep_tenants of %L.',
                                          substring(i_queue from '^(.*)/'))
                   else 'Create it with pgq_task.create_queue(name); pgq_task.get_queue_info() lists the task queues there are.'
               end;
end;
$$;

create or replace function pgq_task._find_queue(i_queue text, i_action text default null)
returns pgq_task.queue
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns a queue; raises PQ070 if there is none, 42501 if the caller may not do this with its tasks.
declare
    q   pgq_task.queue;
begin
    select * into q from pgq_task.queue where queue_name = i_queue;
    if not found then
        perform pgq_task._raise_queue_not_found(i_queue);
    elsif q.queue_restricted and i_action is not null then
        perform pgq_task._require_right(q.queue_id, i_action);
    end if;
    return q;
end;
$$;

create or replace function pgq_task._raise_conflict(i_message text, i_conflicts jsonb)
returns void
language plpgsql
as $$
-- Raises PQ071: nothing was changed, because some tasks are not in the state that the caller expects. The detail is
-- JSON: a list of {"id", "version", "reason", ...}, reason one of missing, claimed, collision.
begin
    raise exception using errcode = 'PQ071',
        message = i_message,
        detail = i_conflicts::text,
        hint = 'Nothing was changed. Drop what was done for these tasks and claim again: '
               'another session has them now, or finished them.';
end;
$$;

create or replace function pgq_task._raise_invalid(i_message text, i_hint text, i_code text default 'PQ072')
returns text
language plpgsql
as $$
-- Raises PQ072, an invalid argument, or another error. It has a type so that it can stand in an expression.
begin
    raise exception using errcode = i_code, message = i_message, hint = i_hint;
end;
$$;

create or replace function pgq_task._require_attributes(i_headers jsonb, i_unique_key text, i_order_key text)
returns void
language plpgsql
as $$
-- Raises PQ072 for headers that are not a JSON object, and for keys that are empty or too long.
declare
    v_bad   constant text := case
        when pg_catalog.octet_length(i_unique_key) not between 1 and 1000 then 'a unique_key of ' || pg_catalog.octet_length(i_unique_key)
        when pg_catalog.octet_length(i_order_key) not between 1 and 1000 then 'an order_key of ' || pg_catalog.octet_length(i_order_key) end;
begin
    if pg_catalog.jsonb_typeof(i_headers) not in ('object', 'null') then
        perform pgq_task._raise_invalid('the headers are no JSON object', 'Give an object like {"lang": "de"}, or none.');
    elsif v_bad is not null then
        perform pgq_task._raise_invalid(v_bad || ' bytes', 'A key has 1 to 1000 bytes. A task without one has NULL.');
    end if;
end;
$$;
