create or replace function pgq._delayed_is_due(i_move pgq.moved_0)
returns boolean
language plpgsql
as $$
-- Whether there may be something for a pass to copy.
begin
    return pg_catalog.cardinality(i_move.held_due_nr) > 0
        or exists (select from pgq.delayed
                    where (due, due_nr) > (i_move.moved_due, i_move.moved_due_nr)
                      and due <= pg_catalog.clock_timestamp())
        or exists (select from pgq.delayed
                    where due_txid = any (pgq._ended_between(i_move.moved_snapshot, pg_catalog.txid_current_snapshot()))
                      and (due, due_nr) <= (i_move.moved_due, i_move.moved_due_nr))
        or exists (select from pgq.delayed
                    where due_txid >= pg_catalog.txid_snapshot_xmax(i_move.moved_snapshot)
                      and due_txid < i_move.moved_fence
                      and (due, due_nr) <= (i_move.moved_due, i_move.moved_due_nr));
end;
$$;

create or replace function pgq._ended_between(i_before txid_snapshot, i_after txid_snapshot)
returns bigint[]
language plpgsql immutable
as $$
-- Returns the transactions that were running in one snapshot and are not in a later one.
begin
    return array(select pg_catalog.txid_snapshot_xip(i_before) except select pg_catalog.txid_snapshot_xip(i_after));
end;
$$;

create or replace function pgq._future_txid()
returns bigint
language plpgsql
as $$
-- Returns a transaction id that no transaction has yet, close to the newest one. (A snapshot knows less: it ends behind
-- the newest transaction that has ended.)
declare
    own constant bigint := pg_catalog.txid_current();
    n   bigint := 1;
begin
    loop
        -- an error if the id has not been given out yet
        perform pg_catalog.pg_xact_status((own + n)::text::xid8);
        n := 2 * n;
    end loop;
exception when invalid_parameter_value then
    return own + n;
end;
$$;

create or replace function pgq.maint_delayed_events(out moved int4, out next_due interval)
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- A plan made while the tables are small must also be right when they are large: use indexes. Planning a dozen tables
-- takes longer than reading them. (The cost of disabled nodes would make PostgreSQL compile the plan.)
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
-- Copies due events into their queues: events inserted with a time, and retries. It copies at most 5000 per call, plus
-- the events of late transactions: each of these is copied as a whole. Call it again after next_due.
-- Returns:
--      moved       - number of events; also 0 if another session is copying
--      next_due    - time until the next committed event is due; null if there is none
-- Errors: PQ009 restored from a foreign cluster, PQ012 not in READ COMMITTED, PQ053 in a transaction that has delayed
--      events itself
declare
    most        constant int4 := 5000;
    m           pgq.moved_0;
    until       timestamptz;
    until_nr    bigint := 9223372036854775807;
    last        record;
    snapshot    txid_snapshot;
    fence       bigint;
    ended       bigint[];
    ended_from  bigint;
    held_due    timestamptz[];
    held_nr     bigint[];
    queues      int4[];
    v_all       boolean;
begin
    -- In one function: each step relies on what was published or read before it.
    perform pgq._require_read_committed('moving delayed events');
    if txid_snapshot_xmax(txid_current_snapshot()) < pg_sequence_last_value('pgq.txid_high_seq') then
        perform pgq._check_native_txid();
    end if;
    moved := 0;
    m := pgq._last_move();
    if pgq._delayed_is_due(m) then
        if not pg_try_advisory_xact_lock(pgq._lock_key('delayed events')) then
            next_due := interval '100 milliseconds';
            return;
        end if;
        perform pgq._check_native_txid();  -- draws the transaction id, before the current tables are looked up
        if exists (select from pgq.delayed where due_txid = txid_current()) then
            raise exception using errcode = 'PQ053',
                message = 'delayed events must not be moved in the transaction that has inserted them',
                hint = 'Commit first.';
        end if;
        m := pgq._last_move();  -- the previous holder of the lock has committed

        -- First publish the time limit, then look; see the top of delayed.sql.
        until := clock_timestamp();
        if (extract(epoch from until) * 1000000)::bigint > pg_sequence_last_value('pgq.delayed_until_seq') is not false then
            perform setval('pgq.delayed_until_seq', (extract(epoch from until) * 1000000)::bigint);
        end if;
        until := greatest(until, m.moved_due);
        snapshot := txid_current_snapshot();
        fence := pgq._future_txid();
        ended := pgq._ended_between(m.moved_snapshot, snapshot);
        ended_from := txid_snapshot_xmax(m.moved_snapshot);
        -- the end of a full piece
        select due, due_nr into last
          from pgq.delayed
         where (due, due_nr) > (m.moved_due, m.moved_due_nr)
           and due <= until
         order by due, due_nr
        offset most - 1 limit 1;
        if found then
            until := last.due;
            until_nr := last.due_nr;
        end if;

        -- Until this transaction ends, no other locks relations of queues; or some may: see pgq._announce_lock(2).
        v_all := pg_try_advisory_xact_lock(pgq._lock_key('sequences'), 0);
        perform setval('pgq.moving_seq', txid_current());  -- for pgq._check_contract(0)
        begin
            -- An event that is being cancelled is locked, and so may its queue be. Hold it back until that transaction has
            -- ended.
            -- Those that an earlier pass has held back are looked up one by one: a transaction may lock any number.
            with fresh as materialized (
                select d.*
                  from pgq.delayed d
                 where ((d.due, d.due_nr) > (m.moved_due, m.moved_due_nr) and (d.due, d.due_nr) <= (until, until_nr)
                        or (d.due_txid = any (ended) or d.due_txid >= ended_from and d.due_txid < m.moved_fence)
                           and (d.due, d.due_nr) <= (m.moved_due, m.moved_due_nr))
                   and txid_visible_in_snapshot(d.due_txid, snapshot)
                   and (v_all or pg_try_advisory_xact_lock_shared(pgq._lock_key('sequences'), d.ev_queue)
                                 and pg_try_advisory_xact_lock_shared(pgq._lock_key('event tables'), d.ev_queue))
                   for key share skip locked),
            again as materialized (
                select d.*
                  from unnest(m.held_due, m.held_due_nr) h (due, due_nr)
                  join pgq.delayed d on (d.due, d.due_nr) = (h.due, h.due_nr)
                 where v_all or pg_try_advisory_xact_lock_shared(pgq._lock_key('sequences'), d.ev_queue)
                                and pg_try_advisory_xact_lock_shared(pgq._lock_key('event tables'), d.ev_queue)
                   for key share of d skip locked),
            taken as not materialized (
                select * from fresh
                union all
                select * from again),
            held as (
                select array_agg(due) as due, array_agg(due_nr) as due_nr
                  from ((select d.due, d.due_nr
                           from pgq.delayed d
                          where ((d.due, d.due_nr) > (m.moved_due, m.moved_due_nr) and (d.due, d.due_nr) <= (until, until_nr)
                                 or (d.due_txid = any (ended) or d.due_txid >= ended_from and d.due_txid < m.moved_fence)
                                    and (d.due, d.due_nr) <= (m.moved_due, m.moved_due_nr))
                            and txid_visible_in_snapshot(d.due_txid, snapshot)
                         union all
                         select d.due, d.due_nr
                           from unnest(m.held_due, m.held_due_nr) h (due, due_nr)
                           join pgq.delayed d on (d.due, d.due_nr) = (h.due, h.due_nr))
                        except
                        select due, due_nr from taken) locked),
            target as materialized (
                select queue_id, pgq._state_slot(queue_slot_seq) as ev_slot
                  from pgq.queue
                 where queue_id in (select ev_queue from taken)
                   and (v_all or pg_relation_size(queue_slot_seq) is not null)),
            -- The queues of the other events were dropped, or their consumers unregistered.
            copied as (
                insert into pgq.event (ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data,
                                       ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
                select d.ev_id, d.ev_time, d.ev_owner, d.ev_retry, d.ev_type, d.ev_data,
                       d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4, t.ev_slot
                  from taken d
                  join target t on t.queue_id = d.ev_queue
                 where d.ev_owner is null or exists (select from pgq.registration where sub_id = d.ev_owner)
                 order by t.ev_slot, d.ev_id
                returning ev_slot)
            select (select count(*) from copied), coalesce(held.due, '{}'), coalesce(held.due_nr, '{}'),
                   array(select t.queue_id from target t where t.ev_slot in (select ev_slot from copied))
              into moved, held_due, held_nr, queues
              from held;
        exception when others or query_canceled or assert_failure then
            perform setval('pgq.moving_seq', 0);  -- the transaction may go on after a savepoint
            raise;
        end;
        perform setval('pgq.moving_seq', 0);

        if pg_sequence_last_value('pgq.moved_log_seq') % 2 = 0 then
            insert into pgq.moved_0 values (m.moved_nr + 1, until, until_nr, snapshot, fence, held_due, held_nr);
        else
            insert into pgq.moved_1 values (m.moved_nr + 1, until, until_nr, snapshot, fence, held_due, held_nr);
        end if;
        -- Events keep their ids. The sequence still has to move, so that a tick becomes due.
        perform nextval(queue_event_seq_id) from pgq.queue where queue_id = any (queues);
        if moved > 0 and pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
            perform pg_notify('pgq_wake', '');
        end if;
        m := row(m.moved_nr, until, until_nr, snapshot, fence, held_due, held_nr);
    end if;

    select greatest(due - clock_timestamp(), interval '0') into next_due
      from pgq.delayed
     where (due, due_nr) > (m.moved_due, m.moved_due_nr)
       and due < 'infinity'
     order by due, due_nr
     limit 1;
end;
$$;

create or replace function pgq.maint_rotate_delayed()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
-- Keeps the tables of delayed events small. Of the two tables for each range of delays it truncates the one that is not
-- being filled, if all its events were delivered, and switches to it when the other one has grown. It never waits for a
-- lock; the next call tries again what is not possible now.
-- Returns: number of tables truncated.
-- Errors: PQ012 not in READ COMMITTED
declare
    parity  bigint;
    m       pgq.moved_0;
    other   text;
    needed  boolean;
    n       int4 := 0;
begin
    perform pgq._require_read_committed('rotation');
    if not pg_try_advisory_xact_lock(pgq._lock_key('delayed events')) then
        return 0;
    end if;
    parity := pg_sequence_last_value('pgq.delayed_parity_seq');
    m := pgq._last_move();
    for range in 0 .. 5 loop
        other := 'pgq.delayed_' || 2 * range + 1 - ((parity >> range) & 1);
        if pg_relation_size(other) > 0 then
            continue when not pgq._try_lock_table(other);
            -- No session writes into it now. Is there a row in it that was not copied yet?
            execute format(
                'select exists (select from %1$s where (due, due_nr) > ($1.moved_due, $1.moved_due_nr))'
                ' or exists (select from %1$s where due_txid >= txid_snapshot_xmax($1.moved_snapshot))'
                ' or exists (select from %1$s where due_txid = any (array(select txid_snapshot_xip($1.moved_snapshot))))'
                ' or exists (select from unnest($1.held_due, $1.held_due_nr) h (due, due_nr) join %1$s using (due, due_nr))', other)
               into needed using m;
            continue when needed;
            execute format('truncate only %s', other);
            n := n + 1;
        end if;
        if pg_table_size('pgq.delayed_' || 2 * range + ((parity >> range) & 1)) > pgq._delayed_rotate_bytes() then
            parity := parity # (1 << range);
            perform setval('pgq.delayed_parity_seq', parity);
        end if;
    end loop;
    return n;
end;
$$;

create or replace function pgq._delayed_rotate_bytes()
returns bigint
language sql
as $$
-- Returns the size that a table of delayed events may reach before the other one is filled: the limit of the log of
-- moves.
    select coalesce((select log_rotate_bytes from pgq.log where log_name = 'moved'), 8388608);
$$;
