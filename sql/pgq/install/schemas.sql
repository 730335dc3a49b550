-- The schemas. All belong to pgq_owner, and their contents are trusted: they are executed with the rights of that role,
-- and of superusers. So nothing in them may belong to other roles. If an administrator has created one beforehand,
-- empty, it is created again: its owner could put something into it until this transaction commits.
--
--   pgq, pgq_ext, pgq_coop, pgq_task   what clients call
--   pgq_ids, pgq_slots                 sequences of queues, by their names, since a sequence is found by name far more
--                                      cheaply than a row: <queue> gives event ids, and says where events go
--   pgq_queue                          <queue> is what applications insert events into
--   pgq_task_queues                    <queue> says which number a task queue has
--   pgq_node                           what clients of cascaded queues call: an optional part, see pgq_node/schema.sql
--   pgq_staging                        events on their way: written by tasks of a job, sent at its end in one
--                                      transaction
--
-- From here to the end of the transaction everything is created by, and so belongs to, pgq_owner.

do $$
declare
    s       record;
    others  text;
begin
    for s in
        select wanted.name, n.oid, n.nspowner = 'pgq_owner'::regrole as is_ours
          from unnest(array['pgq', 'pgq_ids', 'pgq_slots', 'pgq_queue', 'pgq_staging', 'pgq_task_queues',
                            'pgq_ext', 'pgq_coop', 'pgq_task']
                      || array(select nspname::text from pg_namespace
                                where nspname = 'pgq_node' and nspowner = 'pgq_owner'::regrole)) wanted (name)
          left join pg_namespace n on n.nspname = wanted.name
    loop
        select string_agg(pg_describe_object(d.classid, d.objid, 0), ', ' order by d.objid) into others
          from (select distinct classid, objid
                  from pg_depend
                 where refclassid = 'pg_namespace'::regclass
                   and refobjid = s.oid) d
          left join pg_shdepend o
            on o.dbid = (select oid from pg_database where datname = current_database())
           and o.classid = d.classid
           and o.objid = d.objid
           and o.deptype = 'o'
          -- The cluster's bootstrap superuser has no row there.
          left join pg_roles r on r.oid = o.refobjid
         where not s.is_ours
            or not (r.rolname = 'pgq_owner' or coalesce(r.rolsuper, true));
        if others is not null then
            raise exception using errcode = 'duplicate_schema',
                message = format('schema %s holds what pgqpy has not made: %s', s.name, others),
                hint = 'Its owner could have others execute it. Drop it, or move it to another schema; or choose another database.';
        end if;
        if not s.is_ours then
            execute format('drop schema %I', s.name);
        end if;
        if s.is_ours is not true then
            execute format('create schema %I authorization pgq_owner', s.name);
        end if;
    end loop;
end;
$$;
set local role pgq_owner;

grant usage on schema pgq, pgq_ids, pgq_slots, pgq_queue to public;
alter default privileges for role pgq_owner revoke execute on functions from public;
