-- The end of the installation. What the installer needed for it, it does not keep: members of pgq_owner may do everything.

do $$
begin
    execute pg_catalog.format('set local role %I', pg_catalog.current_setting('pgqpy.installer'));
    if pg_catalog.current_setting('pgqpy.installer_joined') = 'yes' then
        execute pg_catalog.format('revoke pgq_owner from %I', current_user);
    end if;
end;
$$;
