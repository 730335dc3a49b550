-- One sequence per queue, pgq_slots.<queue>, says where producers write. Sequences are independent of snapshots: a
-- producer in REPEATABLE READ learns from it which table is current now. Its value, from the highest bit:
--
--      rotations   how often the queue has been rotated
--      12 bits     tag of the cluster, 1 to 4095; another one where a dump of it is restored
--      1 bit       the queue is guarded
--      18 bits     ev_slot of the current table
--
-- A producer takes the lower 31 bits, subtracts the tag, and inserts at that slot without further checks. With another
-- cluster's tag, or if the queue is guarded, the result is not a slot of any table, and tuple routing hands the event
-- to the trigger pgq._insert_guarded(0), which makes all checks.
--
-- A session must hold an advisory lock, pgq._lock_slots(0), to change a state that others may change too.

create or replace function pgq._cluster_tag()
returns int4
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the tag of states in this cluster, at its bit position. If the states were made in another cluster, this is
-- the tag that they will get. It is declared immutable, so that it is a constant in producers' plans: it does not
-- change during a session.
begin
    return coalesce((select case when c.cluster_identifier = s.system_identifier and c.cluster_table = 'pgq.cluster'::regclass
                            then c.cluster_tag else c.cluster_tag % 4095 + 1 end
                       from pgq.cluster c
                      cross join pg_control_system() s), 1) << 19;
end;
$$;

create or replace function pgq._note_cluster()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes this cluster as the one in which states are made, after it is clear that its transaction ids are those that
-- ticks know. States with another tag stay guarded until pgq._unguard_queues(1).
-- Returns: false if it was noted before.
begin
    insert into pgq.cluster as c (cluster_identifier, cluster_table, cluster_tag)
    select system_identifier, 'pgq.cluster'::regclass, pgq._cluster_tag() >> 19
      from pg_control_system()
    on conflict (cluster_is_one) do update
       set cluster_identifier = excluded.cluster_identifier,
           cluster_table = excluded.cluster_table,
           cluster_tag = excluded.cluster_tag,
           cluster_txid = excluded.cluster_txid
     where c.cluster_identifier <> excluded.cluster_identifier
        or c.cluster_table <> excluded.cluster_table;
    return found;
end;
$$;

create or replace function pgq._slot_state(i_rotations bigint, i_guarded boolean, i_slot int4)
returns bigint
language sql immutable
as $$
-- Returns the state with these parts.
    select (i_rotations << 31) + pgq._cluster_tag() + (case when i_guarded then 262144 else 0 end) + i_slot;
$$;

create or replace function pgq._state_rotations(i_slot_seq regclass)
returns bigint
language sql
as $$
-- Returns the number of rotations of the queue, independently of the snapshot.
    select pg_catalog.pg_sequence_last_value(i_slot_seq) operator(pg_catalog.>>) 31;
$$;

create or replace function pgq._state_slot(i_slot_seq regclass)
returns int4
language sql
as $$
-- Returns the current ev_slot, for callers that have made all checks.
    select pg_catalog.int4(pg_catalog.pg_sequence_last_value(i_slot_seq) operator(pg_catalog.&) 262143);
$$;

create or replace function pgq._state_guarded(i_slot_seq regclass)
returns boolean
language sql
as $$
-- Returns whether the queue is guarded.
    select pg_catalog.int8and(pg_catalog.pg_sequence_last_value(i_slot_seq), 262144) operator(pg_catalog.<>) 0;
$$;

create or replace function pgq._lock_slots()
returns boolean
language sql
as $$
-- Acquires the right to change slot states, until the end of the transaction. Returns false at once if another session
-- has it.
    select pg_catalog.pg_try_advisory_xact_lock(pgq._lock_key('slots'));
$$;

create or replace function pgq._guard_queue()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger of pgq.queue: a setting that inserts must obey takes effect with its commit, so the queue is guarded before
-- that. It stays guarded until pgq._unguard_queues(1) sees the committed setting.
begin
    if old.queue_disable_insert and not new.queue_disable_insert then
        perform pgq._require_writable(new.queue_name);
    end if;
    perform pg_advisory_xact_lock(pgq._lock_key('slots'));
    perform setval(new.queue_slot_seq, pg_sequence_last_value(new.queue_slot_seq) | 262144);
    return null;
end;
$$;

create or replace trigger guard_queue
    after update of queue_name, queue_disable_insert, queue_per_tx_limit on pgq.queue
    for each row execute function pgq._guard_queue();

create or replace function pgq._guard_queues()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Guards all queues.
-- Returns: false if that is not possible now.
begin
    -- The second lock is that of pgq.create_queue(1), whose queue is not visible yet.
    if not (pgq._lock_slots() and pg_try_advisory_xact_lock_shared(pgq._lock_key('create queue'))
            and pg_try_advisory_xact_lock(pgq._lock_key('sequences'), 0))
    then
        return false;
    end if;
    -- (Reading the event sequence locks it before the other one, in the order of pgq.drop_queue(2).)
    perform setval(queue_slot_seq, pg_sequence_last_value(queue_slot_seq) | 262144)
       from pgq.queue
      where case when pgq._event_seq_value(queue_event_seq_id) is not null
                 then pg_sequence_last_value(queue_slot_seq) & 262144 end = 0;
    return true;
end;
$$;

create or replace function pgq._unguard_queues(i_queues int4[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets producers insert without further checks if none are needed. Call it after pgq._check_native_txid(0), and not
-- while the ticker sleeps.
declare
    -- the state's lower 31 bits without the slot
    marks   constant bigint := 2147221504;
begin
    if not exists (select from pgq.queue
                    -- the queue first: others may be locked, see pgq._announce_lock(2)
                    where case when queue_id = any (i_queues)
                               then pg_sequence_last_value(queue_slot_seq) & marks <> pgq._cluster_tag() end)
       or not pgq._lock_slots()
    then
        return;
    end if;
    -- A state with the tag remains if this transaction rolls back, and a dump must not contain a tagged state without
    -- the cluster: so note the cluster first, and change the states with the next tick.
    perform from pgq.cluster where cluster_txid <> txid_current() for no key update skip locked;
    if not found or pgq._note_cluster() then
        return;
    end if;
    -- a statement of its own, so that it sees what was committed before this session got the lock
    perform setval(queue_slot_seq, (pg_sequence_last_value(queue_slot_seq) & ~ marks) | pgq._cluster_tag())
       from pgq.queue
      where not queue_disable_insert
        and queue_per_tx_limit is null
        and pg_sequence_last_value('pgq.ticker_sleep_seq') = 1
        and case when queue_id = any (i_queues)
                 then pg_sequence_last_value(queue_slot_seq) & marks <> pgq._cluster_tag() end;
end;
$$;
