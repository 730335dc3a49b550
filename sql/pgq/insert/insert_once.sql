-- Keys of events to be inserted once. A queue with a key_window has two tables for keys, pgq.event_key_<queue>_<0|1>,
-- filled in turn and emptied by TRUNCATE: a key stays for at least one window, and at most two. The sequence
-- pgq.event_key_<queue>_seq counts the turns, independently of snapshots.
--
-- Uncommitted keys are in the current table only, where the unique index finds them: a session that writes locks the
-- table first, then checks that it is still the current one, and the turn takes a lock that waits for all writers.

create or replace function pgq._set_event_keys(i_queue_name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates or drops a queue's tables for keys, depending on its key_window.
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_name = i_queue_name for no key update;
    if q.queue_key_window is null then
        perform pgq._drop_event_keys(q);
        update pgq.queue set queue_key_switch_time = null, queue_key_rotations = 0 where queue_id = q.queue_id;
        return;
    end if;
    if q.queue_key_switch_time is not null then
        return;
    end if;
    for n in 0 .. 1 loop
        execute format('create table pgq.event_key_%s_%s (ev_key text primary key, ev_id bigint not null) '
                       'with (fillfactor = 100, autovacuum_enabled = off)', q.queue_id, n);
    end loop;
    execute format('create sequence pgq.event_key_%s_seq minvalue 0', q.queue_id);
    perform setval(format('pgq.event_key_%s_seq', q.queue_id), 0);
    update pgq.queue set queue_key_switch_time = now() where queue_id = q.queue_id;
end;
$$;

create or replace function pgq._drop_event_keys(q pgq.queue)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops a queue's tables for keys, if it has any.
begin
    if q.queue_key_switch_time is not null then
        execute format('drop table pgq.event_key_%1$s_0, pgq.event_key_%1$s_1 cascade', q.queue_id);
        execute format('drop sequence pgq.event_key_%s_seq cascade', q.queue_id);
    end if;
end;
$$;

create or replace function pgq._lock_event_keys(
    i_queue_name text, i_keys text[],
    out event_seq regclass, out cur text, out other text)
language plpgsql
as $$
-- Checks keys, and locks the table for new ones. It draws the transaction id, which must be drawn before event ids.
-- Returns:
--      event_seq   - the queue's sequence for ev_id
--      cur         - the table for new keys
--      other       - the table with the previous keys
declare
    q       constant pgq.queue := pgq._find_queue_for(i_queue_name, 'insert');
    bad     text;
    seq     regclass;
    turn    bigint;
begin
    if q.queue_key_window is null then
        raise exception using errcode = 'PQ051',
            message = pg_catalog.format('queue %L takes no keys', i_queue_name),
            hint = pg_catalog.format('Say for how long they shall be remembered: '
                                     'select pgq.set_queue_config(%L, ''key_window'', ''1 day'').', i_queue_name);
    end if;
    select k into bad from pg_catalog.unnest(i_keys) k where pg_catalog.octet_length(k) not between 1 and 1000 limit 1;
    if found then
        raise exception using errcode = 'PQ052',
            message = 'invalid key of an event: ' || case when bad = '' then 'it is empty'
                else pg_catalog.format('%s bytes are too long', pg_catalog.octet_length(bad)) end,
            hint = 'A key has 1 to 1000 bytes, of any characters; an event without one has NULL.';
    end if;

    perform pgq._check_native_txid();
    seq := pg_catalog.to_regclass('pgq.event_key_' || q.queue_id || '_seq');
    if pg_catalog.pg_relation_size(seq) is null then
        -- The queue was dropped since, or has forgotten its keys.
        if not pgq._is_read_committed() then
            perform pgq._raise_stale_snapshot();
        end if;
        select * into event_seq, cur, other from pgq._lock_event_keys(i_queue_name, i_keys);
        return;
    end if;
    loop
        turn := pg_catalog.pg_sequence_last_value(seq);
        cur := pg_catalog.concat('pgq.event_key_', q.queue_id, '_', turn % 2);
        execute 'lock table ' || cur || ' in row exclusive mode';
        exit when turn = pg_catalog.pg_sequence_last_value(seq);
    end loop;
    if not pgq._is_read_committed() and turn <> q.queue_key_rotations then
        perform pgq._raise_stale_snapshot();
    end if;
    event_seq := q.queue_event_seq_id;
    other := pg_catalog.concat('pgq.event_key_', q.queue_id, '_', (turn + 1) % 2);
end;
$$;

create or replace function pgq._claim_event_key(i_queue_name text, i_key text, out id bigint, out fresh boolean)
language plpgsql
as $$
-- Remembers the key of one event that is about to be inserted; see pgq._claim_event_keys(2).
declare
    t   record;
begin
    select * into t from pgq._lock_event_keys(i_queue_name, array[i_key]);
    if i_key is null then
        id := pg_catalog.nextval(t.event_seq);
        fresh := true;
        return;
    end if;
    -- Try twice: the second time the key of the transaction that this one has waited for is visible.
    for attempt in 1..2 loop
        execute pg_catalog.format('select ev_id from %s where ev_key = $1 union all select ev_id from %s where ev_key = $1',
                                  t.cur, t.other)
           into id using i_key;
        fresh := id is null;
        exit when not fresh;
        execute pg_catalog.format('insert into %s (ev_key, ev_id) values ($1, pg_catalog.nextval($2)) '
                                  'on conflict do nothing returning ev_id', t.cur)
           into id using i_key, t.event_seq;
        exit when id is not null;
    end loop;
end;
$$;

create or replace function pgq._claim_event_keys(i_queue_name text, i_keys text[], out ids bigint[], out fresh boolean[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers keys for events that are about to be inserted. If two transactions use the same key, the second waits for
-- the end of the first.
-- Parameters:
--      i_keys          - one for each event; null for an event without a key
-- Returns:
--      ids     - for each, the id of the event that has the key
--      fresh   - for each, true if the event has to be inserted
declare
    t       record;
    claimed bigint[];
    keyless bigint[];
begin
    select * into t from pgq._lock_event_keys(i_queue_name, i_keys);
    -- Ids in the order of the events; keys in the same order in all sessions, to avoid deadlocks.
    execute format($sql$
        with wanted as materialized (
            select k.key, nextval($2) as id
              from (select key, min(nr) as nr
                      from unnest($1) with ordinality u (key, nr)
                     where not exists (select from %1$s where ev_key = key)
                       and not exists (select from %2$s where ev_key = key)
                     group by key, case when key is null then nr end
                     order by nr) k),
        claimed as (
            insert into %1$s (ev_key, ev_id)
            select key, id from wanted where key is not null order by key collate "C"
            on conflict do nothing
            returning ev_id)
        select coalesce((select array_agg(ev_id) from claimed), '{}'), array_agg(id order by id) filter (where key is null)
          from wanted$sql$, t.cur, t.other)
       into claimed, keyless
      using i_keys, t.event_seq;

    -- A statement of its own: it sees the keys of the transactions that the last one waited for.
    execute format($sql$
        select array_agg(id order by nr),
               array_agg(key is null or mine and first = nr order by nr)
          from (select k.nr, k.key, e.id, e.id = any ($3) as mine, min(k.nr) over (partition by k.key) as first
                  from (select key, nr, count(*) filter (where key is null) over (order by nr) as null_nr
                          from unnest($1) with ordinality u (key, nr)) k
                 cross join lateral (
                       select case when k.key is null then ($2)[k.null_nr]
                              else coalesce((select ev_id from %1$s where ev_key = k.key),
                                            (select ev_id from %2$s where ev_key = k.key)) end as id) e) f$sql$,
        t.cur, t.other)
       into ids, fresh
      using i_keys, keyless, claimed;
end;
$$;

create or replace function pgq.insert_events_once(
    i_queue_name text, i_keys text[], i_types text[], i_data text[],
    i_extra1 text[] default null, i_extra2 text[] default null,
    i_extra3 text[] default null, i_extra4 text[] default null,
    i_times timestamptz[] default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
rows 1000
as $$
-- Puts many events into a queue in one statement, except those whose keys are there already; see
-- pgq.insert_event_once(9).
-- Parameters:
--      i_keys                  - keys, null for events without a key
--      i_types, i_data         - types and payloads, arrays of the same length
--      i_extra1 .. i_extra4    - further fields, each null or an array of that length
--      i_times                 - times of delivery; null, as a whole or for an event, for at once
-- Returns: the events' ids in the order of the arrays; for an event that was there already, the existing id.
-- Errors: PQ011 arrays differ in length, PQ050 infinite time; otherwise as pgq.insert_event_once(9)
declare
    n       constant int4 := coalesce(cardinality(i_keys), 0);
    c       record;
    t       record;
    d       record;
    v_checked boolean;
begin
    perform pgq._require_equal_lengths('insert_events_once', n, coalesce(cardinality(i_types), 0), coalesce(cardinality(i_data), 0),
                                       cardinality(i_extra1), cardinality(i_extra2), cardinality(i_extra3), cardinality(i_extra4),
                                       cardinality(i_times));
    perform pgq._check_delivery_time('insert_events_once', array_remove(i_times, null));
    select * into c from pgq._claim_event_keys(i_queue_name, i_keys);
    if true = any (c.fresh) then
        select * into t from pgq._write_target(i_queue_name, (select count(*) from unnest(c.fresh) f where f));
        v_checked := i_times is not null and pgq._hold_contracts(t.queue_id, t.ev_slot);
        select * into d from pgq._delayed_target();
        with fresh as (
            select e.*
              from (select unnest(c.ids) as ev_id, unnest(c.fresh) as fresh, unnest(i_times) as deliver_at,
                           unnest(i_types) as ev_type, unnest(i_data) as ev_data,
                           unnest(i_extra1) as ev_extra1, unnest(i_extra2) as ev_extra2,
                           unnest(i_extra3) as ev_extra3, unnest(i_extra4) as ev_extra4) e
             where e.fresh),
        later as (
            insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_type, ev_data,
                                     ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
            select greatest(e.deliver_at, d.earliest), t.queue_id, e.ev_id, greatest(e.deliver_at, now()), e.ev_type,
                   case when v_checked then pgq._checked_data(t.queue_id, e.ev_type, e.ev_data) else e.ev_data end,
                   e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4,
                   pgq._delayed_slot(greatest(e.deliver_at, d.earliest), d.parity)
              from fresh e
             where e.deliver_at is not null)
        insert into pgq.event (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
        select e.ev_id, e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4, t.ev_slot
          from fresh e
         where e.deliver_at is null;
    end if;
    return query select unnest(c.ids);
end;
$$;

create or replace function pgq.insert_event_once(
    queue_name text, ev_key text, ev_type text, ev_data text,
    ev_extra1 text default null, ev_extra2 text default null, ev_extra3 text default null, ev_extra4 text default null,
    deliver_at timestamptz default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Puts an event into a queue, in the caller's transaction, unless one with the same key was inserted within the queue's
-- key_window. If another transaction is inserting the same key, it waits for the end of that transaction.
-- Parameters:
--      queue_name              - name of the queue; it must have a key_window, see pgq.set_queue_config()
--      ev_key                  - unique key of the event within the queue; null inserts in any case
--      ev_type                 - type of the event, for the consumer
--      ev_extra1 .. ev_extra4  - further fields
--      deliver_at              - time of delivery, as with pgq.insert_event_at(8); null for at once
-- Returns: the id of the event: the one inserted now, or the first one with this key.
-- Errors: PQ050 infinite time, PQ051 the queue has no key_window, PQ052 invalid key, 40001 the transaction's snapshot
--      is older than keys it would have to see; otherwise as pgq.insert_event(7)
#variable_conflict use_column
declare
    c   record;
    t   record;
    d   record;
    due timestamptz;
    v_checked boolean;
begin
    if insert_event_once.deliver_at is not null then
        perform pgq._check_delivery_time('insert_event_once', array[insert_event_once.deliver_at]);
    end if;
    select * into c from pgq._claim_event_key(insert_event_once.queue_name, insert_event_once.ev_key);
    if not c.fresh then
        return c.id;
    end if;
    select * into t from pgq._write_target(insert_event_once.queue_name);
    if insert_event_once.deliver_at is null then
        insert into pgq.event (ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
        values (c.id, insert_event_once.ev_type, insert_event_once.ev_data, insert_event_once.ev_extra1,
                insert_event_once.ev_extra2, insert_event_once.ev_extra3, insert_event_once.ev_extra4, t.ev_slot);
    else
        v_checked := pgq._hold_contracts(t.queue_id, t.ev_slot);
        select * into d from pgq._delayed_target();
        due := greatest(insert_event_once.deliver_at, d.earliest);
        insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_type, ev_data,
                                 ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
        values (due, t.queue_id, c.id, greatest(insert_event_once.deliver_at, now()), insert_event_once.ev_type,
                case when v_checked then pgq._checked_data(t.queue_id, insert_event_once.ev_type, insert_event_once.ev_data)
                     else insert_event_once.ev_data end,
                insert_event_once.ev_extra1, insert_event_once.ev_extra2,
                insert_event_once.ev_extra3, insert_event_once.ev_extra4, pgq._delayed_slot(due, d.parity));
    end if;
    return c.id;
end;
$$;

create or replace function pgq.maint_rotate_keys(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- A session that inserts with a key meanwhile waits for this long at most.
set lock_timeout = '100ms'
as $$
-- Rotates a queue's tables for keys when its key_window is over: it forgets the older half of the keys and, with the
-- next call in another transaction, directs new keys to the emptied table. The next call tries again what is not
-- possible now.
-- Returns: number of tables truncated.
-- Errors: PQ012 not in READ COMMITTED
declare
    q       pgq.queue;
    seq     text;
    cur     text;
    other   text;
begin
    perform pgq._require_read_committed('rotation');
    select * into q
      from pgq.queue
     where queue_name = i_queue_name
       and (queue_key_switch_time + queue_key_window < current_timestamp or queue_key_switch_time > current_timestamp)
       for update skip locked;
    if not found then
        return 0;
    end if;
    if q.queue_key_switch_time > current_timestamp then
        -- The clock was set back. The window begins again.
        update pgq.queue set queue_key_switch_time = current_timestamp where queue_id = q.queue_id;
        return 0;
    end if;
    seq := format('pgq.event_key_%s_seq', q.queue_id);
    if q.queue_key_rotations <> pg_sequence_last_value(seq) then
        -- An earlier call failed at its very end. The keys of this window are in the other table, so a new window
        -- begins.
        update pgq.queue
           set queue_key_rotations = pg_sequence_last_value(seq),
               queue_key_switch_time = current_timestamp
         where queue_id = q.queue_id;
        return 0;
    end if;
    cur := format('pgq.event_key_%s_%s', q.queue_id, q.queue_key_rotations % 2);
    other := format('pgq.event_key_%s_%s', q.queue_id, (q.queue_key_rotations + 1) % 2);
    begin
        if pg_relation_size(other) > 0 then
            -- In a transaction of its own: otherwise, if the turn fails at its very end, the table for new keys would
            -- contain old keys again.
            execute format('lock table %s in access exclusive mode nowait', other);
            execute format('truncate %s', other);
            return 1;
        elsif exists (select from pg_locks
                       where pid = pg_backend_pid() and relation = other::regclass and mode = 'AccessExclusiveLock')
        then
            return 0;
        end if;
        execute format('lock table %s in share mode', cur);
    exception when lock_not_available then
        return 0;
    end;
    update pgq.queue
       set queue_key_rotations = q.queue_key_rotations + 1,
           queue_key_switch_time = current_timestamp
     where queue_id = q.queue_id;
    -- Do this last: a rollback does not undo it.
    perform setval(seq, q.queue_key_rotations + 1);
    return 0;
end;
$$;
