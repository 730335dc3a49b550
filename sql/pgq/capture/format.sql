-- SQL expressions, as text, for the fields of an event. Everything from the catalog goes through %I or %L. They mean
-- the same with any search_path: functions, operators and types are named with their schema.

create or replace function pgq._capture_type(i_shape jsonb, i_options jsonb, i_operation text)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns ev_type for an operation, in the form of pgq.logutriga or of pgq.jsontriga.
    select case i_options ->> 'format'
           when 'logutriga' then
               case i_operation
               when 'TRUNCATE' then 'R'
               else left(i_operation, 1) || ':'
                    || coalesce((select string_agg(k.value, ',' order by k.n)
                                   from jsonb_array_elements_text(i_shape -> 'key') with ordinality as k (value, n)), '')
               end
           else
               format('{"op":"%s","table":[%s,%s],"pkey":[%s]}', i_operation, i_shape -> 'schema', i_shape -> 'table',
                   (select string_agg(k.value::text, ',' order by k.n)
                      from jsonb_array_elements(i_shape -> 'key') with ordinality as k (value, n)))
           end;
$$;

create or replace function pgq._capture_value(i_format text, i_type regtype, i_value text)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the expression for one column's value as pgq.jsontriga or pgq.logutriga writes it, for concat(). format()
-- calls a type's output function where a cast would pad with blanks or call a user's function; for texts to_json()
-- calls it itself.
-- Parameters:
--      i_format    - jsontriga, logutriga
--      i_type      - type of the column
--      i_value     - expression for the value
    select format(
        case
        when i_format = 'logutriga' then
            $q$case when %1$s is distinct from null then pg_catalog.textcat('=', pgq._urlencode(pg_catalog.format('%%s', %1$s))) end$q$
        when i_type in ('bool'::regtype, 'int2', 'int4', 'int8') then
            $q$coalesce(%1$s::pg_catalog.text, 'null')$q$
        when i_type in ('date'::regtype, 'timestamp', 'timestamptz', 'text', 'varchar', 'bpchar') then
            $q$coalesce(pg_catalog.to_json(%1$s), 'null'::pg_catalog.json)$q$
        else
            $q$case when %1$s is distinct from null then pg_catalog.to_json(pg_catalog.format('%%s', %1$s)) else 'null'::pg_catalog.json end$q$
        end, i_value);
$$;

create or replace function pgq._capture_data(i_shape jsonb, i_options jsonb, i_row text, i_whole_row text)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the expression for a row in the format of the capture.
-- Parameters:
--      i_row       - name of the row: new, old
--      i_whole_row - expression for the row as one value
declare
    v_format    text := i_options ->> 'format';
    v_list      text;
    v_virtual   boolean;
    v_from      text;
begin
    if (i_shape -> 'whole_row')::boolean then
        return format('pg_catalog.row_to_json(%s)::pg_catalog.text', i_whole_row);
    end if;

    -- A function takes a hundred arguments, and a column needs two, so join forty columns at a time.
    select bool_or(c.virtual),
           string_agg(case v_format when 'row_json' then c.list else format('pg_catalog.concat(%s)', c.list) end, ', '
                      order by c.part)
      into v_virtual, v_list
      from (select e.n / 40 as part, bool_or(e.expression is not null) as virtual,
                   string_agg(
                       case v_format
                       when 'row_json' then format('%s as %I', e.value, e.name)
                       when 'jsontriga' then
                           format('%L, %s', case e.n when 1 then '{' else ',' end || to_json(e.name) || ':',
                                  pgq._capture_value(v_format, e.type, e.value))
                       when 'logutriga' then
                           format('%L, %s', case e.n when 1 then '' else '&' end || pgq._urlencode(e.name),
                                  pgq._capture_value(v_format, e.type, e.value))
                       end, ', ' order by e.n) as list
              from (select c.n, c.value ->> 'name' as name, (c.value ->> 'type')::regtype as type, c.value ->> 'expression' as expression,
                           coalesce('(' || (c.value ->> 'expression') || ')', format('%s.%I', i_row, c.value ->> 'name')) as value
                      from jsonb_array_elements(i_shape -> 'columns') with ordinality as c (value, n)) e
             group by e.n / 40) c;

    -- The expression of a virtual column names other columns without the row.
    v_from := case when v_virtual then format(' from (select %s.*) x', i_row) else '' end;
    return case v_format
           when 'row_json' then format('(select pg_catalog.row_to_json(c.*)::pg_catalog.text from (select %s%s) c)', v_list, v_from)
           when 'jsontriga' then format('(select pg_catalog.concat(%s, ''}'')%s)', coalesce(v_list, '''{'''), v_from)
           when 'logutriga' then format('(select pg_catalog.concat(%s)%s)', coalesce(v_list, ''''''), v_from)
           end;
end;
$$;

create or replace function pgq._capture_changes(i_old text, i_new text)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the expression for the old values of the columns that an UPDATE changed, as JSON. Both rows have the same
-- columns, so they pair by position.
-- Parameters:
--      i_old, i_new    - expressions for the rows as JSON text
    select format(
        $q$(select pg_catalog.concat('{', pg_catalog.string_agg(
                                 pg_catalog.concat(pg_catalog.to_json(d.k), ':', d.o), ',' order by d.n), '}')
              from rows from (pg_catalog.json_each(%s::pg_catalog.json), pg_catalog.json_each(%s::pg_catalog.json))
                   with ordinality as d (k, o, k2, v, n)
             where pg_catalog.textne(d.o::pg_catalog.text, d.v::pg_catalog.text))$q$, i_old, i_new);
$$;
