create or replace function pgq._changed_columns(
    i_layout pgq.row_layout, i_old anyelement, i_new anyelement, i_old_values text[], i_new_values text[], i_columns int[])
returns int[]
language plpgsql
as $$
-- Returns the columns that an UPDATE has changed. As in PgQ, a column is unchanged if its type calls the values equal,
-- even if they are written differently.
-- Parameters:
--      i_layout        - layout of the table
--      i_old, i_new    - the row before and after
--      i_old_values, i_new_values - the same as texts
--      i_columns       - positions of the columns to look at
-- Returns: the positions of the changed columns.
declare
    -- With too few digits, different numbers are written alike.
    v_rounded   constant boolean := pg_catalog.current_setting('extra_float_digits')::int < 1;
    v_changed   int[] := '{}';
    v_column    int;
    v_differs   boolean;
begin
    foreach v_column in array i_columns
    loop
        v_differs := i_old_values[v_column] is distinct from i_new_values[v_column];
        if i_layout.by_operator[v_column] and (v_differs or v_rounded)
                and i_old_values[v_column] is not null and i_new_values[v_column] is not null then
            begin
                -- Comparing them as rows uses the type's own equality, whatever the search_path.
                execute pg_catalog.format('select pg_catalog.record_ne(row(($1).%1$I), row(($2).%1$I))',
                                          i_layout.columns[v_column])
                   into v_differs
                  using i_old, i_new;
            exception when undefined_function then
                null;  -- a composite type with a field that has no equality
            end;
        end if;
        if v_differs then
            v_changed := v_changed || v_column;
        end if;
    end loop;
    return v_changed;
end;
$$;

create or replace function pgq._row_json(
    i_template text, i_convert int[], i_columns name[], i_types oid[], i_row anyelement, i_values text[])
returns text
language plpgsql
as $$
-- A row as jsontriga writes it: integers and booleans bare, dates and timestamps in ISO form whatever the DateStyle,
-- all else as a string in the form that its type writes.
-- Parameters:
--      i_template .. i_types   - json_template, json_convert, columns and types of the table's layout
--      i_row                   - the row
--      i_values                - the row as texts
declare
    v_iso       boolean;
    v_bare      text[] := i_values;
    v_column    int;
    v_value     text;
begin
    if i_convert <> '{}' then
        v_iso := pg_catalog.current_setting('DateStyle') like 'ISO%';
        foreach v_column in array i_convert
        loop
            v_value := i_values[v_column];
            v_bare[v_column] := case
                when i_types[v_column] = 16 then  -- bool
                    case v_value when 't' then 'true' when 'f' then 'false' end
                when not v_iso or v_value like '%BC' then
                    (pg_catalog.row_to_json(i_row) -> i_columns[v_column]::text)::text
                -- '2020-07-01 10:11:12.5+02' to '2020-07-01T10:11:12.5+02:00'
                when pg_catalog.substr(v_value, pg_catalog.length(v_value) - 2, 1) in ('+', '-')
                        and i_types[v_column] = 1184 then  -- timestamptz
                    '"' || pg_catalog.replace(v_value, ' ', 'T') || ':00"'
                else
                    '"' || pg_catalog.replace(v_value, ' ', 'T') || '"'
            end;
        end loop;
    end if;

    if pg_catalog.cardinality(i_values) > 16 then
        return pg_catalog.format(i_template, variadic
            array(select coalesce(pg_catalog.to_json(v)::text, 'null') from pg_catalog.unnest(i_values) v)
            || array(select coalesce(v, 'null') from pg_catalog.unnest(v_bare) v));
    end if;
    -- Equivalent, without the cost of starting two queries.
    return pg_catalog.format(i_template,
        coalesce(pg_catalog.to_json(i_values[1])::text, 'null'), coalesce(pg_catalog.to_json(i_values[2])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[3])::text, 'null'), coalesce(pg_catalog.to_json(i_values[4])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[5])::text, 'null'), coalesce(pg_catalog.to_json(i_values[6])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[7])::text, 'null'), coalesce(pg_catalog.to_json(i_values[8])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[9])::text, 'null'), coalesce(pg_catalog.to_json(i_values[10])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[11])::text, 'null'), coalesce(pg_catalog.to_json(i_values[12])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[13])::text, 'null'), coalesce(pg_catalog.to_json(i_values[14])::text, 'null'),
        coalesce(pg_catalog.to_json(i_values[15])::text, 'null'), coalesce(pg_catalog.to_json(i_values[16])::text, 'null'),
        coalesce(v_bare[1], 'null'), coalesce(v_bare[2], 'null'), coalesce(v_bare[3], 'null'), coalesce(v_bare[4], 'null'),
        coalesce(v_bare[5], 'null'), coalesce(v_bare[6], 'null'), coalesce(v_bare[7], 'null'), coalesce(v_bare[8], 'null'),
        coalesce(v_bare[9], 'null'), coalesce(v_bare[10], 'null'), coalesce(v_bare[11], 'null'), coalesce(v_bare[12], 'null'),
        coalesce(v_bare[13], 'null'), coalesce(v_bare[14], 'null'), coalesce(v_bare[15], 'null'), coalesce(v_bare[16], 'null'));
end;
$$;

create or replace function pgq._row_url(i_template text, i_values text[])
returns text
language sql stable strict
as $$
-- A row as logutriga writes it: column=value&..., a null column without '='.
-- Parameters:
--      i_template  - url_template of the table's layout
--      i_values    - the row as texts
select pg_catalog.format(i_template, variadic
           array(select coalesce('=' || pgq._urlencode(v), '') from pg_catalog.unnest(i_values) v));
$$;

create or replace function pgq._row_sql(
    i_operation text, i_layout pgq.row_layout, i_old text[], i_new text[], i_changed int[])
returns text
language plpgsql
as $$
-- Returns a change as sqltriga writes it: the part of an INSERT, UPDATE or DELETE after the table's name.
-- Parameters:
--      i_operation - INSERT, UPDATE or DELETE
--      i_layout    - layout of the table
--      i_old       - the old row as texts, not for an INSERT
--      i_new       - the new row as texts, not for a DELETE
--      i_changed   - of an UPDATE: positions of the columns that it changed
-- Returns: the text; null if an UPDATE has changed only columns that are left out.
declare
    v_shown     int[];
    v_where     text;
begin
    if i_operation = 'INSERT' then
        return (
            select pg_catalog.format('(%s) values (%s)',
                                     pg_catalog.string_agg(pg_catalog.quote_ident(c.name), ',' order by c.position),
                                     pg_catalog.string_agg(coalesce(pg_catalog.quote_literal(i_new[c.position]), 'null'), ','
                                                           order by c.position))
              from rows from (pg_catalog.unnest(i_layout.columns), pg_catalog.unnest(i_layout.hidden))
                   with ordinality as c (name, hidden, position)
             where not c.hidden);
    end if;

    v_shown := array(select c from pg_catalog.unnest(i_changed) c where not i_layout.hidden[c]);
    if i_operation = 'UPDATE' then
        if v_shown = '{}' and i_changed <> '{}' then
            return null;
        end if;
        -- An UPDATE that changes nothing is still an event: let it set a key column to itself.
        if v_shown = '{}' then
            v_shown := i_layout.key_columns[1:1];
            i_new := i_old;
        end if;
    end if;
    if exists (select from pg_catalog.unnest(i_layout.key_columns) k where i_old[k] is null)
            or (i_operation = 'UPDATE' and v_shown = '{}') then
        raise exception using errcode = 'PQ021',
            message = pg_catalog.format('%s of a row of table %s whose key (%s) is null or missing',
                                        i_operation, i_layout.relation::pg_catalog.regclass, i_layout.key_list),
            hint = 'pgq.sqltriga finds rows by their key: give it columns that are never null, with pkey=columns.';
    end if;

    v_where := (select pg_catalog.string_agg(pg_catalog.quote_ident(i_layout.columns[k]) || '='
                                             || pg_catalog.quote_literal(i_old[k]), ' and ' order by k)
                  from pg_catalog.unnest(i_layout.key_columns) k);
    if i_operation = 'DELETE' then
        return coalesce(v_where, '');
    end if;
    return (select pg_catalog.string_agg(pg_catalog.quote_ident(i_layout.columns[c]) || '='
                                         || pg_catalog.quote_nullable(i_new[c]), ',' order by c)
              from pg_catalog.unnest(v_shown) c)
           || ' where ' || coalesce(v_where, '');
end;
$$;
