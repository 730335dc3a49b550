-- What consumers have done in this database, remembered in the transaction in which they do it. It needs the installer's right to create
-- schemas, so it comes before the change to pgq_owner.

do $$
begin
    if pg_catalog.to_regnamespace('pgq_ext') is null then
        create schema pgq_ext authorization pgq_owner;
    else
        -- An administrator may have made it, empty.
        alter schema pgq_ext owner to pgq_owner;
    end if;
end;
$$;
