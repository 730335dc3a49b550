create or replace function pgq_node._watermark_name(i_node_name text)
returns text
language sql immutable
as $$
-- Returns the consumer whose position is the watermark of a node at its provider.
    select '.' || i_node_name || '.watermark';
$$;

create or replace function pgq_node.register_subscriber(
    i_queue_name text, i_remote_node_name text, i_remote_worker_name text, i_custom_tick_id bigint,
    out ret_code int4, out ret_note text, out global_watermark bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes another node a subscriber of this one: its worker and its watermark become consumers here. A node that is one
-- already begins again, at the given tick.
-- Parameters:
--      i_remote_node_name      - the node; its location must be registered
--      i_remote_worker_name    - consumer that copies to it
--      i_custom_tick_id        - tick that it has copied last; null for the global watermark
-- Returns:
--      ret_code                - 200; 401 this node is a leaf; 404 this database is no node of the queue, or the other
--                                node has no location; 405 this root is fenced
--      ret_note                - the same in words
--      global_watermark        - tick for pgq_node.create_node(7) at the other node
-- Errors: PQ008 the tick is not available any more
declare
    v_watermark constant text := pgq_node._watermark_name(i_remote_node_name);
    v_type      text;
begin
    -- Refusals of strangers come before the lock, which their transaction would keep.
    perform pgq._require_right(q.queue_id, '{consume}', i_remote_worker_name), pgq._require_right(q.queue_id, '{consume}', v_watermark)
       from pgq.queue q
      where q.queue_name = i_queue_name
        and q.queue_restricted;
    select n.node_type into v_type from pgq_node.node_info n where n.queue_name = i_queue_name;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
    elsif v_type = 'leaf' then
        ret_code := 401;
        ret_note := 'Cannot subscribe to leaf node';
    elsif not exists (select from pgq_node.node_location l where l.queue_name = i_queue_name and l.node_name = i_remote_node_name) then
        ret_code := 404;
        ret_note := 'Unknown node: ' || i_remote_node_name;
    end if;
    if ret_code is not null then
        return;
    end if;
    perform from pgq_node.node_info where queue_name = i_queue_name for update;
    if (pgq_node._epoch(i_queue_name)).fenced_by is not null then
        ret_code := 405;
        ret_note := 'Cannot subscribe to fenced root';
        return;
    end if;
    global_watermark := (pgq_node._watermarks(i_queue_name)).global_watermark;
    perform pgq_node.unregister_subscriber(i_queue_name, i_remote_node_name);
    perform pgq._register_consumer(i_queue_name, v_watermark, global_watermark, 'now', i_noted => false);
    perform pgq.register_consumer_at(i_queue_name, i_remote_worker_name, coalesce(i_custom_tick_id, global_watermark));
    insert into pgq_node.subscriber_info (queue_name, subscriber_node, worker_name, watermark_name)
    values (i_queue_name, i_remote_node_name, i_remote_worker_name, v_watermark);
    ret_code := 200;
    ret_note := 'Subscriber registered: ' || i_remote_node_name;
end;
$$;

create or replace function pgq_node.unregister_subscriber(
    i_queue_name text, i_remote_node_name text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes a subscriber with its consumers: rotation no longer waits for it.
-- Returns:
--      ret_code    - 200; 304 it is none
--      ret_note    - the same in words
declare
    s   pgq_node.subscriber_info;
begin
    delete from pgq_node.subscriber_info
     where queue_name = i_queue_name
       and subscriber_node = i_remote_node_name
    returning * into s;
    if not found then
        ret_code := 304;
        ret_note := 'Subscriber not found';
        return;
    end if;
    perform pgq.unregister_consumer(i_queue_name, s.watermark_name), pgq.unregister_consumer(i_queue_name, s.worker_name);
    ret_code := 200;
    ret_note := 'Subscriber unregistered: ' || i_remote_node_name;
end;
$$;

create or replace function pgq_node.advance_subscriber(i_queue_name text, i_worker_name text, i_tick_id bigint)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Advances the position of a subscriber's worker, as pgq.advance_consumer(3) does, with its caller's rights.
-- Returns: false if it is no subscriber; then it has no position afterwards.
-- Errors: those of pgq.advance_consumer(3)
begin
    perform pgq.advance_consumer(s.queue_name, s.worker_name, i_tick_id)
       from pgq_node.subscriber_info s
      where s.queue_name = i_queue_name and s.worker_name = i_worker_name;
    -- That registers one anew if it has waited for the end of the transaction that removed it.
    if exists (select from pgq_node.subscriber_info s where s.queue_name = i_queue_name and s.worker_name = i_worker_name) then
        return true;
    end if;
    perform pgq.unregister_consumer(i_queue_name, i_worker_name);
    return false;
end;
$$;

create or replace function pgq_node.set_subscriber_watermark(
    i_queue_name text, i_node_name text, i_watermark bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Moves the watermark of a subscriber on.
-- Parameters:
--      i_node_name     - the subscriber
--      i_watermark     - lowest tick that it and the nodes below need
-- Returns:
--      ret_code        - 200; 100 it was that already; 404 it is no subscriber; 405 it would move back
--      ret_note        - the same in words
-- Errors: PQ008 the tick was never made
declare
    v_watermark constant text := pgq_node._watermark_name(i_node_name);
    v_last      bigint;
begin
    perform pgq._require_right(q.queue_id, '{consume}', v_watermark)
       from pgq.queue q
      where q.queue_name = i_queue_name
        and q.queue_restricted;
    -- Without the lock it would be registered again if it is just being removed.
    perform from pgq_node.subscriber_info
      where queue_name = i_queue_name and subscriber_node = i_node_name
        for key share;
    if not found then
        ret_code := 404;
        ret_note := format('node %s not subscribed to queue %s', i_node_name, i_queue_name);
        return;
    end if;
    select s.sub_last_tick into v_last
      from pgq.queue q
      join pgq.subscription s on s.sub_queue = q.queue_id
      join pgq.consumer c on c.co_id = s.sub_consumer
     where q.queue_name = i_queue_name
       and c.co_name = v_watermark;
    if not found then
        ret_code := 404;
        ret_note := format('node %s not subscribed to queue %s', i_node_name, i_queue_name);
    elsif i_watermark < v_last then
        ret_code := 405;
        ret_note := 'watermark must not be moved backwards';
    elsif i_watermark = v_last then
        ret_code := 100;
        ret_note := 'watermark already set';
    else
        -- The log may have forgotten the tick; then the one before it.
        perform pgq.advance_consumer(i_queue_name, v_watermark, i_watermark);
        ret_code := 200;
        ret_note := format('%s set to %s', v_watermark, i_watermark);
    end if;
end;
$$;

create or replace function pgq_node.get_subscriber_info(
    i_queue_name text,
    out node_name text, out worker_name text, out node_watermark bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the nodes that copy from this one.
-- Returns:
--      node_name       - name of the node
--      worker_name     - consumer that copies to it
--      node_watermark  - lowest tick that it and the nodes below need
    select n.subscriber_node, n.worker_name, s.sub_last_tick
      from pgq_node.subscriber_info n
      left join (pgq.queue q
                 join pgq.subscription s on s.sub_queue = q.queue_id
                 join pgq.consumer c on c.co_id = s.sub_consumer) on q.queue_name = n.queue_name and c.co_name = n.watermark_name
     where n.queue_name = i_queue_name
     order by n.subscriber_node;
$$;
