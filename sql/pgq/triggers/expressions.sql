create or replace function pgq._row_value(i_query text, i_row anyelement, i_boolean boolean)
returns text
language plpgsql stable
as $$
-- Returns the value of an expression from a trigger's arguments, in its type's text form.
-- Parameters:
--      i_query     - the query that pgq._bind_columns made of the expression
--      i_row       - the row it is about
--      i_boolean   - whether it must be true or false
declare
    v_result    pg_catalog.record;
    v_json      pg_catalog.json;
begin
    execute i_query into strict v_result using i_row;
    v_json := pg_catalog.row_to_json(v_result);
    if i_boolean
            and pg_catalog.texteq((select pg_catalog.json_typeof(value) from pg_catalog.json_each(v_json) limit 1), 'boolean')
                is not true then
        raise exception using errcode = 'PQ020',
            message = pg_catalog.format('the trigger''s condition is neither true nor false: %s', i_query),
            hint = 'Write a boolean expression after when=, with coalesce() if columns in it may be null.';
    end if;
    return (pgq._row_values(v_result::pg_catalog.text, (select pg_catalog.count(*)::int from pg_catalog.json_object_keys(v_json))))[1];
end;
$$;

create or replace function pgq._row_queries(i_relation oid, i_arguments text[], i_columns name[])
returns text[]
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Returns the queries made of the expressions in a trigger's arguments, from the table's layout. It is not stable,
-- unlike its caller: it must see a layout that the same statement has made.
-- Parameters:
--      i_columns   - the table's columns
-- Returns: seven queries, null where there is no expression; null if the layout does not fit, which the caller detects
--      later.
declare
    v_queries   text[];
begin
    for attempt in 1 .. 2
    loop
        select r.queries into v_queries
          from pgq.row_layout r
         where r.relation = i_relation
           and r.arguments = i_arguments
           and r.columns = i_columns
         order by r.made desc
         limit 1;
        if found then
            return v_queries;
        end if;
        perform pgq._row_layout_build(i_relation, i_arguments);
    end loop;
    return null;
end;
$$;

create or replace function pgq._row_expressions(i_relation oid, i_arguments text[], i_row anyelement)
returns text[]
language plpgsql stable
as $$
-- Returns the values of the expressions in a trigger's arguments. It runs with the rights of the role that changes the
-- table, like everything that a trigger does. It is stable, so that a query in an expression sees the tables as they
-- were when the statement began, as in PgQ.
-- Parameters:
--      i_row       - the row, for an UPDATE the new one
-- Returns: when=, ev_type=, ev_data=, ev_extra1= .. 4=, as texts; null if there is none of them.
declare
    -- Types with their schema, too: the search_path is the session's, as in the triggers themselves.
    v_queries   pg_catalog.text[];
    v_values    pg_catalog.text[];
begin
    if pg_catalog.texteq(pg_catalog.current_setting('session_replication_role'), 'local') then
        return null;
    end if;
    v_queries := pgq._row_queries(
        i_relation, i_arguments,
        array(select k::pg_catalog.name from pg_catalog.json_object_keys(pg_catalog.row_to_json(i_row)) k));
    for i in 1 .. 7
    loop
        if v_queries[i] is not null then
            v_values[i] := pgq._row_value(v_queries[i], i_row, pg_catalog.int4eq(i, 1));
        end if;
    end loop;
    return v_values;
end;
$$;
