create or replace function pgq_node._require_right(i_queue_name text, i_consumer_name text)
returns void
language plpgsql
as $$
-- Raises 42501 if this consumer is the node's worker, and the caller no administrator: what the worker skips, no consumer
-- of the node gets. Also if there is a queue of this name in this database, it is restricted, and the caller may neither
-- insert into it nor consume from it as this consumer.
begin
    if exists (select from pgq_node.node_info where queue_name = i_queue_name and worker_name = i_consumer_name)
       and (pgq._runs_for_another() or not pg_catalog.pg_has_role(pgq._caller(), 'pgq_admin', 'usage'))
    then
        raise exception using errcode = '42501',
            message = pg_catalog.format('role %I may not move the worker %L of queue %L', pgq._caller(), i_consumer_name, i_queue_name),
            hint = 'A node''s worker copies for all consumers there: be a member of pgq_admin.';
    end if;
    perform pgq._require_right(q.queue_id, '{insert,consume}', i_consumer_name)
       from pgq.queue q
      where q.queue_name = i_queue_name
        and q.queue_restricted;
end;
$$;

create or replace function pgq_node._require_given(i_value text)
returns void
language plpgsql
as $$
-- Raises PQ011 for an argument that is null: PostgreSQL would quote the row that it refuses, with the consumer's error.
begin
    if i_value is null then
        raise exception using errcode = 'PQ011', message = 'an argument is NULL', hint = 'Give the tick, or true or false.';
    end if;
end;
$$;

create or replace function pgq_node._epoch(i_queue_name text)
returns pgq_node.root_epoch
language plpgsql stable
as $$
-- Returns what a node knows of its root's epoch.
declare
    e   pgq_node.root_epoch;
begin
    select * into e from pgq_node.root_epoch where queue_name = i_queue_name;
    e.epoch := coalesce(e.epoch, 0);
    return e;
end;
$$;

create or replace function pgq_node._publish(
    i_queue_name text, i_type text, i_data text, i_extra2 text default null, i_extra3 text default null, i_extra4 text default null)
returns void
language plpgsql
as $$
-- Inserts an event about nodes into a root's queue, from where it gets to all nodes. A fenced root has no nodes.
begin
    if (pgq_node._epoch(i_queue_name)).fenced_by is null then
        perform pgq.insert_event(i_queue_name, i_type, i_data, i_queue_name, i_extra2, i_extra3, i_extra4);
    end if;
end;
$$;

create or replace function pgq_node.register_location(
    i_queue_name text, i_node_name text, i_node_location text, i_dead boolean,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers where a node is, or changes it. The root lets all nodes know.
-- Parameters:
--      i_node_location - connection string; null to leave it unchanged. Programs on other machines connect by it, so it
--                        chooses no files and credentials of theirs
--      i_dead          - whether the node is to be considered dead
-- Returns:
--      ret_code        - 200; 400 the connection string has such a setting
--      ret_note        - the same in words
declare
    v_type  text;
    -- pgqpy's programs check each setting when they connect
    v_bad   constant text := substring(lower(i_node_location) from
        '(?:^|[[:space:]?&])(hostaddr|passfile|servicefile|sslkey|sslcert|sslpassword|sslkeylogfile|gssdelegation)[[:space:]]*=');
begin
    if v_bad is not null then
        ret_code := 400;
        ret_note := format('location may not set %s', v_bad);
        return;
    end if;
    select n.node_type into v_type from pgq_node.node_info n where n.queue_name = i_queue_name for update;
    update pgq_node.node_location
       set node_location = coalesce(i_node_location, node_location),
           dead = i_dead
     where queue_name = i_queue_name
       and node_name = i_node_name;
    if not found and i_node_location is not null then
        insert into pgq_node.node_location (queue_name, node_name, node_location, dead)
        values (i_queue_name, i_node_name, i_node_location, i_dead);
    end if;
    if v_type = 'root' then
        perform pgq_node._publish(i_queue_name, 'pgq.location-info', i_node_name, i_node_location, i_dead::text,
                                  nullif((pgq_node._epoch(i_queue_name)).epoch, 0)::text);
    end if;
    ret_code := 200;
    ret_note := 'Location registered';
end;
$$;

create or replace function pgq_node.unregister_location(
    i_queue_name text, i_node_name text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Forgets where a node is, and its subscription. The root lets all nodes know.
-- Returns:
--      ret_code    - 200; 301 it is not registered; 403 it is this node, or a consumer here reads from it
--      ret_note    - the same in words
declare
    v_node      record;
    v_readers   text;
begin
    select n.node_name, n.node_type, s.provider_node into v_node
      from pgq_node.node_info n
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = n.worker_name
     where n.queue_name = i_queue_name;
    select string_agg(s.consumer_name, ', ' order by s.consumer_name) into v_readers
      from pgq_node.local_state s
     where s.queue_name = i_queue_name
       and s.provider_node = i_node_name;
    ret_code := 403;
    if v_node.node_name = i_node_name then
        ret_note := 'Cannot drop node''s own location';
        return;
    elsif v_node.provider_node = i_node_name then
        ret_note := 'Cannot drop location of node''s parent';
        return;
    elsif v_readers is not null then
        ret_note := format('Cannot drop location of %s: consumers read from it: %s', i_node_name, v_readers);
        return;
    end if;

    perform pgq_node.unregister_subscriber(i_queue_name, i_node_name);
    delete from pgq_node.node_location where queue_name = i_queue_name and node_name = i_node_name;
    if found then
        ret_code := 200;
        ret_note := 'Ok';
    else
        ret_code := 301;
        ret_note := format('Location not found: %s/%s', i_queue_name, i_node_name);
    end if;
    if v_node.node_type = 'root' then
        perform pgq_node._publish(i_queue_name, 'pgq.unregister-location', i_node_name);
    end if;
end;
$$;

create or replace function pgq_node.get_queue_locations(
    i_queue_name text,
    out node_name text, out node_location text, out dead boolean)
returns setof record
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the nodes of a queue.
-- Returns:
--      node_name       - name of the node
--      node_location   - its connection string
--      dead            - whether it is to be considered dead
    select l.node_name, l.node_location, l.dead
      from pgq_node.node_location l
     where l.queue_name = i_queue_name
     order by l.node_name;
$$;
