-- Where a generated trigger function writes to. Looking a queue up in pgq.queue for each statement would cost
-- more than writing an event, so what stays the same as long as the queue lives is written into the function,
-- and what may change is either read from a sequence or decided by the planner.

create or replace function pgq.capture_queue_is_plain(i_queue_name text, i_rotation_seq regclass)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_queue_is_plain(2)
--
--      Whether a queue has none of the settings that pgq.write_target(2) would have to see to. Declared
--      immutable though it reads a table, so that the planner makes it a constant, as with
--      pgq.capture_is_fresh(3); pgq.capture_queue_changed() makes sessions plan anew.
--
-- Parameters:
--      i_queue_name    - name of the queue
--      i_rotation_seq  - its sequence, on which plans depend
-- ----------------------------------------------------------------------
    select exists (select
                     from pgq.queue q
                    where q.queue_name = i_queue_name
                      and q.queue_rotation_seq = i_rotation_seq
                      and not q.queue_disable_insert
                      and q.queue_per_tx_limit is null);
$$;

create or replace function pgq.capture_queue_changed()
returns trigger
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_queue_changed(0)
--
--      Trigger of pgq.queue: sessions forget the plans that pgq.capture_queue_is_plain(2) is in, for a GRANT
--      makes them load the sequence's description again, also one that grants nothing new.
-- ----------------------------------------------------------------------
begin
    execute format('grant select on sequence %s to public', old.queue_rotation_seq);
    return null;
end;
$$;

create or replace trigger capture_queue_changed
    after delete or update of queue_name, queue_disable_insert, queue_per_tx_limit on pgq.queue
    for each row execute function pgq.capture_queue_changed();

create or replace function pgq.capture_slot(i_queue_name text)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.capture_slot(1)
--
--      Expression for the ev_slot of events that are written now; null when pgq.write_target(2) has to be
--      asked, which does the same and says what is wrong. To be evaluated in a transaction that has its id
--      already, as any that fires a trigger has: the id must come before the look at which table is current.
--
-- Parameters:
--      i_queue_name    - name of the queue
-- Returns:
--      The expression; null when there is no such queue.
-- ----------------------------------------------------------------------
    select format(
        'case when pgq.capture_queue_is_plain(%1$L, %2$L)'
        ' and pg_catalog.int8ge(pg_catalog.txid_current(), pg_catalog.pg_sequence_last_value(''pgq.txid_high_seq''))'
        ' and pg_catalog.int8ne(pg_catalog.pg_sequence_last_value(''pgq.ticker_sleep_seq''), 2)'
        ' then pg_catalog.int4(pg_catalog.int8pl(%3$s, pg_catalog.int8mod(pg_catalog.pg_sequence_last_value(%2$L), %4$s))) end',
        q.queue_name, q.queue_rotation_seq, q.queue_slot0, q.queue_ntables)
      from pgq.queue q
     where q.queue_name = i_queue_name;
$$;
