create or replace function pgq_ext.is_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.is_batch_done(3)
--
--      Returns whether a batch is the last one that a consumer has done in this database.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
--      a_batch_id      - batch
-- ----------------------------------------------------------------------
declare
    p   constant pgq_ext.progress_0 := pgq_ext.get_progress(pgq_ext.find_tracker(a_consumer, a_subconsumer));
begin
    return p.prg_batch is not null and p.prg_batch = a_batch_id;
end;
$$;

create or replace function pgq_ext.is_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.is_batch_done(2)
--
--      Returns whether a batch is the last one that a consumer has done; see pgq_ext.is_batch_done(3).
-- ----------------------------------------------------------------------
    select pgq_ext.is_batch_done(a_consumer, '', a_batch_id);
$$;

create or replace function pgq_ext.set_batch_done(a_consumer text, a_subconsumer text, a_batch_id bigint)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_batch_done(3)
--
--      Remembers that a consumer has done a batch. Call it in the transaction that processes the batch.
--
-- Parameters:
--      a_consumer      - name of the consumer
--      a_subconsumer   - distinguishes consumers of one name
--      a_batch_id      - batch; if it is null or not positive, nothing is remembered
-- Returns:
--      False if the batch was done already, by another session in the meantime.
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
        perform pgq_ext.append_progress(p);
    end if;
    return true;
end;
$$;

create or replace function pgq_ext.set_batch_done(a_consumer text, a_batch_id bigint)
returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_ext.set_batch_done(2)
--
--      Remembers that a consumer has done a batch; see pgq_ext.set_batch_done(3).
-- ----------------------------------------------------------------------
    select pgq_ext.set_batch_done(a_consumer, '', a_batch_id);
$$;
