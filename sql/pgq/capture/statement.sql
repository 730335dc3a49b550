create or replace function pgq._capture_statement(
    i_shape jsonb, i_options jsonb, i_form text, i_paired text default null)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns one of the statements of a generated trigger function. It reads the transition tables new_rows and old_rows,
-- and means the same with any search_path unless the user's condition does not. One INSERT writes all events of a
-- user's statement, in the order of the rows.
--
-- An UPDATE that changes the key of a row becomes a DELETE of the old row and an INSERT of the new one, for consumers
-- that find their copy by key. All such DELETEs come first: 1 -> 2 and 2 -> 3 in one statement must not delete the row
-- that has just become 2.
-- Parameters:
--      i_form      - which statement:
--          insert, delete      rows of that operation
--          update              new rows alone, if no key has changed; otherwise nothing
--          update_one          one row, if its key has not changed; otherwise nothing
--          update_any          everything
--      i_paired        - expression: there are as many old rows as new ones, so
--                        that they belong together by position; for update_any
-- Returns: the statement.
declare
    v_key_new   text;
    v_key_old   text;
    v_keys_new  text;
    v_keys_old  text;
    v_keys_same text;
    v_same      text;
    v_kept      text;
    v_some      text;
    v_extra1    text := quote_literal((i_shape ->> 'schema') || '.' || (i_shape ->> 'table'));
    v_extra2    text := 'null';
    v_events    text;
    v_from      text;
    v_where     text := '';
    v_moved     text;
    v_new       text := case when i_form = 'update_any' then 'new."pgq:row"' else 'new.*' end;
    v_old       text := case when i_form = 'update_any' then 'old."pgq:row"' else 'old.*' end;
    v_data_new  text;
    v_data_old  text;
begin
    -- In one function: it puts together the parts of one statement.
    select string_agg(format('new.%I', k.value), ', ' order by k.n),
           string_agg(format('old.%I', k.value), ', ' order by k.n),
           string_agg(format('array(select n.%I from new_rows n limit 200001)', k.value), ', ' order by k.n),
           string_agg(format('array(select o.%I from old_rows o limit 200000)', k.value), ', ' order by k.n),
           string_agg(format('array(select n.%1$I from new_rows n limit 200001) operator(pg_catalog.=) '
                             'array(select o.%1$I from old_rows o limit 200000)', k.value), ' and ' order by k.n)
      into v_key_new, v_key_old, v_keys_new, v_keys_old, v_keys_same
      from jsonb_array_elements_text(i_shape -> 'key') with ordinality as k (value, n);
    -- Compare byte by byte: equal values may be different keys to the consumer ('a' and 'A' in citext).
    v_same := coalesce(format('row(%s)::pg_catalog.record operator(pg_catalog.*=) row(%s)::pg_catalog.record',
                              v_key_new, v_key_old), 'true');
    v_kept := case i_form
        when 'update_one' then
            v_same || ' and not exists (select from old_rows offset 1) and not exists (select from new_rows offset 1)'
        -- All keys as one array: much faster than a join, but it has to fit into 1 GB. If there are more rows, the
        -- limits take different numbers of keys, so the arrays are never equal.
        when 'update' then
            case when (i_shape -> 'key_by_bytes')::boolean then v_keys_same
                 else format('row(%s)::pg_catalog.record operator(pg_catalog.*=) row(%s)::pg_catalog.record',
                             v_keys_new, v_keys_old) end
        end;

    v_data_new := pgq._capture_data(i_shape, i_options, 'new', v_new);
    v_data_old := pgq._capture_data(i_shape, i_options, 'old', v_old);
    if i_form in ('update_one', 'update_any') then
        v_extra2 := case
            when i_options ->> 'old_values' = 'row' or v_key_new is null then v_data_old
            when i_options ->> 'old_values' = 'changed' then pgq._capture_changes(v_data_old, v_data_new)
            else 'null'
            end;
        -- Only captured columns count; an UPDATE that changes nothing at all makes an event, as in PgQ.
        if i_options ?| array['columns', 'exclude'] then
            select format('(row(%s)::pg_catalog.record operator(pg_catalog.*<>) row(%s)::pg_catalog.record '
                          'or %s operator(pg_catalog.*=) %s)',
                          string_agg(format('new.%I', c.value ->> 'name'), ', '),
                          string_agg(format('old.%I', c.value ->> 'name'), ', '), v_new, v_old)
              into v_some
              from jsonb_array_elements(i_shape -> 'columns') as c (value);
        end if;
    end if;

    -- In a condition both rows exist for every operation; a missing row has nulls. Columns without a row's name are
    -- those of the row that the event carries.
    v_from := case i_form
        when 'insert' then 'new_rows new' || case when i_options ? 'condition' then ' left join new_rows old on false' else '' end
        when 'update' then 'new_rows new'
        when 'delete' then 'old_rows old' || case when i_options ? 'condition' then ' left join old_rows new on false' else '' end
        -- The limit is for the planner, which would otherwise expect the product of two large tables and compile the
        -- plan.
        when 'update_one' then 'old_rows old cross join (select * from new_rows limit 1) new'
        when 'update_any' then
            -- The table's name means the row unless there is a column of this name. The columns are taken from the
            -- table, not from the row, where PostgreSQL would count dropped columns too.
            '(select pg_catalog.row_number() over () as "pgq:n", "pgq:row" as "pgq:row", "pgq:row".* from old_rows "pgq:row") old '
            'full join '
            '(select pg_catalog.row_number() over () as "pgq:n", "pgq:row" as "pgq:row", "pgq:row".* from new_rows "pgq:row") new '
            'on old."pgq:n" operator(pg_catalog.=) new."pgq:n"'
        end;
    if i_form = 'update_any' then
        v_from := format('%s cross join lateral (select %s and %s as kept) k', v_from, i_paired, v_same);
    end if;
    if i_options ? 'condition' then
        v_from := v_from || format(E' cross join lateral (select (\n%s\n) as holds from (select %s.*) t) c',
                                   i_options ->> 'condition', case i_form when 'delete' then 'old' else 'new' end);
    end if;
    select coalesce(' where ' || string_agg(w, ' and '), '')
      into v_where
      from unnest(array[v_kept,
                        case when i_form = 'update_any' then '(not k.kept or ' || v_some || ')' else v_some end,
                        case when i_options ? 'condition' then 'c.holds' end]) as w
     where w is not null;

    if i_form = 'update_any' then
        v_moved := format(case i_options ->> 'key_changes' when 'error' then 'pgq._raise_key_changed(%L)' else '%L' end,
                          case i_options ->> 'key_changes' when 'error' then (i_shape ->> 'schema') || '.' || (i_shape ->> 'table')
                               else pgq._capture_type(i_shape, i_options, 'DELETE') end);
        v_events := format(
            'select e.type, e.data, e.extra2 from %s cross join lateral ('
            'select 1 as part, %s as type, %s as data, null as extra2 where not k.kept and old."pgq:n" is not null '
            'union all '
            'select 2, case when k.kept then %L else %L end, %s, case when k.kept then %s end '
            'where new."pgq:n" is not null) e%s order by e.part, coalesce(new."pgq:n", old."pgq:n")',
            v_from,
            v_moved, v_data_old,
            pgq._capture_type(i_shape, i_options, 'UPDATE'), pgq._capture_type(i_shape, i_options, 'INSERT'),
            v_data_new, v_extra2, v_where);
    else
        v_events := format('select %L as type, %s as data, %s as extra2 from %s%s',
            pgq._capture_type(i_shape, i_options, upper(split_part(i_form, '_', 1))),
            case i_form when 'delete' then v_data_old else v_data_new end, v_extra2, v_from, v_where);
    end if;
    return format(
        'insert into %s (ev_type, ev_data, ev_extra1, ev_extra2) select e.type, e.data, %s, e.extra2 from (%s) e',
        i_shape ->> 'relation', v_extra1, v_events);
end;
$$;

create or replace function pgq._raise_key_changed(i_table text)
returns text
language plpgsql
as $$
-- Raises PQ022.
begin
    raise exception using errcode = 'PQ022',
        message = pg_catalog.format('the key of captured table %s must not change', i_table),
        hint = 'Delete the row and insert it again, or capture the table with key_changes => ''split''.';
end;
$$;
