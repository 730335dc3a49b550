-- Exact copies of a queue in other databases (cascaded queues): ticks keep their ids, and a batch between two ticks has
-- the events that it has at the origin.
--
-- A copy is written by one session at a time, many ticks in one transaction. Each tick needs a snapshot that sees the
-- events up to it and none of the next one, so each has a transaction id of its own: the first that of the transaction,
-- the others those of subtransactions. The writer stores them in ev_txid. All this is as if the ticks had been copied
-- in transactions of their own, which would take five times as long.

create or replace function pgq.next_ticks(
    i_queue_name text, i_after_tick bigint, i_max_ticks int4, i_max_events int4,
    out tick_id bigint, out tick_time timestamptz, out tick_event_seq bigint, out tick_early boolean, out batch_sql text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the next ticks of a queue, for a program that copies it.
-- Parameters:
--      i_after_tick    - the last tick that the copy has
--      i_max_ticks     - maximum number of ticks
--      i_max_events    - approximate maximum number of events, but at least one tick
-- Returns: the ticks, in order, each with the query of the events between it and the tick before, without the retries
--      of consumers.
-- Errors: PQ001 no such queue, PQ008 tick is not available any more
declare
    q       pgq.queue := pgq._find_queue(i_queue_name);
    prev    pgq.tick_0;
    cur     pgq.tick_0;
    seq     bigint;
    ticks   int4 := 0;
begin
    -- Usually there is none.
    if (pgq._last_tick(q.queue_id)).tick_id <= i_after_tick then
        return;
    end if;
    -- The log must not move on between the snapshot of the next statement and its reading of both tables.
    lock table pgq.tick_0, pgq.tick_1 in access share mode;
    select * into q from pgq.queue where queue_id = q.queue_id;
    prev := pgq._get_tick(q.queue_id, i_after_tick);
    if prev.tick_id is null or prev.tick_id < q.queue_horizon_tick then
        perform pgq._raise_tick_not_found(i_queue_name, i_after_tick);
    end if;
    seq := prev.tick_event_seq;
    for cur in
        select t.*
          from pgq.tick_log t
         where t.tick_queue = q.queue_id
           and t.tick_id > i_after_tick
         order by t.tick_id
         limit i_max_ticks
    loop
        exit when ticks > 0 and cur.tick_event_seq > seq + i_max_events;
        ticks := ticks + 1;
        tick_id := cur.tick_id;
        tick_time := cur.tick_time;
        tick_event_seq := cur.tick_event_seq;
        tick_early := cur.tick_early;
        batch_sql := pgq._range_sql(q, prev, cur, null);
        return next;
        prev := cur;
    end loop;
end;
$$;

create or replace function pgq.copy_ticks(
    i_queue_name text, i_ticks bigint[], i_times timestamptz[], i_event_seqs bigint[], i_early boolean[],
    out event_table text, out txids bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Stores the ticks of a copied queue, and prepares the copy of their events in the same transaction: COPY into the table
-- with ev_txid as returned, ev_id, ev_time, ev_retry and the rest as they are. Until the transaction ends, the queue is
-- not rotated, and no other session copies into it.
-- Parameters:
--      i_ticks         - the ticks' ids, ascending, at most 60
--      i_times, i_event_seqs, i_early
--                      - their times and event sequences, and whether they are early ticks
-- Returns:
--      event_table     - the table for the events
--      txids           - for each tick, the ev_txid of its events
-- Errors: PQ001 no such queue, PQ011 tick ids do not ascend, PQ012 not in READ COMMITTED, PQ014 the queue makes its own
--      ticks
declare
    me      constant bigint := txid_current();
    q       pgq.queue;
    newest  bigint;
    log     int4;
    seen    txid_snapshot;
    n       constant int4 := cardinality(i_ticks);
    x       bigint := me;
begin
    perform pgq._require_read_committed('a tick');
    perform pgq._require_equal_lengths('pgq.copy_ticks', n, cardinality(i_times), cardinality(i_event_seqs), cardinality(i_early));
    q := pgq._keep_queue(i_queue_name);
    if not q.queue_external_ticker or q.queue_ticker_paused then
        raise exception using errcode = 'PQ014',
            message = format('queue %L takes no ticks from elsewhere', i_queue_name),
            hint = 'Only a queue with external_ticker set, and not paused, takes ticks from elsewhere.';
    end if;
    perform pg_advisory_xact_lock(pgq._lock_key('ticks'), q.queue_id);
    perform pgq._check_native_txid();
    newest := (pgq._last_tick(q.queue_id)).tick_id;
    if n > 60 or exists (select from unnest(array[newest] || i_ticks) with ordinality a (id, nr)
                           join unnest(i_ticks) with ordinality b (id, nr) using (nr)
                          where (b.id > a.id) is not true)
    then
        raise exception using errcode = 'PQ011',
            message = format('ticks %s of queue %L do not ascend from tick %s, or are more than 60', i_ticks, i_queue_name, newest),
            hint = 'Tick ids must ascend: does another worker copy this queue?';
    end if;

    -- Inserts are disabled; see pgq._write_target().
    perform set_config('pgqpy.copies_into', i_queue_name, true);
    event_table := q.queue_data_pfx || '_' || pgq._state_slot(q.queue_slot_seq) - q.queue_slot0;
    log := pgq._lock_tick_log();
    seen := txid_current_snapshot();
    for i in 1 .. n loop
        txids := txids || x;
        if i = n then
            perform pgq._append_copied_tick(log, q.queue_id, i_ticks[i], i_times[i], i_event_seqs[i], i_early[i],
                                             pgq._snapshot_with(seen, txids));
        else
            begin
                x := pgq._append_copied_tick(log, q.queue_id, i_ticks[i], i_times[i], i_event_seqs[i], i_early[i],
                                              pgq._snapshot_with(seen, txids));
            exception when division_by_zero then
                -- The handler makes the block a subtransaction; there is no such error.
                raise;
            end;
        end if;
    end loop;
    perform pg_notify('pgq_tick_' || q.queue_id, i_ticks[n]::text);
    perform pgq.seq_setval(q.queue_tick_seq, i_ticks[n]);
    perform setval(q.queue_event_seq_id, i_event_seqs[n])
      where i_event_seqs[n] > greatest(pgq._event_seq_value(q.queue_event_seq_id), 1);
end;
$$;

create or replace function pgq._append_copied_tick(
    i_log int4, i_queue_id int4, i_tick_id bigint, i_time timestamptz, i_event_seq bigint, i_early boolean, i_snapshot txid_snapshot)
returns bigint
language plpgsql
as $$
-- Stores a tick in the table of the log that pgq._lock_tick_log() names.
-- Returns: the id of the subtransaction that stored it.
declare
    epoch   constant bigint := 1::bigint << 32;
    me      constant bigint := pg_catalog.txid_current();
    stored  bigint;
begin
    if i_log = 0 then
        insert into pgq.tick_0 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early)
        values (i_queue_id, i_tick_id, i_time, i_snapshot, i_event_seq, i_early)
        returning xmin::text::bigint into stored;
    else
        insert into pgq.tick_1 (tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early)
        values (i_queue_id, i_tick_id, i_time, i_snapshot, i_event_seq, i_early)
        returning xmin::text::bigint into stored;
    end if;
    -- The row has the lower 32 bits.
    stored := me / epoch * epoch + stored;
    return stored + case when stored < me then epoch else 0 end;
end;
$$;

create or replace function pgq._snapshot_with(i_seen txid_snapshot, i_mine bigint[])
returns txid_snapshot
language plpgsql immutable
as $$
-- Returns a snapshot that also sees some ids of this transaction, ascending. All others from its xmax on count as
-- running, whether or not they have ended since.
declare
    newest  constant bigint := i_mine[pg_catalog.cardinality(i_mine)];
    xmax    constant bigint := pg_catalog.txid_snapshot_xmax(i_seen);
    running bigint[];
begin
    -- Both come in order; a sort would cost more than the rest.
    running := array(select x from pg_catalog.txid_snapshot_xip(i_seen) x where x <> all (i_mine))
        || array(select x from pg_catalog.generate_series(xmax, newest) x where x <> all (i_mine));
    return pg_catalog.format('%s:%s:%s', coalesce(running[1], greatest(xmax, newest + 1)), greatest(xmax, newest + 1),
                             pg_catalog.array_to_string(running, ','));
end;
$$;
