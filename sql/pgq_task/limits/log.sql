create or replace function pgq_task._lock_limits(i_queue_id int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Locks the counts for a queue's limits until the transaction ends; returns false if another session does not release
-- the lock soon.
declare
    v_timeout   constant text := current_setting('lock_timeout');
begin
    if pg_try_advisory_xact_lock(pgq._lock_key('task limits'), i_queue_id) then
        return true;
    elsif pgq_task._is_full(i_queue_id) then
        -- Many workers are woken for a lock that only one can have.
        return false;
    end if;
    -- Usually less than deadlock_timeout: two sessions that claim from the same two queues both give up.
    perform set_config('lock_timeout', '300ms', true);
    perform pg_advisory_xact_lock(pgq._lock_key('task limits'), i_queue_id);
    perform set_config('lock_timeout', v_timeout, true);
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end;
$$;

create or replace function pgq_task._is_full(i_queue_id int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
-- Returns whether a queue has no room for any task, as far as can be seen without its lock.
declare
    q   pgq_task.queue_limit;
    s   pgq_task.limit_log;
begin
    select * into q from pgq_task.queue_limit l where l.queue_id = i_queue_id;
    if not found then
        -- The session that had the lock has removed them: the next claim will see that.
        return true;
    end if;
    s := pgq_task._last_of_limit(i_queue_id, '', q.written);
    return q.max_running <= (select count(*) from pgq_task.task k
                              where k.id = any (s.ids) and k.queue_id = i_queue_id and k.lease > clock_timestamp())
        or q.rate <= pgq_task._count_limited(i_queue_id, '', clock_timestamp() - q.rate_period, s.total);
end;
$$;

create or replace function pgq_task._last_of_limit(i_queue_id int4, i_key text, i_written int2)
returns pgq_task.limit_log
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
-- Returns the last count for a key; nulls if there is none. Rows in the current table are newer than rows in the other
-- one.
declare
    v_last  pgq_task.limit_log;
begin
    foreach i_written in array array[i_written, 1 - i_written]
    loop
        execute format('select * from pgq_task.limit_%s_%s where key = $1 order by key desc, at desc, total desc limit 1',
                       i_queue_id, i_written)
           into v_last using i_key;
        exit when v_last.key is not null;
    end loop;
    return v_last;
end;
$$;

create or replace function pgq_task._count_limited(i_queue_id int4, i_key text, i_since timestamptz, i_total bigint)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
-- Returns the number of tasks claimed since a time: the difference between the last total and an earlier one.
declare
    v_base  bigint;
begin
    if i_total is null then
        return 0;
    end if;
    execute format('select coalesce('
                   ' (select max(total) from ('
                   '   (select total from pgq_task.limit_%1$s_0 where key = $1 and at <= $2 order by key desc, at desc, total desc limit 1)'
                   '   union all'
                   '   (select total from pgq_task.limit_%1$s_1 where key = $1 and at <= $2 order by key desc, at desc, total desc limit 1)) b),'
                   ' (select min(total) from ('
                   '   (select total - number as total from pgq_task.limit_%1$s_0 where key = $1 and at > $2 order by key, at, total limit 1)'
                   '   union all'
                   '   (select total - number from pgq_task.limit_%1$s_1 where key = $1 and at > $2 order by key, at, total limit 1)) b))',
                   i_queue_id)
       into v_base using i_key, i_since;
    return coalesce(i_total - v_base, 0);
end;
$$;

create or replace function pgq_task._next_of_limit(i_queue_id int4, i_key text, i_now timestamptz, i_rate int4, i_period interval)
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
-- Returns the time when a claim of a key that counts now no longer counts.
declare
    v_first timestamptz;
begin
    execute format('select min(at) from ('
                   ' (select at from pgq_task.limit_%1$s_0 where key = $1 and at > $2 and number > 0 order by key, at, total limit 1)'
                   ' union all'
                   ' (select at from pgq_task.limit_%1$s_1 where key = $1 and at > $2 and number > 0 order by key, at, total limit 1)) f',
                   i_queue_id)
       into v_first using i_key, i_now - i_period;
    return greatest(coalesce(v_first, i_now) + i_period, i_now + i_period / i_rate / 2);
end;
$$;

create or replace function pgq_task._rate_free_at(i_queue_id int4)
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the time when tasks of a queue whose rate is used up can be claimed again; null if they can be now.
declare
    v_now   constant timestamptz := clock_timestamp();
    q       pgq_task.queue_limit;
    s       pgq_task.limit_log;
begin
    select * into q from pgq_task.queue_limit l where l.queue_id = i_queue_id;
    if q.rate is null then
        return null;
    end if;
    s := pgq_task._last_of_limit(i_queue_id, '', q.written);
    if pgq_task._count_limited(i_queue_id, '', v_now - q.rate_period, s.total) < q.rate then
        return null;
    end if;
    return pgq_task._next_of_limit(i_queue_id, '', v_now, q.rate, q.rate_period);
end;
$$;

create or replace function pgq_task._rotate_limits(i_queue_id int4, i_bytes bigint default 16777216)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
-- Truncates the other table and switches to it, if the current one is large and the other holds nothing that counts.
-- The caller has called pgq_task._lock_limits(1).
-- Parameters:
--      i_bytes - size in bytes that counts as large
-- Returns: true if it switched.
declare
    q       pgq_task.queue_limit;
    v_this  regclass;
    v_other regclass;
    v_since timestamptz;
begin
    select * into q from pgq_task.queue_limit l where l.queue_id = i_queue_id;
    v_this := format('pgq_task.limit_%s_%s', i_queue_id, q.written);
    v_other := format('pgq_task.limit_%s_%s', i_queue_id, 1 - q.written);
    if pg_relation_size(v_this) < greatest(i_bytes, pg_relation_size(v_other) / 2) then
        return false;
    end if;
    -- Each claim writes a row for the queue: the other table is older than the first of these.
    execute format('select at from %s where key = %L order by key, at, total limit 1', v_this, '') into v_since;
    if v_since is null or v_since > clock_timestamp() - q.rate_period then
        return false;
    end if;
    if not pgq._try_lock_table(v_other::text) then
        return false;
    end if;
    execute format('truncate %s', v_other);
    update pgq_task.queue_limit l set written = 1 - l.written where l.queue_id = i_queue_id;
    return true;
end;
$$;
