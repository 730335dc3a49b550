create or replace function pgq._row_event(
    i_format text, i_operation text, i_when text, i_schema text, i_table text, i_relation oid, i_arguments text[],
    i_row anyelement, i_old anyelement, i_expressions text[])
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Puts the event for one row into the queue: the common part of sqltriga, logutriga and jsontriga. It runs with the
-- rights of the role that changes the table.
-- Parameters:
--      i_format        - sql, url or json
--      i_operation .. i_arguments - the values that PostgreSQL gives the trigger
--      i_row           - the row, for an UPDATE the new one
--      i_old           - for an UPDATE the old one, otherwise the row
--      i_expressions   - values from pgq._row_expressions; null if the arguments have none
-- Returns: whether the row shall be written to the table (the result of a BEFORE trigger).
declare
    l           pgq.row_layout;
    v_fits      boolean;
    v_id        bigint;
    v_values    text[];
    v_old       text[];
    v_changed   int[];
    v_column    int;
    v_type      text;
    v_data      text;
    v_event     text[];  -- if not ordinary: type, data, extra1..4
begin
    -- In one function: it runs for every row, and a call costs as much as the work of a step.
    if pg_catalog.current_setting('session_replication_role') = 'local' then
        return true;
    end if;

    -- The layout: made for these arguments, for exactly the columns and types that the row has, and for a primary key
    -- that still exists. The row's own structure is compared, not the catalog's: that is faster, and correct even if
    -- the transaction's snapshot is older than the table. One assignment, because SELECT INTO would copy field by
    -- field.
    for attempt in 1 .. 2
    loop
        l := (select r
                from pgq.row_layout r
               where r.relation = i_relation
                 and r.arguments = i_arguments
               order by r.made desc
               limit 1);
        v_fits := l.relation is not null
            and case
                    when l.blank is null then pgq._row_has_columns(i_relation, i_row, l.columns, l.types)
                    else l.shape = pg_catalog.record_send(pg_catalog.jsonb_populate_record(i_row, l.blank))
                         and l.blank_text = pg_catalog.row_to_json(pg_catalog.jsonb_populate_record(i_row, l.blank))::text
                end
            and case
                    when l.keyless then l.has_pkey or not pgq._has_primary_key(i_relation)
                    else l.key_index is null or pg_catalog.pg_relation_filenode(l.key_index) is not null
                end;
        exit when v_fits;
        if attempt = 2 then
            raise exception using errcode = 'serialization_failure',
                message = pg_catalog.format('table %s has changed since this transaction took its snapshot',
                                            i_relation::pg_catalog.regclass),
                hint = 'Roll back and run the transaction again.';
        end if;
        perform pgq._row_layout_build(i_relation, i_arguments);
    end loop;

    if l.skip and i_when = 'AFTER' then
        raise exception using errcode = 'PQ020',
            message = 'SKIP in an AFTER trigger, where the row is written already',
            hint = 'Create the trigger BEFORE the operation, or leave out SKIP.';
    end if;
    if l.keyless and i_operation <> 'INSERT' then
        raise exception using errcode = 'PQ021',
            message = pg_catalog.format('%s on table %s, which has no primary key', i_operation, i_relation::pg_catalog.regclass),
            hint = 'Add a primary key, or name columns that identify a row with the trigger argument pkey=columns.';
    end if;
    if l.deny then
        perform pgq._raise_denied(i_operation, i_relation, i_arguments[0]);
    end if;

    if i_format <> 'json' or not l.json_plain or i_operation = 'UPDATE' then
        v_values := case
            when l.values_query is null then pgq._row_values(i_row::text, pg_catalog.cardinality(l.columns))
            else pgq._wide_row_values(l.values_query, i_row)
        end;
    end if;
    if i_operation = 'DELETE' then
        v_old := v_values;
    elsif i_operation = 'UPDATE' then
        v_old := case
            when l.values_query is null then pgq._row_values(i_old::text, pg_catalog.cardinality(l.columns))
            else pgq._wide_row_values(l.values_query, i_old)
        end;
        if i_when = 'BEFORE' and l.has_generated then
            -- Generated columns are computed later; until then PgQ sees the old value, so this shows the old value too.
            -- Ask the catalog, because a column can cease to be generated without any other change.
            foreach v_column in array array(
                select pg_catalog.array_position(l.columns, a.attname)
                  from pg_catalog.pg_attribute a
                 where a.attrelid = i_relation
                   and a.attgenerated = 's'
                   and not a.attisdropped)
            loop
                v_values[v_column] := v_old[v_column];
            end loop;
        end if;
        foreach v_column in array l.key_columns
        loop
            if (v_old[v_column] is distinct from v_values[v_column] or l.by_operator[v_column])
                    and pgq._changed_columns(l, i_old, i_row, v_old, v_values, array[v_column]) <> '{}' then
                raise exception using errcode = 'PQ022',
                    message = pg_catalog.format('UPDATE of table %s changes the key (%s)',
                                                i_relation::pg_catalog.regclass, l.key_list),
                    hint = 'Delete the row and insert it with its new key, so that readers of the events can tell which row it was.';
            end if;
        end loop;
        if i_format = 'sql' or l.has_ignore then
            v_changed := pgq._changed_columns(l, i_old, i_row, v_old, v_values,
                                              array(select pg_catalog.generate_series(1, pg_catalog.cardinality(l.columns))));
            -- An UPDATE that changes only ignored columns makes no event; one that changes nothing at all does.
            if v_changed <> '{}' and not exists (select from pg_catalog.unnest(v_changed) c where not l.hidden[c]) then
                return not l.skip;
            end if;
        end if;
    end if;

    if i_format = 'json' then
        v_type := '{"op":"' || i_operation || '","table":[' || pg_catalog.to_json(i_schema) || ','
                  || pg_catalog.to_json(i_table) || '],"pkey":' || l.key_json || '}';
        v_data := case
            when l.json_plain then pg_catalog.row_to_json(i_row)::text
            else pgq._row_json(l.json_template, l.json_convert, l.columns, l.types, i_row, v_values)
        end;
    elsif i_format = 'url' then
        v_type := pg_catalog.left(i_operation, 1) || ':' || l.key_list;
        v_data := pgq._row_url(l.url_template, v_values);
    else
        v_type := pg_catalog.left(i_operation, 1);
        v_data := pgq._row_sql(i_operation, l, v_old, v_values, v_changed);
    end if;

    if not l.special then
        -- An assignment is evaluated at once; PERFORM would start a query for it.
        v_id := pgq.insert_event(i_arguments[0], v_type, v_data, i_schema || '.' || i_table, null, null, null);
        return not l.skip;
    end if;

    if i_expressions[1] = 'f' then
        return not l.skip;
    end if;
    v_event := array[v_type, v_data, i_schema || '.' || i_table, null, null, null];
    if l.backup and i_operation = 'UPDATE' then
        v_event[4] := case i_format
            when 'json' then pgq._row_json(l.json_template, l.json_convert, l.columns, l.types, i_old, v_old)
            else pgq._row_url(l.url_template, v_old)
        end;
    end if;
    for i in 1 .. 6
    loop
        if l.queries[i + 1] is not null then
            v_event[i] := i_expressions[i + 1];
        elsif l.magic_columns[i] is not null then
            v_event[i] := v_values[l.magic_columns[i]];
        end if;
    end loop;
    v_id := pgq.insert_event(i_arguments[0], v_event[1], v_event[2], v_event[3], v_event[4], v_event[5], v_event[6]);
    return not l.skip;
end;
$$;

create or replace function pgq._statement_event(
    i_format text, i_operation text, i_when text, i_schema text, i_table text, i_relation oid, i_arguments text[])
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Puts the event for a statement into the queue: the common part of sqltriga, logutriga and jsontriga for statement
-- triggers. TRUNCATE is the only statement that they support.
-- Parameters:
--      as pgq._row_event(10)
declare
    a           record;
    v_key       text[];
    v_type      text := 'R';
    v_data      text := '';
begin
    if pg_catalog.current_setting('session_replication_role') = 'local' then
        return;
    end if;
    a := pgq._row_arguments(i_arguments);
    if i_operation <> 'TRUNCATE' then
        raise exception using errcode = 'PQ020',
            message = pg_catalog.format('trigger for each statement of %s', i_operation),
            hint = 'Create it FOR EACH ROW; to write a statement''s events at once use pgq.capture_table().';
    end if;
    if (a.skip and i_when = 'AFTER') or a.backup or a.has_ignore or a.key_list is not null
            or pg_catalog.num_nonnulls(variadic a.expressions) > 0 then
        raise exception using errcode = 'PQ020',
            message = 'trigger for TRUNCATE with an argument that makes no sense for it',
            hint = 'The queue''s name, deny, and in a BEFORE trigger SKIP are all it can have.';
    end if;
    if a.deny then
        perform pgq._raise_denied(i_operation, i_relation, i_arguments[0]);
    end if;

    if i_format = 'json' then
        select pg_catalog.array_agg(k.attname::text order by k.attnum) into v_key
          from pg_catalog.pg_index x
          join pg_catalog.pg_attribute k on k.attrelid = x.indexrelid
         where x.indrelid = i_relation
           and x.indisprimary;
        v_type := '{"op":"TRUNCATE","table":[' || pg_catalog.to_json(i_schema) || ',' || pg_catalog.to_json(i_table)
                  || '],"pkey":' || coalesce(pg_catalog.array_to_json(v_key)::text, '[]') || '}';
        v_data := '{}';
    end if;
    perform pgq.insert_event(i_arguments[0], v_type, v_data, i_schema || '.' || i_table, null, null, null);
end;
$$;
