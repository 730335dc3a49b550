create or replace function pgq_coop.version()
returns text
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.version(0)
--
--      The version of PgQ whose interface this is.
-- ----------------------------------------------------------------------
    select pgq.version();
$$;
