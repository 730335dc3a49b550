create or replace function pgq_task.restrict_queue(queue text, restricted boolean default true)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Restricts a queue: from the commit on only members of pgq_admin, and roles with rights from pgq_task.grant_queue(3),
-- may act on its tasks. (A transaction that has pushed before, and is still open, may push once more.) Other queues are
-- open: to pgq_writer for inserting, to pgq_reader for the rest. The error queue is a separate queue. It is created
-- when the first task goes there, with the restrictions of this one. Tenants are restricted with their parent; its
-- grants hold for them, and grants for one tenant are added to these.
-- Parameters:
--      restricted  - false opens it again; the grants are kept
-- Errors: PQ072 neither true nor false, or the queue of a tenant; PQ012 opening it not in READ COMMITTED
declare
    q   pgq_task.queue;
begin
    if restricted is null then
        perform pgq_task._raise_invalid('restricted is NULL', 'Give true or false.');
    elsif not restricted then
        -- An old snapshot would not show which others are restricted.
        perform pgq._require_read_committed('opening a task queue');
    end if;
    -- Lock the row before the lock of pgq_task._guard_inbox(0), like drop_queue().
    q := pgq_task._lock_queue(queue);
    if q.queue_parent is not null then
        perform pgq_task._raise_invalid(format('task queue %L is that of a tenant', queue),
                                        'Restrict the queue before the slash. A tenant may have grants of its own.');
    end if;
    update pgq_task.queue t set queue_restricted = restricted where q.queue_id in (t.queue_id, t.queue_parent);
    perform pgq_task._guard_inbox();
    perform pgq_task._grant_sequences(t.queue_id) from pgq_task.queue t where q.queue_id in (t.queue_id, t.queue_parent);
end;
$$;

create or replace function pgq_task._guard_inbox()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets pgq_writer insert into pgq_task.inbox, which does not check rights on queues, only while no queue is restricted.
-- Pushes take a slower path while it is closed, and conditions on pgq_task.tasks use fewer indexes.
begin
    -- One session at a time, including those that have not committed yet.
    perform pg_advisory_xact_lock(pgq._lock_key('task rights'));
    if exists (select from pgq_task.queue where queue_restricted) then
        revoke insert on pgq_task.inbox from pgq_writer;
        alter function pgq_task._shown(anyelement) volatile;
    else
        grant insert on pgq_task.inbox to pgq_writer;
        alter function pgq_task._shown(anyelement) immutable;
    end if;
end;
$$;

create or replace function pgq_task._guard_restored()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger of pgq_task.queue: a queue that is restricted from the start is from a dump.
begin
    perform pgq_task._guard_inbox();
    return null;
end;
$$;

create or replace trigger guard_restored
    after insert on pgq_task.queue
    for each row when (new.queue_restricted) execute function pgq_task._guard_restored();

create or replace function pgq_task.grant_queue(queue text, actions text[], role text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Grants a role and its members rights on the tasks of a restricted queue. To call the functions at all they must also
-- be members of pgq_writer (push) or pgq_reader (the rest).
-- Parameters:
--      actions - some of
--                insert  push tasks, insert them with modify(), move them there from another queue
--                claim   claim tasks, and renew, finish, fail and release those
--                change  change tasks with modify() or change_tasks(), stop, start and requeue them
--                delete  delete tasks with modify() or remove_tasks()
--                read    list tasks, and depend on them in modify()
--      role    - name of the role
-- Errors: PQ072 no such role or action
declare
    v_grantee   constant oid := pgq._require_role(role, 'PQ072');
    v_queue     int4;
begin
    perform pgq._require_actions(actions, pgq_task._actions(), 'PQ072');
    select q.queue_id into v_queue from pgq_task.queue q where q.queue_name = grant_queue.queue for key share;
    if not found then
        perform pgq_task._raise_queue_not_found(queue);
    end if;
    insert into pgq_task.queue_grant as g (queue_id, grantee, actions)
    values (v_queue, v_grantee, (select array_agg(distinct a order by a) from unnest(grant_queue.actions) a))
    on conflict on constraint queue_grant_pkey do update
       set actions = (select array_agg(distinct a order by a) from unnest(g.actions || excluded.actions) a);
end;
$$;

create or replace function pgq_task.revoke_queue(queue text, actions text[], role text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Revokes rights that pgq_task.grant_queue(3) has granted to a role. Its rights as a member of other roles do not
-- change.
-- Parameters:
--      actions - as for pgq_task.grant_queue(3)
--      role    - name of the role
-- Errors: PQ072 no such role or action
#variable_conflict use_column
declare
    v_grantee   constant oid := pgq._require_role(role, 'PQ072');
    v_queue     int4;
begin
    perform pgq._require_actions(revoke_queue.actions, pgq_task._actions(), 'PQ072');
    v_queue := (pgq_task._find_queue(revoke_queue.queue)).queue_id;
    update pgq_task.queue_grant g
       set actions = array(select a from unnest(g.actions) a where a <> all (revoke_queue.actions))
     where g.queue_id = v_queue and g.grantee = v_grantee;
    delete from pgq_task.queue_grant g where g.queue_id = v_queue and g.actions = '{}';
end;
$$;

create or replace function pgq_task.get_queue_grants(queue text default null)
returns table (queue_name text, restricted boolean, role text, actions text[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the grants on task queues.
-- Parameters:
--      queue       - name of a queue, null for all
-- Returns:
--      queue_name  - its name
--      restricted  - if false, the grants have no effect
--      role        - the role; null for a restricted queue without grants
--      actions     - the granted actions
#variable_conflict use_column
begin
    if get_queue_grants.queue is not null then
        perform pgq_task._find_queue(get_queue_grants.queue);
    end if;
    return query
        select q.queue_name, q.queue_restricted, r.rolname::text, g.actions
          from pgq_task.queue q
          left join (pgq_task.queue_grant g join pg_roles r on r.oid = g.grantee) using (queue_id)
         where (g.queue_id is not null or q.queue_restricted)
           and q.queue_name = coalesce(get_queue_grants.queue, q.queue_name)
         order by q.queue_name, r.rolname;
end;
$$;

create or replace function pgq_task._actions()
returns text[]
language sql immutable
as $$
-- Returns the actions that can be granted.
    select '{insert,claim,change,delete,read}'::text[];
$$;

create or replace function pgq_task._has_right(i_queue_id int4, i_action text, i_user name default null)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether the caller has a right on the tasks of a restricted queue. The caller is the role of SET ROLE, or
-- else of the session; within this function current_user would be its owner.
-- Parameters:
--      i_user  - current_user if the caller knows it, as a view does: that role must have the right, too. Without it
--                the right is refused if PostgreSQL runs the code for another role, see pgq._runs_for_another(0).
begin
    return pgq_task._role_has_right(pgq._caller(), i_queue_id, i_action)
       and case when i_user is null then not pgq._runs_for_another()
                else pgq_task._role_has_right(i_user, i_queue_id, i_action) end;
end;
$$;

create or replace function pgq_task._may_read(i_queue_id int4)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether the caller may read the tasks of a queue. It may have been restricted if it was dropped: then only
-- members of pgq_admin may.
    select coalesce((select not q.queue_restricted from pgq_task.queue q where q.queue_id = i_queue_id), false)
        or pgq_task._has_right(i_queue_id, 'read');
$$;

create or replace function pgq_task._role_has_right(i_role name, i_queue_id int4, i_action text)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a role has a right on the tasks of a restricted queue.
    select pg_has_role(i_role, 'pgq_admin', 'usage')
        or exists (select from pgq_task.queue_grant g
                    where g.queue_id in (i_queue_id, (select q.queue_parent from pgq_task.queue q where q.queue_id = i_queue_id))
                      and i_action = any (g.actions)
                      and pg_has_role(i_role, g.grantee, 'usage'));
$$;

create or replace function pgq_task._may_hold_up(q pgq_task.queue)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a sweep of the caller may lock what sessions of a queue wait for: until its transaction ends, and that
-- may be never.
begin
    return not q.queue_restricted or pgq_task._has_right(q.queue_id, 'claim');
end;
$$;

create or replace function pgq_task._require_right(i_queue_id int4, i_action text)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns true, or raises 42501 if the caller may not do this with the tasks of a restricted queue.
declare
    v_queue text;
begin
    if pgq_task._has_right(i_queue_id, i_action) then
        return true;
    end if;
    select queue_name into v_queue from pgq_task.queue where queue_id = i_queue_id;
    raise exception using errcode = '42501',
        message = format('role %I may not %s tasks of queue %L', pgq._caller(), i_action, v_queue),
        hint = case when pgq._runs_for_another()
                    then 'The queue is restricted. In indexes and materialized views read pgq_task.tasks, which knows whose they are.'
                    else format('The queue is restricted. An administrator grants it: select pgq_task.grant_queue(%L, ''{%s}'', %L).',
                                v_queue, i_action, pgq._caller()) end;
end;
$$;
