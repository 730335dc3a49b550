create or replace function pgq._statement_event(
    i_format text, i_operation text, i_when text, i_schema text, i_table text, i_relation oid, i_arguments text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._statement_event(7)
--
--      Puts the event for a statement into the queue: the common part of sqltriga, logutriga and jsontriga for
--      statement triggers. TRUNCATE is the only statement that they support. Internal.
--
-- Parameters:
--      as pgq._row_event(10)
-- Errors:
--      PQ020 not a TRUNCATE, or arguments that it does not support; PQ023 denied; those of pgq.insert_event
-- ----------------------------------------------------------------------
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
        raise exception using
            errcode = 'PQ020',
            message = pg_catalog.format('trigger for each statement of %s', i_operation),
            hint = 'Create it FOR EACH ROW; to write a statement''s events at once use pgq.capture_table().';
    end if;
    if (a.skip and i_when = 'AFTER') or a.backup or a.has_ignore or a.key_list is not null
            or pg_catalog.num_nonnulls(variadic a.expressions) > 0 then
        raise exception using
            errcode = 'PQ020',
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
