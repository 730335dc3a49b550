create or replace function pgq_node._hand_over_delayed(i_queue_name text)
returns void
language plpgsql
as $$
-- Takes the delayed events out of the queue of a root that becomes a branch: delivered here, other nodes would not get
-- them. Retries stay, each is of one consumer here.
begin
    delete from pgq_node.handed_over where queue_name = i_queue_name and taken;
    insert into pgq_node.handed_over (queue_name, ev_id, due, ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    select i_queue_name, w.ev_id, w.due, w.ev_time, w.ev_type, w.ev_data, w.ev_extra1, w.ev_extra2, w.ev_extra3, w.ev_extra4
      from pgq.waiting_event w
      join pgq.queue q on q.queue_id = w.ev_queue
     where q.queue_name = i_queue_name
       and w.ev_owner is null
       -- false if it has just been delivered
       and pgq.cancel_event(i_queue_name, w.ev_id);
end;
$$;

create or replace function pgq_node._delay(i_queue_name text, h pgq_node.handed_over)
returns bigint
language plpgsql
as $$
-- Puts an event that was handed over into a queue, to be delivered when it is due; returns its id. One at a time: together
-- they could be more than a JSON array or an array holds.
declare
    d   record;
begin
    select * into d from pgq._delayed_target();
    insert into pgq.delayed (due, ev_queue, ev_id, ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, due_slot)
    select greatest(h.due, d.earliest), q.queue_id, h.ev_id, h.ev_time, h.ev_type, h.ev_data, h.ev_extra1, h.ev_extra2, h.ev_extra3,
           h.ev_extra4, pgq._delayed_slot(greatest(h.due, d.earliest), d.parity)
      from pgq.queue q
     where q.queue_name = i_queue_name;
    return h.ev_id;
end;
$$;

create or replace function pgq_node.take_delayed(
    i_queue_name text, i_events jsonb,
    out ret_code int4, out ret_note text, out taken bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Takes the delayed events of the old root, with their ids. It notes which, and takes none twice, so it can be repeated.
-- Parameters:
--      i_events    - array of the rows of pgq_node.handed_over there, without those taken; delete them afterwards
-- Returns:
--      ret_code    - 200; 301 this node is no root; 404 this database is no node of the queue
--      ret_note    - the same in words
--      taken       - number of events taken
declare
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
    end if;
    with fresh as (
        insert into pgq_node.handed_over as x (queue_name, ev_id, due, ev_time, taken)
        select i_queue_name, h.ev_id, h.due, h.ev_time, true
          from jsonb_populate_recordset(null::pgq_node.handed_over, i_events) h
        on conflict do nothing
        returning x.ev_id)
    select count(pgq_node._delay(i_queue_name, h)) into taken
      from jsonb_populate_recordset(null::pgq_node.handed_over, i_events) h
      join fresh using (ev_id);
    ret_code := 200;
    ret_note := format('%s delayed events taken', taken);
end;
$$;

create or replace function pgq_node._take_back_delayed(i_queue_name text)
returns void
language plpgsql
as $$
-- Puts the delayed events back into the queue of a root that is open: its takeover was given up.
declare
    h   pgq_node.handed_over;
begin
    if exists (select from pgq.queue q where q.queue_name = i_queue_name and not q.queue_disable_insert) then
        for h in delete from pgq_node.handed_over where queue_name = i_queue_name and not taken returning * loop
            perform pgq_node._delay(i_queue_name, h);
        end loop;
    end if;
end;
$$;
