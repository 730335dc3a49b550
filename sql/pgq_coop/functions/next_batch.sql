-- A member gets a batch of its own.

create or replace function pgq_coop.take_over(
    i_main pgq.registration, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.take_over(4)
--
--      Gives a member without a batch that of another one which has given no sign of life for so long, if there is
--      such; and removes the dead. Who is at work on his batch's end, or says at this moment that he lives, is left
--      alone. Internal.
--
-- Tables:
--      locks, updates and deletes from pgq.registration; deletes from pgq.consumer; appends a position
-- ----------------------------------------------------------------------
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
           -- One of the future was given before the clock was set back: a worker that lives gives another.
           and s.sub_active not between now() - i_dead_interval and clock_timestamp() + i_dead_interval
         order by s.sub_batch is null, s.sub_active);
    id      int4;
begin
    if cardinality(ids) = 0 then
        return;
    end if;

    -- A registration that gets our name refers to the consumer. Who unregisters us has that before the position.
    perform
       from pgq.consumer
      where co_name = i_consumer_name || '.' || i_subconsumer_name
        for key share skip locked;
    if not found then
        return;
    end if;

    -- One at a time; and nobody opens a batch meanwhile.
    perform pgq.lock_position(i_main.reg_id);
    member := pgq.find_member(i_main, i_consumer_name, i_subconsumer_name);
    own := pgq.lock_position(member.reg_id);
    if own.pos_nr is null then
        return;  -- given up for dead itself
    end if;
    foreach id in array ids loop
        continue when id = own.pos_registration or not pgq.try_lock_position(id);
        select * into dead from pgq.registration where reg_id = id;
        continue when not found;
        p := pgq.get_position(id);
        continue when p.pos_active between now() - i_dead_interval and clock_timestamp() + i_dead_interval;
        if p.pos_batch is null then
            perform pgq_coop.remove_member(dead, p);
        elsif own.pos_batch is null then
            -- The batch stays with its registration; that gets another name.
            perform pgq_coop.remove_registration(own);
            update pgq.registration set sub_consumer = member.sub_consumer where reg_id = id;
            perform pgq.forget_consumer(dead.sub_consumer);
            perform pgq.append_position(id, pgq_coop.next_state(p.pos_nr), p.pos_last_tick, p.pos_batch, p.pos_next_tick);
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
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.open_next_batch(9)
--
--      Opens the next batch for a member of a consumer's group: what the functions of this file have in common.
--      pgqpy's own consumers call it. A member that is not registered is registered.
--
-- Parameters:
--      i_queue_name, i_consumer_name           - the consumer
--      i_subconsumer_name                      - the member
--      i_dead_interval                         - take over the batch of a member that has not asked for one, nor
--                                                said that it lives, for so long; null for never
--      others                                  - as for pgq.open_next_batch()
-- Returns:
--      As pgq.open_next_batch(). The consumer's position is behind the batch then, and the member's before it.
-- Errors:
--      PQ001 queue does not exist, PQ003 invalid name, PQ008 the position is gone, PQ011 i_max_count is not
--      positive, PQ016 somebody who is no member consumes as the consumer, or has the member's name
-- Tables:
--      reads pgq.queue, pgq.consumer, ticks; locks pgq.registration; appends positions; for a member that is new, or
--      dead, pgq.registration and pgq.consumer
-- ----------------------------------------------------------------------
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
    p.pos_registration := (pgq.find_member(main, i_consumer_name, i_subconsumer_name)).reg_id;
    if p.pos_registration is null then
        perform pgq_coop.register_subconsumer(i_queue_name, i_consumer_name, i_subconsumer_name);
        main := pgq.find_registration(i_queue_name, i_consumer_name);
        p.pos_registration := (pgq.find_member(main, i_consumer_name, i_subconsumer_name)).reg_id;
    end if;
    p := pgq.get_position(p.pos_registration);
    if p.pos_batch is null and i_dead_interval is not null then
        perform pgq_coop.take_over(main, i_consumer_name, i_subconsumer_name, i_dead_interval);
    end if;
    select b.* into batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq, prev_tick_event_seq, batch_sql, events
      from pgq.open_next_batch(i_queue_name, i_consumer_name, i_min_lag, i_min_count, i_min_interval, i_max_count,
                               i_most_inline, i_subconsumer_name) b;
    -- Who works gives signs of life by that; who only looks need not give one every time.
    if p.pos_batch is not null or (batch_id is null and p.pos_active not between now() - i_dead_interval / 3 and clock_timestamp() + i_dead_interval / 3) then
        perform pgq_coop.show_life(pgq.find_member(main, i_consumer_name, i_subconsumer_name), batch_id);
    end if;
end;
$$;

create or replace function pgq_coop.show_life(i_member pgq.registration, i_batch_id bigint)
returns boolean
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.show_life(2)
--
--      Notes that a member lives, if it still has this batch, or none. Internal.
--
-- Returns:
--      Whether it still has the batch.
-- ----------------------------------------------------------------------
declare
    p   constant pgq.position_0 := pgq_coop.lock_member(i_member);
begin
    if p.pos_nr is null or p.pos_batch is distinct from i_batch_id then
        return false;
    end if;
    perform pgq.append_position(i_member.reg_id, p.pos_nr + 1, p.pos_last_tick, p.pos_batch, p.pos_next_tick);
    return true;
end;
$$;

create or replace function pgq_coop.keep_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_id bigint)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.keep_batch(4)
--
--      Says that a member still works on its batch, so that nobody takes it over. In a transaction of its own:
--      others wait for it.
--
-- Parameters:
--      i_queue_name, i_consumer_name, i_subconsumer_name   - the member
--      i_batch_id                                          - its batch
-- Returns:
--      false if the batch is not its own (any more).
-- Tables:
--      locks pgq.registration; appends a position
-- ----------------------------------------------------------------------
begin
    return pgq_coop.show_life(
        pgq.find_member(pgq.find_registration(i_queue_name, i_consumer_name), i_consumer_name, i_subconsumer_name), i_batch_id);
end;
$$;

create or replace function pgq_coop.next_batch_custom(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text,
    i_min_lag interval, i_min_count int4, i_min_interval interval, i_dead_interval interval)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.next_batch_custom(7)
--
--      Opens the next batch for a member of a consumer's group. Until it is finished, the same batch is returned
--      again. Events are read as those of any batch, by pgq.get_batch_events(); finish it by pgq_coop.finish_batch().
--
-- Parameters:
--      i_queue_name        - name of the queue
--      i_consumer_name     - name of the consumer whose position the members share
--      i_subconsumer_name  - name of the member; it is registered if it is not
--      i_min_lag           - no events younger than that
--      i_min_count         - at least so many events (as far as the event sequence tells)
--      i_min_interval      - or at least so much time; null for no condition
--      i_dead_interval     - if another member has not asked for a batch for so long, remove it and take over its
--                            batch; null for never
-- Returns:
--      The batch id, null if there is no batch yet.
-- Errors:
--      as pgq_coop.open_next_batch()
-- ----------------------------------------------------------------------
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
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.next_batch_custom(6)
--
--      Opens the next batch for a member, without taking over others'; see pgq_coop.next_batch_custom(7).
-- ----------------------------------------------------------------------
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name,
                                      i_min_lag, i_min_count, i_min_interval, null);
end;
$$;

create or replace function pgq_coop.next_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_dead_interval interval)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.next_batch(4)
--
--      Opens the next batch for a member, or takes one over; see pgq_coop.next_batch_custom(7).
-- ----------------------------------------------------------------------
begin
    return pgq_coop.next_batch_custom(i_queue_name, i_consumer_name, i_subconsumer_name,
                                      null, null, null, i_dead_interval);
end;
$$;

create or replace function pgq_coop.next_batch(i_queue_name text, i_consumer_name text, i_subconsumer_name text)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.next_batch(3)
--
--      Opens the next batch for a member, without taking over others'; see pgq_coop.next_batch_custom(7).
-- ----------------------------------------------------------------------
begin
    return pgq_coop.next_batch(i_queue_name, i_consumer_name, i_subconsumer_name, null);
end;
$$;
