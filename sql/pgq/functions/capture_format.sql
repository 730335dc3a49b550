-- SQL expressions, as text, for the fields of an event. Everything that comes from the catalog goes through
-- %I or %L.

create or replace function pgq.capture_type(i_shape jsonb, i_options jsonb, i_operation text)
returns text
language sql
immutable
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_type(3)
--
--      ev_type for an operation: as pgq.logutriga or as pgq.jsontriga has it.
--
-- Parameters:
--      i_shape     - pgq.capture_shape(2)
--      i_options   - options of the capture
--      i_operation - INSERT, UPDATE, DELETE, TRUNCATE
-- ----------------------------------------------------------------------
    select case i_options ->> 'format'
           when 'logutriga' then
               case i_operation
               when 'TRUNCATE' then 'R'
               else pg_catalog.left(i_operation, 1) || ':'
                    || coalesce((select pg_catalog.string_agg(k.value, ',' order by k.n)
                                   from pg_catalog.jsonb_array_elements_text(i_shape -> 'key') with ordinality as k (value, n)), '')
               end
           else
               pg_catalog.format('{"op":"%s","table":[%s,%s],"pkey":[%s]}', i_operation, i_shape -> 'schema', i_shape -> 'table',
                   (select pg_catalog.string_agg(k.value::text, ',' order by k.n)
                      from pg_catalog.jsonb_array_elements(i_shape -> 'key') with ordinality as k (value, n)))
           end;
$$;

create or replace function pgq.capture_value(i_format text, i_type regtype, i_value text)
returns text
language sql
immutable
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_value(3)
--
--      Expression for one column's value as pgq.jsontriga or pgq.logutriga
--      writes it; null stays null. format() calls a type's output function
--      where a cast would blank-pad, or call something that a user made.
--
-- Parameters:
--      i_format    - jsontriga, logutriga
--      i_type      - type of the column
--      i_value     - expression for the value
-- ----------------------------------------------------------------------
    select pg_catalog.format('case when %s is distinct from null then %s end', i_value,
        pg_catalog.format(
            case
            when i_format = 'logutriga' then $q$'=' || pgq.urlencode(format('%%s', %1$s))$q$
            when i_type in ('bool'::regtype, 'int2', 'int4', 'int8') then '%1$s::text'
            when i_type in ('date'::regtype, 'timestamp', 'timestamptz') then 'to_json(%1$s)::text'
            else $q$to_json(format('%%s', %1$s))::text$q$
            end, i_value));
$$;

create or replace function pgq.capture_data(i_shape jsonb, i_options jsonb, i_row text, i_whole_row text)
returns text
language plpgsql
stable
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_data(4)
--
--      Expression for a row in the format of the capture.
--
-- Parameters:
--      i_shape     - pgq.capture_shape(2)
--      i_options   - options of the capture
--      i_row       - name of the row: new, old
--      i_whole_row - expression for the row as one value
-- ----------------------------------------------------------------------
declare
    v_format    text := i_options ->> 'format';
    v_list      text;
    v_virtual   boolean;
begin
    if i_shape -> 'columns' = 'null' then
        return pg_catalog.format('row_to_json(%s)::text', i_whole_row);
    end if;

    select pg_catalog.bool_or(c.expression is not null),
           case v_format
           when 'row_json' then
               pg_catalog.string_agg(pg_catalog.format('%s as %I', c.value, c.name), ', ' order by c.n)
           when 'jsontriga' then
               pg_catalog.string_agg(
                   pg_catalog.format('%L || coalesce(%s, ''null'')', pg_catalog.to_json(c.name)::text || ':',
                                     pgq.capture_value(v_format, c.type::regtype, c.value)), ', ' order by c.n)
           when 'logutriga' then
               pg_catalog.string_agg(
                   pg_catalog.format('%L || coalesce(%s, '''')', pgq.urlencode(c.name),
                                     pgq.capture_value(v_format, c.type::regtype, c.value)), ', ' order by c.n)
           end
      into v_virtual, v_list
      from (select e.n, e.value ->> 'name' as name, e.value ->> 'type' as type, e.value ->> 'expression' as expression,
                   coalesce('(' || (e.value ->> 'expression') || ')', pg_catalog.format('%s.%I', i_row, e.value ->> 'name')) as value
              from pg_catalog.jsonb_array_elements(i_shape -> 'columns') with ordinality as e (value, n)) c;

    v_list := case v_format
              when 'row_json' then pg_catalog.format('(select row_to_json(c.*)::text from (select %s%%s) c)', v_list)
              when 'jsontriga' then pg_catalog.format('''{'' || array_to_string(array[%s]::text[], '','') || ''}''', v_list)
              when 'logutriga' then pg_catalog.format('array_to_string(array[%s]::text[], ''&'')', v_list)
              end;
    -- The expression of a virtual column names its columns without the row.
    return case
           when v_format = 'row_json' then
               pg_catalog.replace(v_list, '%s', case when v_virtual then pg_catalog.format(' from (select %s.*) x', i_row) else '' end)
           when v_virtual then pg_catalog.format('(select %s from (select %s.*) x)', v_list, i_row)
           else v_list
           end;
end;
$$;

create or replace function pgq.capture_changes(i_shape jsonb, i_old text, i_new text)
returns text
language sql
immutable
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_changes(3)
--
--      Expression for the old values of those columns that an UPDATE changed,
--      as JSON. Both rows have the same columns, so they pair by position.
--
-- Parameters:
--      i_old, i_new    - expressions for the rows as JSON text
-- ----------------------------------------------------------------------
    select pg_catalog.format(
        $q$(select '{' || coalesce(string_agg(to_json(d.k)::text || ':' || d.o::text, ',' order by d.n), '') || '}' $q$
        $q$from rows from (json_each(%s::json), json_each(%s::json)) with ordinality as d (k, o, k2, v, n) $q$
        $q$where d.o::text <> d.v::text)$q$, i_old, i_new);
$$;
