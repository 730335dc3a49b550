-- The schema of cascaded queues: an optional part, see pgq/install/schemas.sql. All of this section can be repeated: it
-- installs the part, and upgrades it.

do $$
begin
    if to_regnamespace('pgq_node') is null then
        execute format('set local role %I', current_setting('pgqpy.installer'));
        create schema pgq_node authorization pgq_owner;
        set local role pgq_owner;
    elsif (select nspowner from pg_namespace where nspname = 'pgq_node') <> 'pgq_owner'::regrole then
        raise exception using errcode = 'duplicate_schema',
            message = 'there is a schema pgq_node that was not installed by pgqpy',
            hint = 'PgQ''s own goes on working with these queues, and Londiste with it. To replace it, stop its workers, then: '
                   'alter schema pgq_node rename to pgq_node_old; install again; copy its four tables (insert into '
                   'pgq_node.node_location select * from pgq_node_old.node_location; node_info, local_state, subscriber_info); '
                   'drop schema pgq_node_old cascade.';
    end if;
end;
$$;

grant usage on schema pgq_node to public;
