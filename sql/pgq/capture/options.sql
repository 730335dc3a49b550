create or replace function pgq._capture_check_columns(i_table regclass, i_option text, i_columns text[])
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns a list of columns in the form that pgq._capture_names(3) expects; raises PQ011 for a name that is not a
-- column.
declare
    v_missing   text;
begin
    if i_columns is null then
        return null;
    end if;
    select string_agg(coalesce(quote_ident(u.name), 'NULL'), ', ')
      into v_missing
      from unnest(i_columns) as u (name)
     where not exists (select from pg_attribute a
                        where a.attrelid = i_table and a.attname = u.name and a.attnum > 0 and not a.attisdropped);
    if v_missing is not null or cardinality(i_columns) = 0 then
        raise exception using errcode = 'PQ011',
            message = format('%s: %s', i_option, case when v_missing is null then 'no column is given'
                                                     else format('table %s has no column %s', i_table, v_missing) end),
            hint = format('The columns of the table are %s.',
                          (select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
                             from pg_attribute a where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped));
    end if;
    return (select jsonb_agg(jsonb_build_object('name', a.attname, 'number', a.attnum) order by u.n)
              from unnest(i_columns) with ordinality as u (name, n)
              join pg_attribute a on a.attrelid = i_table and a.attname = u.name);
end;
$$;

create or replace function pgq._capture_check_choice(i_option text, i_value text, i_choices text[])
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ011 if an option has an invalid value.
begin
    if i_value is null or i_value <> all (i_choices) then
        raise exception using errcode = 'PQ011',
            message = format('%s cannot be %s', i_option, quote_nullable(i_value)),
            hint = format('It can be %s.', array_to_string(i_choices, ', '));
    end if;
end;
$$;

create or replace function pgq._capture_check_options(
    i_table regclass, i_queue_name text, i_operations text, i_columns text[], i_exclude text[], i_key text[],
    i_old_values text, i_condition text, i_format text, i_key_changes text)
returns jsonb
language plpgsql set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
as $$
-- Checks the parameters of pgq.capture_table().
-- Returns: the options as they are stored: without defaults, except for operations and format.
declare
    v_operation     text;
    v_operations    text[] := array(select btrim(lower(o)) from unnest(string_to_array(btrim(i_operations, '{} '), ',')) o);
    v_all           constant text[] := array['insert', 'update', 'delete', 'truncate'];
    v_owner         constant name := (select pg_get_userbyid(relowner) from pg_class where oid = i_table);
    v_options       jsonb;
begin
    if not has_column_privilege(v_owner, pgq.queue_relation(i_queue_name), 'ev_type', 'insert') then
        raise exception using errcode = 'insufficient_privilege',
            message = format('table %s belongs to role %I, which may not insert into queue %L', i_table, v_owner, i_queue_name),
            hint = format('The queue is restricted. An administrator grants it: select pgq.grant_queue(%L, ''{insert}'', %L).',
                          i_queue_name, v_owner);
    end if;
    if cardinality(v_operations) = 0 then
        v_operations := array[null::text];
    end if;
    foreach v_operation in array v_operations loop
        perform pgq._capture_check_choice('operations', v_operation, v_all);
    end loop;
    perform pgq._capture_check_choice('format', i_format, array['row_json', 'jsontriga', 'logutriga']);
    perform pgq._capture_check_choice('key_changes', i_key_changes, array['split', 'error']);
    perform pgq._capture_check_choice('old_values', i_old_values,
        case i_format when 'logutriga' then array['none', 'row'] else array['none', 'row', 'changed'] end);
    if i_columns is not null and i_exclude is not null then
        raise exception using errcode = 'PQ011', message = 'columns and exclude cannot be given both',
            hint = 'Give columns for a short list of what to capture, or exclude for what not to.';
    end if;

    v_options := jsonb_strip_nulls(jsonb_build_object(
        'queue', i_queue_name,
        'table_oid', i_table::oid::int8,
        'operations', (select jsonb_agg(o.name order by o.n) from unnest(v_all) with ordinality as o (name, n)
                        where o.name = any (v_operations)),
        'columns', pgq._capture_check_columns(i_table, 'columns', i_columns),
        'exclude', pgq._capture_check_columns(i_table, 'exclude', i_exclude),
        'key', pgq._capture_check_columns(i_table, 'key', i_key),
        'old_values', nullif(i_old_values, 'none'),
        'condition', i_condition,
        'format', i_format,
        'key_changes', nullif(i_key_changes, 'split')));

    if v_operations && array['update', 'delete'] and i_old_values <> 'row'
       and pgq._capture_shape(i_table, v_options) -> 'key' = '[]'
    then
        raise exception using errcode = 'PQ021',
            message = format('table %s has no primary key', i_table),
            hint = 'Add one, or give key => ''{column, ...}'', or old_values => ''row'', or operations => ''insert''.';
    end if;
    if i_condition is not null then
        -- Parse and plan it over no rows: anything but a boolean expression over a row fails here.
        begin
            execute format('select from %1$s new left join %1$s old on false '
                           'cross join lateral (select (%2$s) as holds from (select new.*) t) c where c.holds limit 0',
                           i_table, E'\n' || i_condition || E'\n');
        exception
            when insufficient_privilege then raise;
            when syntax_error_or_access_rule_violation or data_exception then
                raise exception using errcode = sqlstate, hint = 'Write it over new and old, as in: new.delay > 60.',
                    message = format('condition %L cannot be computed: %s', i_condition, sqlerrm);
        end;
    end if;
    return v_options;
end;
$$;
