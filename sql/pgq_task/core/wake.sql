create or replace function pgq_task._wake(i_queue_id int4, i_queue text, i_id bigint default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of pgq_task._wake_workers(3) for pgq_task.push(8), which runs as its caller. So every writer can call
-- it, and it checks the right to insert.
begin
    perform pgq_task._require_right(i_queue_id, 'insert')
       from pgq_task.queue q where q.queue_id = i_queue_id and q.queue_restricted;
    return pgq_task._wake_workers(i_queue_id, i_queue, i_id);
end;
$$;

create or replace function pgq_task._living(i_seq regclass)
returns regclass
language plpgsql
as $$
-- Returns a queue's sequence; null if the queue is gone. It waits for a session that is dropping the queue: a session
-- that used the sequence would wait too, and then fail with an internal error.
begin
    if pg_catalog.pg_relation_is_updatable(i_seq, false) is not null and pg_catalog.pg_relation_filenode(i_seq) is not null then
        return i_seq;
    end if;
    return null;
end;
$$;

create or replace function pgq_task._wake_workers(i_queue_id int4, i_queue text, i_id bigint default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notifies the channel pgq_task, with the queue's name, if a worker waits that was not notified yet. A session that has
-- put a task into a queue calls it: reading the sequence makes drop_queue() wait until the task is visible, and after
-- drop_queue() the sequence is gone, whatever snapshot the caller has.
--
-- The sequence is 0 if no worker waits, 1 (or null: the server crashed) if a worker waits, or else the id of the transaction that has notified the
-- waiting workers. They receive the notification when that transaction commits; if it rolls back, never. A session that
-- sees that it has committed sets the sequence to 0. When workers find no more tasks, they declare that they wait, and
-- it is 1 again.
-- Parameters:
--      i_id    - a task that the caller has just inserted. If it belongs to a subtransaction, or is not given, others
--                notify again: the subtransaction could be rolled back alone, and its notification with it.
-- Returns: the same
declare
    v_seq       constant regclass := pgq_task._living(to_regclass('pgq_task.waiting_' || i_queue_id));
    v_waiting   constant bigint := case when v_seq is not null then coalesce(pg_sequence_last_value(v_seq), 1) end;
    v_own       bigint;
begin
    if v_waiting is null then
        perform pgq_task._raise_queue_not_found(i_queue);
    elsif v_waiting = 0 then
        return i_id;
    end if;
    v_own := pg_current_xact_id()::text::bigint;
    if v_waiting > 1 and v_waiting < v_own and pg_xact_status(v_waiting::text::xid8) = 'committed' then
        -- Unless a worker declares meanwhile that it waits: a short lock, in one expression, so that a cancel cannot
        -- come in between and leave it behind. If the lock is taken, the next push does this.
        perform current_setting('transaction_read_only') = 'off' and pg_try_advisory_lock(pgq._lock_key('wake workers'))
                and case when pg_sequence_last_value(v_seq) = v_waiting then setval(v_seq, 0) else 0 end = 0
                and pg_advisory_unlock(pgq._lock_key('wake workers'));
        return i_id;
    end if;
    -- Use the name that belongs to the number: pgq_task._wake(3) can be called with any arguments.
    perform pg_notify('pgq_task', coalesce((select q.queue_name from pgq_task.queue q where q.queue_id = i_queue_id), i_queue));
    if i_id is not null
       and exists (select from pgq_task.task t
                    where t.id = i_id and t.queue_id + 0 = i_queue_id and t.xmin::text::bigint = v_own & 4294967295)
    then
        perform setval(v_seq, v_own);
    end if;
    return i_id;
end;
$$;

create or replace function pgq_task.set_waiting(queues text[])
returns interval
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Declares that a worker waits for tasks: the next push notifies the channel pgq_task, with the queue's name as
-- payload; later pushes do not, until a worker declares again that it waits. Before it waits, a worker must LISTEN,
-- call this function in a transaction of its own, then claim once more: tasks pushed after that claim are notified.
-- Transactions that had pushed before and commit later are not notified, so a worker should look again soon, then from
-- time to time, and when the next task is due. Of more than 1000 queues, with tenants, it declares so for 1000, at
-- random: their sequences stay locked until the end of the transaction, and all sessions of the server share the locks.
-- Returns: time until the next task of these queues is due, or the rate of one allows claims again; null for neither.
-- Errors: PQ072 no queues at all, 42501 no right to claim from one of them
declare
    at_once constant int4 := 200;
    v_now   constant timestamptz := clock_timestamp();
    v_ids   int4[];
    v_free  timestamptz;
    v_next  bigint;
begin
    perform pgq_task._require_queues(queues, 'claim');
    -- See pgq_task._wake_workers(3), which holds this lock for microseconds. Any role could hold it, and for ever.
    for n in 1 .. 100 loop
        exit when pg_try_advisory_xact_lock_shared(pgq._lock_key('wake workers'));
        perform pg_sleep(0.001);
    end loop;
    v_ids := array(select q.queue_id from pgq_task.served_queue q where q.served_as = any (queues) order by random() limit 1000);
    for n in 1 .. cardinality(v_ids) by at_once loop
        begin
            perform setval(w.seq, 1)
               from pgq_task.queue q
              cross join lateral (select pgq_task._living(q.queue_waiting) as seq) w
              where q.queue_id = any (v_ids[n : n + at_once - 1]) and pg_sequence_last_value(w.seq) is distinct from 1;
            v_free := least(v_free, (
                select min(pgq_task._rate_free_at(q.queue_id))
                  from pgq_task.queue q
                  join pgq_task.queue_limit l using (queue_id)
                 where q.queue_id = any (v_ids[n : n + at_once - 1]) and q.queue_paused is null and l.rate is not null));
            raise no_data_found;
        exception when no_data_found then
            null; -- This releases all locks but those on sequences, which stay set.
        end;
    end loop;
    select min(next.pos) into v_next
      from pgq_task.served_lane l
     cross join lateral (
           select t.pos from pgq_task.task t
            where t.queue_id = l.queue_id and t.priority = l.priority
              and t.pos > pgq_task._position_of(v_now) and t.pos < 4611686018427387904
            order by t.queue_id, t.priority, t.pos limit 1) next
     where l.served_as = any (queues) and l.queue_paused is null;
    if pg_sequence_last_value('pgq_task.idle_watch') = 1 then
        perform setval('pgq_task.idle_watch', 0), pg_notify('pgq_task_idle', '');
    end if;
    return pgq_task._time_of(least(v_next, pgq_task._position_of(v_free))) - v_now;
end;
$$;

create or replace function pgq_task._require_queues(i_queues text[], i_action text default null)
returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ070 for the first name that is not a task queue, PQ072 for no names at all, 42501 if the caller may not do this
-- with the tasks of one of them.
declare
    v_name  text;
begin
    if coalesce(cardinality(i_queues), 0) = 0 then
        perform pgq_task._raise_invalid('no queues are given', 'Name one or more task queues.');
    end if;
    select n into v_name from unnest(i_queues) n where not exists (select from pgq_task.queue where queue_name = n) limit 1;
    if found then
        perform pgq_task._raise_queue_not_found(v_name);
    end if;
    perform pgq_task._require_right(q.queue_id, i_action)
       from pgq_task.queue q where q.queue_name = any (i_queues) and q.queue_restricted and i_action is not null;
end;
$$;

create or replace function pgq_task._matches(i_queue text, i_pattern text)
returns boolean
language sql immutable
as $$
-- Returns whether a pattern has an asterisk, which stands for any characters, and the name of a queue matches it.
-- Inlined.
    select i_pattern like '%*%'
       and i_queue like pg_catalog.replace(pg_catalog.regexp_replace(i_pattern, $re$([\\%_])$re$, $re$\\\1$re$, 'g'), '*', '%');
$$;

create or replace function pgq_task.find_queues(patterns text[])
returns setof text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the names of the task queues that exist and match.
-- Parameters:
--      patterns    - names; an asterisk stands for any characters, but for those of error queues (also of a queue that
--                    was dropped: they end with .failed), and of restricted queues from which the caller may not claim.
--                    Tenants are found by patterns with a slash only: claims from their parents include them
-- Returns: the names, each once.
begin
    return query
        select q.queue_name
          from pgq_task.queue q
         where q.queue_name = any (patterns)
            or exists (select from unnest(patterns) p where pgq_task._matches(q.queue_name, p) and (q.queue_parent is null or p like '%/%'))
           and q.queue_name not like '%.failed'
           and not exists (select from pgq_task.queue e where coalesce(e.queue_error_queue, e.queue_name || '.failed') = q.queue_name)
           and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'claim'));
end;
$$;
