create or replace function pgq_task.list_tasks(queue text default null, filter jsonb default null, max_tasks int4 default 100)
returns setof pgq_task.tasks
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
-- Returns tasks in their present state. It locks nothing and changes nothing.
-- Parameters:
--      queue       - name of a queue; or a pattern, in which an asterisk stands for any characters, or null, for all
--                    that the caller may read
--      filter      - a JSON object of conditions, all of which are met:
--                    status              available, claimed, scheduled, held, stopped, or an array of these
--                    ids                 an array
--                    payload, headers    what they contain, as by PostgreSQL's operator @>
--                    error               a part of its text, in capitals or not
--                    claimant, priority, unique_key, order_key   equal to this
--                    attempts            minimum number of attempts, also of those that failed before an error queue
--                    created_after, created_before               from this time on, before this time
--                    at_after, at_before the same of the time from which they are available; of those that
--                                        are claimed, that is the end of the lease
--      max_tasks   - maximum number of tasks; null for all
-- Returns: Tasks, queue by queue, those of the highest priority first, in the order in which they become available;
--      held tasks come last. None of an error queue that no task has come to yet.
-- Errors: PQ072 an invalid filter or limit, 42501 no right to read the queue
#variable_conflict use_column
declare
    v_where constant text := pgq_task._filter_sql(filter);
    v_left  int4 := list_tasks.max_tasks;
    v_found int4;
    v_rows  text;
    v_range text;
    v_order text;
    l       record;
begin
    perform pgq_task._require_limit(max_tasks);
    if list_tasks.queue not like '%*%' then
        if pgq_task._nothing_failed_yet(list_tasks.queue) then
            return;
        end if;
        perform pgq_task._find_queue(list_tasks.queue, 'read');
    end if;
    for l in
        select distinct q.queue_id, q.queue_name, n.priority, n.low,
               filter ? 'payload' and pgq_task._has_payload_index(q.queue_id) as by_payload
          from pgq_task.queue q
          join pgq_task.marked_lane n using (queue_id)
         where (q.queue_name = list_tasks.queue or list_tasks.queue is null or pgq_task._matches(q.queue_name, list_tasks.queue))
           and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
           -- Planning a query costs more than finding out that there is nothing.
           and (q.queue_name = list_tasks.queue
                or exists (select from pgq_task.task t where t.queue_id = q.queue_id and t.priority = n.priority))
         order by q.queue_name, n.priority desc
    loop
        foreach v_order in array '{s.pos,s.id}'::text[]
        loop
            v_range := case v_order when 's.pos' then format('s.pos >= %s', l.low) else 's.pos is null' end;
            exit when v_left <= 0;
            v_rows := case when l.by_payload then
                -- Use the index first, whatever number of rows the planner expects.
                format('(with found as materialized (select id from pgq_task.task where queue_id = %s and payload @> %L)'
                       ' select v.* from found join pgq_task.task_status v using (id))', l.queue_id, filter -> 'payload')
                else 'pgq_task.task_status' end;
            return query execute format(
                'select s.id, s.version, %L::text, s.priority, s.status, s.at, s.claimant, s.attempts, s.last_attempt,'
                '       s.created, s.payload, s.headers, s.error, s.unique_key, s.order_key, s.failures'
                '  from %s s where s.queue_id = %s and s.priority = %s and %s and %s'
                ' order by s.queue_id, s.priority, %s limit %s',
                l.queue_name, v_rows, l.queue_id, l.priority, v_range, v_where, v_order, coalesce(v_left::text, 'all'));
            get diagnostics v_found = row_count;
            v_left := v_left - v_found;
        end loop;
        exit when v_left <= 0;
    end loop;
end;
$$;

create or replace function pgq_task._nothing_failed_yet(i_queue text)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a queue is an error queue that no task has come to yet: it does not exist.
    select not exists (select from pgq_task.queue q where q.queue_name = i_queue)
           and exists (select from pgq_task.queue q where coalesce(q.queue_error_queue, q.queue_name || '.failed') = i_queue);
$$;

create or replace function pgq_task._filter_sql(i_filter jsonb)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the condition on pgq_task.task_status, with the alias s, for a filter.
declare
    statuses    constant text[] := '{available,claimed,scheduled,held,stopped}';
    v_sql       text := 'true';
    v_now       constant bigint := pgq_task._position_of(statement_timestamp());
    v_list      text[];
    v_time      text;
    k           text;
    v           jsonb;
begin
    if jsonb_typeof(i_filter) <> 'object' then
        perform pgq_task._raise_invalid('the filter is no JSON object', 'Give one like {"status": "stopped"}.');
    end if;
    for k, v in select f.key, f.value from jsonb_each(i_filter) f
    loop
        v_list := case jsonb_typeof(v) when 'array' then array(select jsonb_array_elements_text(v)) else array[v #>> '{}'] end;
        if k in ('status', 'ids') then
            if k = 'status' and (v_list <@ statuses) is not true or array_position(v_list, null) is not null then
                perform pgq_task._raise_invalid(format('there is no %s %s', case k when 'ids' then 'id' else k end, v),
                                                'Status is one or several of: ' || array_to_string(statuses, ', ') || '; ids are an array of numbers.');
            end if;
        elsif k not in ('payload', 'headers') and (v = 'null' or jsonb_typeof(v) in ('array', 'object')) then
            perform pgq_task._raise_invalid(format('the filter''s %s is %s', k, v), 'Give one value, or leave the condition out.');
        end if;
        -- Whatever DateStyle is.
        v_time := case when k ~ '_(after|before)$' then to_jsonb(v_list[1]::timestamptz) #>> '{}' end;
        v_sql := concat_ws(' and ', v_sql,
            -- what an index, or a look at one column, tells
            case when k = 'status' and v_list = '{available}' then format('s.pos <= %s', v_now)
                 when k = 'status' and v_list = '{claimed}' then 's.lease > statement_timestamp()'
                 when k = 'status' and v_list = '{scheduled}' then format('s.pos > %s and s.pos < 9223372036854775807', v_now)
                 when k = 'status' and v_list = '{stopped}' then 's.pos = 9223372036854775807' end,
            case k
                when 'status' then format('s.status = any (%L)', v_list)
                when 'ids' then format('s.id = any (%L)', v_list::bigint[])
                when 'payload' then format('s.payload @> %L', v)
                when 'headers' then format('s.headers @> %L', v)
                when 'error' then format('position(lower(%L) in lower(s.error)) > 0', v_list[1])
                when 'claimant' then format('s.claimant = %L', v_list[1])
                when 'unique_key' then format('s.unique_key = %L', v_list[1])
                when 'order_key' then format('s.order_key = %L', v_list[1])
                when 'priority' then format('s.priority = %L::int2', v_list[1]::int2)
                when 'attempts' then format(
                    '(s.attempts >= %1$s or s.headers @? ''$ ? (exists (@.failed_at)).attempts ? (@ >= %1$s)'')', v_list[1]::int4)
                when 'created_after' then format('s.created >= %L', v_time)
                when 'created_before' then format('s.created < %L', v_time)
                when 'at_after' then format('s.at >= %L', v_time)
                when 'at_before' then format('s.at < %L', v_time)
                else pgq_task._raise_invalid(
                    format('the filter has an unknown condition %L', k),
                    'Conditions: status, ids, payload, headers, error, claimant, priority, unique_key, order_key, attempts, '
                    'created_after, created_before, at_after, at_before.') end);
    end loop;
    return v_sql;
exception when data_exception then
    perform pgq_task._raise_invalid(format('the filter''s %s cannot be read: %s', k, sqlerrm),
                                    'Numbers are JSON numbers, times are text as PostgreSQL reads it.');
end;
$$;

create or replace function pgq_task._require_limit(i_limit int4, i_of text default 'tasks')
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ072 unless a limit is null or positive.
begin
    if i_limit < 1 then
        perform pgq_task._raise_invalid(format('a limit of %s %s', i_limit, i_of), 'Give a limit of 1 or more, or null for none.');
    end if;
end;
$$;
