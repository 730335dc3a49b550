create or replace function pgq_ext.get_last_tick(a_consumer text, a_subconsumer text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the last tick that a consumer has done in this database.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
-- Returns: the tick's id, or null if none is remembered.
begin
    return (pgq_ext._get_progress(pgq_ext._find_tracker(a_consumer, a_subconsumer))).prg_tick;
end;
$$;

create or replace function pgq_ext.get_last_tick(a_consumer text)
returns bigint
language sql set search_path = pg_catalog, pg_temp
as $$
-- Returns the last tick that a consumer has done in this database; see pgq_ext.get_last_tick(2).
    select pgq_ext.get_last_tick(a_consumer, '');
$$;

create or replace function pgq_ext.set_last_tick(a_consumer text, a_subconsumer text, a_tick_id bigint)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers the last tick that a consumer has done. Call it in the transaction that processes the events.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name
--      a_tick_id       - tick; null to remember none
-- Returns: 1
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext._get_progress(id);
    p.prg_tracker := id;
    p.prg_tick := a_tick_id;
    p.prg_tick_time := null;
    p.prg_tick_snapshot := null;
    p.prg_tick_event_seq := null;
    perform pgq_ext._append_progress(p);
    return 1;
end;
$$;

create or replace function pgq_ext.set_last_tick(a_consumer text, a_tick_id bigint)
returns integer
language sql set search_path = pg_catalog, pg_temp
as $$
-- Remembers the last tick that a consumer has done; see pgq_ext.set_last_tick(3).
    select pgq_ext.set_last_tick(a_consumer, '', a_tick_id);
$$;

create or replace function pgq_ext.is_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a batch is the last one that a consumer has done in this database.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
--      a_batch_id      - batch
declare
    p   constant pgq_ext.progress_0 := pgq_ext._get_progress(pgq_ext._find_tracker(a_consumer, a_subconsumer));
begin
    return p.prg_batch is not null and p.prg_batch = a_batch_id;
end;
$$;

create or replace function pgq_ext.is_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a batch is the last one that a consumer has done; see pgq_ext.is_batch_done(3).
    select pgq_ext.is_batch_done(a_consumer, '', a_batch_id);
$$;

create or replace function pgq_ext.set_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers that a consumer has done a batch. Call it in the transaction that processes the batch.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name
--      a_batch_id      - batch; if it is null or not positive, nothing is remembered
-- Returns: false if the batch was done already, by another session in the meantime.
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext._get_progress(id);
    if p.prg_batch = a_batch_id then
        return false;
    end if;
    if a_batch_id > 0 then
        p.prg_tracker := id;
        p.prg_batch := a_batch_id;
        p.prg_prev_tick := null;
        p.prg_prev_tick_time := null;
        p.prg_prev_tick_snapshot := null;
        p.prg_prev_tick_event_seq := null;
        p.prg_retries := null;
        perform pgq_ext._append_progress(p);
    end if;
    return true;
end;
$$;

create or replace function pgq_ext.set_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Remembers that a consumer has done a batch; see pgq_ext.set_batch_done(3).
    select pgq_ext.set_batch_done(a_consumer, '', a_batch_id);
$$;

create or replace function pgq_ext.is_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint, a_retry int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a consumer has done an event of its current batch.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
--      a_batch_id      - batch
--      a_event_id      - event
--      a_retry         - number of retries of the event; a retry has the same id but counts as another event
declare
    p   constant pgq_ext.progress_0 := pgq_ext._get_progress(pgq_ext._find_tracker(a_consumer, a_subconsumer));
begin
    return p.prg_event_batch is not null and p.prg_event_batch = a_batch_id and pgq_ext._has_event(p, a_event_id, a_retry, null);
end;
$$;

create or replace function pgq_ext.is_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a consumer has done an event that was not retried; see pgq_ext.is_event_done(5).
    select pgq_ext.is_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.is_event_done(a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a consumer has done an event that was not retried; see pgq_ext.is_event_done(5).
    select pgq_ext.is_event_done(a_consumer, '', a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.set_event_done(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint, a_retry int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers that a consumer has done an event. The first event of another batch makes it forget the events of the
-- previous batch.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name
--      a_batch_id      - batch
--      a_event_id      - event
--      a_retry         - number of retries of the event
-- Returns: false if it was done already
-- Errors: PQ011 no batch, event or retry count
declare
    p   pgq_ext.progress_0;
    id  int4;
begin
    if a_batch_id is null or a_event_id is null or a_retry is null then
        raise exception using errcode = 'PQ011',
            message = format('no event can be remembered as done: batch %s, event %s, retry %s',
                             coalesce(a_batch_id::text, 'NULL'), coalesce(a_event_id::text, 'NULL'), coalesce(a_retry::text, 'NULL')),
            hint = 'Give the id of the open batch, and ev_id and ev_retry (0 for null) as the batch has them.';
    end if;
    id := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
    p := pgq_ext._get_progress(id);
    if p.prg_event_batch is distinct from a_batch_id then
        p.prg_tracker := id;
        p.prg_event_batch := a_batch_id;
        p.prg_event_nr := coalesce(p.prg_nr, 0) + 1;
        p.prg_event_prev_tick := null;
        p.prg_event_prev_tick_time := null;
        p.prg_event_tick := null;
        p.prg_event_tick_time := null;
        perform pgq_ext._append_progress(p);
    elsif pgq_ext._has_event(p, a_event_id, a_retry, null) then
        return false;
    end if;
    perform pgq_ext._append_event(p, a_event_id, a_retry, null);
    return true;
end;
$$;

create or replace function pgq_ext.set_event_done(a_consumer text, a_subconsumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Remembers that a consumer has done an event that was not retried; see pgq_ext.set_event_done(5).
    select pgq_ext.set_event_done(a_consumer, a_subconsumer, a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.set_event_done(a_consumer text, a_batch_id bigint, a_event_id bigint)
returns boolean
language sql set search_path = pg_catalog, pg_temp
as $$
-- Remembers that a consumer has done an event that was not retried; see pgq_ext.set_event_done(5).
    select pgq_ext.set_event_done(a_consumer, '', a_batch_id, a_event_id, 0);
$$;

create or replace function pgq_ext.version()
returns text
language sql
as $$
-- Returns the version of pgq_ext whose interface this is.
    select '3.5';
$$;

create or replace function pgq_ext.upgrade_schema()
returns integer
language sql
as $$
-- Does nothing; here migrations upgrade the schema (pgqpy migrate).
-- Returns: 0
    select 0;
$$;
