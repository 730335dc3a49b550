-- Every instruction counts in this function, as in pgq.insert_event(3): it runs as the caller, without a search_path of
-- its own, so every name is schema-qualified; and it reads sequences only. See docs/decisions.md.

create or replace function pgq_task.push(
    queue text, payload jsonb, at timestamptz default null, delay interval default null,
    priority int4 default 0, headers jsonb default null,
    unique_key text default null, order_key text default null)
returns bigint
language plpgsql
as $$
-- Puts a task into a queue, in the caller's transaction.
-- Parameters:
--      payload     - description of the work, JSON
--      at          - earliest time to claim it; one in the past is now, one after the year 2500 counts as its beginning
--      delay       - minimum time from now until it can be claimed
--      priority    - higher ones are claimed first; a smallint
--      headers     - metadata, a JSON object
--      unique_key  - if a task with the same key waits in the queue, this one is not inserted: see
--                    pgq_task.push_unique(11)
--      order_key   - tasks with the same key are processed one after the other, in the order of their ids
-- Returns: the task's id, or the id of the waiting task with the unique_key.
-- Errors: 42501 no right to insert into it, PQ072 an invalid time, priority, headers or key
declare
    v_id    bigint;
    v_seq   constant pg_catalog.regclass := pg_catalog.to_regclass(pg_catalog.textcat('pgq_task_queues.', pg_catalog.quote_ident(push.queue)));
    -- The queue's sequence is locked until the transaction ends: pgq_task.drop_queue() waits for that. If this call has
    -- waited for drop_queue(), v_queue is negative. Holding that lock, an open transaction knows whether the inbox is
    -- closed; it could not draw from a restricted queue's sequence.
    v_queue constant integer := case
        when push.at is null and push.delay is null and pg_catalog.int4eq(push.priority, 0)
             and push.headers is null and push.unique_key is null and push.order_key is null
             and pg_catalog.pg_relation_is_updatable(v_seq, false) is not null
             and pg_catalog.has_table_privilege('pgq_writer'::pg_catalog.regrole, 'pgq_task.inbox'::pg_catalog.regclass, 'insert')
        then pg_catalog.int4(pg_catalog.int8shr(pg_catalog.nextval(v_seq), 40)) end;
begin
    if pg_catalog.int4gt(v_queue, 0) is not true then
        return pgq_task._push_slowly(queue, payload, at, delay, priority, headers, unique_key, order_key);
    end if;
    insert into pgq_task.inbox (queue_id, payload) values (v_queue, push.payload);
    v_id := case when pg_catalog.int8eq(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(
                          pg_catalog.textcat('pgq_task.waiting_', v_queue::pg_catalog.text))), 0)
                 then pg_catalog.currval('pgq_task.task_id_seq'::pg_catalog.regclass) end;
    if v_id is null then
        v_id := pgq_task._wake(v_queue, queue, pg_catalog.currval('pgq_task.task_id_seq'::pg_catalog.regclass));
    end if;
    return v_id;
end;
$$;

create or replace function pgq_task._push_slowly(
    queue text, payload jsonb, at timestamptz, delay interval, priority int4, headers jsonb, unique_key text, order_key text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Does the work of pgq_task.push(8) for tasks with more than a payload, for queues whose names are too long for a
-- sequence name or that do not exist yet, and while there are restricted queues.
#variable_conflict use_column
declare
    v_id        bigint;
    v_queue     int4;
    v_pushed    regclass;
    v_waiting   regclass;
    v_pos       bigint;
begin
    if _push_slowly.priority is distinct from 0 then
        perform pgq_task._require_priority(priority);
    end if;
    if _push_slowly.unique_key is not null then
        return u.id from pgq_task.push_unique(queue, payload, unique_key, at => _push_slowly.at, delay => _push_slowly.delay,
                                              priority => _push_slowly.priority, headers => _push_slowly.headers,
                                              order_key => _push_slowly.order_key) u;
    elsif _push_slowly.order_key is not null or _push_slowly.headers is not null then
        perform pgq_task._require_attributes(headers, null, order_key);
    end if;
    select q.queue_id, q.queue_pushed, q.queue_waiting into v_queue, v_pushed, v_waiting
      from pgq_task.queue q
     where q.queue_name = _push_slowly.queue
       and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'insert'));
    -- An old snapshot may show a queue that was dropped, see pgq_task._living(1) and pgq_task._retire_pushed(2).
    if not found or pg_relation_is_updatable(v_pushed, false) is null or pg_relation_filenode(v_pushed) is null
       or nextval(v_pushed) < 0
    then
        v_queue := pgq_task._add_tenant(queue);
        select q.queue_pushed, q.queue_waiting into v_pushed, v_waiting from pgq_task.queue q where q.queue_id = v_queue;
        perform nextval(v_pushed);
    end if;
    if _push_slowly.at is not null or _push_slowly.delay is not null then
        v_pos := pgq_task._position_at(at, delay);
    elsif _push_slowly.order_key is null or not pgq_task._is_behind(v_queue, order_key) then
        v_pos := pgq_task._position_now();
    end if;
    v_id := nextval('pgq_task.task_id_seq');
    insert into pgq_task.task (id, queue_id, priority, pos, payload, headers, order_key)
    values (v_id, v_queue, _push_slowly.priority, v_pos, _push_slowly.payload, _push_slowly.headers, _push_slowly.order_key);
    if priority <> 0 then
        perform pgq_task._add_lane(v_queue, priority::int2);
    end if;
    if pg_sequence_last_value(v_waiting) is distinct from 0 then
        perform pgq_task._wake_workers(v_queue, queue, v_id);
    end if;
    return v_id;
end;
$$;

create or replace function pgq_task.push_unique(
    queue text, payload jsonb, unique_key text, unique_while text default 'waiting', unique_for interval default null,
    replace boolean default false, at timestamptz default null, delay interval default null,
    priority int4 default 0, headers jsonb default null, order_key text default null)
returns table (id bigint, inserted boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts a task with a unique_key into a queue, unless another task stands for it.
-- Parameters:
--      unique_while    - waiting: a task with the same key stands for this one while it waits to be claimed, also for a
--                        retry. A claimed task may not know the new state: this one is inserted, and takes over the
--                        key. running: also while the task is claimed
--      unique_for      - also after the task is done: no other task with the key for this long after this push
--      replace         - a waiting task gets the payload, headers, priority and time of this one, and 0 attempts; its
--                        order_key stays
--      others          - as in pgq_task.push(8)
-- Returns:
--      id              - id of the task; if it was not inserted, of the task that stands for it
--      inserted        - true if it was inserted
-- Errors: 42501 no right to insert into it, PQ072 an invalid time, priority, headers, key or mode
-- Notes: the task that stands for this one is claimed only after this transaction has ended, so that it sees the
--      effects of this transaction.
#variable_conflict use_column
declare
    v_queue int4;
    v_pos   bigint;
    v_taken boolean := false;  -- by an earlier push, for its period
    h       record;
begin
    -- In one function: each step relies on the locks of those before it.
    if push_unique.unique_key is null then
        perform pgq_task._raise_invalid('the unique_key is NULL', 'Give a key, or use pgq_task.push().');
    elsif (push_unique.unique_while in ('waiting', 'running')) is not true then
        perform pgq_task._raise_invalid(format('unique_while is %L', push_unique.unique_while), 'One of waiting, running.');
    elsif push_unique.unique_for <= interval '0' or push_unique.unique_for > interval '10 years' then
        perform pgq_task._raise_invalid(format('unique_for is %s', push_unique.unique_for),
                                        'Give an interval of more than 0 and at most 10 years.');
    end if;
    perform pgq_task._require_priority(priority), pgq_task._require_attributes(headers, push_unique.unique_key, order_key);
    select q.queue_id into v_queue
      from pgq_task.queue q
     where q.queue_name = push_unique.queue
       and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'insert'))
       and (q.queue_parent is null or pgq_task._is_kept(q.queue_pushed));
    if not found then
        v_queue := pgq_task._add_tenant(queue);
    end if;
    if push_unique.at is not null or push_unique.delay is not null then
        v_pos := pgq_task._position_at(push_unique.at, push_unique.delay);
    else
        v_pos := pgq_task._position_now();
    end if;
    id := nextval('pgq_task.task_id_seq');
    if push_unique.unique_for is not null then
        insert into pgq_task.unique_period as u (queue_id, unique_key, id, until)
        values (v_queue, push_unique.unique_key, push_unique.id, clock_timestamp() + push_unique.unique_for)
        on conflict on constraint unique_period_pkey do update
           set id = excluded.id, until = excluded.until
         where u.until <= clock_timestamp();
        v_taken := not found;
        if v_taken then
            select u.id into id
              from pgq_task.unique_period u where u.queue_id = v_queue and u.unique_key = push_unique.unique_key;
        end if;
    end if;
    loop
        inserted := false;
        if not v_taken then
            insert into pgq_task.task (id, queue_id, priority, pos, payload, headers, unique_key, order_key)
            values (push_unique.id, v_queue, push_unique.priority, v_pos, push_unique.payload, push_unique.headers,
                    push_unique.unique_key, push_unique.order_key)
            on conflict (queue_id, unique_key) where unique_key is not null do nothing;
            inserted := found;
            exit when inserted;
        end if;
        -- No worker claims it before this transaction ends; if a worker is just claiming it, wait for that.
        select t.id, t.lease is not null as running into h
          from pgq_task.task t
         where t.queue_id = v_queue and t.unique_key = push_unique.unique_key
           and (t.lease is null or not v_taken)
           for share;
        if not found then
            exit when v_taken;
            -- It was finished in between; an earlier snapshot would show neither.
            perform pgq._require_read_committed('push() with a unique_key that was finished meanwhile');
        elsif h.running and push_unique.unique_while = 'waiting' then
            update pgq_task.task t set unique_key = null where t.id = h.id;
        else
            id := h.id;
            if push_unique.replace and not h.running then
                update pgq_task.task t
                   set version = t.version + 1, payload = push_unique.payload,
                       headers = pgq_task._new_headers(t.headers, push_unique.headers),
                       priority = push_unique.priority, attempts = 0, error = null, failures = null, lease = null, claimant = null,
                       -- A task that is held back, parked or stopped stays so.
                       pos = case when t.pos < 4611686018427387904 then v_pos else t.pos end
                 where t.id = h.id;
            end if;
            exit;
        end if;
    end loop;
    if not inserted and push_unique.unique_for is not null and not v_taken then
        update pgq_task.unique_period u set id = push_unique.id
         where u.queue_id = v_queue and u.unique_key = push_unique.unique_key;
    end if;
    if inserted and push_unique.order_key is not null then
        perform pgq_task._hold_back_all(array[push_unique.id]);
    end if;
    if inserted then
        perform pgq_task._count('pushed', v_queue);
    end if;
    if inserted or push_unique.replace then
        perform pgq_task._wake_workers(v_queue, queue, id);
        if priority <> 0 then
            perform pgq_task._add_lane(v_queue, priority::int2);
        end if;
    end if;
    return next;
end;
$$;

create or replace function pgq_task.push_many(
    queue text, payloads jsonb[], at timestamptz default null, delay interval default null,
    priority int4 default 0, headers jsonb default null, order_keys text[] default null,
    unique_keys text[] default null, unique_while text default 'waiting', unique_for interval default null,
    replace boolean default false)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts many tasks into a queue, in the caller's transaction.
-- Parameters:
--      payloads    - one for each task
--      order_keys, unique_keys     - one for each task, or null
--      unique_while, unique_for, replace   - as in pgq_task.push_unique(11), for those with a unique_key
--      others      - as in pgq_task.push(8), for all of them
-- Returns: the tasks' ids, in the order of their payloads.
-- Errors: 42501 no right to insert into it, PQ072 as many keys as payloads are needed; an invalid time, priority,
--      headers or key
#variable_conflict use_column
declare
    v_queue int4;
    p       record;
    v_tasks constant int4 := coalesce(cardinality(payloads), 0);
    v_pos   bigint;
    v_first bigint[];
begin
    select q.queue_id into v_queue
      from pgq_task.queue q
     where q.queue_name = push_many.queue
       and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'insert'))
       and (q.queue_parent is null or pgq_task._is_kept(q.queue_pushed));
    if not found then
        v_queue := pgq_task._add_tenant(queue);
    end if;
    if cardinality(order_keys) <> v_tasks or cardinality(unique_keys) <> v_tasks then
        perform pgq_task._raise_invalid(
            format('%s payloads, %s order_keys, %s unique_keys', v_tasks, cardinality(order_keys), cardinality(unique_keys)),
            'Give one key for each task, null for those that need none.');
    end if;
    if unique_keys is not null then
        for p in
            select * from unnest(payloads, unique_keys, push_many.order_keys) u (payload, unique_key, order_key)
        loop
            return next case when p.unique_key is null
                then pgq_task.push(queue, p.payload, at, delay, priority, headers, order_key => p.order_key)
                else (select u.id from pgq_task.push_unique(queue, p.payload, p.unique_key, unique_while, unique_for, replace,
                                                            at, delay, priority, headers, p.order_key) u) end;
        end loop;
        return;
    end if;
    perform pgq_task._require_priority(priority);
    perform pgq_task._require_attributes(headers, null, (
        select k from unnest(order_keys) k where octet_length(k) not between 1 and 1000 limit 1));
    -- The first task has the position of now, the others follow it: 255 per microsecond, see pgq_task._is_turn(1).
    v_pos := pgq_task._position_at(at, delay) - 1;
    if order_keys is not null and at is null and delay is null then
        -- Hold back tasks that have an earlier one with their key, in the queue or among these.
        v_first := array(select min(k.nr)
                           from unnest(order_keys) with ordinality k (key, nr)
                          group by k.key
                         having k.key is null or not pgq_task._is_behind(v_queue, k.key));
    end if;
    return query
        insert into pgq_task.task (id, queue_id, priority, pos, payload, headers, order_key)
        select nextval('pgq_task.task_id_seq'), v_queue, push_many.priority,
               case when v_first is null or p.order_key is null or f.nr is not null then v_pos + p.nr + (p.nr - 1) / 255 end,
               p.payload, push_many.headers, p.order_key
          from rows from (unnest(payloads), unnest(push_many.order_keys)) with ordinality p (payload, order_key, nr)
          left join unnest(v_first) f (nr) on f.nr = p.nr
         order by p.nr
        returning id;
    perform pgq_task._count('pushed', v_queue, v_tasks);
    perform pgq_task._wake_workers(v_queue, queue, case when v_tasks > 0 then currval('pgq_task.task_id_seq') end);
    if priority <> 0 and v_tasks > 0 then
        perform pgq_task._add_lane(v_queue, priority::int2);
    end if;
end;
$$;

create or replace function pgq_task._require_priority(i_priority int4)
returns void
language plpgsql immutable
as $$
-- Raises PQ072 unless this is a smallint. (The parameters are not, because that would find no function for the literal
-- 5.)
begin
    if i_priority is null or i_priority not between -32768 and 32767 then
        perform pgq_task._raise_invalid(pg_catalog.format('priority %s', coalesce(i_priority::text, 'NULL')),
                                        'Give a whole number between -32768 and 32767.');
    end if;
end;
$$;
