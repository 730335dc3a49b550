-- A tenant is a queue named <parent>/<tenant>, created by the first push into it, if its parent has tenants: see the
-- parameter keep_tenants of pgq_task.set_queue_config(3). It has the parent's settings, limits and rights. Claims from
-- the parent are claims from its tenants, too: see pgq_task.served_queue.
--
-- A change of the parent's settings, limits or pause applies to those tenants that had the same value. So a value that
-- was set for a tenant stays, and nothing has to remember which were.

create or replace function pgq_task._parent_of(i_queue text)
returns pgq_task.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the queue whose tenant has this name, locked against changes until the transaction ends; null if there is
-- none.
declare
    p   pgq_task.queue;
begin
    select * into p
      from pgq_task.queue q
     where q.queue_name = substring(i_queue from '^(.*)/[^/]*$') and q.queue_keep_tenants is not null
       for share;
    if p.queue_id is not null and i_queue like '%/' then
        perform pgq_task._raise_invalid(format('%L names no tenant', i_queue), format('Name one: %s/<tenant>.', p.queue_name));
    end if;
    return p;
end;
$$;

create or replace function pgq_task._add_tenant(i_queue text)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the queue of a tenant for a push that has not found it; the right to push into the parent is enough. If
-- several sessions do so, the others wait until the first one has committed.
-- Returns: its id.
-- Errors: PQ070 it is not that of a tenant, 42501 no right to insert into the parent
declare
    p   constant pgq_task.queue := pgq_task._parent_of(i_queue);
begin
    if p.queue_id is null then
        perform pgq_task._raise_queue_not_found(i_queue);
    elsif p.queue_restricted then
        perform pgq_task._require_right(p.queue_id, 'insert');
    end if;
    if exists (select from pgq_task.queue q where q.queue_name = i_queue) then
        -- An old snapshot may show the one that was dropped.
        perform pgq._require_read_committed('a push to a tenant whose queue was dropped meanwhile');
    end if;
    perform pgq_task.create_queue(i_queue);
    return (pgq_task._find_queue(i_queue)).queue_id;
end;
$$;

create or replace function pgq_task._find_or_add(i_queue text)
returns pgq_task.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of pgq_task._find_queue(2) for inserts, which create the queue of a tenant. If there are several, do so
-- in the order of their names, like all sessions.
begin
    if not exists (select from pgq_task.queue q
                    where q.queue_name = i_queue and (q.queue_parent is null or pgq_task._is_kept(q.queue_pushed)))
    then
        perform pgq_task._add_tenant(i_queue);
    end if;
    return pgq_task._find_queue(i_queue, 'insert');
end;
$$;

create or replace function pgq_task._is_kept(i_pushed regclass)
returns boolean
language plpgsql
as $$
-- Returns true if the queue with this sequence, that of a tenant, is not being dropped; then it is not dropped before
-- the transaction ends.
begin
    return coalesce(pg_catalog.pg_sequence_last_value(pgq_task._living(i_pushed)) >= 0, false);
end;
$$;

create or replace function pgq_task._lock_queue(i_queue text)
returns pgq_task.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Locks a queue for a change that concerns its tenants, too: none is created until the transaction ends.
-- Returns: its row.
-- Errors: PQ070 it does not exist
declare
    q   pgq_task.queue;
begin
    select * into q from pgq_task.queue where queue_name = i_queue for no key update;
    if not found then
        perform pgq_task._raise_queue_not_found(i_queue);
    end if;
    return q;
end;
$$;

create or replace function pgq_task._set_tenants(q pgq_task.queue, i_has boolean)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a queue one with tenants, or one without. Queues that have the names of tenants become tenants, with their
-- settings.
-- Errors: PQ072 it is that of a tenant, or has tenants that stay, or one of them is restricted, but not the other
declare
    v_tenant    text;
begin
    if q.queue_parent is not null then
        perform pgq_task._raise_invalid(format('task queue %L is that of a tenant', q.queue_name),
                                        'Tenants have no tenants. Set keep_tenants of the queue before the slash.');
    elsif not i_has then
        select t.queue_name into v_tenant from pgq_task.queue t where t.queue_parent = q.queue_id limit 1;
        if found then
            perform pgq_task._raise_invalid(format('task queue %L has tenants, such as %L', q.queue_name, v_tenant),
                                            'Drop them first with pgq_task.drop_queue().');
        end if;
        return;
    end if;
    update pgq_task.queue set queue_error_queue = coalesce(queue_error_queue, queue_name || '.failed') where queue_id = q.queue_id;
    update pgq_task.queue t
       set queue_parent = q.queue_id
     where starts_with(t.queue_name, q.queue_name || '/') and substr(t.queue_name, length(q.queue_name) + 2) ~ '^[^/]+$'
       and t.queue_parent is null and t.queue_keep_tenants is null;
    select t.queue_name into v_tenant
      from pgq_task.queue t where t.queue_parent = q.queue_id and t.queue_restricted <> q.queue_restricted;
    if found then
        perform pgq_task._raise_invalid(format('one of the task queues %L and %L is restricted, the other is not', q.queue_name, v_tenant),
                                        'Call pgq_task.restrict_queue() to make them alike.');
    end if;
end;
$$;

create or replace function pgq_task._drop_idle_tenants()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Drops tenants' queues that were empty, and have done nothing, for the time keep_tenants: pgq_task.sweep(0) calls it.
-- Those with settings, limits or grants of their own stay, and those that a periodic task, an error queue, a flow or a
-- unique_key's period refers to.
declare
    v_tenant    text;
begin
    for v_tenant in
        select q.queue_name
          from (select t.*, p as parent
                  from pgq_task.queue t
                  join pgq_task.queue p on p.queue_id = t.queue_parent
                 where clock_timestamp() - p.queue_keep_tenants - t.queue_keep
                       > greatest(t.queue_created, (select max(c.changed) from pgq_task.counted c where c.queue_id = t.queue_id))
                offset 0) q
         where not exists (select from pgq_task.queue_grant g where g.queue_id = q.queue_id)
           and not exists (select from pgq_task.periodic r where r.queue_id = q.queue_id)
           and not exists (select from pgq_task.unique_period u where u.queue_id = q.queue_id)
           and not exists (select from pgq_task.queue e where e.queue_error_queue = q.queue_name)
           and not exists (select from pgq_task.flow_step s where q.queue_id in (s.queue_id, s.ended_in))
           and to_regclass(format('pgq_task.task_payload_%s_idx', q.queue_id)) is null
           and (select pgq_task._own_settings(t) = pgq_task._own_settings(q.parent) from pgq_task.queue t where t.queue_id = q.queue_id)
           and (select k.id from pgq_task.task k where k.queue_id = q.queue_id limit 1) is null
           and pgq_task._may_hold_up(q.parent)
         order by q.queue_id
         limit 10
    loop
        begin
            perform pgq_task.drop_queue(v_tenant);
        exception when lock_not_available or sqlstate 'PQ073' or sqlstate 'PQ070' then
            null; -- It is in use again.
        end;
    end loop;
end;
$$;

create or replace function pgq_task._own_settings(q pgq_task.queue)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns what a tenant gets from its parent.
    select to_jsonb(q) - '{queue_id,queue_name,queue_created,queue_waiting,queue_pushed,queue_keep_tenants,queue_parent}'::text[]
           || jsonb_build_object('limits', (select to_jsonb(l) - '{queue_id,since,written}'::text[]
                                              from pgq_task.queue_limit l where l.queue_id = q.queue_id));
$$;
