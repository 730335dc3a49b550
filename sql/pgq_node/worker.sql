create or replace function pgq_node.get_worker_state(
    i_queue_name text,
    out ret_code int4, out ret_note text,
    out node_type text, out node_name text, out completed_tick bigint, out provider_node text, out provider_location text,
    out paused boolean, out uptodate boolean, out cur_error text, out worker_name text,
    out global_watermark bigint, out local_watermark bigint, out local_queue_top bigint,
    out combined_queue text, out combined_type text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns what the worker of this node needs to know.
-- Returns:
--      ret_code            - 100; 404 this database is no node of the queue, has no worker, or is no node of the combined
--                            queue
--      ret_note            - the same in words
--      node_type           - root, branch or leaf
--      node_name           - name of this node
--      completed_tick      - last tick that the worker has copied
--      provider_node       - node it copies from; the root itself
--      provider_location   - connection string of this
--      paused              - whether it is to wait
--      uptodate            - whether it has seen the last change of these settings
--      cur_error           - why its batch failed; null if it did not
--      worker_name         - consumer that copies
--      global_watermark    - lowest tick that is needed at any node
--      local_watermark     - lowest tick that is needed at this node and those below
--      local_queue_top     - newest tick of this node's queue
--      combined_queue      - queue that a leaf copies into
--      combined_type       - type of the node that this database is of that queue
begin
    select n.node_type, n.node_name, n.worker_name, n.combined_queue, c.node_type,
           s.last_tick_id, s.provider_node, l.node_location, s.paused, s.uptodate, s.cur_error,
           m.global_watermark, case when n.node_type = 'leaf' then s.last_tick_id else m.local_watermark end, m.top
      into node_type, node_name, worker_name, combined_queue, combined_type,
           completed_tick, provider_node, provider_location, paused, uptodate, cur_error,
           global_watermark, local_watermark, local_queue_top
      from pgq_node.node_info n
      left join pgq_node.node_info c on c.queue_name = n.combined_queue
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
      left join pgq_node.node_location l on l.queue_name = s.queue_name and l.node_name = s.provider_node
      left join lateral pgq_node._watermarks(case when n.node_type <> 'leaf' then n.queue_name end) m on true
     where n.queue_name = i_queue_name;
    ret_code := 404;
    if not found then
        ret_note := 'Unknown queue: ' || i_queue_name;
    elsif completed_tick is null then
        ret_note := format('Unknown consumer: %s/%s', i_queue_name, worker_name);
    elsif combined_queue is not null and combined_type is null then
        ret_note := 'Combined queue node not found: ' || combined_queue;
    else
        ret_code := 100;
        ret_note := 'Ok';
    end if;
end;
$$;

create or replace function pgq_node.begin_copy(i_queue_name text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets the caller's transaction write copies of events into this branch, whose queue refuses other inserts: by COPY, or
-- by pgq.insert_event_raw(11). PgQ's workers set session_replication_role for this, which a superuser may.
-- Returns: the table for COPY, as pgq.current_event_table(1).
-- Errors: PQ006 this node is no branch
begin
    -- It does not become the root meanwhile.
    perform from pgq_node.node_info where queue_name = i_queue_name for update;
    if pgq_node._require_type(i_queue_name) <> 'branch' then
        raise exception using errcode = 'PQ006',
            message = format('this node of queue %L is no branch', i_queue_name),
            hint = 'Only a branch holds copies. Insert events at the root.';
    end if;
    perform set_config('pgqpy.copies_into', i_queue_name, true);
    return pgq.current_event_table(i_queue_name);
end;
$$;

create or replace function pgq_node.set_global_watermark(
    i_queue_name text, i_watermark bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves the global watermark: at the root, which lets all nodes know, or at a branch that was told.
-- Parameters:
--      i_watermark     - lowest tick that is needed at any node; null at the root for what its subscribers have told
-- Returns:
--      ret_code        - 200, also at a branch that does not have the tick (any more); 100 this is a leaf; 404 this
--                        database is no node of the queue; 405 this root is fenced; 500 null at a branch
--      ret_note        - the same in words
declare
    v_node  record;
    v_tick  bigint  := i_watermark;
begin
    select n.node_type, n.worker_name, q.queue_id, q.queue_horizon_tick into v_node
      from pgq_node.node_info n
      left join pgq.queue q using (queue_name)
     where n.queue_name = i_queue_name
       for update of n;
    if not found then
        ret_code := 404;
        ret_note := format('Queue %s not found', i_queue_name);
        return;
    elsif v_node.node_type = 'leaf' then
        ret_code := 100;
        ret_note := 'Ignoring global watermark in leaf';
        return;
    elsif v_node.node_type = 'branch' and v_tick is null then
        ret_code := 500;
        ret_note := 'bad usage: wm=null on branch node';
        return;
    elsif v_node.node_type = 'branch'
          and (v_tick < v_node.queue_horizon_tick or (pgq._get_tick(v_node.queue_id, v_tick)).tick_id is null)
    then
        -- An old batch may hold an old watermark.
        ret_code := 200;
        ret_note := 'Skipping global watermark update to ' || v_tick;
        return;
    elsif (pgq_node._epoch(i_queue_name)).fenced_by is not null then
        ret_code := 405;
        ret_note := 'Root is fenced';
        return;
    end if;

    v_tick := coalesce(v_tick, (pgq_node._watermarks(i_queue_name)).local_watermark);
    perform pgq._register_consumer(i_queue_name, '.global_watermark', v_tick, 'now', i_noted => false);
    if v_node.node_type = 'root' then
        perform pgq_node._publish(i_queue_name, 'pgq.global-watermark', v_tick::text);
        -- Nothing is copied here: so that the worker does not seem to lag.
        update pgq_node.local_state
           set last_tick_id = v_tick
         where queue_name = i_queue_name
           and consumer_name = v_node.worker_name;
    end if;
    ret_code := 200;
    ret_note := 'Global watermark set to ' || v_tick;
end;
$$;

create or replace function pgq_node.set_partition_watermark(
    i_combined_queue_name text, i_part_queue_name text, i_watermark bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes at a branch of a combined queue up to which tick a part is in it, so that the leaf here, which copies nothing
-- meanwhile, can go on from there when this branch becomes the root.
-- Parameters:
--      i_combined_queue_name   - the combined queue
--      i_part_queue_name       - queue of the leaf
--      i_watermark             - tick of that queue
-- Returns:
--      ret_code                - 200; 201 there is no such leaf here; 401 it has no worker
--      ret_note                - the same in words
declare
    v_worker    text;
begin
    select p.worker_name into v_worker
      from pgq_node.node_info c
      join pgq_node.node_info p on p.combined_queue = c.queue_name
     where c.queue_name = i_combined_queue_name
       and c.node_type = 'branch'
       and p.queue_name = i_part_queue_name
       and p.node_type = 'leaf';
    if not found then
        ret_code := 201;
        ret_note := 'Part-queue does not exist';
        return;
    end if;
    update pgq_node.local_state
       set last_tick_id = i_watermark
     where queue_name = i_part_queue_name
       and consumer_name = v_worker;
    ret_code := case when found then 200 else 401 end;
    ret_note := case when found then 'Ok' else 'Worker registration not found' end;
end;
$$;

create or replace function pgq_node.maint_watermark(i_queue_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves the global watermark of a root that no worker moves, every 5 minutes. Puts delayed events back whose takeover was
-- given up. Maintenance calls it.
-- Returns: 0, for maintenance does not call it again.
begin
    -- Maintenance waits for no consumer's transaction; it comes again.
    perform from pgq_node.node_info where queue_name = i_queue_name and node_type = 'root' for update skip locked;
    if not found then
        return 0;
    end if;
    perform pgq_node._take_back_delayed(i_queue_name);
    if (select c.lag >= interval '5 minutes' from pgq.get_consumer_info(i_queue_name, '.global_watermark') c) then
        perform pgq_node.set_global_watermark(i_queue_name, null);
    end if;
    return 0;
end;
$$;
