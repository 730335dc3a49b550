create or replace function pgq.register_consumer(x_queue_name text, x_consumer_id text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a consumer on a queue. The consumer gets all events after the queue's newest tick.
-- Returns: 1 if it was registered, 0 if it already was.
-- Errors: PQ015 queue has no tick
begin
    return pgq.register_consumer_at(x_queue_name, x_consumer_id, null);
end;
$$;

create or replace function pgq.register_consumer(x_queue_name text, x_consumer_id text, x_start text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a consumer on a queue. A registered consumer keeps its position.
-- Parameters:
--      x_start         - where its events begin, as for pgq.find_tick()
-- Returns: 1 if it was registered, 0 if it already was.
-- Errors: those of pgq.find_tick()
begin
    return pgq._register_consumer(x_queue_name, x_consumer_id, null, x_start);
end;
$$;

create or replace function pgq.find_tick(i_queue_name text, i_start text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the tick after which a consumer is to begin, so that it gets all events from some point on.
-- Parameters:
--      i_start     - 'first': the oldest events there are; 'now': those to come; the number of an event: that event and
--                    those inserted later; a time, as timestamptz reads it: those of transactions that began then or
--                    later. Events or times are between ticks, so some events before come, too: those of two ticks
-- Returns: a tick id.
-- Errors: PQ001 no such queue, PQ008 rotation may have removed events from then on, PQ011 nonsense, or in the future,
--      PQ015 queue has no tick
declare
    q       pgq.queue := pgq._find_queue(i_queue_name);
    event   bigint;
    since   timestamptz;
    oldest  pgq.tick_0;
    res     bigint;
    valid   boolean := i_start is not null;
begin
    if i_start = 'now' then
        return pgq._require_tick(i_queue_name, (pgq._last_tick(q.queue_id)).tick_id);
    end if;
    begin
        if i_start ~ '^[0-9]+$' then
            event := i_start::bigint;
        elsif i_start <> 'first' then
            since := i_start::timestamptz;
        end if;
    exception when data_exception then
        valid := false;
    end;
    if not valid or event = 0 or not isfinite(since) then
        raise exception using errcode = 'PQ011',
            message = format('%L is no place in a queue to start at', i_start),
            hint = 'Give ''first'', ''now'', the number of an event, or a time such as ''2026-11-21 08:30+01''.';
    end if;
    if since > clock_timestamp() or event > pgq._event_seq_value(q.queue_event_seq_id) then
        raise exception using errcode = 'PQ011',
            message = format('queue %L is not at %s yet', i_queue_name, coalesce(since::text, 'event ' || event)),
            hint = 'To get only events to come, start at ''now''.';
    end if;

    -- The log must not move on between the snapshot of the next statement and its reading of both tables.
    lock table pgq.tick_0, pgq.tick_1 in access share mode;
    perform pgq._check_log_snapshot('tick');
    select * into q from pgq.queue where queue_id = q.queue_id;
    select * into oldest
      from pgq.tick_log
     where tick_queue = q.queue_id
       and tick_id >= q.queue_horizon_tick
     order by tick_id
     limit 1;
    perform pgq._require_tick(i_queue_name, oldest.tick_id);
    -- The last tick but one: what a tick says of time and sequence was read before it took its snapshot, but after the
    -- tick before it was committed.
    select tick_id into res
      from pgq.tick_log
     where tick_queue = q.queue_id
       and tick_id >= q.queue_horizon_tick
       and (tick_time <= since or tick_event_seq < event)
     order by tick_id desc
    offset 1
     limit 1;
    -- Nothing is missing if nothing was ever removed.
    if res is null and i_start <> 'first' and q.queue_horizon_tick > 1 then
        raise exception using errcode = 'PQ008',
            message = format('queue %L does not have all events from %s on any more', i_queue_name, coalesce(since::text, event::text)),
            detail = format('It has those after tick %s, of %s, when event %s was the newest.',
                            oldest.tick_id, oldest.tick_time, oldest.tick_event_seq),
            hint = 'To get the oldest events that it has, start at ''first''. The setting keep makes a queue keep events.';
    end if;
    return coalesce(res, oldest.tick_id);
end;
$$;

create or replace function pgq._require_tick(i_queue_name text, i_tick_id bigint)
returns bigint
language plpgsql
as $$
-- Returns a queue's tick; raises PQ015 if it is null, since the queue has none.
begin
    if i_tick_id is null then
        raise exception using errcode = 'PQ015',
            message = pg_catalog.format('queue %L has no tick yet', i_queue_name),
            hint = 'Run the ticker (pgqpy ticker), or select pgq.ticker(queue) once.';
    end if;
    return i_tick_id;
end;
$$;

create or replace function pgq._keep_queue(i_queue_name text)
returns pgq.queue
language plpgsql
as $$
-- Returns a queue, locked against rotation, which locks the row before it decides which events are no longer needed.
-- It is the weakest lock that conflicts with that: a session that registers and then sets the queue's parameters must
-- not wait for another session that does the same.
declare
    q   pgq.queue;
begin
    if pgq._is_read_committed() then
        select * into q from pgq.queue where queue_name = i_queue_name for key share;
    else
        -- This fails if the row has changed since the snapshot.
        select * into q from pgq.queue where queue_name = i_queue_name for share;
    end if;
    if q.queue_id is null then
        perform pgq._raise_queue_not_found(i_queue_name);
    end if;
    return q;
end;
$$;

create or replace function pgq._keep_consumer(i_consumer_name text)
returns int4
language plpgsql
as $$
-- Returns the id of a consumer, which is created if necessary, and cannot be removed until the end of the transaction.
declare
    co  int4;
begin
    loop
        -- The lock keeps unregister_consumer() from removing it meanwhile.
        select co_id into co from pgq.consumer where co_name = i_consumer_name for key share;
        exit when found;
        insert into pgq.consumer (co_name) values (i_consumer_name) on conflict do nothing;
    end loop;
    return co;
end;
$$;

create or replace function pgq.register_consumer_at(x_queue_name text, x_consumer_name text, x_tick_pos bigint)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a consumer after a given tick, or moves a registered consumer there. The move drops an open batch.
-- Parameters:
--      x_tick_pos      - tick to start after; null for the newest, or to leave the position of a registered consumer
--                        unchanged
-- Returns: 1 if it was registered, 0 if it already was.
-- Errors: PQ008 tick is not available, PQ015 queue has no tick
begin
    return pgq._register_consumer(x_queue_name, x_consumer_name, x_tick_pos, 'now');
end;
$$;

create or replace function pgq._register_consumer(
    x_queue_name text, x_consumer_name text, x_tick_pos bigint, x_start text, i_noted boolean default true)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a consumer after x_tick_pos, or else at x_start; moves a registered one to x_tick_pos, if given. It notes
-- the move, unless i_noted is false: then the consumer has read the events before.
declare
    q   pgq.queue;
begin
    perform pgq._check_name('consumer', x_consumer_name);
    q := pgq._keep_queue(x_queue_name);
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{consume}', x_consumer_name);
    end if;
    return pgq._register(q, x_consumer_name, x_tick_pos, x_start, i_noted);
end;
$$;

create or replace function pgq._register(
    q pgq.queue, x_consumer_name text, x_tick_pos bigint, x_start text default 'now', i_noted boolean default true)
returns integer
language plpgsql
as $$
-- Does the work of pgq._register_consumer(4) for a caller that has the queue from pgq._keep_queue(1), and has the right.
declare
    r       pgq.registration;
    co      int4;
    p       pgq.position_0;
    pos     bigint := x_tick_pos;
begin
    if pos is not null and (pos < q.queue_horizon_tick or (pgq._get_tick(q.queue_id, pos)).tick_id is null) then
        perform pgq._raise_tick_not_found(q.queue_name, pos);
    end if;

    co := pgq._keep_consumer(x_consumer_name);

    loop
        -- Not the insert alone: it would use up ids even if it does nothing.
        if not exists (select from pgq.registration where sub_queue = q.queue_id and sub_consumer = co) then
            insert into pgq.registration (sub_queue, sub_consumer, reg_roles)
            values (q.queue_id, co, pgq._consume_roles(q.queue_id, x_consumer_name))
            on conflict do nothing returning * into r;
        end if;
        if r.reg_id is not null then
            -- Rotation removes nothing before the end of this transaction: the queue is locked.
            pos := coalesce(pos, pgq.find_tick(q.queue_name, x_start));
            perform pgq._append_position(r.reg_id, 1, pos, null, null);
            if i_noted then
                perform pgq._note_move(r, null, pos);
            end if;
            return 1;
        end if;
        if pos is null then
            return 0;
        end if;

        p := pgq._lock_position((select reg_id from pgq.registration where sub_queue = q.queue_id and sub_consumer = co));
        if p.pos_nr is not null then
            perform pgq._append_position(p.pos_registration, p.pos_nr + 1, pos, null, null, i_settled => p.pos_settled);
            update pgq.registration set reg_dropped = p.pos_batch where reg_id = p.pos_registration and p.pos_batch is not null;
            perform pgq._note_move(moved, p.pos_last_tick, pos)
               from pgq.registration moved
              where moved.reg_id = p.pos_registration and (i_noted or pos < p.pos_last_tick);
            perform pgq._notify_consumers(q.queue_id);
            return 0;
        end if;
        -- It was removed while this session waited, as happens to the partitions of a group.
    end loop;
end;
$$;

create or replace function pgq.advance_consumer(i_queue_name text, i_consumer_name text, i_tick_id bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Advances a consumer's position to that of a program which keeps its own, as Spark does in checkpoints. It registers
-- the consumer if necessary. The position never moves back, and never while a batch is open: then another program
-- consumes under this name.
-- Parameters:
--      i_tick_id       - tick that the program has passed; the log may have forgotten it
-- Returns: the consumer's position now: i_tick_id, or the newest tick before it that the log has.
-- Errors: PQ008 the tick was never made, or is before what the queue has, PQ016 the consumer is beyond the tick, or has
--      a batch open, PQ038 it is a partition of a consumer group
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
    t   pgq.tick_0;
    r   int4;
    p   pgq.position_0;
begin
    select reg_id into r
      from pgq.registration
      join pgq.consumer on co_id = sub_consumer
     where sub_queue = q.queue_id
       and co_name = i_consumer_name;
    p := pgq._lock_position(r, true);
    if (i_tick_id <= (pgq._last_tick(q.queue_id)).tick_id) is not true then
        perform pgq._raise_tick_not_found(i_queue_name, i_tick_id);
    end if;
    t := pgq._last_tick(q.queue_id, i_tick_id + 1);

    if p.pos_nr is null then
        perform pgq.register_consumer_at(i_queue_name, i_consumer_name, coalesce(t.tick_id, i_tick_id));
        return t.tick_id;
    end if;
    if p.pos_batch is not null then
        raise exception using errcode = 'PQ016',
            message = format('consumer %L has batch %s of queue %L open: another program consumes as it',
                             i_consumer_name, p.pos_batch, i_queue_name),
            hint = format('Stop that program, or use a consumer of your own. If it is gone: select pgq.finish_batch(%s) if it has '
                          'processed the batch, else select pgq.register_consumer_at(%L, %L, %s).',
                          p.pos_batch, i_queue_name, i_consumer_name, p.pos_last_tick);
    end if;
    if p.pos_last_tick > i_tick_id then
        raise exception using errcode = 'PQ016',
            message = format('consumer %L of queue %L stands at tick %s already, beyond tick %s',
                             i_consumer_name, i_queue_name, p.pos_last_tick, i_tick_id),
            hint = format('Does another program consume as it? Each needs a consumer of its own. To read again from an earlier '
                          'tick on purpose: select pgq.register_consumer_at(%L, %L, %s).',
                          i_queue_name, i_consumer_name, i_tick_id);
    end if;
    if t.tick_id > p.pos_last_tick then
        -- The tick was not forgotten meanwhile: that would need a lock on a table that this transaction has read.
        perform pgq._append_position(r, p.pos_nr + 1, t.tick_id, null, null, i_settled => p.pos_settled);
        return t.tick_id;
    end if;
    return p.pos_last_tick;
end;
$$;

create or replace function pgq.unregister_consumer(x_queue_name text, x_consumer_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes a consumer from a queue, with its open batch and its retries. Removing the main consumer of a pgq_coop group
-- also removes its members; removing a member removes only that member.
-- Returns: number of registrations removed, 0 if there was none.
declare
    r       pgq.registration;
    members int4[];
    p       pgq.position_0;
begin
    select r1.* into r
      from pgq.queue q
      join pgq.registration r1 on r1.sub_queue = q.queue_id
      join pgq.consumer c on c.co_id = r1.sub_consumer
     where q.queue_name = x_queue_name
       and c.co_name = x_consumer_name
       for update of c;
    p := pgq._lock_position(r.reg_id);
    -- Another worker may have taken over a worker's registration meanwhile, with its batch.
    if p.pos_nr is null or not exists (select from pgq.registration where reg_id = r.reg_id and sub_consumer = r.sub_consumer) then
        return 0;
    end if;

    perform pgq._notify_consumers(r.sub_queue);
    members := array(select sub_consumer from pgq.registration where sub_id = r.sub_id);
    -- The main consumer exists before its members.
    if exists (select from pgq.registration where sub_id = r.sub_id and reg_id < r.reg_id) then
        delete from pgq.registration where reg_id = r.reg_id;
        perform pgq._forget_consumer(r.sub_consumer);
        return 1;
    end if;

    perform pgq._lock_position(reg_id) from pgq.registration where sub_id = r.sub_id;
    -- Its retries now belong to no consumer, and are skipped when they are due.
    delete from pgq.registration where sub_id = r.sub_id;
    perform pgq._forget_consumer(m) from unnest(members) m;
    return cardinality(members);
end;
$$;

create or replace function pgq._forget_consumer(i_consumer int4)
returns void
language plpgsql
as $$
-- Removes a consumer that is registered nowhere, unless another session is about to register it.
begin
    perform from pgq.consumer where co_id = i_consumer for update skip locked;
    if found and not exists (select from pgq.registration where sub_consumer = i_consumer) then
        delete from pgq.consumer where co_id = i_consumer;
    end if;
end;
$$;

create or replace function pgq._consumer_info(
    i_queue_name text, i_consumer_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language sql stable
as $$
-- Returns the progress of consumers: see pgq.get_consumer_info(2). PostgreSQL plans it with the query that calls it, for
-- one consumer or for all.
    select q.queue_name, c.co_name,
           current_timestamp - t.tick_time,
           current_timestamp - s.sub_active,
           s.sub_last_tick, s.sub_batch, s.sub_next_tick,
           (select * from pgq._count_events(s.sub_queue, t.tick_event_seq, newest.tick_event_seq))
      from pgq.subscription s
      join pgq.queue q on q.queue_id = s.sub_queue
      join pgq.consumer c on c.co_id = s.sub_consumer
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = s.sub_queue and tick_id = s.sub_last_tick limit 1) t on true
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = s.sub_queue order by tick_id desc limit 1) newest on true
     where (i_queue_name is null or q.queue_name = i_queue_name)
       and (i_consumer_name is null or c.co_name = i_consumer_name)
     order by 1, 2;
$$;

create or replace function pgq.get_consumer_info(
    i_queue_name text, i_consumer_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the progress of consumers.
-- Parameters:
--      i_queue_name, i_consumer_name   - the consumers; null for all
-- Returns:
--      queue_name, consumer_name
--      lag             - age of the last tick that the consumer has finished
--      last_seen       - time since it last took or finished a batch
--      last_tick       - last tick that the consumer has finished
--      current_batch   - open batch, and next_tick, where that ends
--      pending_events  - events after that tick, as counted by the event sequence
    select * from pgq._consumer_info(i_queue_name, i_consumer_name);
$$;

create or replace function pgq.get_consumer_info(
    i_queue_name text,
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the progress of a queue's consumers; see pgq.get_consumer_info(2).
    select * from pgq._consumer_info(i_queue_name, null);
$$;

create or replace function pgq.get_consumer_info(
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the progress of all consumers; see pgq.get_consumer_info(2).
    select * from pgq._consumer_info(null, null);
$$;
