create or replace function pgq._raise_denied(i_operation text, i_relation oid, i_queue_name text)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._raise_denied(3)
--
--      Raises PQ023, for triggers with the argument deny. Internal.
-- ----------------------------------------------------------------------
begin
    raise exception using
        errcode = 'PQ023',
        message = pg_catalog.format('%s on table %s is denied', i_operation, i_relation::pg_catalog.regclass),
        detail = pg_catalog.format('The table is filled from queue %L.', i_queue_name),
        hint = 'Change the rows where the queue''s events come from.';
end;
$$;
