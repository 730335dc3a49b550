-- Tables of events that are on their way: written by tasks of a job, sent by its end in one transaction. Each
-- belongs to the role that writes it, so that nobody else can read or change it; pgq_owner owns the schema and
-- may thereby drop what killed jobs leave. Nothing has this schema on its search path. It needs the installer's
-- right to create schemas, so it comes before the change to pgq_owner.

do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = 'pgq_staging') then
        create schema pgq_staging authorization pgq_owner;
    end if;
end;
$$;
