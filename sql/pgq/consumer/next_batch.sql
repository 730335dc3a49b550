-- Selecting the ticks of a batch.
--
-- Nominal ticks are those that PgQ would make. Early ticks between them deliver single events to consumers that are up
-- to date. A consumer that has fallen behind should not work through thousands of small batches, so a batch extends to
-- the next nominal tick if there is one, else to the newest early tick.

create or replace function pgq._next_batch_tick(
    i_queue_id int4, i_last pgq.tick_0, i_min_lag interval, i_min_count int4, i_min_interval interval, i_max_count int4)
returns pgq.tick_0
language plpgsql
as $$
-- Returns the tick that ends the batch which starts after i_last, null if there is none yet.
declare
    t       pgq.tick_0;
    beyond  pgq.tick_0;
begin
    if i_max_count is not null then
        t := pgq._last_tick(i_queue_id);
        if t.tick_event_seq > i_last.tick_event_seq + i_max_count then
            beyond := pgq._first_tick(i_queue_id, i_last.tick_id, false, i_last.tick_event_seq + i_max_count + 1);
            t := pgq._last_tick(i_queue_id, beyond.tick_id);
            if t.tick_id <= i_last.tick_id then
                t := beyond;  -- even one tick is more than the requested size
            end if;
        end if;
    elsif i_min_count is not null or i_min_interval is not null then
        select * into t.tick_id, t.tick_time, t.tick_event_seq
          from pgq.find_tick_helper(i_queue_id, i_last.tick_id, i_last.tick_time, i_last.tick_event_seq,
                                    i_min_count, i_min_interval);
    else
        t := pgq._first_tick(i_queue_id, i_last.tick_id, true);
        if t.tick_id is null then
            t := pgq._last_tick(i_queue_id);
        end if;
    end if;

    -- A tick from the future was made before the clock was set back. Its age is unknown, so treat it as old enough.
    if now() - t.tick_time < i_min_lag and t.tick_time <= clock_timestamp() then
        if i_min_count is not null or i_min_interval is not null then
            return null;
        end if;
        -- not that far: up to the last tick that is old enough
        beyond := pgq._first_tick(i_queue_id, i_last.tick_id, false, null, now() - i_min_lag, clock_timestamp());
        t := pgq._last_tick(i_queue_id, beyond.tick_id);
    end if;
    if t.tick_id <= i_last.tick_id then
        return null;
    end if;
    return t;
end;
$$;

create or replace function pgq.find_tick_helper(
    i_queue_id int4, i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_prev_tick_seq bigint,
    i_min_count bigint, i_min_interval interval,
    out next_tick_id bigint, out next_tick_time timestamptz, out next_tick_seq bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the tick that ends a batch of at least a given size. This is the newest tick, unless the batch would be more
-- than twice as large as requested; then it is the first tick that is sufficient.
-- Parameters:
--      i_prev_tick_id, _time, _seq         - the tick after which the batch starts
--      i_min_count                         - minimum number of events, or null
--      i_min_interval                      - minimum time span, or null
-- Returns: the tick; nulls if the existing ticks do not reach that far.
declare
    t       pgq.tick_0 := pgq._last_tick(i_queue_id);
    count   bigint;
    length  interval;
begin
    if t.tick_id is null or t.tick_id <= i_prev_tick_id then
        return;
    end if;
    count := t.tick_event_seq - i_prev_tick_seq;
    length := t.tick_time - i_prev_tick_time;
    if count > i_min_count * 2 or length > i_min_interval * 2 then
        t := pgq._first_tick(i_queue_id, i_prev_tick_id, false,
                             i_prev_tick_seq + i_min_count, i_prev_tick_time + i_min_interval);
    -- A negative length means that the clock was set back: treat it as sufficient.
    elsif not coalesce(count >= i_min_count, false)
        and (i_min_interval is null or length >= interval '0' and length < i_min_interval) then
        return;
    end if;
    next_tick_id := t.tick_id;
    next_tick_time := t.tick_time;
    next_tick_seq := t.tick_event_seq;
end;
$$;

create or replace function pgq._is_empty_range(r pgq.registration, i_last pgq.tick_0, i_cur pgq.tick_0)
returns boolean
language plpgsql
as $$
-- Returns whether there are no events for a consumer between two ticks with the same event sequence.
declare
    q   pgq.queue;
    res boolean;
begin
    -- The sequence does not prove it: an event may have been committed late, or inserted with a given id.
    select * into q from pgq.queue where queue_id = r.sub_queue;
    execute pg_catalog.format('select not exists (%s)', pgq._range_sql(q, i_last, i_cur, r.sub_id)) into res;
    return res;
end;
$$;

create or replace function pgq._small_batch(i_batch_sql text)
returns bytea[]
language plpgsql set jit = off
as $$
-- Returns the events of a batch in the form of pgq.open_next_batch(); null if they are large.
declare
    room    int8 := 65536;
    event   record;
    res     bytea[] := '{}';
begin
    -- There a text may not exist in the client's encoding, and would fail here: the client reads the bytes.
    if pg_catalog.getdatabaseencoding() = 'SQL_ASCII' then
        return null;
    end if;
    for event in execute i_batch_sql loop
        -- Any number of events may have been committed late.
        room := room - 64 - coalesce(pg_catalog.octet_length(event.ev_data), 0)
                     - coalesce(pg_catalog.octet_length(event.ev_extra1), 0)
                     - coalesce(pg_catalog.octet_length(event.ev_extra2), 0)
                     - coalesce(pg_catalog.octet_length(event.ev_extra3), 0)
                     - coalesce(pg_catalog.octet_length(event.ev_extra4), 0);
        if room < 0 then
            return null;
        end if;
        event.ev_retry := coalesce(event.ev_retry, 0);
        res := res || pg_catalog.record_send(event);
    end loop;
    return res;
end;
$$;

create or replace function pgq.open_next_batch(
    i_queue_name text, i_consumer_name text,
    i_min_lag interval, i_min_count int4, i_min_interval interval, i_max_count int4,
    i_most_inline int4 default null, i_member_name text default null, i_heartbeats boolean default false,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint,
    out batch_sql text, out events bytea[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a consumer. pgqpy's consumers call it to get everything in one call; the other functions
-- that open batches use it too.
-- Parameters:
--      i_min_lag, i_min_count, i_min_interval  - as for pgq.next_batch_custom()
--      i_max_count                             - as for pgq.next_batch_upto(), or null
--      i_most_inline                           - null for PgQ's behaviour. Otherwise the approximate maximum number of
--                                                events to return in this call, together with the query; and heartbeat
--                                                ticks of an idle queue are skipped, so that they need not be opened
--                                                and finished
--      i_member_name                           - the member of the consumer's group that gets the batch: the consumer
--                                                moves behind the batch at once. Null if the consumer itself gets it
--      i_heartbeats                            - do not skip heartbeat ticks
-- Returns:
--      batch_sql   - the query, as from pgq.batch_event_sql()
--      events      - all events of the query, by ev_id, each in the form of record_send() and with 0 for no ev_retry;
--                    null if there are more, or if they are large
--      The other columns are those of pgq.next_batch_custom().
-- Errors: PQ002 consumer not registered, PQ008 the position is gone, PQ011 i_max_count is not positive, PQ016 the
--      members' consumer has a batch open itself, PQ038 the consumer is a partition of a consumer group
declare
    r           pgq.registration := pgq._find_registration(i_queue_name, i_consumer_name);
    p           pgq.position_0 := pgq._get_position(r.reg_id);
    locked      pgq.position_0;
    m           pgq.position_0;
    last_tick   pgq.tick_0;
    cur_tick    pgq.tick_0;
    q           pgq.queue;
    done        text;  -- PERFORM would be a statement each, with a plan and an executor
begin
    -- In one function: every consumer runs it for every batch, and calls cost more than its steps.
    if r.reg_roles is not null then
        -- What pgq._require_consumer(2) does for the first role, without the call.
        unlisten pgq_no_channel;
        if pgq._acts_as(r.reg_role, r.reg_role_name) is not true then
            done := pgq._require_consumer(r.reg_id, r.reg_roles);
        end if;
    end if;
    if i_max_count < 1 then
        raise exception using errcode = 'PQ011',
            message = format('a batch of up to %s events is not possible', i_max_count),
            hint = 'Give i_max_count of 1 or more.';
    end if;
    if r.reg_is_partition then
        perform pgq._raise_is_partition(r.reg_id);
    end if;

    loop
        if i_member_name is not null then
            m := pgq._get_member_position(r, p, i_member_name);
            if m.pos_nr is null then
                return;  -- just removed as dead; it registers again with its next call
            elsif m.pos_batch is not null then
                p := m;
            end if;
        end if;

        last_tick := pgq._get_tick(r.sub_queue, p.pos_last_tick);
        if last_tick.tick_id is null then
            perform pgq._raise_tick_not_found(i_queue_name, p.pos_last_tick);
        end if;

        if p.pos_batch is not null then
            -- the open batch again
            batch_id := p.pos_batch;
            cur_tick := pgq._get_tick(r.sub_queue, p.pos_next_tick);
            exit;
        end if;
        if r.reg_paused is not null then
            return;
        end if;

        cur_tick := pgq._next_batch_tick(r.sub_queue, last_tick, i_min_lag, i_min_count, i_min_interval, i_max_count);
        if cur_tick.tick_id is null then
            return;
        end if;

        -- Lock only now, since mostly there is nothing new. If another session was faster, look again.
        locked := pgq._lock_position(r.reg_id, i_is_allowed => true);
        if m.pos_nr is not null then
            perform pgq._lock_position(m.pos_registration, i_is_allowed => true);
            -- Another registration may have the member's name by now, with a position of the same number.
            if pgq._get_member_position(r, locked, i_member_name) is distinct from m then
                p := locked;
                continue;
            end if;
        end if;
        if locked.pos_nr = p.pos_nr then
            if i_most_inline is not null
               and not i_heartbeats
               and last_tick.tick_event_seq = cur_tick.tick_event_seq
               and pgq._is_empty_range(r, last_tick, cur_tick)
            then
                perform pgq._append_position(r.reg_id, p.pos_nr + 1, cur_tick.tick_id, null, null, i_settled => p.pos_settled);
                p := pgq._get_position(r.reg_id);
                continue;
            end if;
            -- After a crash, or on a promoted standby, a batch id that other databases have remembered must not be used
            -- again for another batch.
            if current_setting('synchronous_commit') in ('off', 'local') then
                done := set_config('synchronous_commit', 'on', true);
            end if;
            batch_id := nextval('pgq.batch_id_seq');
            -- The ticks were not forgotten meanwhile: that would need a lock on a table that this transaction has read.
            if m.pos_nr is null then
                done := pgq._append_position(r.reg_id, p.pos_nr + 1, p.pos_last_tick, batch_id, cur_tick.tick_id,
                                             i_settled => p.pos_settled);
            else
                done := pgq._append_position(r.reg_id, p.pos_nr + 1, cur_tick.tick_id, null, null);
                done := pgq._append_position(m.pos_registration, m.pos_nr + 1, p.pos_last_tick, batch_id, cur_tick.tick_id);
            end if;
            exit;
        end if;
        if locked.pos_nr is null then
            -- unregistered, and perhaps registered again
            r := pgq._find_registration(i_queue_name, i_consumer_name);
            locked := pgq._get_position(r.reg_id);
        end if;
        p := locked;
    end loop;

    cur_tick_id := cur_tick.tick_id;
    cur_tick_time := cur_tick.tick_time;
    cur_tick_event_seq := greatest(cur_tick.tick_event_seq, 1);
    prev_tick_id := last_tick.tick_id;
    prev_tick_time := last_tick.tick_time;
    prev_tick_event_seq := greatest(last_tick.tick_event_seq, 1);
    if i_most_inline is not null then
        if cur_tick.tick_id is null then
            perform pgq._raise_tick_not_found(i_queue_name, p.pos_next_tick);
        end if;
        select * into q from pgq.queue where queue_id = r.sub_queue;
        batch_sql := pgq._range_sql(q, last_tick, cur_tick, r.sub_id);
        if cur_tick.tick_event_seq - last_tick.tick_event_seq <= i_most_inline then
            events := pgq._small_batch(batch_sql);
        end if;
    end if;
end;
$$;

create or replace function pgq.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_min_lag interval, i_min_count int4, i_min_interval interval,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a consumer. Until the batch is finished, each call returns it again.
-- Parameters:
--      i_min_lag       - take no events younger than this
--      i_min_count     - minimum number of events (as counted by the event sequence)
--      i_min_interval  - or minimum time span of the batch; null for no condition
-- Returns: the batch id, and the ticks at the begin and the end of the batch; all null if there is no batch yet.
-- Errors: PQ002 consumer not registered, PQ008 the position is gone, PQ038 the consumer is a partition of a consumer
--      group
begin
    select b.batch_id, b.cur_tick_id, b.prev_tick_id, b.cur_tick_time, b.prev_tick_time, b.cur_tick_event_seq, b.prev_tick_event_seq
      into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      from pgq.open_next_batch(i_queue_name, i_consumer_name, i_min_lag, i_min_count, i_min_interval, null) b;
end;
$$;

create or replace function pgq.next_batch_upto(
    i_queue_name text, i_consumer_name text, i_max_count int4, i_min_lag interval default null,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a consumer and makes it as large as requested: all available ticks, up to about i_max_count
-- events, but at least one tick.
-- Parameters:
--      i_max_count     - approximate maximum number of events (as counted by the event sequence)
--      i_min_lag       - no events younger than that, or null
-- Returns, Errors: as pgq.next_batch_custom(); PQ011 i_max_count is not positive
begin
    select b.batch_id, b.cur_tick_id, b.prev_tick_id, b.cur_tick_time, b.prev_tick_time, b.cur_tick_event_seq, b.prev_tick_event_seq
      into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      from pgq.open_next_batch(i_queue_name, i_consumer_name, i_min_lag, null, null, coalesce(i_max_count, 0)) b;
end;
$$;

create or replace function pgq.next_batch_info(
    i_queue_name text, i_consumer_name text,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a consumer; see pgq.next_batch_custom().
begin
    select b.batch_id, b.cur_tick_id, b.prev_tick_id, b.cur_tick_time, b.prev_tick_time, b.cur_tick_event_seq, b.prev_tick_event_seq
      into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq
      from pgq.open_next_batch(i_queue_name, i_consumer_name, null, null, null, null) b;
end;
$$;

create or replace function pgq.next_batch(i_queue_name text, i_consumer_name text)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a consumer; see pgq.next_batch_custom().
-- Returns: the batch id, null if there is no batch yet.
begin
    return (select batch_id from pgq.open_next_batch(i_queue_name, i_consumer_name, null, null, null, null));
end;
$$;
