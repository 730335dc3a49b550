-- Several workers that share one consumer's position. It needs the installer's right to create
-- schemas, so it comes before the change to pgq_owner.

do $$
begin
    if pg_catalog.to_regnamespace('pgq_coop') is null then
        create schema pgq_coop authorization pgq_owner;
    else
        -- An administrator may have made it, empty.
        alter schema pgq_coop owner to pgq_owner;
    end if;
end;
$$;
