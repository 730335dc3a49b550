-- Opening batches for members.

create or replace function pgq_coop._take_over(
    i_main pgq.registration, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval)
returns void
language plpgsql
as $$
-- Hands a member that has no batch the batch of another member that has sent no heartbeat for this long, if there is
-- one, and removes dead members. A member that is just finishing its batch or sending a heartbeat is left alone.
declare
    member  pgq.registration;
    dead    pgq.registration;
    own     pgq.position_0;
    p       pgq.position_0;
    ids     constant int4[] := array(
        select r.reg_id
          from pgq.registration r
          join pgq.subscription s on s.sub_queue = r.sub_queue and s.sub_consumer = r.sub_consumer
         where r.sub_id = i_main.sub_id
           and r.reg_id <> i_main.reg_id
           -- A heartbeat from the future was sent before the clock was set back: a live worker sends another.
           and s.sub_active not between now() - i_dead_interval and clock_timestamp() + i_dead_interval
         order by s.sub_batch is null, s.sub_active);
    id      int4;
begin
    if cardinality(ids) = 0 then
        return;
    end if;

    -- A registration that gets this member's name refers to the consumer. Unregistering this member locks that before
    -- the position.
    perform
       from pgq.consumer
      where co_name = i_consumer_name || '.' || i_subconsumer_name
        for key share skip locked;
    if not found then
        return;
    end if;

    -- One session at a time; and no batch is opened meanwhile.
    perform pgq._lock_position(i_main.reg_id);
    member := pgq._find_member(i_main, i_consumer_name, i_subconsumer_name);
    own := pgq._lock_position(member.reg_id);
    if own.pos_nr is null then
        return;  -- was removed as dead itself
    end if;
    foreach id in array ids loop
        continue when id = own.pos_registration or not pgq._try_lock_position(id);
        select * into dead from pgq.registration where reg_id = id;
        continue when not found;
        p := pgq._get_position(id);
        continue when p.pos_active between now() - i_dead_interval and clock_timestamp() + i_dead_interval;
        if p.pos_batch is null then
            perform pgq_coop._remove_member(dead, p);
        elsif own.pos_batch is null then
            -- The batch stays with its registration, which gets another name.
            perform pgq_coop._remove_registration(own);
            update pgq.registration set sub_consumer = member.sub_consumer where reg_id = id;
            perform pgq._forget_consumer(dead.sub_consumer);
            perform pgq._append_position(id, pgq_coop._next_state(p.pos_nr), p.pos_last_tick, p.pos_batch, p.pos_next_tick);
            own := p;
        end if;
    end loop;
end;
$$;

create or replace function pgq_coop.open_next_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval,
    i_min_lag interval, i_min_count int4, i_min_interval interval, i_max_count int4,
    i_most_inline int4 default null,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint,
    out cur_tick_time timestamptz, out prev_tick_time timestamptz,
    out cur_tick_event_seq bigint, out prev_tick_event_seq bigint,
    out batch_sql text, out events bytea[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a member of a consumer's group. It registers the member if necessary. pgqpy's consumers call
-- it, and so do the other functions of this page that open batches.
-- Parameters:
--      i_subconsumer_name                      - the member
--      i_dead_interval                         - take over the batch of a member that has not asked for a batch or sent
--                                                a heartbeat for this long; null for never
--      others                                  - as for pgq.open_next_batch()
-- Returns: the columns of pgq.open_next_batch(). Afterwards the consumer's position is after the batch, and the
--      member's before it.
-- Errors: PQ008 the position is gone, PQ011 i_max_count is not positive, PQ016 a consumer outside the group has the
--      consumer's batch open, or has the member's name
declare
    main    pgq.registration;
    p       pgq.position_0;
begin
    select r.* into main
      from pgq.queue q, pgq.consumer c, pgq.registration r
     where q.queue_name = i_queue_name
       and c.co_name = i_consumer_name
       and r.sub_queue = q.queue_id
       and r.sub_consumer = c.co_id;
    p.pos_registration := (pgq._find_member(main, i_consumer_name, i_subconsumer_name)).reg_id;
    if p.pos_registration is null then
        perform pgq_coop.register_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name);
        main := pgq._find_registration(i_queue_name, i_consumer_name);
        p.pos_registration := (pgq._find_member(main, i_consumer_name, i_subconsumer_name)).reg_id;
    end if;
    p := pgq._get_position(p.pos_registration);
    if p.pos_batch is null and i_dead_interval is not null then
        perform pgq_coop._take_over(main, i_consumer_name, i_subconsumer_name, i_dead_interval);
    end if;
    select b.* into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq, batch_sql, events
      from pgq.open_next_batch(i_queue_name, i_consumer_name, i_min_lag, i_min_count, i_min_interval, i_max_count,
                               i_most_inline, i_subconsumer_name) b;
    -- Working sends heartbeats by itself; a member that only polls need not send one every time.
    if p.pos_batch is not null or (batch_id is null and p.pos_active not between now() - i_dead_interval / 3 and clock_timestamp() + i_dead_interval / 3) then
        perform pgq_coop._heartbeat(pgq._find_member(main, i_consumer_name, i_subconsumer_name), batch_id);
    end if;
end;
$$;

create or replace function pgq_coop._heartbeat(i_member pgq.registration, i_batch_id bigint)
returns boolean
language plpgsql
as $$
-- Sends a member's heartbeat, if it still has this batch, or none.
-- Returns: true if it still has the batch.
declare
    p   constant pgq.position_0 := pgq_coop._lock_member(i_member);
begin
    if p.pos_nr is null or p.pos_batch is distinct from i_batch_id then
        return false;
    end if;
    perform pgq._append_position(i_member.reg_id, p.pos_nr + 1, p.pos_last_tick, p.pos_batch, p.pos_next_tick);
    return true;
end;
$$;

create or replace function pgq_coop.keep_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sends a member's heartbeat while it works on its batch, so that no other member takes the batch over. Call it in a
-- transaction of its own: other members wait for the end of that transaction.
-- Parameters:
--      i_queue_name, i_consumer_name, i_subconsumer_name   - the member
--      i_batch_id                                          - its batch
-- Returns: false if the member does not have the batch (any more).
begin
    return pgq_coop._heartbeat(
        pgq._find_member(pgq._find_registration(i_queue_name, i_consumer_name), i_consumer_name, i_subconsumer_name), i_batch_id);
end;
$$;

create or replace function pgq_coop.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_min_lag interval, i_min_count int4, i_min_interval interval, i_dead_interval interval)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a member of a consumer's group. Until the batch is finished, each call returns it again.
-- Read its events with pgq.get_batch_events(), and finish it with pgq_coop.finish_batch().
-- Parameters:
--      i_consumer_name     - name of the consumer whose position the members share
--      i_subconsumer_name  - name of the member; it is registered if necessary
--      i_min_lag           - take no events younger than this
--      i_min_count         - minimum number of events (as counted by the event sequence)
--      i_min_interval      - or minimum time span of the batch; null for no condition
--      i_dead_interval     - if another member has not asked for a batch for this long, remove it and take over its
--                            batch; null for never
-- Returns: the batch id, or null if there is no batch yet.
-- Errors: as pgq_coop.open_next_batch()
begin
    return (select batch_id
              from pgq_coop.open_next_batch(i_queue_name, i_consumer_name, i_subconsumer_name, i_dead_interval,
                                            i_min_lag, i_min_count, i_min_interval, null));
end;
$$;

create or replace function pgq_coop.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_min_lag interval, i_min_count int4, i_min_interval interval)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a member, without taking over another member's batch; see pgq_coop.next_batch_custom(7).
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name,
                                      i_min_lag, i_min_count, i_min_interval, null);
end;
$$;

create or replace function pgq_coop.next_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a member, or takes over another member's batch; see pgq_coop.next_batch_custom(7).
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name,
                                      null, null, null, i_dead_interval);
end;
$$;

create or replace function pgq_coop.next_batch(i_queue_name text, i_consumer_name text, i_subconsumer_name text)
returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Opens the next batch for a member, without taking over another member's batch; see pgq_coop.next_batch_custom(7).
begin
    return pgq_coop.next_batch(i_queue_name, i_consumer_name, i_subconsumer_name, null);
end;
$$;

create or replace function pgq_coop.finish_batch(i_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Finishes a member's batch, whichever member has it. Called in the transaction that processed the events it makes the
-- processing exactly-once, provided that the transaction is rolled back if the result is 0.
-- Returns: 1, or 0 with a warning if no member has the batch open (any more).
-- Errors: PQ038 the batch is that of a partition of a consumer group
declare
    p   constant pgq.position_0 := pgq._lock_position(pgq._find_batch(i_batch_id), true);
begin
    -- The main consumer exists before its members.
    if p.pos_batch = i_batch_id
       and exists (select from pgq.registration member
                     join pgq.registration main on main.sub_id = member.sub_id and main.reg_id < member.reg_id
                    where member.reg_id = p.pos_registration)
    then
        perform pgq._append_position(p.pos_registration, pgq_coop._next_state(p.pos_nr), null, null, null);
        return 1;
    end if;
    raise warning 'finish_batch: no member has batch % open', i_batch_id;
    return 0;
end;
$$;

create or replace function pgq_coop.finish_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Finishes a batch for the member that has it, and for no other. A member that has lost the batch to another gets an
-- error, which rolls back the effects.
-- Parameters:
--      i_queue_name, i_consumer_name, i_subconsumer_name   - the member
--      i_batch_id                                          - its open batch
-- Returns: 1
-- Errors: PQ031 the batch is not the member's (any more)
declare
    member  constant pgq.registration :=
        pgq._find_member(pgq._find_registration(i_queue_name, i_consumer_name), i_consumer_name, i_subconsumer_name);
    p       constant pgq.position_0 := pgq_coop._lock_member(member);
begin
    if p.pos_batch = i_batch_id then
        perform pgq._append_position(p.pos_registration, pgq_coop._next_state(p.pos_nr), null, null, null);
        return 1;
    end if;
    raise exception using errcode = 'PQ031',
        message = format('batch %s is not that of member %L of consumer %L on queue %L',
                         coalesce(i_batch_id::text, 'NULL'), i_subconsumer_name, i_consumer_name, i_queue_name),
        hint = 'The member was taken for dead and another one has its batch, or it was finished. Roll back. If the member was at work '
               'all the time: give it more time, or let it call pgq_coop.keep_batch() meanwhile.';
end;
$$;

create or replace function pgq_coop.version()
returns text
language sql
as $$
-- Returns the version of PgQ whose interface this is.
    select pgq.version();
$$;
