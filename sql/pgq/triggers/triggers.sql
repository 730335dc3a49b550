-- The three row triggers differ in a word: the format. Each is a function with the format as a constant, since an argument
-- or another call would cost something for every row.
do $do$
declare
    f   record;
begin
    for f in
        select * from (values ('pgq.sqltriga', 'sql'), ('pgq.logutriga', 'url'), ('pgq.jsontriga', 'json')) v (name, format)
    loop
        execute pg_catalog.format($create$
create or replace function %1$s()
returns trigger
language plpgsql stable
as $$
-- Row trigger for INSERT, UPDATE, DELETE: puts the change into a queue; sqltriga as a piece of SQL, logutriga as the
-- urlencoded row, jsontriga as the row in JSON. Statement trigger for TRUNCATE.
--
-- ev_type     - sqltriga: I, U, D, R. logutriga: I:key columns, U:..., D:..., R.
--               jsontriga: {"op":"INSERT","table":["schema","table"],"pkey":["column"]}
-- ev_data     - sqltriga: what follows the table's name in the statement: (columns) values (...),
--               column=value,... where key=value, or key=value.
--               logutriga: column=value&..., null columns without '='.
--               jsontriga: the row; all but integers and booleans are strings.
--               For TRUNCATE empty, with jsontriga {}
-- ev_extra1   - schema.table, not quoted
-- Trigger arguments:
--      queue               - name of the queue, first
--      ignore=c1,c2        - leave these columns out; an UPDATE that changes only them makes no event
--      pkey=c1,c2          - take these columns for the key, instead of the primary key
--      backup              - UPDATE: the old row in ev_extra2, urlencoded; with jsontriga as JSON
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
        perform pgq._statement_event('%2$s', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv);
    elsif pg_catalog.texteq(tg_op, 'INSERT') then
        if pgq._row_event('%2$s', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, new,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pg_catalog.texteq(tg_op, 'UPDATE') then
        if pgq._row_event('%2$s', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, new, old,
                          case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, new) end) then
            return new;
        end if;
    elsif pgq._row_event('%2$s', tg_op, tg_when, tg_table_schema, tg_table_name, tg_relid, tg_argv, old, old,
                         case when pg_catalog.int4gt(tg_nargs, 1) then pgq._row_expressions(tg_relid, tg_argv, old) end) then
        return old;
    end if;
    return null;
end;
$$;
$create$, f.name, f.format);
    end loop;
end;
$do$;
