create or replace function pgq.insert_events(
    i_queue_name text, i_types text[], i_data text[],
    i_extra1 text[] default null, i_extra2 text[] default null,
    i_extra3 text[] default null, i_extra4 text[] default null)
returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
rows 1000
as $$
-- Puts many events into a queue in one statement, in the caller's transaction.
-- Parameters:
--      i_types, i_data         - types and payloads, arrays of the same length
--      i_extra1 .. i_extra4    - further fields, each null or an array of that length
-- Returns: the events' ids, ascending, in the order of the arrays.
-- Errors: PQ011 arrays differ in length; otherwise as pgq.insert_event(7)
declare
    n       int4 := coalesce(cardinality(i_types), cardinality(i_data), 0);
    v_slot  int4;
    v_seq   regclass;
    v_time  constant timestamptz := now();
    v_txid  constant bigint := txid_current();
begin
    if exists (select from unnest(array[cardinality(i_types), cardinality(i_data), cardinality(i_extra1),
                                        cardinality(i_extra2), cardinality(i_extra3), cardinality(i_extra4)]) len
                where len <> n)
    then
        -- A call in every case would cost more than the check.
        perform pgq._require_equal_lengths('insert_events', n, cardinality(i_types), cardinality(i_data), cardinality(i_extra1),
                                           cardinality(i_extra2), cardinality(i_extra3), cardinality(i_extra4));
    end if;

    select t.ev_slot, t.event_seq into v_slot, v_seq from pgq._write_target(i_queue_name, n) t;
    -- Give all columns, in their order, or the plan would need another node to add the rest. Read the arrays in the
    -- select list: in FROM they would be spilled to disk first.
    if num_nulls(i_extra1, i_extra2, i_extra3, i_extra4) = 4 then
        -- the usual case, and a tenth faster
        return query
        insert into pgq.event (ev_id, ev_time, ev_txid, ev_owner, ev_retry,
                               ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
        select nextval(v_seq), v_time, v_txid, null::int4, null::int4,
               e.ev_type, e.ev_data, null::text, null::text, null::text, null::text, v_slot
          from (select unnest(i_types) as ev_type, unnest(i_data) as ev_data) e
        returning ev_id;
        return;
    end if;
    return query
    insert into pgq.event (ev_id, ev_time, ev_txid, ev_owner, ev_retry,
                           ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_slot)
    select nextval(v_seq), v_time, v_txid, null::int4, null::int4,
           e.ev_type, e.ev_data, e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4, v_slot
      from (select unnest(i_types) as ev_type, unnest(i_data) as ev_data, unnest(i_extra1) as ev_extra1,
                   unnest(i_extra2) as ev_extra2, unnest(i_extra3) as ev_extra3, unnest(i_extra4) as ev_extra4) e
    returning ev_id;
end;
$$;
