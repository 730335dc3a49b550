create or replace function pgq.sqltriga()
returns trigger
language plpgsql stable
as $$
-- Row trigger for INSERT, UPDATE, DELETE: the change as a piece of SQL. Statement trigger for TRUNCATE.
--
-- ev_type     - I, U, D, R
-- ev_data     - what follows the table's name in the statement: (columns) values (...),
--               column=value,... where key=value, or key=value; for TRUNCATE empty
-- ev_extra1   - schema.table, not quoted
-- Trigger arguments:
--      queue               - name of the queue, first
--      ignore=c1,c2        - leave these columns out; an UPDATE that changes only them makes no event
--      pkey=c1,c2          - take these columns for the key, instead of the primary key
--      backup              - UPDATE: the old row in ev_extra2, urlencoded
--      SKIP                - BEFORE trigger: put the event into the queue and do not write the row
--      deny                - raise an error instead
--      when=EXPR           - only if this is true; here and in the following, columns are the row's values
--      ev_type=EXPR, ev_data=EXPR, ev_extra1=EXPR .. ev_extra4=EXPR
--                          - replace this field of the event
--      Columns named _pgq_ev_type, _pgq_ev_data, _pgq_ev_extra1 .. 4 replace these fields, too.
-- Errors: PQ020 trigger arguments, PQ021 UPDATE or DELETE without a key, PQ022 UPDATE of the key, PQ023 denied; those
--      of pgq.insert_event
begin
    -- Functions in place of operators: expressions need the session's search_path, and there '=' may be anything.
    if pg_catalog.texteq(tg_level, 'STATEMENT') then
        perform pgq._statement_event('sql', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv);
    elsif pg_catalog.texteq(tg_op, 'INSERT') then
        if pgq._row_event('sql', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, new,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pg_catalog.texteq(tg_op, 'UPDATE') then
        if pgq._row_event('sql', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, old,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pgq._row_event('sql', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, old, old,
                         case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, old) end) then
        return old;
    end if;
    return null;
end;
$$;

create or replace function pgq.logutriga()
returns trigger
language plpgsql stable
as $$
-- Row trigger for INSERT, UPDATE, DELETE: the row, urlencoded. Statement trigger for TRUNCATE.
--
-- ev_type     - I:key columns, U:..., D:...; for TRUNCATE R
-- ev_data     - column=value&..., null columns without '='; for TRUNCATE empty
-- ev_extra1   - schema.table, not quoted
-- Trigger arguments: as with pgq.sqltriga(0)
-- Errors: as with pgq.sqltriga(0)
begin
    -- Functions in place of operators: expressions need the session's search_path, and there '=' may be anything.
    if pg_catalog.texteq(tg_level, 'STATEMENT') then
        perform pgq._statement_event('url', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv);
    elsif pg_catalog.texteq(tg_op, 'INSERT') then
        if pgq._row_event('url', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, new,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pg_catalog.texteq(tg_op, 'UPDATE') then
        if pgq._row_event('url', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, old,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pgq._row_event('url', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, old, old,
                         case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, old) end) then
        return old;
    end if;
    return null;
end;
$$;

create or replace function pgq.jsontriga()
returns trigger
language plpgsql stable
as $$
-- Row trigger for INSERT, UPDATE, DELETE: the row as JSON. Statement trigger for TRUNCATE.
--
-- ev_type     - {"op":"INSERT","table":["schema","table"],"pkey":["column"]}
-- ev_data     - the row; all but integers and booleans are strings. {} for TRUNCATE
-- ev_extra1   - schema.table, not quoted
-- Trigger arguments: as with pgq.sqltriga(0); backup writes JSON
-- Errors: as with pgq.sqltriga(0)
begin
    -- Functions in place of operators: expressions need the session's search_path, and there '=' may be anything.
    if pg_catalog.texteq(tg_level, 'STATEMENT') then
        perform pgq._statement_event('json', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv);
    elsif pg_catalog.texteq(tg_op, 'INSERT') then
        if pgq._row_event('json', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, new,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pg_catalog.texteq(tg_op, 'UPDATE') then
        if pgq._row_event('json', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, old,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pgq._row_event('json', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, old, old,
                         case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, old) end) then
        return old;
    end if;
    return null;
end;
$$;
