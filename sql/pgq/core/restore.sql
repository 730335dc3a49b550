-- A dump contains snapshots and transaction ids of the cluster that it was taken from. In a cluster whose own ids are
-- lower, new events would count as delivered long ago. So each tick notes the highest id, and each write compares its
-- own id with it.

create or replace function pgq._is_native_txid()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether this cluster has reached the transaction ids that ticks of this database know. This is cheap for new
-- transactions; a transaction that was open when a tick was made is checked in detail, independently of its snapshot.
declare
    high    bigint := pg_sequence_last_value('pgq.txid_high_seq');
begin
    if high <= txid_current() then
        return true;
    end if;
    begin
        -- an error if the id has not been given out yet
        perform pg_xact_status((high - 1)::text::xid8);
        return true;
    exception when invalid_parameter_value then
        return false;
    end;
end;
$$;

create or replace function pgq._check_native_txid()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Draws the transaction id, and raises PQ009 if the database is from a foreign cluster.
begin
    if txid_current() < pg_sequence_last_value('pgq.txid_high_seq') and not pgq._is_native_txid() then
        raise exception using errcode = 'PQ009',
            message = format('the queues of this database come from a cluster with higher transaction ids '
                             '(ticks up to %s, this cluster is at %s)',
                             pg_sequence_last_value('pgq.txid_high_seq'), txid_current()),
            hint = 'A dump was restored here. Run select pgq.adopt_restored(); once, as pgq_admin, '
                   'before anything is written or read.';
    end if;
end;
$$;

create or replace function pgq.adopt_restored()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adopts the queues of a restored dump into this cluster: renumbers the transaction ids of events and ticks, so that
-- each consumer continues exactly where the dump left it. It keeps the ticks at which consumers are, and the newest
-- tick of each queue. Event ids and tick ids do not change.
-- Returns: number of queues.
-- Errors: PQ011 this cluster has given out too few transaction ids yet
declare
    q       pgq.queue;
    t       record;
    nr      int4;
    n       int4 := 0;
    cur     bigint := txid_current();
    fresh   pgq.tick_0[];
    m       pgq.moved_0;
begin
    -- In one function: each step rewrites what the next one reads.
    perform pgq._require_read_committed('pgq.adopt_restored()');
    perform pg_advisory_xact_lock(pgq._lock_key('slots'));
    lock table pgq.delayed, pgq.event, pgq.tick_0, pgq.tick_1, pgq.position_0, pgq.position_1 in access exclusive mode;

    for q in select * from pgq.queue order by queue_id for update loop
        nr := 0;
        fresh := '{}';
        -- Any ids will do, such as 1, 2, 3, ...: only visibility matters. Events that tick i sees and the tick before
        -- does not see get id i.
        for t in
            select * from pgq.tick_log
             where tick_queue = q.queue_id
               and (tick_id in (select unnest(array[sub_last_tick, sub_next_tick])
                                  from pgq.subscription where sub_queue = q.queue_id)
                    or tick_id = (select max(tick_id) from pgq.tick_log where tick_queue = q.queue_id))
             order by tick_id
        loop
            nr := nr + 1;
            update pgq.event
               set ev_txid = -nr
             where ev_slot >= q.queue_slot0 and ev_slot < q.queue_slot0 + q.queue_ntables
               and ev_txid > 0
               and txid_visible_in_snapshot(ev_txid, t.tick_snapshot);
            t.tick_snapshot := format('%s:%s:', nr + 1, nr + 1)::txid_snapshot;
            fresh := fresh || (t.tick_queue, t.tick_id, t.tick_time, t.tick_snapshot, t.tick_event_seq, false, 0)::pgq.tick_0;
        end loop;
        if nr + 2 > cur then
            raise exception using errcode = 'PQ011',
                message = format('queue %L needs %s transaction ids, this cluster is at %s', q.queue_name, nr + 2, cur),
                hint = 'Use some up (for example: many times select txid_current()), or unregister consumers.';
        end if;

        update pgq.event
           set ev_txid = case when ev_txid < 0 then - ev_txid else nr + 1 end
         where ev_slot >= q.queue_slot0 and ev_slot < q.queue_slot0 + q.queue_ntables;

        delete from pgq.tick_0 where tick_queue = q.queue_id;
        delete from pgq.tick_1 where tick_queue = q.queue_id;
        if pg_sequence_last_value('pgq.tick_log_seq') % 2 = 0 then
            insert into pgq.tick_0 select * from unnest(fresh);
        else
            insert into pgq.tick_1 select * from unnest(fresh);
        end if;

        delete from pgq.late_write where late_queue = q.queue_id;
        -- All positions are older than this, so until the next rotation batches read every table.
        update pgq.queue
           set queue_switch_step1 = cur,
               queue_switch_step2 = cur,
               queue_previous_step2 = cur,
               queue_switch_time = now(),
               queue_horizon_tick = coalesce((select min(tick_id) from pgq.tick_log where tick_queue = q.queue_id), 1)
         where queue_id = q.queue_id;
        perform setval(q.queue_slot_seq, pgq._slot_state(pgq._state_rotations(q.queue_slot_seq), true, pgq._state_slot(q.queue_slot_seq)));
        n := n + 1;
    end loop;

    -- Waiting delayed events stay, as if there had been no pass yet.
    m := pgq._last_move();
    delete from pgq.delayed where pgq._is_moved(due, due_nr, due_txid, m);
    update pgq.delayed set due_txid = 1;
    if pg_sequence_last_value('pgq.moved_log_seq') % 2 = 0 then
        insert into pgq.moved_0 values (m.moved_nr + 1, '-infinity', 0, '1:1:', 0, '{}', '{}');
    else
        insert into pgq.moved_1 values (m.moved_nr + 1, '-infinity', 0, '1:1:', 0, '{}', '{}');
    end if;

    perform pgq._note_cluster();
    perform setval('pgq.txid_high_seq', cur);
    return n;
end;
$$;
