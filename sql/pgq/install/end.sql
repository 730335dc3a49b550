-- The end of the installation. The installer loses the membership of pgq_owner that it needed: members may do
-- everything.

do $$
begin
    execute pg_catalog.format('set local role %I', pg_catalog.current_setting('pgqpy.installer'));
    if pg_catalog.current_setting('pgqpy.installer_joined') = 'yes' then
        execute pg_catalog.format('revoke pgq_owner from %I', current_user);
    end if;
end;
$$;
