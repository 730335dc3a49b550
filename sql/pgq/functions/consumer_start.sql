create or replace function pgq.get_consumer_start(
    i_queue_name text, i_consumer_name text, out tick_id bigint, out tick_time timestamptz, out fresh boolean)
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.get_consumer_start(2)
--
--      Returns a consumer's position, for programs that track it in another database.
--
-- Parameters:
--      i_queue_name, i_consumer_name   - the consumer
-- Returns:
--      tick_id     - the last tick that it has finished
--      tick_time   - that tick's time
--      fresh       - true if it has certainly never finished a batch
-- Errors:
--      PQ001 queue does not exist, PQ002 consumer not registered
-- ----------------------------------------------------------------------
declare
    r   constant pgq.registration := pgq.find_registration(i_queue_name, i_consumer_name);
    p   constant pgq.position_0 := pgq.get_position(r.reg_id);
begin
    tick_id := p.pos_last_tick;
    tick_time := (pgq.get_tick(r.sub_queue, p.pos_last_tick)).tick_time;
    -- The first position is the registration's, the second at most a batch that is open.
    fresh := p.pos_nr <= 2;
end;
$$;

create or replace function pgq.get_tick_snapshot(i_queue_name text, i_tick_id bigint)
returns txid_snapshot
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.get_tick_snapshot(2)
--
--      Returns a tick's snapshot, for programs that track ticks in another database. Unlike a query of pgq.tick it
--      finds the tick even in the statement that opens the batch, which may be older than the tick.
--
-- Parameters:
--      i_queue_name    - name of the queue
--      i_tick_id       - the tick
-- Returns:
--      The snapshot, or null if there is no such tick (any more).
-- ----------------------------------------------------------------------
begin
    return (pgq.get_tick((select queue_id from pgq.queue where queue_name = i_queue_name), i_tick_id)).tick_snapshot;
end;
$$;

create or replace function pgq.rewind_consumer(
    i_queue_name text, i_consumer_name text,
    i_tick_id bigint, i_tick_time timestamptz default null,
    i_tick_snapshot txid_snapshot default null, i_tick_event_seq bigint default null)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.rewind_consumer(6)
--
--      Moves a consumer to a tick that another database remembers, or registers it there. If the queue has forgotten
--      the tick, as it forgets early ticks, but still has the events, the tick is made again.
--
-- Parameters:
--      i_queue_name, i_consumer_name   - the consumer
--      i_tick_id                       - the tick, and what is remembered about it; null for unknown values
--      i_tick_time, i_tick_snapshot, i_tick_event_seq
-- Returns:
--      1 if it was registered, 0 if it already was.
-- Errors:
--      PQ001 queue does not exist, PQ003 invalid name, PQ008 tick is not available, PQ042 the tick is of another
--      history
-- Tables:
--      locks pgq.queue against rotation; may insert a tick; appends a position
-- ----------------------------------------------------------------------
declare
    q       pgq.queue;
    t       pgq.tick_0;
    before  pgq.tick_0;
    after   pgq.tick_0;
    native  boolean;
begin
    select * into q from pgq.queue where queue_name = i_queue_name for share;
    if not found then
        perform pgq.raise_queue_not_found(i_queue_name);
    end if;
    t := pgq.get_tick(q.queue_id, i_tick_id);
    if t.tick_id is not null then
        native := coalesce(t.tick_time = i_tick_time, true);
    elsif i_tick_time is null or i_tick_snapshot is null or i_tick_event_seq is null or i_tick_id < q.queue_horizon_tick then
        perform pgq.raise_tick_not_found(i_queue_name, i_tick_id);
    else
        before := pgq.last_tick(q.queue_id, i_tick_id);
        after := pgq.first_tick(q.queue_id, i_tick_id, false);
        native := before.tick_time <= i_tick_time and i_tick_time <= after.tick_time
                  and txid_snapshot_xmin(before.tick_snapshot) <= txid_snapshot_xmin(i_tick_snapshot)
                  and txid_snapshot_xmax(before.tick_snapshot) <= txid_snapshot_xmax(i_tick_snapshot)
                  and txid_snapshot_xmin(i_tick_snapshot) <= txid_snapshot_xmin(after.tick_snapshot)
                  and txid_snapshot_xmax(i_tick_snapshot) <= txid_snapshot_xmax(after.tick_snapshot);
    end if;
    if native is not true then
        raise exception using
            errcode = 'PQ042',
            message = format('tick %s of %s is not of this history of queue %L', i_tick_id, i_tick_time, i_queue_name),
            hint = 'The queue''s database was restored from a backup or a dump since, or it is another queue. Compare what both databases '
                   'have, and move the consumer by pgq.register_consumer_at(queue, consumer, tick).';
    end if;
    if t.tick_id is null then
        insert into pgq.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
        values (q.queue_id, i_tick_id, i_tick_time, i_tick_snapshot, i_tick_event_seq);
    end if;
    return pgq.register_consumer_at(i_queue_name, i_consumer_name, i_tick_id);
end;
$$;
