-- Events that are done one by one: the functions that pgqpy's TrackedConsumer calls. A source that is restored from a
-- backup gives out the same batch and event ids again. So events are also distinguished by their times, and a batch
-- must not begin before the remembered events.

create or replace function pgq_ext.follows_events(
    p pgq_ext.progress_0, i_consumer text, i_subconsumer text, i_batch_id bigint,
    i_prev_tick_id bigint, i_prev_tick_time timestamptz)
returns boolean
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.follows_events(6)
--
--      Returns whether all events that a tracker remembers are before a batch, so that they can be forgotten. Internal.
--
-- Parameters:
--      p   - the tracker's state
-- Errors:
--      PQ041 the batch begins before these events, or its ticks are of another history
-- ----------------------------------------------------------------------
begin
    if p.prg_event_tick is null then
        return p.prg_event_batch is distinct from i_batch_id;
    elsif i_prev_tick_id > p.prg_event_tick
          or i_prev_tick_id = p.prg_event_tick and i_prev_tick_time = p.prg_event_tick_time
    then
        return true;
    elsif i_prev_tick_id = p.prg_event_prev_tick and i_prev_tick_time = p.prg_event_prev_tick_time
          or i_prev_tick_id > p.prg_event_prev_tick and i_prev_tick_id < p.prg_event_tick
    then
        -- The same batch, or another one over some of its events: the consumer was moved.
        return false;
    end if;
    raise exception using
        errcode = 'PQ041',
        message = pg_catalog.format('the next batch of consumer %L of queue %L begins behind tick %s of %s, but database %I remembers '
                                    'events behind tick %s of %s',
                                    i_consumer, i_subconsumer, i_prev_tick_id, i_prev_tick_time, pg_catalog.current_database(),
                                    p.prg_event_prev_tick, p.prg_event_prev_tick_time),
        detail = 'Some of what the batch holds may have been done already.',
        hint = pg_catalog.format(
                   'Does another database''s queue of this name have a consumer of this name? Then give one of them another name. '
                   'Was the queue''s database restored from an older backup, or the consumer moved back? To go on where this database '
                   'stands: pgqpy consumer rewind %1$I %2$I --target-dsn DSN, or in the queue''s '
                   'select pgq.register_consumer_at(%1$L, %2$L, %3$s). To do the batch as it is, in this one: '
                   'select pgq_ext.forget_consumer(%2$L, %1$L).',
                   i_subconsumer, i_consumer, p.prg_event_prev_tick);
end;
$$;

create or replace function pgq_ext.begin_event(
    a_consumer text, a_subconsumer text, a_batch_id bigint,
    a_prev_tick_id bigint, a_prev_tick_time timestamptz, a_tick_id bigint, a_tick_time timestamptz,
    a_event_id bigint, a_retry int4, a_event_time timestamptz)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.begin_event(10)
--
--      Begins an event, and returns true if it is done already. If it is not, no other session can begin an event as
--      this consumer until the transaction ends.
--
-- Parameters:
--      a_consumer                          - name of the consumer
--      a_subconsumer                       - its queue
--      a_batch_id                          - the batch
--      a_prev_tick_id, a_prev_tick_time    - the tick after which it begins
--      a_tick_id, a_tick_time              - the tick at which it ends
--      a_event_id, a_event_time            - the event
--      a_retry                             - number of retries of the event; a retry has the same id but counts as
--                                            another event
-- Errors:
--      PQ003 invalid name
--      PQ041 the batch begins before the remembered events, or its ticks are of another history: events might be done
--      twice
--      40001 the event was done after the transaction took its snapshot
-- ----------------------------------------------------------------------
declare
    id      constant int4 := pgq_ext.lock_tracker(a_consumer, a_subconsumer);
    p       constant pgq_ext.progress_0 := pgq_ext.get_progress(id);
begin
    if not pgq_ext.follows_events(p, a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time)
       and pgq_ext.has_event(p, a_event_id, a_retry, a_event_time)
    then
        return true;
    end if;
    if not pgq.is_read_committed() then
        -- Check now: after the event its effect cannot be rolled back. A row that the snapshot does not see is found by
        -- the conflict with it.
        begin
            perform pgq_ext.end_event(a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time, a_tick_id, a_tick_time,
                                      a_event_id, a_retry, a_event_time);
            raise exception using errcode = 'PQZZZ', message = 'it is not done';
        exception when sqlstate 'PQZZZ' then
            null;
        end;
    end if;
    return false;
end;
$$;

create or replace function pgq_ext.end_event(
    a_consumer text, a_subconsumer text, a_batch_id bigint,
    a_prev_tick_id bigint, a_prev_tick_time timestamptz, a_tick_id bigint, a_tick_time timestamptz,
    a_event_id bigint, a_retry int4, a_event_time timestamptz)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.end_event(10)
--
--      Remembers an event as done. The first event of a later batch makes it forget the events remembered before.
--
-- Parameters:
--      as for pgq_ext.begin_event()
-- Returns:
--      false if it was done already
-- Errors:
--      PQ003 invalid name
--      PQ041 as for pgq_ext.begin_event()
-- Tables:
--      appends to pgq_ext.progress and the events
-- ----------------------------------------------------------------------
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext.lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext.get_progress(id);
    if pgq_ext.follows_events(p, a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time) then
        p.prg_tracker := id;
        p.prg_event_batch := a_batch_id;
        p.prg_event_nr := coalesce(p.prg_nr, 0) + 1;
        p.prg_event_prev_tick := a_prev_tick_id;
        p.prg_event_prev_tick_time := a_prev_tick_time;
        p.prg_event_tick := a_tick_id;
        p.prg_event_tick_time := a_tick_time;
        perform pgq_ext.append_progress(p);
    elsif pgq_ext.has_event(p, a_event_id, a_retry, a_event_time) then
        return false;
    elsif p.prg_event_batch <> a_batch_id or p.prg_event_tick < a_tick_id then
        -- Keep the earlier events: the consumer was moved to a position among them.
        p.prg_event_batch := a_batch_id;
        if p.prg_event_tick < a_tick_id then
            p.prg_event_tick := a_tick_id;
            p.prg_event_tick_time := a_tick_time;
        end if;
        perform pgq_ext.append_progress(p);
    end if;
    perform pgq_ext.append_event(p, a_event_id, a_retry, a_event_time);
    return true;
end;
$$;
