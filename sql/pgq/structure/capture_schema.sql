-- The trigger functions that pgq.capture_table() generates. Each belongs to the owner of its table and runs
-- with that owner's rights, so producers may create functions here; nothing has this schema on its search
-- path. pgq_owner owns the schema and may thereby drop what is left over. It needs the installer's right to
-- create schemas, so it comes before the change to pgq_owner.

do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = 'pgq_capture') then
        create schema pgq_capture authorization pgq_owner;
    end if;
end;
$$;
