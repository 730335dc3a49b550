create or replace function pgq_node.demote_root(
    i_queue_name text, i_step int4, i_new_provider text,
    out ret_code int4, out ret_note text, out last_tick bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes the root a branch, in three steps, each in a transaction of its own. Between the last two another node becomes
-- the root: see pgq_node.promote_branch(1). Delayed events are handed over to it: see pgq_node.take_delayed(2).
-- Parameters:
--      i_step          - 1: inserts are refused from its commit on; 2: wait for transactions that have inserted, and make
--                        the last tick, which the new root needs; 3: be a branch of it
--      i_new_provider  - the new root
-- Returns:
--      ret_code        - 200; 301 this node is no root; 404 this database is no node of the queue, or the new root has no
--                        location; 405 this root is fenced; 409 an event came after the last tick: repeat step 2
--      ret_note        - the same in words
--      last_tick       - the last tick, in steps 2 and 3
-- Errors: PQ011 steps in the wrong order
declare
    v_node  record;
begin
    select n.node_type, n.worker_name, q.* into v_node
      from pgq_node.node_info n
      left join pgq.queue q on q.queue_name = n.queue_name
     where n.queue_name = i_queue_name
       for update of n;
    if not found then
        ret_code := 404;
        ret_note := 'Node not initialized for queue: ' || i_queue_name;
    elsif v_node.node_type <> 'root' then
        ret_code := 301;
        ret_note := 'Node not root';
    elsif (pgq_node._epoch(i_queue_name)).fenced_by is not null then
        ret_code := 405;
        ret_note := 'Root is fenced: drop this node, and create it again';
    elsif i_step is null or i_step not between 1 and 3
          or i_step > 1 and not (v_node.queue_disable_insert and v_node.queue_external_ticker)
    then
        raise exception using errcode = 'PQ011',
            message = format('step %s is not the next one to demote the root of queue %L', coalesce(i_step::text, 'NULL'), i_queue_name),
            hint = 'Call steps 1, 2 and 3 in this order, each in a transaction of its own.';
    elsif i_step = 1 then
        perform pgq_node._close(i_queue_name), pgq_node._hand_over_delayed(i_queue_name);
        ret_code := 200;
        ret_note := 'Step 1: Writing disabled for: ' || i_queue_name;
    elsif i_step = 2 then
        -- Consumers go on reading.
        execute format('lock table %s in exclusive mode', v_node.queue_data_pfx);
        last_tick := pgq.ticker(i_queue_name, nextval(v_node.queue_tick_seq_id), clock_timestamp(), nextval(v_node.queue_event_seq_id));
        ret_code := 200;
        ret_note := 'Step 2: Inserted last tick: ' || i_queue_name;
    else
        select f.* into ret_code, ret_note, last_tick
          from pgq_node._become_branch(i_queue_name, v_node.worker_name, i_new_provider) f;
    end if;
end;
$$;

create or replace function pgq_node._close(i_queue_name text)
returns void
language plpgsql
as $$
-- Ends inserts and ticks of a root's queue.
begin
    perform pgq.set_queue_config(i_queue_name, 'disable_insert', 'true'), pgq.set_queue_config(i_queue_name, 'external_ticker', 'true');
end;
$$;

create or replace function pgq_node._become_branch(
    i_queue_name text, i_worker_name text, i_new_provider text,
    out ret_code int4, out ret_note text, out last_tick bigint)
language plpgsql
as $$
-- Does step 3 of pgq_node.demote_root(3).
begin
    last_tick := (pgq_node._watermarks(i_queue_name)).top;
    if not exists (select from pgq_node.node_location l where l.queue_name = i_queue_name and l.node_name = i_new_provider) then
        ret_code := 404;
        ret_note := 'Unknown node: ' || i_new_provider;
    elsif exists (select from pgq_node.get_rest_events(i_queue_name, last_tick)) then
        -- Its producer had passed the check before step 1.
        ret_code := 409;
        ret_note := 'Events after the last tick: repeat step 2';
    else
        -- once more, for one that was inserted at the time of step 1
        perform pgq_node._hand_over_delayed(i_queue_name);
        update pgq_node.node_info set node_type = 'branch' where queue_name = i_queue_name;
        update pgq_node.local_state
           set provider_node = i_new_provider,
               last_tick_id = last_tick,
               uptodate = false
         where queue_name = i_queue_name
           and consumer_name = i_worker_name;
        ret_code := 200;
        ret_note := 'Step 3: Demoted root to branch: ' || i_queue_name;
    end if;
end;
$$;

create or replace function pgq_node.promote_branch(
    i_queue_name text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a branch the root: it takes inserts, ticks go on after its last one. The epoch is a new one, which all nodes get
-- to know by an event.
-- Returns:
--      ret_code    - 200; 301 this node is no branch; 404 this database is no node of the queue
--      ret_note    - the same in words
declare
    v_node  record;
    v_last  pgq.tick_0;
    v_id    bigint;
    v_epoch bigint;
begin
    select n.node_name, n.node_type, n.worker_name, l.node_location, s.last_tick_id, q.queue_id, q.queue_data_pfx, q.queue_event_seq_id
      into v_node
      from pgq_node.node_info n
      join pgq_node.node_location l using (queue_name, node_name)
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
      left join pgq.queue q on q.queue_name = n.queue_name
     where n.queue_name = i_queue_name
       for update of n;
    if not found then
        ret_code := 404;
        ret_note := 'Node not initialized for queue: ' || i_queue_name;
        return;
    elsif v_node.node_type <> 'branch' then
        ret_code := 301;
        ret_note := 'Node not branch';
        return;
    end if;

    -- The last batch may hold an event that drew its id after the tick had read the sequence.
    v_last := pgq._last_tick(v_node.queue_id);
    execute format('select max(ev_id) from %s where ev_txid >= txid_snapshot_xmin($1) and ev_txid < 9223372036854775807',
                   v_node.queue_data_pfx)
       into v_id using coalesce((pgq._last_tick(v_node.queue_id, v_last.tick_id)).tick_snapshot, v_last.tick_snapshot);
    if v_node.last_tick_id > v_last.tick_id then
        -- PgQ's worker was killed between the events and their tick.
        perform pgq.ticker(i_queue_name, v_node.last_tick_id, clock_timestamp(), greatest(v_id, v_last.tick_event_seq));
        v_last := pgq._last_tick(v_node.queue_id);
    end if;
    perform setval(v_node.queue_event_seq_id, v_id) where v_id > greatest(pgq._event_seq_value(v_node.queue_event_seq_id), 1);

    update pgq_node.node_info set node_type = 'root' where queue_name = i_queue_name;
    update pgq_node.local_state
       set provider_node = v_node.node_name,
           last_tick_id = v_last.tick_id,
           uptodate = false
     where queue_name = i_queue_name
       and consumer_name = v_node.worker_name;
    perform pgq.set_queue_config(i_queue_name, 'disable_insert', 'false'), pgq.set_queue_config(i_queue_name, 'external_ticker', 'false');

    -- Later than any epoch that this node has not heard of, unless clocks differ more than takeovers are apart.
    v_epoch := greatest((pgq_node._epoch(i_queue_name)).epoch + 1, floor(extract(epoch from clock_timestamp()) * 1000)::bigint);
    perform pgq_node._set_epoch(i_queue_name, v_epoch);
    perform pgq_node._publish(i_queue_name, 'pgq.location-info', v_node.node_name, v_node.node_location, 'false', v_epoch::text);
    ret_code := 200;
    ret_note := 'Branch node promoted to root';
end;
$$;

create or replace function pgq_node.leave_gap(i_queue_name text, i_event_seq bigint, i_numbers bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes that the ids before one belong to no events, so that they are not counted: the new root has left them out, for
-- a dead one may have given them.
-- Parameters:
--      i_event_seq     - the first id after them
--      i_numbers       - how many they are
begin
    insert into pgq.forced_tick (forced_queue, forced_seq, forced_numbers)
    select q.queue_id, i_event_seq, i_numbers from pgq.queue q where q.queue_name = i_queue_name
    on conflict do nothing;
end;
$$;

create or replace function pgq_node.get_epoch(
    i_queue_name text,
    out ret_code int4, out ret_note text, out epoch bigint, out fenced_by text, out fenced_epoch bigint, out fenced_tick bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns which root this node has heard of last: of two roots the one with the higher epoch is the newer.
-- Returns:
--      ret_code        - 100; 404 this database is no node of the queue
--      ret_note        - the same in words
--      epoch           - 0 for the first root; each takeover makes a higher one
--      fenced_by       - if this node is a root that is fenced: the new root; else null
--      fenced_epoch    - its epoch
--      fenced_tick     - last tick that it has from this root
begin
    if exists (select from pgq_node.node_info n where n.queue_name = i_queue_name) then
        select 100, 'Ok', e.epoch, e.fenced_by, e.fenced_epoch, e.fenced_tick
          into ret_code, ret_note, epoch, fenced_by, fenced_epoch, fenced_tick
          from pgq_node._epoch(i_queue_name) e;
    else
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
    end if;
end;
$$;

create or replace function pgq_node._set_epoch(i_queue_name text, i_epoch bigint)
returns boolean
language plpgsql
as $$
-- Raises what a node knows of the root's epoch; returns false if it knows this one, or a higher one.
begin
    insert into pgq_node.root_epoch as e (queue_name, epoch)
    select i_queue_name, i_epoch where i_epoch > 0
    on conflict (queue_name) do update set epoch = excluded.epoch where e.epoch < excluded.epoch;
    return found;
end;
$$;

create or replace function pgq_node.learn_epoch(
    i_queue_name text, i_epoch bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets a node know the epoch of the root; a lower one than it knows changes nothing. A root keeps its own.
-- Returns:
--      ret_code    - 200; 201 it knows this one, or a higher one, or is a root; 404 this database is no node of the queue
--      ret_note    - the same in words
declare
    v_type  text;
begin
    select n.node_type into v_type from pgq_node.node_info n where n.queue_name = i_queue_name for update;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
        return;
    end if;
    ret_code := case when v_type <> 'root' and pgq_node._set_epoch(i_queue_name, i_epoch) then 200 else 201 end;
    ret_note := format('Epoch is %s', (pgq_node._epoch(i_queue_name)).epoch);
end;
$$;

create or replace function pgq_node.fence_root(
    i_queue_name text, i_new_root text, i_epoch bigint, i_last_tick bigint,
    out ret_code int4, out ret_note text, out rest bigint, out waiting bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Fences a root that was taken over while it was away: from the commit on it refuses inserts, makes no ticks and tells
-- nodes nothing. Counts its rest: what no other node has. Transactions that have inserted before may still commit, so
-- call it again to count when they have ended.
-- Parameters:
--      i_new_root      - node that is the root now
--      i_epoch         - its epoch, from pgq_node.get_epoch(1) there
--      i_last_tick     - last tick that it has from this root
-- Returns:
--      ret_code        - 200; 201 it was fenced already; 301 this node is no root; 404 this database is no node of the
--                        queue; 405 this root is not older
--      ret_note        - the same in words
--      rest            - number of events after that tick, without those about nodes; null if the tick is gone
--      waiting         - number of delayed events: pgq_node.handed_over has them
declare
    e       constant pgq_node.root_epoch := pgq_node._epoch(i_queue_name);
    v_type  text;
begin
    select n.node_type into v_type from pgq_node.node_info n where n.queue_name = i_queue_name for update;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
        return;
    elsif v_type <> 'root' then
        ret_code := 301;
        ret_note := 'Node not root';
        return;
    elsif e.epoch < i_epoch is not true then
        ret_code := 405;
        ret_note := format('Root is not older: its epoch is %s', e.epoch);
        return;
    end if;
    perform pgq_node._close(i_queue_name);
    insert into pgq_node.root_epoch (queue_name, epoch, fenced_by, fenced_epoch, fenced_tick)
    values (i_queue_name, e.epoch, i_new_root, i_epoch, i_last_tick)
    on conflict (queue_name) do update
       set (fenced_by, fenced_epoch, fenced_tick) = (excluded.fenced_by, excluded.fenced_epoch, excluded.fenced_tick);
    begin
        select count(*) into rest
          from pgq_node.get_rest_events(i_queue_name, i_last_tick) r
         where (r.ev_type like 'pgq.%') is not true;
    exception when sqlstate 'PQ008' then
        rest := null;
    end;
    perform pgq_node._hand_over_delayed(i_queue_name);
    select count(*) into waiting from pgq_node.handed_over h where h.queue_name = i_queue_name and not h.taken;
    ret_code := case when e.fenced_by is null then 200 else 201 end;
    ret_note := format('Root is fenced: %s is the root', i_new_root);
end;
$$;

create or replace function pgq_node.get_rest_events(
    i_queue_name text, i_last_tick bigint,
    out ev_id bigint, out ev_time timestamptz, out ev_retry int4, out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the events after a tick, ticked or not: the rest of a root that was taken over after this tick.
-- Returns: events, by id, without retries.
-- Errors: PQ008 the tick is not available any more
declare
    q           constant pgq.queue := pgq._find_queue_for(i_queue_name, 'read');
    v_snapshot  constant txid_snapshot := (pgq._get_tick(q.queue_id, i_last_tick)).tick_snapshot;
begin
    if v_snapshot is null or i_last_tick < q.queue_horizon_tick then
        perform pgq._raise_tick_not_found(i_queue_name, i_last_tick);
    end if;
    return query execute format(
        'select ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4 from %s '
        'where ev_txid >= txid_snapshot_xmin($1) and ev_txid < 9223372036854775807 '
        'and not txid_visible_in_snapshot(ev_txid, $1) and ev_owner is null '
        'order by ev_id', q.queue_data_pfx) using v_snapshot;
end;
$$;
