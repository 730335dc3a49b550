create or replace function pgq_ext.get_last_tick(a_consumer text, a_subconsumer text)
returns bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.get_last_tick(2)
--
--      Returns the last tick that a consumer has done in this database.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
-- Returns:
--      The tick's id, or null if none is remembered.
-- ----------------------------------------------------------------------
begin
    return (pgq_ext.get_progress(pgq_ext.find_tracker(a_consumer, a_subconsumer))).prg_tick;
end;
$$;

create or replace function pgq_ext.get_last_tick(a_consumer text)
returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.get_last_tick(1)
--
--      Returns the last tick that a consumer has done in this database; see pgq_ext.get_last_tick(2).
-- ----------------------------------------------------------------------
    select pgq_ext.get_last_tick(a_consumer, '');
$$;

create or replace function pgq_ext.set_last_tick(a_consumer text, a_subconsumer text, a_tick_id bigint)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_last_tick(3)
--
--      Remembers the last tick that a consumer has done. Call it in the transaction that processes the events.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name
--      a_tick_id       - tick; null to remember none
-- Returns:
--      1
-- Errors:
--      PQ003 invalid name
-- Tables:
--      appends to pgq_ext.progress
-- ----------------------------------------------------------------------
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext.lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext.get_progress(id);
    p.prg_tracker := id;
    p.prg_tick := a_tick_id;
    p.prg_tick_time := null;
    p.prg_tick_snapshot := null;
    p.prg_tick_event_seq := null;
    perform pgq_ext.append_progress(p);
    return 1;
end;
$$;

create or replace function pgq_ext.set_last_tick(a_consumer text, a_tick_id bigint)
returns integer
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_last_tick(2)
--
--      Remembers the last tick that a consumer has done; see pgq_ext.set_last_tick(3).
-- ----------------------------------------------------------------------
    select pgq_ext.set_last_tick(a_consumer, '', a_tick_id);
$$;
