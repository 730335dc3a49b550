-- The work queue: tasks that one of many workers takes, finishes, retries or buries. It needs the
-- installer's right to create schemas, so it comes before the change to pgq_owner.

do $$
begin
    if pg_catalog.to_regnamespace('pgq_task') is null then
        create schema pgq_task authorization pgq_owner;
    else
        -- An administrator may have made it, empty.
        alter schema pgq_task owner to pgq_owner;
    end if;
end;
$$;
