-- Every instruction counts in the first two functions. They run as the caller and without a search_path of their own:
-- entering a function with either setting costs a third as much as writing the event. So every name is
-- schema-qualified, and they read two sequences only. See docs/decisions.md.

create or replace function pgq.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event(7)
--
--      Puts an event into a queue, in the caller's transaction.
--
-- Parameters:
--      queue_name              - name of the queue
--      ev_type                 - type of the event, for the consumer
--      ev_data                 - payload
--      ev_extra1 .. ev_extra4  - further fields
-- Returns:
--      The event's id.
-- Errors:
--      PQ001 queue does not exist, PQ006 inserts disabled, PQ009 restored from a foreign
--      cluster, PQ010 too many events in one transaction
-- Tables:
--      inserts into pgq.event
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    v_id    bigint;
begin
    -- The order matters. The transaction id comes before the event id: a tick that counts an event knows which
    -- transactions may have drawn it. The slot comes last, for two reasons. A session that guards a queue looks
    -- afterwards whether the queue has new ids. And a transaction with a higher id than the one that a rotation has
    -- drawn writes into the new table, so that batches can skip the old one.
    v_id := case when pg_catalog.txid_current() is not null then pg_catalog.nextval(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_ids.', pg_catalog.quote_ident(insert_event.queue_name)))) end;
    if v_id is null then
        return pgq.insert_event_slowly(queue_name, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4);
    end if;
    insert into pgq.event (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
    values (v_id, insert_event.ev_type, insert_event.ev_data, insert_event.ev_extra1,
            insert_event.ev_extra2, insert_event.ev_extra3, insert_event.ev_extra4,
            pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_slots.', pg_catalog.quote_ident(insert_event.queue_name)))), 2147483647)),
                pgq.cluster_tag()));
    return v_id;
end;
$$;

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event(3)
--
--      Puts an event without further fields into a queue; see pgq.insert_event(7).
-- ----------------------------------------------------------------------
#variable_conflict use_column
declare
    v_id    bigint;
begin
    v_id := case when pg_catalog.txid_current() is not null then pg_catalog.nextval(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_ids.', pg_catalog.quote_ident(insert_event.queue_name)))) end;
    if v_id is null then
        return pgq.insert_event_slowly(queue_name, ev_type, ev_data);
    end if;
    insert into pgq.event (ev_id, ev_type, ev_data, ev_slot)
    values (v_id, insert_event.ev_type, insert_event.ev_data,
            pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_slots.', pg_catalog.quote_ident(insert_event.queue_name)))), 2147483647)),
                pgq.cluster_tag()));
    return v_id;
end;
$$;

create or replace function pgq.insert_event_slowly(
    i_queue_name text, i_type text, i_data text,
    i_extra1 text default null, i_extra2 text default null, i_extra3 text default null, i_extra4 text default null)
returns bigint
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_event_slowly(7)
--
--      Does the work of pgq.insert_event(7) for queues whose names are too long for a sequence name, and raises PQ001
--      for queues that do not exist. Internal.
-- ----------------------------------------------------------------------
begin
    return pgq.insert_event_raw(i_queue_name, null, null, null, null,
                                i_type, i_data, i_extra1, i_extra2, i_extra3, i_extra4);
end;
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
--      Puts an event with a given id, time, owner and retry count into a queue: for copies of events.
--
-- Parameters:
--      queue_name  - name of the queue
--      ev_id       - event id, null for the next one
--      ev_time     - time of the event, null for now
--      ev_owner    - the only subscription that sees the event, null for all
--      ev_retry    - number of retries, null for none
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
