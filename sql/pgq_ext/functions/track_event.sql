create or replace function pgq_ext.is_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint, a_retry int4)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.is_event_done(5)
--
--      Returns whether a consumer has done an event of its current batch.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
--      a_batch_id      - batch
--      a_event_id      - event
--      a_retry         - number of retries of the event; a retry has the same id but counts as another event
-- ----------------------------------------------------------------------
declare
    p   constant pgq_ext.progress_0 := pgq_ext.get_progress(pgq_ext.find_tracker(a_consumer, a_subconsumer));
begin
    return p.prg_event_batch is not null and p.prg_event_batch = a_batch_id and pgq_ext.has_event(p, a_event_id, a_retry, null);
end;
$$;

create or replace function pgq_ext.is_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.is_event_done(4)
--
--      Returns whether a consumer has done an event that was not retried; see pgq_ext.is_event_done(5).
-- ----------------------------------------------------------------------
    select pgq_ext.is_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.is_event_done(a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.is_event_done(3)
--
--      Returns whether a consumer has done an event that was not retried; see pgq_ext.is_event_done(5).
-- ----------------------------------------------------------------------
    select pgq_ext.is_event_done(a_consumer, '', a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.set_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint, a_retry int4)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_event_done(5)
--
--      Remembers that a consumer has done an event. The first event of another batch makes it forget the events of the
--      previous batch.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name
--      a_batch_id      - batch
--      a_event_id      - event
--      a_retry         - number of retries of the event
-- Returns:
--      false if it was done already
-- Errors:
--      PQ003 invalid name, PQ011 no batch, event or retry count
-- Tables:
--      appends to pgq_ext.progress and the events
-- ----------------------------------------------------------------------
declare
    p   pgq_ext.progress_0;
    id  int4;
begin
    if a_batch_id is null or a_event_id is null or a_retry is null then
        raise exception using
            errcode = 'PQ011',
            message = format('no event can be remembered as done: batch %s, event %s, retry %s',
                             coalesce(a_batch_id::text, 'NULL'), coalesce(a_event_id::text, 'NULL'), coalesce(a_retry::text, 'NULL')),
            hint = 'Give the id of the open batch, and ev_id and ev_retry (0 for null) as the batch has them.';
    end if;
    id := pgq_ext.lock_tracker(a_consumer, a_subconsumer);
    p := pgq_ext.get_progress(id);
    if p.prg_event_batch is distinct from a_batch_id then
        p.prg_tracker := id;
        p.prg_event_batch := a_batch_id;
        p.prg_event_nr := coalesce(p.prg_nr, 0) + 1;
        p.prg_event_prev_tick := null;
        p.prg_event_prev_tick_time := null;
        p.prg_event_tick := null;
        p.prg_event_tick_time := null;
        perform pgq_ext.append_progress(p);
    elsif pgq_ext.has_event(p, a_event_id, a_retry, null) then
        return false;
    end if;
    perform pgq_ext.append_event(p, a_event_id, a_retry, null);
    return true;
end;
$$;

create or replace function pgq_ext.set_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_event_done(4)
--
--      Remembers that a consumer has done an event that was not retried; see pgq_ext.set_event_done(5).
-- ----------------------------------------------------------------------
    select pgq_ext.set_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.set_event_done(a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_event_done(3)
--
--      Remembers that a consumer has done an event that was not retried; see pgq_ext.set_event_done(5).
-- ----------------------------------------------------------------------
    select pgq_ext.set_event_done(a_consumer, '', a_batch_id, a_event_id, 0);
$$;
