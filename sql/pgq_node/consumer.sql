create or replace function pgq_node.register_consumer(
    i_queue_name text, i_consumer_name text, i_provider_node text, i_custom_tick_id bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a consumer that reads at another node and writes into this database, or moves it.
-- Parameters:
--      i_provider_node     - node to read at
--      i_custom_tick_id    - tick that it has finished last
-- Returns:
--      ret_code            - 200; 201 it was registered, and has been moved; 404 this database is no node of the queue, or
--                            the other node has no location
--      ret_note            - the same in words
-- Errors: PQ011 an argument is null
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name), pgq_node._require_given(i_custom_tick_id::text);
    perform from pgq_node.node_info where queue_name = i_queue_name for update;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
        return;
    elsif not exists (select from pgq_node.node_location l where l.queue_name = i_queue_name and l.node_name = i_provider_node) then
        ret_code := 404;
        ret_note := 'Unknown node: ' || i_provider_node;
        return;
    end if;
    update pgq_node.local_state
       set provider_node = i_provider_node,
           last_tick_id = i_custom_tick_id
     where queue_name = i_queue_name
       and consumer_name = i_consumer_name;
    if found then
        ret_code := 201;
        ret_note := format('Consumer already registered: %s/%s', i_queue_name, i_consumer_name);
    else
        insert into pgq_node.local_state (queue_name, consumer_name, provider_node, last_tick_id)
        values (i_queue_name, i_consumer_name, i_provider_node, i_custom_tick_id);
        ret_code := 200;
        ret_note := format('Consumer %s registered on queue %s', i_consumer_name, i_queue_name);
    end if;
end;
$$;

create or replace function pgq_node.unregister_consumer(
    i_queue_name text, i_consumer_name text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Forgets a consumer that writes into this database.
-- Returns:
--      ret_code    - 200, also if it was not registered; 404 this database is no node of the queue
--      ret_note    - the same in words
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name);
    perform from pgq_node.node_info where queue_name = i_queue_name for update;
    if found then
        delete from pgq_node.local_state where queue_name = i_queue_name and consumer_name = i_consumer_name;
        ret_code := 200;
        ret_note := format('Consumer %s unregistered from %s', i_consumer_name, i_queue_name);
    else
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
    end if;
end;
$$;

create or replace function pgq_node._shown_error(i_queue_name text, i_consumer_name text, i_error text)
returns text
language plpgsql stable
as $$
-- Returns why a consumer's batch failed, which may quote an event; null if the queue is restricted here and the caller may
-- neither read it nor consume from it as this consumer. As in pgq.failing_consumer.
begin
    return (select i_error
             where not exists (select from pgq.queue q
                                where q.queue_name = i_queue_name
                                  and q.queue_restricted
                                  and not pgq._may_see(q.queue_id, i_consumer_name, current_user)));
end;
$$;

create or replace function pgq_node.get_consumer_state(
    i_queue_name text, i_consumer_name text,
    out ret_code int4, out ret_note text,
    out node_type text, out node_name text, out completed_tick bigint, out provider_node text, out provider_location text,
    out paused boolean, out uptodate boolean, out cur_error text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns a consumer that writes into this database.
-- Returns:
--      ret_code            - 100; 404 this database is no node of the queue, or the consumer is not registered
--      ret_note            - the same in words
--      node_type           - type of this node
--      node_name           - name of this node
--      completed_tick      - last tick that the consumer has finished
--      provider_node       - node it reads at
--      provider_location   - connection string of this
--      paused              - whether it is to wait
--      uptodate            - whether it has seen the last change of these settings
--      cur_error           - why its batch failed; null if it did not, or the caller may not see it
begin
    select 100, 'Ok', n.node_type, n.node_name, s.last_tick_id, s.provider_node, l.node_location, s.paused, s.uptodate,
           pgq_node._shown_error(s.queue_name, s.consumer_name, s.cur_error)
      into ret_code, ret_note, node_type, node_name, completed_tick, provider_node, provider_location, paused, uptodate, cur_error
      from pgq_node.node_info n
      left join pgq_node.local_state s on s.queue_name = n.queue_name and s.consumer_name = i_consumer_name
      left join pgq_node.node_location l on l.queue_name = s.queue_name and l.node_name = s.provider_node
     where n.queue_name = i_queue_name;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown queue: ' || i_queue_name;
    elsif completed_tick is null then
        ret_code := 404;
        ret_note := format('Unknown consumer: %s/%s', i_queue_name, i_consumer_name);
    end if;
end;
$$;

create or replace function pgq_node.get_consumer_info(
    i_queue_name text,
    out consumer_name text, out provider_node text, out last_tick_id bigint, out paused boolean, out uptodate boolean,
    out cur_error text)
returns setof record
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the consumers that write into this database, and the worker.
-- Returns:
--      consumer_name   - name of the consumer
--      provider_node   - node it reads at
--      last_tick_id    - last tick that it has finished
--      paused          - whether it is to wait
--      uptodate        - whether it has seen the last change of these settings
--      cur_error       - why its batch failed; null if it did not, or the caller may not see it
    select s.consumer_name, s.provider_node, s.last_tick_id, s.paused, s.uptodate,
           pgq_node._shown_error(s.queue_name, s.consumer_name, s.cur_error)
      from pgq_node.local_state s
     where s.queue_name = i_queue_name
     order by s.consumer_name;
$$;

create or replace function pgq_node.change_consumer_provider(
    i_queue_name text, i_consumer_name text, i_new_provider text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets a consumer, or the worker, read at another node. It goes on at its tick.
-- Returns:
--      ret_code    - 200; 404 no such consumer, or the node has no location; 405 the worker would copy from this node itself
--      ret_note    - the same in words
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name);
    if not exists (select from pgq_node.node_location l where l.queue_name = i_queue_name and l.node_name = i_new_provider) then
        ret_code := 404;
        ret_note := 'New node not found: ' || i_new_provider;
        return;
    elsif exists (select from pgq_node.node_info n
                   where n.queue_name = i_queue_name
                     and n.worker_name = i_consumer_name
                     and n.node_name = i_new_provider
                     and n.node_type <> 'root')
    then
        ret_code := 405;
        ret_note := format('Node %s cannot be its own provider', i_new_provider);
        return;
    end if;
    update pgq_node.local_state
       set provider_node = i_new_provider,
           uptodate = false
     where queue_name = i_queue_name
       and consumer_name = i_consumer_name;
    if found then
        ret_code := 200;
        ret_note := 'Consumer provider node set to : ' || i_new_provider;
    else
        ret_code := 404;
        ret_note := format('Unknown consumer: %s/%s', i_queue_name, i_consumer_name);
    end if;
end;
$$;

create or replace function pgq_node.set_consumer_uptodate(
    i_queue_name text, i_consumer_name text, i_uptodate boolean,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes whether a consumer has seen the last change of its settings.
-- Returns:
--      ret_code    - 200; 404 no such consumer
--      ret_note    - the same in words
-- Errors: PQ011 an argument is null
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name), pgq_node._require_given(i_uptodate::text);
    update pgq_node.local_state
       set uptodate = i_uptodate
     where queue_name = i_queue_name
       and consumer_name = i_consumer_name;
    if found then
        ret_code := 200;
        ret_note := 'Consumer uptodate = ' || i_uptodate::int4;
    else
        ret_code := 404;
        ret_note := format('Consumer not known: %s/%s', i_queue_name, i_consumer_name);
    end if;
end;
$$;

create or replace function pgq_node.set_consumer_paused(
    i_queue_name text, i_consumer_name text, i_paused boolean,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets a consumer, or the worker, wait after its batch, or go on.
-- Returns:
--      ret_code    - 200; 201 it was so already; 404 no such consumer
--      ret_note    - the same in words
-- Errors: PQ011 an argument is null
declare
    v_word  constant text := case when i_paused then 'paused' else 'resumed' end;
    v_was   boolean;
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name), pgq_node._require_given(i_paused::text);
    select s.paused into v_was
      from pgq_node.local_state s
     where s.queue_name = i_queue_name
       and s.consumer_name = i_consumer_name
       for update;
    if not found then
        ret_code := 404;
        ret_note := 'Unknown consumer: ' || i_consumer_name;
    elsif v_was = i_paused then
        ret_code := 201;
        ret_note := format('Consumer %s already %s', i_consumer_name, v_word);
    else
        update pgq_node.local_state
           set paused = i_paused,
               uptodate = false
         where queue_name = i_queue_name
           and consumer_name = i_consumer_name;
        ret_code := 200;
        ret_note := format('Consumer %s tagged as %s', i_consumer_name, v_word);
    end if;
end;
$$;

create or replace function pgq_node.set_consumer_completed(
    i_queue_name text, i_consumer_name text, i_tick_id bigint,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes the tick that a consumer has finished, in the transaction of its effects. Its error is over.
-- Returns:
--      ret_code    - 100; 404 no such consumer
--      ret_note    - the same in words
-- Errors: PQ011 an argument is null
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name), pgq_node._require_given(i_tick_id::text);
    update pgq_node.local_state
       set last_tick_id = i_tick_id,
           cur_error = null
     where queue_name = i_queue_name
       and consumer_name = i_consumer_name;
    if found then
        ret_code := 100;
        ret_note := format('Consumer %s completed tick = %s', i_consumer_name, i_tick_id);
    else
        ret_code := 404;
        ret_note := format('Consumer not known: %s/%s', i_queue_name, i_consumer_name);
    end if;
end;
$$;

create or replace function pgq_node.set_consumer_error(
    i_queue_name text, i_consumer_name text, i_error_msg text,
    out ret_code int4, out ret_note text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes why a consumer's batch has failed; null for it has not.
-- Returns:
--      ret_code    - 100; 101 no such consumer
--      ret_note    - the same in words
begin
    perform pgq_node._require_right(i_queue_name, i_consumer_name);
    update pgq_node.local_state
       set cur_error = i_error_msg
     where queue_name = i_queue_name
       and consumer_name = i_consumer_name;
    if found then
        ret_code := 100;
        ret_note := format('Consumer %s error = ', i_consumer_name) || i_error_msg;
    else
        ret_code := 101;
        ret_note := format('Consumer not known, ignoring: %s/%s', i_queue_name, i_consumer_name);
    end if;
end;
$$;
