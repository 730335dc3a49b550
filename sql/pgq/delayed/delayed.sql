-- Access to the events that wait for their time; see tables.sql.
--
-- No event is lost or delivered twice, for this reason: a pass first publishes in a sequence the time up to which it
-- copies, then takes its snapshot. A session that writes draws a transaction id, reads the sequence, and takes a time
-- after it. So a row that belongs to a pass and is not visible to it was written by a transaction that had its id
-- already, and a later pass finds its rows by that id. The snapshot names only transactions that are older than the
-- newest one that had ended; the others lie below the fence, an id that no transaction had yet.

create or replace function pgq._delayed_target(out earliest timestamptz, out parity bigint)
language plpgsql
as $$
-- Returns what a session needs to write into pgq.delayed. It draws the transaction id before it looks, and wakes the
-- ticker, because the new event may be due next.
-- Returns:
--      earliest    - earliest time that a row may be due; null for no limit
--      parity      - for pgq._delayed_slot(2)
begin
    perform pg_catalog.txid_current();
    earliest := pg_catalog.to_timestamp(0)
                + (pg_catalog.pg_sequence_last_value('pgq.delayed_until_seq') + 1) * interval '1 microsecond';
    parity := pg_catalog.pg_sequence_last_value('pgq.delayed_parity_seq');
    if pg_catalog.pg_sequence_last_value('pgq.ticker_sleep_seq') = 2 then
        perform pg_catalog.pg_notify('pgq_wake', '');
    end if;
end;
$$;

create or replace function pgq._delayed_slot(i_due timestamptz, i_parity bigint)
returns int4
language plpgsql
as $$
-- Returns the table for an event that is due at this time; there are two for each range of delays.
declare
    delay   constant interval := i_due - pg_catalog.clock_timestamp();
    range   constant int4 := case when delay < interval '1 minute' then 0
                                  when delay < interval '1 hour' then 1
                                  when delay < interval '1 day' then 2
                                  when delay < interval '32 days' then 3
                                  when delay < interval '1024 days' then 4
                                  else 5 end;
begin
    return 2 * range + ((i_parity >> range) & 1)::int4;
end;
$$;

create or replace function pgq._last_move()
returns pgq.moved_0
language plpgsql
as $$
-- Returns the progress of the passes; empty before the first pass.
declare
    m   pgq.moved_0;
begin
    -- Look twice: between two statements rotation may carry the row from one table to the other.
    for attempt in 1..2 loop
        if pg_catalog.pg_sequence_last_value('pgq.moved_log_seq') % 2 = 0 then
            select * into m from pgq.moved_0 order by moved_nr desc limit 1;
            exit when found;
            select * into m from pgq.moved_1 order by moved_nr desc limit 1;
        else
            select * into m from pgq.moved_1 order by moved_nr desc limit 1;
            exit when found;
            select * into m from pgq.moved_0 order by moved_nr desc limit 1;
        end if;
        exit when found;
    end loop;
    if m.moved_nr is null then
        perform pgq._check_log_snapshot('moved');
        m := row(0, '-infinity', 0, '1:1:', 0, '{}', '{}');
    end if;
    return m;
end;
$$;

create or replace function pgq._is_moved(i_due timestamptz, i_due_nr bigint, i_due_txid bigint, i_move pgq.moved_0)
returns boolean
language plpgsql immutable
as $$
-- Whether a row of pgq.delayed has been copied into its queue.
begin
    return (i_due, i_due_nr) <= (i_move.moved_due, i_move.moved_due_nr)
       and pg_catalog.txid_visible_in_snapshot(i_due_txid, i_move.moved_snapshot)
       and i_due_nr <> all (i_move.held_due_nr);
end;
$$;

create or replace function pgq.get_delayed_events(
    i_queue_name text, i_limit int4 default null,
    out due timestamptz, out ev_id bigint, out ev_time timestamptz, out ev_type text, out ev_data text,
    out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the delayed events of a queue, the next ones first, without the retries of single consumers.
-- Parameters:
--      i_limit         - maximum number of events; null for all
-- Returns:
--      due     - time of delivery
--      others  - the event
#variable_conflict use_column
declare
    id  constant int4 := (pgq._find_queue_for(i_queue_name, 'read')).queue_id;
    -- As in pgq.waiting_event, which would be read whole and sorted.
    m   pgq.moved_0;
begin
    select * into m from (table pgq.moved_0 union all table pgq.moved_1) l order by l.moved_nr desc limit 1;
    return query
    select d.due, d.ev_id, d.ev_time, d.ev_type, d.ev_data, d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4
      from pgq.delayed d
     where d.ev_queue = id
       and d.ev_owner is null
       and ((d.due, d.due_nr) <= (m.moved_due, m.moved_due_nr)
            and txid_visible_in_snapshot(d.due_txid, m.moved_snapshot)
            and d.due_nr <> all (m.held_due_nr)) is not true
     order by d.due, d.due_nr
     limit i_limit;
end;
$$;

create or replace function pgq.get_delayed_info(
    i_queue_name text default null,
    out queue_name text, out delayed_events bigint, out next_due timestamptz, out retry_events bigint)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of delayed events and retries of each queue. It reads all of them.
-- Parameters:
--      i_queue_name    - the queue; null for all
-- Returns:
--      delayed_events  - number of delayed events
--      next_due        - time when the next delayed event is due
--      retry_events    - number of waiting retries
declare
    v_queue constant int4 := (select q.queue_id from pgq.queue q where q.queue_name = i_queue_name);
    -- As in pgq.waiting_event, which is slower if it is read whole.
    m       pgq.moved_0;
begin
    select * into m from (table pgq.moved_0 union all table pgq.moved_1) l order by l.moved_nr desc limit 1;
    return query
    with waiting as (
        select d.ev_queue, d.ev_owner, count(*) as number, min(d.due) as due
          from pgq.delayed d
         where (i_queue_name is null or d.ev_queue = v_queue)
           and ((d.due, d.due_nr) <= (m.moved_due, m.moved_due_nr)
                and txid_visible_in_snapshot(d.due_txid, m.moved_snapshot)
                and d.due_nr <> all (m.held_due_nr)) is not true
         group by 1, 2)
    select q.queue_name, coalesce(sum(w.number) filter (where w.ev_owner is null), 0)::bigint,
           min(w.due) filter (where w.ev_owner is null),
           coalesce(sum(w.number) filter (where exists (select from pgq.registration where sub_id = w.ev_owner)), 0)::bigint
      from pgq.queue q
      left join waiting w on w.ev_queue = q.queue_id
     where i_queue_name is null or q.queue_id = v_queue
     group by q.queue_id
     order by q.queue_name;
end;
$$;
