create or replace function pgq.capture_slot(i_queue_name text)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_slot(1)
--
--      Returns the expression for the ev_slot of events that are written now. If its value has other bits than the
--      lower 18, the queue is guarded: call pgq.write_target(2) instead. Evaluate it in a transaction that has its id
--      already, as any that fires a trigger has: the id must be drawn before the current table is looked up.
--
-- Parameters:
--      i_queue_name    - name of the queue
-- Returns:
--      The expression; null if there is no such queue.
-- ----------------------------------------------------------------------
    select format('pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(%L), 2147483647)), '
                  'pgq.cluster_tag())', q.queue_slot_seq)
      from pgq.queue q
     where q.queue_name = i_queue_name;
$$;
