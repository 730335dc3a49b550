create or replace function pgq_node._refuse_node(
    i_queue_name text, i_node_type text, i_node_name text, i_worker_name text, i_provider_name text, i_global_watermark bigint,
    i_combined_queue text,
    out ret_code int4, out ret_note text)
language sql stable
as $$
-- Returns what is wrong with the arguments of pgq_node.create_node(7); null if nothing is.
    select 401, case
        when exists (select from pgq_node.node_info where queue_name = i_queue_name)
            then 'Node already initialized'
        when i_node_type is null or i_node_type <> all ('{root,branch,leaf}')
            then 'bad node type: ' || coalesce(i_node_type, 'NULL')
        when i_worker_name is null
            then 'worker not set for ' || i_node_type
        when i_node_type = 'root' and pg_catalog.num_nonnulls(i_provider_name, i_global_watermark, i_combined_queue) > 0
             or i_node_type = 'branch' and i_combined_queue is not null
            then 'unexpected args for ' || i_node_type
        when i_node_type <> 'root' and i_provider_name is null
            then 'provider not set for ' || i_node_type
        when i_node_type <> 'root' and i_global_watermark is null
            then 'global watermark not set for ' || i_node_type
        when i_node_type <> 'root' and i_provider_name = i_node_name
            then pg_catalog.format('node %s cannot be its own provider', i_node_name)
        when i_node_type = 'leaf' and i_combined_queue is not null
             and not exists (select from pgq.queue where queue_name = i_combined_queue)
            then 'non-existing queue on leaf side: ' || i_combined_queue
        -- Its own ticks would be others than the provider's.
        when i_node_type = 'branch' and exists (
                select from pgq.queue q where q.queue_name = i_queue_name and (pgq._last_tick(q.queue_id)).tick_id > 1)
            then pg_catalog.format('queue %s exists here, and has ticks of its own: drop it first', i_queue_name)
        else (select pg_catalog.format('location of node %s is not registered', wanted.node)
                from (values (i_node_name), (coalesce(i_provider_name, i_node_name))) wanted (node)
               where not exists (select from pgq_node.node_location l where l.queue_name = i_queue_name and l.node_name = wanted.node)
               limit 1)
    end;
$$;

create or replace function pgq_node.create_node(
    i_queue_name text, i_node_type text, i_node_name text, i_worker_name text, i_provider_name text, i_global_watermark bigint,
    i_combined_queue text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes this database a node of a queue. Register the locations of this node and of its provider first.
-- Parameters:
--      i_node_type         - root: takes inserts and ticks; branch: holds a copy, which other nodes may copy; leaf: holds
--                            none
--      i_node_name         - name of this node
--      i_worker_name       - name of the consumer that copies from the provider
--      i_provider_name     - node to copy from; null for the root
--      i_global_watermark  - tick to begin after: the provider's global watermark; null for the root
--      i_combined_queue    - for a leaf: queue of this database to copy into, if any
-- Returns:
--      ret_code            - 200; 401 an argument is wrong, or this database is a node of the queue already
--      ret_note            - the same in words
begin
    select w.* into ret_code, ret_note
      from pgq_node._refuse_node(i_queue_name, i_node_type, i_node_name, i_worker_name, i_provider_name, i_global_watermark,
                                 i_combined_queue) w
     where w.ret_note is not null;
    if found then
        return;
    end if;

    if i_node_type <> 'leaf' then
        perform pgq.create_queue(i_queue_name);
    end if;
    if i_node_type = 'branch' then
        perform pgq.set_queue_config(i_queue_name, 'external_ticker', 'true'),
                pgq.set_queue_config(i_queue_name, 'disable_insert', 'true');
        if i_global_watermark > 1 then
            perform pgq.ticker(i_queue_name, i_global_watermark, clock_timestamp(), 1);
        end if;
    end if;
    if i_node_type <> 'leaf' then
        perform pgq._register_consumer(i_queue_name, '.global_watermark', i_global_watermark, 'now', i_noted => false);
    end if;

    insert into pgq_node.node_info (queue_name, node_type, node_name, worker_name, combined_queue)
    values (i_queue_name, i_node_type, i_node_name, i_worker_name, i_combined_queue);
    insert into pgq_node.local_state (queue_name, consumer_name, provider_node, last_tick_id)
    values (i_queue_name, i_worker_name, coalesce(i_provider_name, i_node_name),
            coalesce(i_global_watermark, (pgq_node._watermarks(i_queue_name)).global_watermark));
    ret_code := 200;
    ret_note := format('Node "%s" initialized for queue "%s" with type "%s"', i_node_name, i_queue_name, i_node_type);
end;
$$;

create or replace function pgq_node.drop_node(
    i_queue_name text, i_node_name text,
    out ret_code int4, out ret_note text)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Removes a node. If it is this one, its queue is dropped with all events; if another, its subscription here and its
-- location. Call it at all nodes. It runs as its caller: captured tables are released by their owner only.
-- Returns:
--      ret_code    - 200, also if there was nothing to remove; 403 a consumer here reads from it; 405 it is this node's
--                    provider
--      ret_note    - the same in words
declare
    v_node  record;
begin
    select n.node_name, s.provider_node into v_node
      from pgq_node.node_info n
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
     where n.queue_name = i_queue_name;
    if not found then
        -- A queue of this name is no node, and stays.
        delete from pgq_node.node_location where queue_name = i_queue_name;
    elsif v_node.node_name = i_node_name then
        delete from pgq_node.subscriber_info where queue_name = i_queue_name;
        delete from pgq_node.local_state where queue_name = i_queue_name;
        delete from pgq_node.node_info where queue_name = i_queue_name;
        perform pgq.drop_queue(q.queue_name, true) from pgq.queue q where q.queue_name = i_queue_name;
        delete from pgq_node.node_location where queue_name = i_queue_name;
    elsif v_node.provider_node = i_node_name then
        ret_code := 405;
        ret_note := 'Cannot drop provider node: ' || i_node_name;
        return;
    else
        select f.ret_code, f.ret_note into ret_code, ret_note from pgq_node.unregister_location(i_queue_name, i_node_name) f;
        if ret_code = 403 then
            return;
        end if;
    end if;
    ret_code := 200;
    ret_note := 'Node dropped: ' || i_node_name;
end;
$$;

create or replace function pgq_node.set_node_attrs(
    i_queue_name text, i_node_attrs text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sets the attributes of this node, for its worker.
-- Parameters:
--      i_node_attrs    - names and values, as in the query of a URL
-- Returns:
--      ret_code        - 200; 404 this database is no node of the queue
--      ret_note        - the same in words
begin
    update pgq_node.node_info set node_attrs = i_node_attrs where queue_name = i_queue_name;
    ret_code := case when found then 200 else 404 end;
    ret_note := case when found then 'Node attributes updated' else 'Node not found' end;
end;
$$;

create or replace function pgq_node._watermarks(
    i_queue_name text,
    out local_watermark bigint, out global_watermark bigint, out top bigint)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Returns ticks of a queue in this database; nulls if there is none, as at a leaf. It is volatile: with a snapshot from
-- before it has locked the logs, a position could be missing that their rotation has carried over since.
-- Returns:
--      local_watermark     - lowest that is needed here and below
--      global_watermark    - lowest that is needed anywhere
--      top                 - newest
declare
    v_queue constant int4 := (select queue_id from pgq.queue where queue_name = i_queue_name);
begin
    top := (pgq._last_tick(v_queue)).tick_id;
    select coalesce(min(s.sub_last_tick) filter (where c.co_name <> '.global_watermark'), top),
           min(s.sub_last_tick) filter (where c.co_name = '.global_watermark')
      into local_watermark, global_watermark
      from pgq.subscription s
      join pgq.consumer c on c.co_id = s.sub_consumer
     where s.sub_queue = v_queue;
    perform pgq._check_log_snapshot('position');
end;
$$;

create or replace function pgq_node.get_node_info(
    i_queue_name text,
    out ret_code int4, out ret_note text,
    out node_type text, out node_name text, out global_watermark bigint, out local_watermark bigint,
    out provider_node text, out provider_location text, out combined_queue text, out combined_type text,
    out worker_name text, out worker_paused boolean, out worker_uptodate boolean, out worker_last_tick bigint,
    out node_attrs text, out target_for text[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns this node.
-- Returns:
--      ret_code            - 100; 404 this database is no node of the queue
--      ret_note            - the same in words
--      node_type           - root, branch or leaf
--      node_name           - its name
--      global_watermark    - lowest tick that is needed at any node
--      local_watermark     - lowest tick that is needed at this node and those below
--      provider_node       - node it copies from; the root itself
--      provider_location   - connection string of this
--      combined_queue      - queue that a leaf copies into
--      combined_type       - type of the node that this database is of that queue
--      worker_name         - consumer that copies from the provider
--      worker_paused       - whether it is to wait
--      worker_uptodate     - whether it has seen the last change of these settings
--      worker_last_tick    - last tick that it has copied; at the root the newest
--      node_attrs          - attributes for the worker
--      target_for          - queues whose leaves here copy into this queue
begin
    select 100, 'Ok', n.node_type, n.node_name, m.global_watermark,
           case when n.node_type = 'leaf' then s.last_tick_id else m.local_watermark end,
           s.provider_node, l.node_location, c.queue_name, c.node_type, n.worker_name, s.paused, s.uptodate,
           case when n.node_type = 'root' then m.top else s.last_tick_id end,
           n.node_attrs,
           (select array_agg(t.queue_name order by t.queue_name)
              from pgq_node.node_info t
             where t.combined_queue = n.queue_name and n.node_type <> 'leaf')
      into ret_code, ret_note, node_type, node_name, global_watermark, local_watermark, provider_node, provider_location,
           combined_queue, combined_type, worker_name, worker_paused, worker_uptodate, worker_last_tick, node_attrs, target_for
      from pgq_node.node_info n
      left join pgq_node.node_info c on c.queue_name = n.combined_queue
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
      left join pgq_node.node_location l on l.queue_name = s.queue_name and l.node_name = s.provider_node
      left join lateral pgq_node._watermarks(case when n.node_type <> 'leaf' then n.queue_name end) m on true
     where n.queue_name = i_queue_name;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
    end if;
end;
$$;

create or replace function pgq_node._here(i_queue_name text, out node_type text, out node_name text)
language sql stable
as $$
-- Returns which node of a queue this database is, for pgq._node_here(1).
    select case when e.fenced_by is null then n.node_type else 'old ' || n.node_type end, n.node_name
      from pgq_node.node_info n
      left join pgq_node.root_epoch e on e.queue_name = n.queue_name
     where n.queue_name = i_queue_name;
$$;

create or replace function pgq_node._require_type(i_queue_name text)
returns text
language plpgsql
as $$
-- Returns the type of this node; raises PQ001 if this database is no node of the queue.
declare
    v_type  constant text := (select node_type from pgq_node.node_info where queue_name = i_queue_name);
begin
    if v_type is null then
        raise exception using errcode = 'PQ001',
            message = 'queue does not exist: ' || coalesce(i_queue_name, 'NULL'),
            hint = 'This database is no node of a queue of this name; pgq_node.node_info lists those of which it is one.';
    end if;
    return v_type;
end;
$$;

create or replace function pgq_node.is_root_node(i_queue_name text)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether this node is the root.
-- Errors: PQ001 this database is no node of the queue
    select pgq_node._require_type(i_queue_name) = 'root';
$$;

create or replace function pgq_node.is_leaf_node(i_queue_name text)
returns boolean
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether this node is a leaf.
-- Errors: PQ001 this database is no node of the queue
    select pgq_node._require_type(i_queue_name) = 'leaf';
$$;

create or replace function pgq_node.version()
returns text
language sql
as $$
-- Returns the version of PgQ whose interface this is.
    select pgq.version();
$$;

create or replace function pgq_node.upgrade_schema()
returns integer
language sql
as $$
-- Does nothing; here migrations upgrade the schema (pgqpy migrate).
-- Returns: 0
    select 0;
$$;
