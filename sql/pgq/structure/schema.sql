-- The schema. From here to the end of the transaction everything is created by, and so belongs to, pgq_owner.

do $$
begin
    -- Not "if not exists", which demands the right to create schemas also when there is nothing to create.
    if pg_catalog.to_regnamespace('pgq') is null then
        create schema pgq authorization pgq_owner;
    else
        -- An administrator may have made it, empty.
        alter schema pgq owner to pgq_owner;
    end if;
end;
$$;
set local role pgq_owner;

grant usage on schema pgq, pgq_ids, pgq_slots to public;
alter default privileges for role pgq_owner revoke execute on functions from public;
