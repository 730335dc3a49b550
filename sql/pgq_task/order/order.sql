create or replace function pgq_task._hold_back(i_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Takes a task out of its lane if there is an earlier one with the same order_key. The lock makes a session that ends
-- the earlier task wait, and then see that this one is to be released.
declare
    v_queue_id  int4;
    v_order_key text;
begin
    select t.queue_id, t.order_key into v_queue_id, v_order_key from pgq_task.task t where t.id = i_id;
    perform
       from pgq_task.task e
      where e.queue_id = v_queue_id and e.order_key = v_order_key and e.id + 0 < i_id
        and e.id + 0 >= pgq_task._key_low(v_queue_id, v_order_key)
      order by e.queue_id desc, e.order_key desc, (e.id + 0) desc
      limit 1
        for key share skip locked;
    if not found then
        return false;
    end if;
    update pgq_task.task t set pos = null where t.id = i_id;
    return true;
end;
$$;

create or replace function pgq_task._hold_back_all(i_ids bigint[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Takes those of these tasks out of their lanes that have an earlier one with the same order_key, and are due. The
-- caller has locked them, or just inserted them. As in pgq_task._is_behind(2) nothing else is locked, and a sweep is
-- told to look at their keys.
declare
    v_now   constant bigint := pgq_task._position_now();
begin
    with held as (
        update pgq_task.task t
           set pos = null
         where t.id = any (i_ids)
           and t.lease is null
           -- in one expression, so that no other index is of use
           and case when t.order_key is not null and t.pos <= v_now then not pgq_task._is_first(t.queue_id, t.order_key, t.id) end
        returning t.queue_id, t.order_key, t.id)
    insert into pgq_task.to_release (queue_id, order_key, id)
    select h.queue_id, h.order_key, max(h.id) from held h group by h.queue_id, h.order_key;
end;
$$;

create or replace function pgq_task._release_next(i_queue_id int4, i_order_key text, i_id bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Releases the next task with the same order_key after a task is gone, if it was held back. If it was not, it is in its
-- lane already. It does not wait for other sessions: the next sweep does what it cannot do. Now and then it notes that
-- the tasks up to this one are gone.
declare
    at_times    constant int4 := 32;
    v_settled   bigint;
    n           record;
begin
    if pgq._is_read_committed() then
        if hashint8(i_id) & (at_times - 1) = 0 then
            -- In a snapshot before the one that shows which tasks there are.
            select s.sweep_settled into v_settled from pgq_task.sweep s order by s.sweep_id desc limit 1;
            insert into pgq_task.key_low (queue_id, order_key, low)
            select i_queue_id, i_order_key, least(i_id, v_settled) + 1
             where v_settled is not null and pgq_task._is_first(i_queue_id, i_order_key, i_id);
        end if;
        select t.id, t.pos into n
          from pgq_task.task t
         where t.queue_id = i_queue_id and t.order_key = i_order_key and t.id + 0 > i_id
         order by t.queue_id, t.order_key, (t.id + 0)
         limit 1;
        if not found or n.pos is not null then
            return;
        end if;
        perform from pgq_task.task t where t.id = n.id and t.pos is null for no key update skip locked;
        if found then
            update pgq_task.task t set pos = pgq_task._position_of(clock_timestamp()) where t.id = n.id;
            return;
        end if;
    end if;
    insert into pgq_task.to_release (queue_id, order_key, id) values (i_queue_id, i_order_key, i_id);
end;
$$;

create or replace function pgq_task._release_after(i_tasks pgq_task.task[])
returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of pgq_task._release_next(3) for many tasks that are gone, using only their queue, key and id. Tasks
-- behind any of a key's tasks are also behind the first of them.
    select pgq_task._release_next(g.queue_id, g.order_key, g.id)
      from (select t.queue_id, t.order_key, min(t.id) as id
              from unnest(i_tasks) t
             where t.order_key is not null
             group by t.queue_id, t.order_key) g;
$$;

create or replace function pgq_task._release_late(i_queues int4[] default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
-- Checks keys with a task that may be held back needlessly: pgq_task._release_next(3) could not release it, or it was
-- pushed while the task before it ended, see pgq_task._is_behind(2). The first task of a key is released; if it is not
-- held back, it is locked for a moment, so that the session that ends it sees the tasks behind it. Checks all keys of
-- some queues, or many keys of any queues.
declare
    at_once constant int4 := 20000;
    r       record;
    n       record;
begin
    for r in
        with looked_at as (
            delete from pgq_task.to_release w
             where w.ctid = any (array(select o.ctid from pgq_task.to_release o
                                        where i_queues is null or o.queue_id = any (i_queues)
                                        limit case when i_queues is null then at_once end))
            returning *)
        select w.queue_id, w.order_key, max(w.id) as id from looked_at w group by w.queue_id, w.order_key
    loop
        select t.id, t.pos into n
          from pgq_task.task t
         where t.queue_id = r.queue_id and t.order_key = r.order_key and t.id + 0 >= pgq_task._key_low(r.queue_id, r.order_key)
         order by t.queue_id, t.order_key, (t.id + 0)
         limit 1;
        continue when not found;
        begin
            if n.pos is not null then
                perform from pgq_task.task t where t.id = n.id for key share skip locked;
            else
                perform from pgq_task.task t where t.id = n.id and t.pos is null for no key update skip locked;
                if found then
                    update pgq_task.task t set pos = pgq_task._position_of(clock_timestamp()) where t.id = n.id;
                    perform pgq_task._wake_workers(q.queue_id, q.queue_name) from pgq_task.queue q where q.queue_id = r.queue_id;
                    continue;
                end if;
            end if;
            if not found then
                -- It is being ended, or changed.
                insert into pgq_task.to_release (queue_id, order_key, id) values (r.queue_id, r.order_key, r.id);
            end if;
        exception
            when lock_not_available then
                -- The queue is being dropped, and this may be rolled back.
                insert into pgq_task.to_release (queue_id, order_key, id) values (r.queue_id, r.order_key, r.id);
            when sqlstate 'PQ070' then
                null; -- It was.
        end;
    end loop;
end;
$$;

create or replace function pgq_task._is_behind(i_queue_id int4, i_order_key text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Returns whether a task that is about to get its id has an earlier one with the same order_key, so that it can be held
-- back at once: claims would step over it. The earlier one may end before this one is visible, in a session that then
-- cannot release it. So a sweep is told to check; unless this transaction has inserted or changed the earlier task,
-- because then no other session can end it before. It takes no lock: sessions that end tasks do not wait for those that
-- push.
declare
    e   record;
begin
    select t.id, t.xmin::text::bigint = pg_current_xact_id()::text::bigint & 4294967295 as own into e
      from pgq_task.task t
     where t.queue_id = i_queue_id and t.order_key = i_order_key and t.id + 0 >= pgq_task._key_low(i_queue_id, i_order_key)
     order by t.queue_id desc, t.order_key desc, (t.id + 0) desc
     limit 1;
    if not found then
        return false;
    elsif e.own is not true then
        insert into pgq_task.to_release (queue_id, order_key, id) values (i_queue_id, i_order_key, e.id);
    end if;
    return true;
end;
$$;

create or replace function pgq_task._key_low(i_queue_id int4, i_order_key text)
returns bigint
language plpgsql stable
as $$
-- Returns an id below which no task of a key is. Late ones may be anywhere. It has its callers' settings: it is called
-- for each claim.
begin
    return coalesce((select k.low
                       from pgq_task.key_low k
                      where k.queue_id = i_queue_id and k.order_key = i_order_key
                        and not exists (select from pgq_task.task t
                                         where t.queue_id + 0 = i_queue_id and coalesce(t.order_key, '') = i_order_key and t.is_late)
                      order by k.queue_id desc, k.order_key desc, k.low desc
                      limit 1), -9223372036854775808);
end;
$$;
