create or replace function pgq.get_consumer_start(
    i_queue_name text, i_consumer_name text, out tick_id bigint, out tick_time timestamptz, out fresh boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns a consumer's position, for programs that track it in another database.
-- Returns:
--      tick_id     - the last tick that it has finished
--      tick_time   - that tick's time
--      fresh       - true if it has certainly never finished a batch
-- Errors: PQ002 consumer not registered
declare
    r   constant pgq.registration := pgq._find_registration(i_queue_name, i_consumer_name);
    p   constant pgq.position_0 := pgq._get_position(r.reg_id);
begin
    tick_id := p.pos_last_tick;
    tick_time := (pgq._get_tick(r.sub_queue, p.pos_last_tick)).tick_time;
    -- The first position is the registration's, the second at most a batch that is open.
    fresh := p.pos_nr <= 2;
end;
$$;

create or replace function pgq.get_tick_snapshot(i_queue_name text, i_tick_id bigint)
returns txid_snapshot
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns a tick's snapshot, for programs that track ticks in another database. Unlike a query of pgq.tick it finds the
-- tick even in the statement that opens the batch, which may be older than the tick.
-- Parameters:
--      i_tick_id       - the tick
-- Returns: the snapshot, or null if there is no such tick (any more).
begin
    return (pgq._get_tick((select queue_id from pgq.queue where queue_name = i_queue_name), i_tick_id)).tick_snapshot;
end;
$$;

create or replace function pgq.rewind_consumer(
    i_queue_name text, i_consumer_name text,
    i_tick_id bigint, i_tick_time timestamptz default null,
    i_tick_snapshot txid_snapshot default null, i_tick_event_seq bigint default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves a consumer to a tick that another database remembers, or registers it there. If the queue has forgotten the
-- tick, as it forgets early ticks, but still has the events, the tick is made again.
-- Parameters:
--      i_tick_id                       - the tick, and what is remembered about it; null for unknown values
--      i_tick_time, i_tick_snapshot, i_tick_event_seq
-- Returns: 1 if it was registered, 0 if it already was.
-- Errors: PQ008 tick is not available, PQ042 the tick is of another history
declare
    q       pgq.queue;
    t       pgq.tick_0;
    before  pgq.tick_0;
    after   pgq.tick_0;
    native  boolean;
begin
    select * into q from pgq.queue where queue_name = i_queue_name for share;
    if not found then
        perform pgq._raise_queue_not_found(i_queue_name);
    end if;
    t := pgq._get_tick(q.queue_id, i_tick_id);
    if t.tick_id is not null then
        native := coalesce(t.tick_time = i_tick_time, true);
    elsif i_tick_time is null or i_tick_snapshot is null or i_tick_event_seq is null or i_tick_id < q.queue_horizon_tick then
        perform pgq._raise_tick_not_found(i_queue_name, i_tick_id);
    else
        before := pgq._last_tick(q.queue_id, i_tick_id);
        after := pgq._first_tick(q.queue_id, i_tick_id, false);
        native := before.tick_time <= i_tick_time and i_tick_time <= after.tick_time
                  and txid_snapshot_xmin(before.tick_snapshot) <= txid_snapshot_xmin(i_tick_snapshot)
                  and txid_snapshot_xmax(before.tick_snapshot) <= txid_snapshot_xmax(i_tick_snapshot)
                  and txid_snapshot_xmin(i_tick_snapshot) <= txid_snapshot_xmin(after.tick_snapshot)
                  and txid_snapshot_xmax(i_tick_snapshot) <= txid_snapshot_xmax(after.tick_snapshot);
    end if;
    if native is not true then
        raise exception using errcode = 'PQ042',
            message = format('tick %s of %s is not of this history of queue %L', i_tick_id, i_tick_time, i_queue_name),
            hint = 'The queue''s database was restored from a backup or a dump since, or it is another queue. Compare what both databases '
                   'have, and move the consumer by pgq.register_consumer_at(queue, consumer, tick).';
    end if;
    if t.tick_id is null then
        insert into pgq.tick (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq)
        values (q.queue_id, i_tick_id, i_tick_time, i_tick_snapshot, i_tick_event_seq);
    end if;
    return pgq._register_consumer(i_queue_name, i_consumer_name, i_tick_id, 'now', false);
end;
$$;

-- Retries and dead letters of consumers that have their effects in another database. They are noted there when that
-- database commits, and come here when the batch is finished. If the process dies in between and the consumer is moved,
-- the batch would not be delivered again, and they would be lost.

create or replace function pgq.settle_batch(i_batch_id bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers that the retries and dead letters of an open batch have arrived. Call it in the transaction that writes
-- them. Unlike a position, this is kept when the consumer is moved. It does nothing if the batch is not open.
declare
    p   constant pgq.position_0 := pgq._lock_position(pgq._find_batch(i_batch_id));
begin
    if p.pos_batch = i_batch_id then
        perform pgq._append_position(p.pos_registration, p.pos_nr + 1, p.pos_last_tick, p.pos_batch, p.pos_next_tick,
                                     i_settled => i_batch_id);
    end if;
end;
$$;

create or replace function pgq.reopen_batch(
    i_queue_name text, i_consumer_name text, i_batch_id bigint,
    i_prev_tick_id bigint, i_prev_tick_time timestamptz, i_tick_id bigint, i_tick_time timestamptz)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Opens a batch again that was dropped when the consumer was moved, unless its retries and dead letters have arrived.
-- Parameters:
--      i_prev_tick_id, i_prev_tick_time    - the tick after which it begins
--      i_tick_id, i_tick_time              - the tick at which it ends
-- Returns: true if the batch was opened; false if it is open already, or nothing is missing.
-- Errors: PQ002 consumer not registered, PQ043 the consumer is neither at the begin nor at the end of the batch, or the
--      queue no longer has the batch
declare
    r       constant pgq.registration := pgq._find_registration(i_queue_name, i_consumer_name);
    q       pgq.queue;
    p       pgq.position_0;
    prev    pgq.tick_0;
    cur     pgq.tick_0;
begin
    select * into q from pgq.queue where queue_id = r.sub_queue for share;
    p := pgq._lock_position(r.reg_id);
    if p.pos_nr is null then
        perform pgq._find_registration(i_queue_name, i_consumer_name);  -- raises the error: just unregistered
    end if;
    if p.pos_batch = i_batch_id or p.pos_settled = i_batch_id then
        return false;
    end if;

    prev := pgq._get_tick(r.sub_queue, i_prev_tick_id);
    cur := pgq._get_tick(r.sub_queue, i_tick_id);
    if (p.pos_last_tick in (i_prev_tick_id, i_tick_id)
        and i_prev_tick_id >= q.queue_horizon_tick
        and prev.tick_time = coalesce(i_prev_tick_time, prev.tick_time)
        and cur.tick_time = i_tick_time
        -- Otherwise it belongs to another consumer, or to one of another history. That it is not found here proves nothing:
        -- it may be open in a transaction that is not visible.
        and (i_batch_id = (select reg_dropped from pgq.registration where reg_id = r.reg_id)
             or pgq._find_batch(i_batch_id) = r.reg_id)) is not true
    then
        raise exception using errcode = 'PQ043',
            message = format('what consumer %L has put back or given up of batch %s of queue %L is noted in its target, and has not come here',
                             i_consumer_name, i_batch_id, i_queue_name),
            detail = format('The batch lies between ticks %s and %s, and is not open any more: the consumer was moved, and stands at tick %s. '
                            'Or another database''s queue of this name has a consumer of this name.',
                            coalesce(i_prev_tick_id::text, '?'), i_tick_id, p.pos_last_tick),
            hint = format('To have these events come again, as long as the queue has them: pgqpy consumer rewind %1$I %2$I --target-dsn DSN. '
                          'To go on without them, in the target: select pgq_ext.forget_retries(%2$L, %1$L); before, '
                          'select prg_retries from pgq_ext.progress says which.', i_queue_name, i_consumer_name);
    end if;
    perform pgq._append_position(r.reg_id, p.pos_nr + 1, i_prev_tick_id, i_batch_id, i_tick_id, i_settled => p.pos_settled);
    return true;
end;
$$;
