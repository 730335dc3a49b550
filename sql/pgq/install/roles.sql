-- Roles. They belong to the whole cluster, so they may exist already; they are never dropped.
--
--   pgq_owner    owns every object of the schema; cannot log in, is no superuser
--   pgq_reader   consumes
--   pgq_writer   produces
--   pgq_admin    both, and administers

set local search_path = pg_catalog, pg_temp;

do $$
declare
    r text;
begin
    foreach r in array array['pgq_owner', 'pgq_reader', 'pgq_writer', 'pgq_admin']
    loop
        if not exists (select from pg_catalog.pg_roles where rolname = r) then
            begin
                execute pg_catalog.format('create role %I nologin', r);
            exception when duplicate_object or unique_violation then
                null;  -- another database of this cluster is being installed at the same time
            end;
        end if;
    end loop;

    if not pg_catalog.pg_has_role('pgq_admin', 'pgq_reader', 'member') then
        grant pgq_reader to pgq_admin;
    end if;
    if not pg_catalog.pg_has_role('pgq_admin', 'pgq_writer', 'member') then
        grant pgq_writer to pgq_admin;
    end if;

    -- An installer that is no superuser becomes the owner until the end: pgq/install/end.sql.
    perform pg_catalog.set_config('pgqpy.installer', current_user, true);
    perform pg_catalog.set_config('pgqpy.installer_joined', '', true);
    if not pg_catalog.pg_has_role(current_user, 'pgq_owner',
            case when pg_catalog.current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end) then
        execute pg_catalog.format('grant pgq_owner to %I', current_user);
        perform pg_catalog.set_config('pgqpy.installer_joined', 'yes', true);
    end if;
end;
$$;
