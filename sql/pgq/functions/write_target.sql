create or replace function pgq.write_target(
    i_queue_name text, i_count bigint default 1,
    out queue_id int4, out ev_slot int4, out event_seq regclass)
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.write_target(2)
--
--      Returns the target of events for a queue, after all checks that a write needs; for the functions that insert
--      into pgq.event. It draws the transaction id before it looks up the current table, and wakes the ticker.
--      Internal.
--
-- Parameters:
--      i_queue_name    - name of the queue
--      i_count         - number of events to write
-- Returns:
--      queue_id        - the queue
--      ev_slot         - value for the column of that name
--      event_seq       - sequence for ev_id
-- Errors:
--      as pgq.insert_event(7)
-- Tables:
--      reads pgq.queue
-- ----------------------------------------------------------------------
declare
    q       pgq.queue;
    counter text;
    total   bigint;
begin
    perform pgq.check_native_txid();
    select * into q from pgq.queue where queue_name = i_queue_name;
    if not found then
        perform pgq.raise_queue_not_found(i_queue_name);
    end if;

    -- Replication applies events even to queues with inserts disabled.
    if q.queue_disable_insert and current_setting('session_replication_role') <> 'replica' then
        raise exception using
            errcode = 'PQ006',
            message = format('inserting into queue %L is disabled', i_queue_name),
            hint = 'This queue is a copy that follows another database, or was closed: insert at its root, '
                   'or set queue_disable_insert to false in pgq.queue.';
    end if;

    if q.queue_per_tx_limit is not null then
        counter := 'pgq.tx_events_' || q.queue_id;
        total := coalesce(nullif(current_setting(counter, true), ''), '0')::bigint + i_count;
        if total > q.queue_per_tx_limit then
            raise exception using
                errcode = 'PQ010',
                message = format('more than %s events in one transaction for queue %L', q.queue_per_tx_limit, i_queue_name),
                hint = 'Commit more often, or raise the limit with pgq.set_queue_config(queue, ''per_tx_limit'', n).';
        end if;
        perform set_config(counter, total::text, true);
    end if;

    if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;

    queue_id := q.queue_id;
    ev_slot := pgq.state_slot(q.queue_slot_seq);
    event_seq := q.queue_event_seq_id;
end;
$$;

create or replace function pgq.current_event_table(x_queue_name text)
returns text
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.current_event_table(1)
--
--      Returns the table that takes new events now, for COPY. Give ev_type, ev_data, ev_extra1 .. ev_extra4 (and ev_id,
--      ev_time, ev_retry for copies of events); the other columns have the right defaults. A COPY into the table is
--      correct at any later time, even after a rotation.
--
-- Parameters:
--      x_queue_name    - name of the queue
-- Returns:
--      The table's name, with schema.
-- Errors:
--      PQ001 queue does not exist, PQ006 inserts disabled, PQ009 restored from a foreign cluster
-- ----------------------------------------------------------------------
declare
    t   record;
begin
    select * into t from pgq.write_target(x_queue_name, 0);
    return (select q.queue_data_pfx || '_' || t.ev_slot - q.queue_slot0 from pgq.queue q where q.queue_id = t.queue_id);
end;
$$;

create or replace function pgq.event_table_guard()
returns trigger
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.event_table_guard(0)
--
--      Statement trigger of each event table. It fires for direct writes (COPY) only, not for events that are routed
--      through pgq.event. If the table is not the current one, it notes the transaction, so that batches look for its
--      events here.
--
-- Arguments:
--      queue id, number of the table
-- Tables:
--      inserts into pgq.late_write
-- ----------------------------------------------------------------------
declare
    q   pgq.queue;
begin
    perform pgq.check_native_txid();
    select * into q from pgq.queue where queue_id = tg_argv[0]::int4;
    if q.queue_id is null or pgq.state_slot(q.queue_slot_seq) <> q.queue_slot0 + tg_argv[1]::int4 then
        insert into pgq.late_write (late_queue, late_table, late_txid)
        values (tg_argv[0]::int4, tg_argv[1]::int4, txid_current())
        on conflict do nothing;
    end if;
    if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;
    return null;
end;
$$;
