create or replace function pgq._raise_denied(i_operation text, i_relation oid, i_queue_name text)
returns void
language plpgsql
as $$
-- Raises PQ023, for triggers with the argument deny.
begin
    raise exception using errcode = 'PQ023',
        message = pg_catalog.format('%s on table %s is denied', i_operation, i_relation::pg_catalog.regclass),
        detail = pg_catalog.format('The table is filled from queue %L.', i_queue_name),
        hint = 'Change the rows where the queue''s events come from.';
end;
$$;

create or replace function pgq._row_arguments(
    i_arguments text[],
    out key_list text[], out ignored text[], out has_ignore boolean, out skip boolean, out backup boolean,
    out deny boolean, out expressions text[])
language plpgsql immutable
as $$
-- Reads the arguments of a row trigger. If an argument is given twice, the last list of columns counts, but the first
-- expression, as in PgQ.
-- Parameters:
--      i_arguments - the trigger's arguments: queue name, then options
-- Returns:
--      key_list    - columns of pkey=, as written; null without it
--      ignored     - columns of ignore=, trimmed
--      has_ignore  - whether there is an ignore=
--      skip, backup, deny
--      expressions - when=, ev_type=, ev_data=, ev_extra1=..4=, null where not given
declare
    v_names     constant text[] := '{when,ev_type,ev_data,ev_extra1,ev_extra2,ev_extra3,ev_extra4}';
    v_argument  text;
    v_name      text;
    v_value     text;
    v_position  int;
begin
    ignored := '{}';
    has_ignore := false;
    skip := false;
    backup := false;
    deny := false;
    expressions := pg_catalog.array_fill(null::text, array[7]);

    if coalesce(pg_catalog.cardinality(i_arguments), 0) = 0 then
        raise exception using errcode = 'PQ020',
            message = 'trigger without a queue name',
            hint = 'The first argument is the queue: execute function pgq.jsontriga(''queue'').';
    end if;

    foreach v_argument in array i_arguments[pg_catalog.array_lower(i_arguments, 1) + 1 :]
    loop
        v_name := pg_catalog.split_part(v_argument, '=', 1);
        v_value := pg_catalog.substr(v_argument, pg_catalog.length(v_name) + 2);
        v_position := pg_catalog.array_position(v_names, v_name);
        if v_argument = 'SKIP' then
            skip := true;
        elsif v_argument = 'backup' then
            backup := true;
        elsif v_argument = 'deny' then
            deny := true;
        elsif v_argument = v_name then
            v_name := null;
        elsif v_name = 'ignore' then
            has_ignore := true;
            ignored := array(select pg_catalog.btrim(c, E' \t\r\n')
                               from pg_catalog.unnest(pg_catalog.string_to_array(v_value, ',')) c);
        elsif v_name = 'pkey' then
            key_list := case v_value when '' then array[''] else pg_catalog.string_to_array(v_value, ',') end;
        elsif v_position is not null then
            expressions[v_position] := coalesce(expressions[v_position], v_value);
        else
            v_name := null;
        end if;

        if v_name is null then
            raise exception using errcode = 'PQ020',
                message = pg_catalog.format('unknown trigger argument %L', v_argument),
                hint = 'Known are SKIP, backup, deny, ignore=columns, pkey=columns, when=expression and '
                       'ev_type=, ev_data=, ev_extra1= to ev_extra4=expression.';
        end if;
    end loop;
end;
$$;

create or replace function pgq._bind_columns(i_expression text, i_columns name[])
returns text
language plpgsql immutable strict parallel safe
as $$
-- Turns an expression from a trigger's arguments into a query: each name of a column of the table becomes a field of
-- the query's parameter, which is the row. PgQ binds names in the same way, so a column's name means the row's value
-- even inside a subquery. The exceptions are names after a dot, after '::', before a parenthesis (where PgQ fails), and
-- in a constant or a comment.
-- Parameters:
--      i_expression    - the text after when=, ev_type= ...
--      i_columns       - the table's columns; names in the expression match them as they are written
-- Returns: a query for EXECUTE ... USING row.
declare
    -- space, comment; strings; numbers; names
    v_tokens    constant text := $re$(?x)^(?:
        \s+ | --[^\n]*
        | [eE]'(?:\\.|''|[^'\\])*'
        | (?:[bBxXnN]|[uU]&)?'(?:''|[^'])*'
        | [0-9][0-9A-Za-z_.]*
        | "(?:""|[^"])*"(?:\.(?:"(?:""|[^"])*"|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*))*
        | [A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*
            (?:\.(?:"(?:""|[^"])*"|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*))*
        | . | \n)$re$;
    v_rest      text := i_expression;
    v_query     text := 'select ';
    v_token     text;
    v_tag       text;
    v_depth     int;
    v_name      text;
begin
    while v_rest <> ''
    loop
        v_name := null;
        if v_rest ~ '^/[*]' then
            -- comments nest
            v_token := '';
            v_depth := 0;
            loop
                v_tag := pg_catalog.substring(v_rest, '^(?:/[*]|[*]/|[^/*]+|.)');
                exit when v_tag is null;
                v_token := v_token || v_tag;
                v_rest := pg_catalog.substr(v_rest, pg_catalog.length(v_tag) + 1);
                v_depth := v_depth + case v_tag when '/*' then 1 when '*/' then -1 else 0 end;
                exit when v_depth = 0;
            end loop;
            v_rest := v_token || v_rest;
        elsif v_rest ~ $re$^[$][A-Za-z_\u0080-\uffff]*[A-Za-z0-9_\u0080-\uffff]*[$]$re$ then
            v_tag := pg_catalog.substring(v_rest, '^[$][^$]*[$]');
            v_token := pg_catalog.substring(v_rest, 1, 2 * pg_catalog.length(v_tag) + pg_catalog.length(
                pg_catalog.split_part(pg_catalog.substr(v_rest, pg_catalog.length(v_tag) + 1), v_tag, 1)));
        elsif v_rest ~ '^[$][0-9]' then
            raise exception using errcode = 'PQ020',
                message = pg_catalog.format('parameter in the trigger''s expression %L', i_expression),
                hint = 'Name the columns themselves: the expression sees the row''s values under their names.';
        else
            v_token := pg_catalog.substring(v_rest, v_tokens);
            if v_token ~ '^"(?:""|[^"])*"$' then
                v_name := pg_catalog.replace(pg_catalog.substr(v_token, 2, pg_catalog.length(v_token) - 2), '""', '"');
            else
                v_name := v_token;
            end if;
        end if;

        v_rest := pg_catalog.substr(v_rest, pg_catalog.length(v_token) + 1);
        if v_name = any (i_columns) and v_query !~ '(?:[.]|::)[[:space:]]*$' and v_rest !~ '^[[:space:]]*[(]' then
            v_query := v_query || pg_catalog.format('($1).%I', v_name);
        else
            v_query := v_query || v_token;
        end if;
    end loop;
    return v_query;
end;
$$;
