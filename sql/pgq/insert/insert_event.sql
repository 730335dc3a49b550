create or replace function pgq._write_target(
    i_queue_name text, i_count bigint default 1, i_is_allowed boolean default false,
    out queue_id int4, out ev_slot int4, out event_seq regclass)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the target of events for a queue, after all checks that a write needs; for the functions that insert into
-- pgq.event. It draws the transaction id before it looks up the current table, and wakes the ticker.
-- Parameters:
--      i_count         - number of events to write
--      i_is_allowed    - PostgreSQL has checked the right of the role that inserts
-- Returns:
--      queue_id        - the queue
--      ev_slot         - value for the column of that name
--      event_seq       - sequence for ev_id
declare
    q       pgq.queue;
    total   bigint;
begin
    perform pgq._check_native_txid();
    for attempt in 1 .. 2 loop
        select * into q from pgq.queue where queue_name = i_queue_name;
        if not found then
            perform pgq._raise_queue_not_found(i_queue_name);
        end if;
        -- This may wait for pgq.restrict_queue(2), as the next event id would, or for pgq.drop_queue(2). Then look again.
        if pg_relation_size(q.queue_event_seq_id) is null then
            if not pgq._is_read_committed() then
                perform pgq._raise_stale_snapshot();
            elsif attempt = 2 then
                perform pgq._raise_queue_not_found(i_queue_name);
            end if;
            continue;
        end if;
        total := pg_sequence_last_value(q.queue_event_seq_id);
        exit when i_is_allowed or to_regclass(q.queue_event_seq) = q.queue_event_seq_id;
        if attempt = 2 then -- with the snapshot of before
            raise exception using errcode = 'serialization_failure',
                message = format('queue %L was restricted, or opened, after this transaction began', i_queue_name),
                hint = 'Run the transaction again.';
        end if;
    end loop;
    if q.queue_restricted and not i_is_allowed then
        perform pgq._require_right(q.queue_id, '{insert}');
    end if;

    -- Replication applies events even to queues with inserts disabled, and so does an administrator's worker of a branch,
    -- see pgq.copy_ticks() and pgq_node.begin_copy(1).
    if q.queue_disable_insert
       and current_setting('session_replication_role') <> 'replica'
       and (current_setting('pgqpy.copies_into', true) is distinct from i_queue_name
            or not pg_has_role(pgq._caller(), 'pgq_admin', 'usage') or pgq._runs_for_another())
    then
        perform pgq._raise_insert_disabled(i_queue_name);
    end if;

    if q.queue_per_tx_limit is not null and i_count > 0 then
        total := i_count + coalesce((select l.ll_events from pgq.limit_log l
                                      where l.ll_txid = txid_current() and l.ll_queue = q.queue_id
                                      order by l.ll_events desc limit 1), 0);
        if total > q.queue_per_tx_limit then
            raise exception using errcode = 'PQ010',
                message = format('more than %s events in one transaction for queue %L', q.queue_per_tx_limit, i_queue_name),
                hint = 'Commit more often, or raise the limit with pgq.set_queue_config(queue, ''per_tx_limit'', n).';
        end if;
        insert into pgq.limit_log (ll_txid, ll_queue, ll_events) values (txid_current(), q.queue_id, total);
    end if;

    if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;

    queue_id := q.queue_id;
    ev_slot := pgq._state_slot(q.queue_slot_seq);
    event_seq := q.queue_event_seq_id;
end;
$$;

create or replace function pgq._require_no_limit(i_queue_name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ010 if a queue limits the number of events in one transaction, which COPY could exceed.
begin
    if exists (select from pgq.queue where queue_name = i_queue_name and queue_per_tx_limit is not null) then
        raise exception using errcode = 'PQ010',
            message = format('queue %L limits the number of events in one transaction, which COPY does not count', i_queue_name),
            hint = 'Use INSERT INTO its relation, or pgq.insert_events().';
    end if;
end;
$$;

create or replace function pgq.current_event_table(x_queue_name text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the table that takes new events now, for COPY. Give ev_type, ev_data, ev_extra1 .. ev_extra4 (and ev_id,
-- ev_time, ev_retry for copies of events, as a member of pgq_admin); the other columns have the right defaults. A COPY
-- into the table is correct at any later time, even after a rotation.
-- Returns: the table's name, with schema.
-- Errors: PQ006 inserts disabled, PQ009 restored from a foreign cluster, PQ010 queue has a limit
declare
    t   record;
begin
    select * into t from pgq._write_target(x_queue_name, 0);
    perform pgq._require_no_limit(x_queue_name);
    return (select q.queue_data_pfx || '_' || t.ev_slot - q.queue_slot0 from pgq.queue q where q.queue_id = t.queue_id);
end;
$$;

create or replace function pgq._require_type(i_queue_name text)
returns text
language plpgsql
as $$
-- Default of the type of events that are inserted into a queue's relation: raises 23502. So an event whose type was
-- forgotten is refused, and one with a type pays nothing.
begin
    raise exception using errcode = 'not_null_violation',
        message = pg_catalog.format('an event for queue %L has no type', i_queue_name),
        hint = 'Name the column ev_type, too, and give it a text such as ''placed''.';
end;
$$;

create or replace function pgq._refuse_insert(i_table regclass)
returns boolean
language plpgsql stable
as $$
-- Condition of the rule of each event table: returns false, or raises 42501 unless the current role may write all of its
-- columns. The defaults of a view's columns need no right, so by a view of its own a producer could set ids and
-- transactions. PostgreSQL applies rules below all views and whatever the snapshot, but not to COPY, which takes no view,
-- nor to events that are routed through pgq.event.
begin
    if pg_catalog.has_table_privilege(i_table, 'insert') then
        return false;
    end if;
    raise exception using errcode = '42501',
        message = pg_catalog.format('producers may not INSERT into %s', i_table),
        hint = 'Insert into the queue''s relation, pgq_queue.<queue>, or COPY into the table.';
end;
$$;

create or replace function pgq._event_table_guard()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Statement trigger of each event table. It fires for direct writes (COPY) only, not for events that are routed through
-- pgq.event. If the table is not the current one, it notes the transaction, so that batches look for its events here.
-- Arguments: queue id, number of the table
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_id = tg_argv[0]::int4;
    if found then
        perform pgq._write_target(q.queue_name, 0, true), pgq._require_no_limit(q.queue_name);
    else
        perform pgq._check_native_txid(); -- the transaction's snapshot is older than the queue
    end if;
    if q.queue_id is null or pgq._state_slot(q.queue_slot_seq) <> q.queue_slot0 + tg_argv[1]::int4 then
        insert into pgq.late_write (late_queue, late_table, late_txid)
        values (tg_argv[0]::int4, tg_argv[1]::int4, txid_current())
        on conflict do nothing;
    end if;
    return null;
end;
$$;

-- Every instruction counts in the first three functions. They have no search_path of their own, which would cost a tenth
-- of the event, so every name is schema-qualified, and they read two sequences only. See docs/decisions.md.

create or replace function pgq.insert_event(
    queue_name text, ev_type text, ev_data text,
    ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer
as $$
-- Puts an event into a queue, in the caller's transaction.
-- Parameters:
--      ev_type                 - type of the event, for the consumer
--      ev_extra1 .. ev_extra4  - further fields
-- Returns: the event's id.
-- Errors: PQ006 inserts disabled, PQ009 restored from a foreign cluster, PQ010 too many events in one transaction
#variable_conflict use_column
declare
    v_id    bigint;
begin
    -- The order matters. The transaction id comes before the event id: a tick that counts an event knows which
    -- transactions may have drawn it. The slot comes last, for three reasons. A session that guards a queue looks
    -- afterwards whether the queue has new ids. A transaction with a higher id than the one that a rotation has
    -- drawn writes into the new table, so that batches can skip the old one. And if the id had to wait for
    -- pgq.restrict_queue(2), the name is that of another sequence now, whose number leads to a check.
    v_id := case when pg_catalog.txid_current() is not null then pg_catalog.nextval(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_ids.', pg_catalog.quote_ident(insert_event.queue_name)))) end;
    if v_id is null then
        return pgq._insert_event_slowly(queue_name, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4);
    end if;
    insert into pgq.event (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
    values (v_id, insert_event.ev_type, insert_event.ev_data, insert_event.ev_extra1,
            insert_event.ev_extra2, insert_event.ev_extra3, insert_event.ev_extra4,
            pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_slots.', pg_catalog.quote_ident(insert_event.queue_name)))), 2147483647)),
                pgq._cluster_tag()));
    return v_id;
end;
$$;

create or replace function pgq.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql security definer
as $$
-- Puts an event without further fields into a queue; see pgq.insert_event(7).
#variable_conflict use_column
declare
    v_id    bigint;
begin
    v_id := case when pg_catalog.txid_current() is not null then pg_catalog.nextval(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_ids.', pg_catalog.quote_ident(insert_event.queue_name)))) end;
    if v_id is null then
        return pgq._insert_event_slowly(queue_name, ev_type, ev_data);
    end if;
    insert into pgq.event (ev_id, ev_type, ev_data, ev_slot)
    values (v_id, insert_event.ev_type, insert_event.ev_data,
            pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(
                pg_catalog.textcat('pgq_slots.', pg_catalog.quote_ident(insert_event.queue_name)))), 2147483647)),
                pgq._cluster_tag()));
    return v_id;
end;
$$;

create or replace function pgq._insert_event_slowly(
    i_queue_name text, i_type text, i_data text,
    i_extra1 text default null, i_extra2 text default null, i_extra3 text default null, i_extra4 text default null)
returns bigint
language plpgsql security definer
as $$
-- Does the work of pgq.insert_event(7) for restricted queues, and for those whose names are too long for a sequence
-- name; and raises PQ001 for queues that do not exist.
declare
    v_ids   pg_catalog.regclass;
    v_slots pg_catalog.regclass;
    v_id    bigint;
begin
    -- Reading the sequence may wait for pgq.restrict_queue(2): so before the check.
    select queue_event_seq_id, queue_slot_seq, pg_catalog.pg_sequence_last_value(queue_event_seq_id) into v_ids, v_slots, v_id
      from pgq.queue
     where queue_name operator(pg_catalog.=) i_queue_name
       and queue_restricted;
    if v_ids is not null then
        unlisten pgq_no_channel; -- see pgq._runs_for_another(0)
        -- A role with the right to insert may use the sequence, see pgq.grant_perms(1).
        if pg_catalog.has_sequence_privilege(pgq._caller(), v_ids, 'usage') then
            v_id := case when pg_catalog.txid_current() is not null then pg_catalog.nextval(v_ids) end;
            insert into pgq.event (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
            values (v_id, i_type, i_data, i_extra1, i_extra2, i_extra3, i_extra4,
                    pg_catalog.int4mi(pg_catalog.int4(pg_catalog.int8and(pg_catalog.pg_sequence_last_value(v_slots), 2147483647)),
                                      pgq._cluster_tag()));
            return v_id;
        end if;
    end if;
    return pgq.insert_event_raw(i_queue_name, null, null, null, null,
                                i_type, i_data, i_extra1, i_extra2, i_extra3, i_extra4);
end;
$$;

create or replace function pgq.insert_event_raw(
    queue_name text, ev_id bigint, ev_time timestamptz, ev_owner integer, ev_retry integer,
    ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts an event with a given id, time, owner and retry count into a queue: for copies of events.
-- Parameters:
--      ev_id       - event id, null for the next one
--      ev_time     - time of the event, null for now
--      ev_owner    - the only subscription that sees the event, null for all
--      ev_retry    - number of retries, null for none
--      others      - as in pgq.insert_event(7)
-- Returns: the event's id.
-- Errors: as pgq.insert_event(7)
#variable_conflict use_column
declare
    t       record;
    v_id    bigint;
begin
    select * into t from pgq._write_target(insert_event_raw.queue_name);
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

create or replace function pgq._insert_guarded()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Row trigger of pgq.event_guard_<n>, to which events of guarded queues are routed: makes all checks, wakes the ticker,
-- and inserts the event into the current table. The row itself is stored too, as one that is done: without it the
-- caller's INSERT would count and return nothing. pgq.maint_guards() removes it.
declare
    -- The slot is from a state without a tag: pgq.insert_event(7) had to wait until the queue was restricted.
    v_waited constant boolean := new.ev_slot + pgq._cluster_tag()::bigint < 262144;
begin
    if new.ev_txid = 0 then
        return new; -- from a dump
    end if;
    -- All rows of a large INSERT come this way if the ticker sleeps: so one statement, and no call in the usual case.
    insert into pgq.event
    select new.ev_txid, new.ev_id, new.ev_time, new.ev_owner, new.ev_retry,
           new.ev_type, new.ev_data, new.ev_extra1, new.ev_extra2, new.ev_extra3, new.ev_extra4,
           case when q.queue_disable_insert or q.queue_per_tx_limit is not null
                     or txid_current() < pg_sequence_last_value('pgq.txid_high_seq') or v_waited
                then (pgq._write_target(q.queue_name, i_is_allowed => not v_waited)).ev_slot
                else pgq._state_slot(q.queue_slot_seq) end
      from pgq.queue q
     where q.queue_slot0 = new.ev_slot & 262128;
    if not found then
        raise exception using errcode = 'PQ001',
            message = format('no queue has slot %s', new.ev_slot & 262143),
            hint = 'Insert with pgq.insert_event().';
    end if;
    if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_notify('pgq_wake', '');
    end if;
    new.ev_txid := 0;
    return new;
end;
$$;

create or replace function pgq.maint_guards()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Empties the tables that only the transactions need that insert into guarded queues, unless one uses them now.
-- Returns: 0, for maintenance does not call it again.
begin
    lock table pgq.event_guard_0, pgq.event_guard_1, pgq.limit_log in access exclusive mode nowait;
    truncate pgq.event_guard_0, pgq.event_guard_1, pgq.limit_log;
    return 0;
exception when lock_not_available then
    return 0;
end;
$$;

create or replace trigger insert_guarded
    before insert on pgq.event_guard_0
    for each row execute function pgq._insert_guarded();

create or replace trigger insert_guarded
    before insert on pgq.event_guard_1
    for each row execute function pgq._insert_guarded();
