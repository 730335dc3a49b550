create or replace function pgq_ext.version()
returns text
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.version(0)
--
--      Returns the version of pgq_ext whose interface this is.
-- ----------------------------------------------------------------------
    select '3.5';
$$;

create or replace function pgq_ext.upgrade_schema()
returns integer
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.upgrade_schema(0)
--
--      Does nothing; here migrations upgrade the schema (pgqpy migrate).
--
-- Returns:
--      0
-- ----------------------------------------------------------------------
    select 0;
$$;
