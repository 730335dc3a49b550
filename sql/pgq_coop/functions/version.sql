create or replace function pgq_coop.version()
returns text
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.version(0)
--
--      Returns the version of PgQ whose interface this is.
-- ----------------------------------------------------------------------
    select pgq.version();
$$;
