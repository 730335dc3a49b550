-- A tick is nominal if PgQ would make it: after enough events, after enough time, or as the heartbeat of an idle queue.
-- Between nominal ticks the daemon makes early ones, so that no event waits longer than ticker_latency.

create or replace function pgq._make_ticks(
    i_queues int4[], i_early boolean[], i_event_seqs bigint[], i_fences bigint[], i_heartbeats int4[] default '{}')
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ticks queues, all with one snapshot. Each tick of a queue is committed before the next takes its snapshot; otherwise
-- a later tick could see less than an earlier one. So a session that does not get a queue's lock skips the queue.
-- Parameters:
--      i_early         - for each, true if the tick is not nominal
--      i_event_seqs    - for each, its event sequence, read before this transaction had an id
--      i_fences        - for each, an earlier fence if it still holds; null for a new one
--      i_heartbeats    - those of them whose consumers need no notification
-- Returns: the tick ids, without queues that another session is ticking at the moment.
declare
    -- if this transaction has written before, it may insert events too
    writer  constant bigint := txid_current_if_assigned();
    xmax    bigint;
    ticks   bigint[];
begin
    perform pgq._require_read_committed('a tick');
    select array_agg(due.queue_id), array_agg(due.early), array_agg(due.event_seq), array_agg(due.fence)
      into i_queues, i_early, i_event_seqs, i_fences
      from unnest(i_queues, i_early, i_event_seqs, i_fences) due (queue_id, early, event_seq, fence)
     where pg_try_advisory_xact_lock(pgq._lock_key('ticks'), due.queue_id);
    if i_queues is null then
        return '{}';
    end if;
    perform pgq._check_native_txid();

    -- After a crash, or on a promoted standby, the id of a tick that consumers have acted on must not be used again.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    -- A new statement takes the snapshot, so it sees what the previous holders of the locks have committed.
    ticks := pgq._append_ticks(i_queues, null, now(), i_event_seqs, i_early, i_fences, coalesce(i_heartbeats, '{}'), writer);

    xmax := txid_snapshot_xmax(txid_current_snapshot());
    if xmax > pg_sequence_last_value('pgq.txid_high_seq') then
        perform setval('pgq.txid_high_seq', xmax);
    end if;
    perform pgq._unguard_queues(array(select queue_id from unnest(i_queues, i_fences) due (queue_id, fence) where fence is null));
    return ticks;
end;
$$;

create or replace function pgq._due_queues(
    i_queue_name text default null, i_idle boolean default true,
    i_quiet_queues int4[] default null, i_quiet_seqs bigint[] default null,
    out queue_id int4, out queue_name text, out event_seq bigint, out fence bigint,
    out nominal boolean, out early boolean, out quiet boolean, out lag interval, out next_due interval)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Planning takes longer than looking at fifty queues, so plan once per session. A plan made while a log is empty must
-- also be right when it is full: use indexes, never sort.
set plan_cache_mode = force_generic_plan
set enable_sort = off
as $$
-- Returns the queues that need a tick, without those that another transaction is dropping, restricting or opening.
-- Parameters:
--      i_queue_name    - the queue to look at; null for all that make their own ticks
--      i_idle          - false to skip queues that need at most a heartbeat, which is more expensive to determine
--      i_quiet_queues  - queues that were quiet before, which are skipped if they still have
--      i_quiet_seqs    - these event sequences; null to look at all. This decides most queues, at a fifth of the cost
-- Returns:
--      event_seq   - the queue's event sequence
--      fence       - the newest tick's, if there are no new events
--      nominal     - due by the rules of PgQ: with new events, after ticker_max_count events or ticker_max_lag; without
--                    new events, less and less often, up to ticker_idle_period
--      early       - new events have waited for ticker_latency. Events are new if the sequence has moved,
--                    or if a transaction has ended that may have drawn from it before the newest tick
--                    and was running then
--      quiet       - there are no new events, and can be none unless the sequence moves
--      lag         - time since the newest tick
--      next_due    - time until the queue may be due, nominally or early; null if nothing is to be expected
#variable_conflict use_column
declare
    -- Until this transaction ends, no other locks a queue's sequences; or some may: see pgq._announce_lock(2).
    v_all   constant boolean := pg_try_advisory_xact_lock(pgq._lock_key('sequences'), 0);
begin
    -- In one function: it is one statement.
    -- Check this even if no tick is due; it is cheap, since it draws a transaction id only on suspicion.
    if txid_snapshot_xmax(txid_current_snapshot()) < pg_sequence_last_value('pgq.txid_high_seq') then
        perform pgq._check_native_txid();
    end if;

    -- not an SQL function, which would be planned at each call
    return query
    select q.queue_id, q.queue_name, d.event_seq,
           case when d.new_events = 0 then newest.tick_fence end,
           case
               when newest.tick_id is null then true
               when d.new_events <> 0 then
                   nominal.tick_id is null
                   or d.nominal_events < 0
                   or d.nominal_events >= q.queue_ticker_max_count
                   or not d.nominal_lag between interval '0' and q.queue_ticker_max_lag
               else
                   d.lag < interval '0'
                   or before.tick_time is null
                   or (d.lag >= q.queue_ticker_max_lag / 2
                       and (d.lag >= (newest.tick_time - before.tick_time) * 2 or d.lag >= q.queue_ticker_idle_period))
           end,
           coalesce((d.new_events <> 0 or u.ended) and not d.lag between interval '0' and q.queue_ticker_latency, false),
           coalesce(d.new_events = 0 and txid_snapshot_xmin(newest.tick_snapshot) >= newest.tick_fence, false),
           d.lag,
           case
               when d.new_events <> 0 or u.ended then
                   greatest(interval '0', least(q.queue_ticker_latency - d.lag, q.queue_ticker_max_lag - d.nominal_lag))
               when u.ended is not null then
                   -- the longer a transaction has been running, the less it matters
                   greatest(q.queue_ticker_latency, least(d.lag / 8, interval '100 milliseconds'))
           end
      from pgq.queue q
      left join unnest(i_quiet_queues, i_quiet_seqs) known (queue_id, event_seq) on known.queue_id = q.queue_id
     cross join lateral (
           select pgq._event_seq_value(q.queue_event_seq_id) as event_seq) s
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = q.queue_id
              and known.event_seq is distinct from s.event_seq
            order by tick_id desc limit 1) newest on true
      -- only of a queue that is pending
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = q.queue_id
              and not tick_early
              and newest.tick_event_seq <> s.event_seq
            order by tick_id desc limit 1) nominal on true
      -- only of a queue that is idle
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = q.queue_id
              and tick_id < newest.tick_id
              and newest.tick_event_seq = s.event_seq
            order by tick_id desc limit 1) before on true
     cross join lateral (
           select s.event_seq, s.event_seq - newest.tick_event_seq as new_events,
                  s.event_seq - nominal.tick_event_seq as nominal_events,
                  clock_timestamp() - newest.tick_time as lag,
                  clock_timestamp() - nominal.tick_time as nominal_lag) d
      -- null if no transaction is left that the newest tick has to wait for
      left join lateral (
           select bool_or(txid_visible_in_snapshot(x, txid_current_snapshot())) as ended
             from (select txid_snapshot_xip(newest.tick_snapshot)
                   union all
                   select generate_series(txid_snapshot_xmax(newest.tick_snapshot), newest.tick_fence - 1)) running (x)
            where x < newest.tick_fence) u on txid_snapshot_xmin(newest.tick_snapshot) < newest.tick_fence
     where case when i_queue_name is null
                then not q.queue_external_ticker and not q.queue_ticker_paused
                else q.queue_name = i_queue_name end
       and (v_all or pgq._may_read_sequences(q.queue_id, q.queue_event_seq_id))
       and known.event_seq is distinct from s.event_seq
       and (i_idle
            or newest.tick_event_seq = s.event_seq is not true
            or txid_snapshot_xmin(newest.tick_snapshot) < newest.tick_fence);
end;
$$;

create or replace function pgq.ticker_round(
    i_idle boolean default true, i_most_early int4 default null,
    i_quiet_queues int4[] default null, i_quiet_seqs bigint[] default null,
    out ticks int4, out early int4, out fresh int4, out wait interval, out work interval,
    out quiet_queues int4[], out quiet_seqs bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- otherwise the inserts of a round would be planned each time: a fifth of its cost
set plan_cache_mode = force_generic_plan
as $$
-- Ticks all queues that are due, nominally or early. The ticker daemon calls it.
-- Parameters:
--      i_idle          - true to include queues that are due for a heartbeat
--      i_most_early    - maximum number of early ticks to make, for the queues that have waited longest; null for all
--      i_quiet_queues, i_quiet_seqs
--                      - what a round with i_idle returned under these names, for rounds without; or null
-- Returns:
--      ticks   - number of ticks made
--      early   - number of the processed queues that were due early
--      fresh   - number of queues that were due because of new events; the other ticks are heartbeats of idle queues
--      wait    - time until the next call, if nothing else happens; null if no call is needed
--      work    - duration of this call, without the commit
--      quiet_queues, quiet_seqs
--              - queues that need not be looked at until their event sequences move; null without i_idle
-- Errors: PQ009 restored from a foreign cluster, PQ012 not in READ COMMITTED
declare
    started constant timestamptz := clock_timestamp();
    due     record;
begin
    select array_agg(d.queue_id) filter (where d.chosen) as queues,
           array_agg(not d.nominal) filter (where d.chosen) as early,
           array_agg(d.event_seq) filter (where d.chosen) as event_seqs,
           array_agg(d.fence) filter (where d.chosen) as fences,
           array_agg(d.queue_id) filter (where d.chosen and d.next_due is null) as heartbeats,
           count(*) filter (where d.chosen and not d.nominal) as n_early,
           count(d.next_due) filter (where d.chosen) as n_fresh,
           min(d.next_due) filter (where not d.chosen) as wait,
           array_agg(d.queue_id) filter (where d.quiet) as quiet_queues,
           array_agg(d.event_seq) filter (where d.quiet) as quiet_seqs
      into due
      from (select q.*,
                   q.nominal
                   or q.early and row_number() over (partition by q.early and not q.nominal order by q.lag desc)
                                  <= coalesce(i_most_early, 2147483647) as chosen
              from pgq._due_queues(null, i_idle, i_quiet_queues, i_quiet_seqs) q) d;
    ticks := cardinality(pgq._make_ticks(due.queues, due.early, due.event_seqs, due.fences, due.heartbeats));
    early := due.n_early;
    fresh := due.n_fresh;
    wait := due.wait;
    quiet_queues := due.quiet_queues;
    quiet_seqs := due.quiet_seqs;
    work := clock_timestamp() - started;
end;
$$;

create or replace function pgq.ticker()
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ticks all queues that are nominally due. It may be called at any time, also while a ticker leads.
-- Returns: number of ticks made.
-- Errors: PQ009 restored from a foreign cluster, PQ012 not in READ COMMITTED
begin
    -- Only if the ticker that asked to be woken is gone: one that leads still listens.
    if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 and pg_try_advisory_xact_lock_shared(pgq._lock_key('lead'), 1) then
        perform pgq.ticker_awake();
    end if;
    return (select cardinality(pgq._make_ticks(array_agg(d.queue_id), array_agg(false), array_agg(d.event_seq), array_agg(d.fence)))
              from pgq._due_queues() d
             where d.nominal);
end;
$$;

create or replace function pgq.ticker(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ticks one queue, if it is nominally due.
-- Returns: the tick id, or null if the queue is not due.
-- Errors: PQ009 restored from a foreign cluster, PQ012 not in READ COMMITTED, PQ014 ticker is paused, or ticks come
--      from elsewhere
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
    d   record;
begin
    if q.queue_external_ticker or q.queue_ticker_paused then
        raise exception using errcode = 'PQ014',
            message = case when q.queue_external_ticker
                then format('ticks of queue %L come from elsewhere', i_queue_name)
                else format('the ticker is paused for queue %L', i_queue_name) end,
            hint = format('See pgq.set_queue_config(queue, %L, ''false'').',
                          case when q.queue_external_ticker then 'external_ticker' else 'ticker_paused' end);
    end if;
    select * into d from pgq._due_queues(i_queue_name);
    perform pgq._check_native_txid();
    if d.nominal then
        return (pgq._make_ticks(array[q.queue_id], array[false], array[d.event_seq], array[d.fence]))[1];
    end if;
    return null;
end;
$$;

create or replace function pgq.ticker(i_queue_name text, i_tick_id bigint, i_orig_timestamp timestamptz, i_event_seq bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ticks a queue whose ticks come from another queue, of which it is a copy.
-- Parameters:
--      i_tick_id           - id of the tick in the other queue
--      i_orig_timestamp    - time of the tick in the other queue
--      i_event_seq         - event sequence of the tick in the other queue
-- Returns: i_tick_id
-- Errors: PQ011 tick ids do not ascend, PQ014 queue does not exist, is paused, or makes its own ticks
declare
    q       pgq.queue;
    newest  bigint;
begin
    perform pgq._require_read_committed('a tick');
    select * into q
      from pgq.queue
     where queue_name = i_queue_name
       and queue_external_ticker
       and not queue_ticker_paused;
    if not found then
        raise exception using errcode = 'PQ014',
            message = format('queue %s does not exist or takes no ticks from elsewhere', coalesce(quote_literal(i_queue_name), 'NULL')),
            hint = 'Only a queue with external_ticker set, and not paused, takes ticks from elsewhere.';
    end if;
    perform pg_advisory_xact_lock(pgq._lock_key('ticks'), q.queue_id);
    perform pgq._check_native_txid();
    newest := (pgq._last_tick(q.queue_id)).tick_id;
    if i_tick_id is null or i_tick_id <= newest then
        raise exception using errcode = 'PQ011',
            message = format('tick %s of queue %L does not come after tick %s', coalesce(i_tick_id::text, 'NULL'), i_queue_name, newest),
            hint = 'Tick ids must ascend.';
    end if;
    perform pgq._append_ticks(array[q.queue_id], array[i_tick_id], coalesce(i_orig_timestamp, now()),
                              array[i_event_seq], array[false], array[0], i_writer => txid_current());
    perform pgq.seq_setval(q.queue_tick_seq, i_tick_id);
    perform setval(q.queue_event_seq_id, i_event_seq)
      where i_event_seq > greatest(pgq._event_seq_value(q.queue_event_seq_id), 1);
    return i_tick_id;
end;
$$;

create or replace function pgq.force_tick(i_queue_name text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Forces a tick of this queue with the next call of the ticker, by moving the event sequence so far that the queue
-- looks full. Call the ticker afterwards, in a later transaction than the inserts.
-- Returns: the newest tick now, for waiting until there is a newer one; null if there is no such queue.
declare
    q       pgq.queue;
    numbers bigint;
begin
    select * into q from pgq.queue where queue_name = i_queue_name;
    -- It may have been dropped since.
    if not found or pg_relation_size(q.queue_event_seq_id) is null then
        return null;
    end if;
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{consume,insert,read}', null);
    end if;
    if not q.queue_external_ticker and not q.queue_ticker_paused then
        numbers := q.queue_ticker_max_count * 2::bigint + 1000;
        insert into pgq.forced_tick
        values (q.queue_id, setval(q.queue_event_seq_id, nextval(q.queue_event_seq_id) + numbers), numbers + 1)
        on conflict do nothing;
        if pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
            perform pg_notify('pgq_wake', '');
        end if;
    end if;
    return (pgq._last_tick(q.queue_id)).tick_id;
end;
$$;

create or replace function pgq.ticker_sleep()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Asks producers to wake the ticker: from now on each insert notifies the channel pgq_wake. LISTEN first. If prepared
-- transactions are enabled, producers must not notify, since a transaction that has notified cannot be prepared.
-- Returns: true if the ticker may sleep; false if it has to poll, or events have arrived meanwhile.
begin
    if current_setting('max_prepared_transactions')::int4 > 0 then
        return false;
    end if;
    -- A sleeping ticker calls this repeatedly; only the first call writes.
    if pg_sequence_last_value('pgq.ticker_sleep_seq') <> 2 then
        perform setval('pgq.ticker_sleep_seq', 2);
    end if;
    -- An event that was not guarded has drawn its id before: look once more. Heartbeats can wait.
    if not pgq._guard_queues() or exists (select from pgq._due_queues(null, false) due where due.nominal or due.early) then
        perform pgq.ticker_awake();
        return false;
    end if;
    return true;
end;
$$;

create or replace function pgq.ticker_awake()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends pgq.ticker_sleep(): producers no longer need to wake the ticker.
begin
    if pg_sequence_last_value('pgq.ticker_sleep_seq') <> 1 then
        perform setval('pgq.ticker_sleep_seq', 1);
    end if;
end;
$$;
