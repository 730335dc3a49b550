create or replace function pgq._bind_columns(i_expression text, i_columns name[])
returns text
language plpgsql
immutable strict parallel safe
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._bind_columns(2)
--
--      Turns an expression from a trigger's arguments into a query: each name of a column of the table becomes a field
--      of the query's parameter, which is the row. PgQ binds names in the same way, so a column's name means the row's
--      value even inside a subquery. The exceptions are names after a dot, after '::', before a parenthesis (where PgQ
--      fails), and in a constant or a comment. Internal.
--
-- Parameters:
--      i_expression    - the text after when=, ev_type= ...
--      i_columns       - the table's columns; names in the expression match them as they are written
-- Returns:
--      A query for EXECUTE ... USING row.
-- Errors:
--      PQ020 the expression uses parameters
-- ----------------------------------------------------------------------
declare
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
        if v_rest ~ '^/\*' then
            -- comments nest
            v_token := '';
            v_depth := 0;
            loop
                v_tag := pg_catalog.substring(v_rest, '^(?:/\*|\*/|[^/*]+|.)');
                exit when v_tag is null;
                v_token := v_token || v_tag;
                v_rest := pg_catalog.substr(v_rest, pg_catalog.length(v_tag) + 1);
                v_depth := v_depth + case v_tag when '/*' then 1 when '*/' then -1 else 0 end;
                exit when v_depth = 0;
            end loop;
            v_rest := v_token || v_rest;
        elsif v_rest ~ '^\$[A-Za-z_\u0080-\uffff]*[A-Za-z0-9_\u0080-\uffff]*\$' then
            v_tag := pg_catalog.substring(v_rest, '^\$[^$]*\$');
            v_token := pg_catalog.substring(v_rest, 1, 2 * pg_catalog.length(v_tag) + pg_catalog.length(
                pg_catalog.split_part(pg_catalog.substr(v_rest, pg_catalog.length(v_tag) + 1), v_tag, 1)));
        elsif v_rest ~ '^\$[0-9]' then
            raise exception using
                errcode = 'PQ020',
                message = pg_catalog.format('parameter in the trigger''s expression %L', i_expression),
                hint = 'Name the columns themselves: the expression sees the row''s values under their names.';
        else
            v_token := pg_catalog.substring(v_rest, '^(?:'
                '\s+|--[^\n]*'                                                                  -- space, comment
                '|[eE]''(?:\\.|''''|[^''\\])*'''                                                -- strings
                '|(?:[bBxXnN]|[uU]&)?''(?:''''|[^''])*'''
                '|[0-9][0-9A-Za-z_.]*'                                                          -- numbers
                '|"(?:""|[^"])*"(?:\.(?:"(?:""|[^"])*"|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*))*'  -- names
                '|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*'
                    '(?:\.(?:"(?:""|[^"])*"|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*))*'
                '|.|\n)');
            if v_token ~ '^"(?:""|[^"])*"$' then
                v_name := pg_catalog.replace(pg_catalog.substr(v_token, 2, pg_catalog.length(v_token) - 2), '""', '"');
            else
                v_name := v_token;
            end if;
        end if;

        v_rest := pg_catalog.substr(v_rest, pg_catalog.length(v_token) + 1);
        if v_name = any (i_columns) and v_query !~ '(?:\.|::)\s*$' and v_rest !~ '^\s*\(' then
            v_query := v_query || pg_catalog.format('($1).%I', v_name);
        else
            v_query := v_query || v_token;
        end if;
    end loop;
    return v_query;
end;
$$;
