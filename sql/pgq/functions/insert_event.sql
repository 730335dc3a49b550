create or replace function pgq.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event(7)
--
--      Puts an event into a queue, in the caller's transaction.
--
-- Parameters:
--      queue_name              - name of the queue
--      ev_type                 - what the event is, for the consumer to tell
--      ev_data                 - payload
--      ev_extra1 .. ev_extra4  - further fields
-- Returns:
--      The event's id.
-- Errors:
--      PQ001 queue does not exist, PQ006 inserts disabled, PQ009 restored from a foreign
--      cluster, PQ010 too many events in one transaction
-- Tables:
--      reads pgq.queue; inserts into pgq.event
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    v_id bigint;
begin
    -- One statement, planned once a session. The conditions come first, and with them the transaction
    -- id; then the table that is current now. This order is what lets a batch leave out a table: whoever
    -- has an id above the one drawn after a rotation writes into the new table.
    insert into pgq.event (ev_id, ev_txid, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
    select nextval(q.queue_event_seq_id), txid_current(),
           insert_event.ev_type, insert_event.ev_data, insert_event.ev_extra1,
           insert_event.ev_extra2, insert_event.ev_extra3, insert_event.ev_extra4,
           q.queue_slot0 + (pg_sequence_last_value(q.queue_rotation_seq) % q.queue_ntables)::int4
      from pgq.queue q
     where q.queue_name = insert_event.queue_name
       and not q.queue_disable_insert
       and q.queue_per_tx_limit is null
       and (txid_current() >= pg_sequence_last_value('pgq.txid_high_seq') or pgq.is_native_txid())
    returning ev_id into v_id;

    if v_id is null then
        v_id := pgq.insert_event_raw(insert_event.queue_name, null, null, null, null,
                                     insert_event.ev_type, insert_event.ev_data, insert_event.ev_extra1,
                                     insert_event.ev_extra2, insert_event.ev_extra3, insert_event.ev_extra4);
    elsif pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;
    return v_id;
end;
$$;

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event(3)
--
--      Puts an event without further fields into a queue; see pgq.insert_event(7).
-- ----------------------------------------------------------------------
    select pgq.insert_event($1, $2, $3, null, null, null, null);
$$;

create or replace function pgq.insert_event_raw(
    queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer,
    ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event_raw(11)
--
--      Puts an event with given id, time, owner and retry count into a queue: for copies of events.
--
-- Parameters:
--      queue_name  - name of the queue
--      ev_id       - event id, null for the next one
--      ev_time     - time of the event, null for now
--      ev_owner    - subscription that alone shall see it, null for all
--      ev_retry    - how often it was retried, null for never
--      others      - as in pgq.insert_event(7)
-- Returns:
--      The event's id.
-- Errors:
--      as pgq.insert_event(7)
-- Tables:
--      reads pgq.queue; inserts into pgq.event
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    t       record;
    v_id    bigint;
begin
    select * into t from pgq.write_target(insert_event_raw.queue_name);
    insert into pgq.event (ev_id, ev_time, ev_owner, ev_retry,
                           ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
    values (coalesce(insert_event_raw.ev_id, nextval(t.event_seq)), coalesce(insert_event_raw.ev_time, now()),
            insert_event_raw.ev_owner, insert_event_raw.ev_retry, insert_event_raw.ev_type, insert_event_raw.ev_data,
            insert_event_raw.ev_extra1, insert_event_raw.ev_extra2, insert_event_raw.ev_extra3,
            insert_event_raw.ev_extra4, t.ev_slot)
    returning ev_id into v_id;
    return v_id;
end;
$$;
