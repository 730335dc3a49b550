create or replace function pgq.get_queue_info(
    i_queue_name text,
    out queue_name text, out queue_ntables integer, out queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval, out queue_ticker_idle_period interval,
    out ticker_lag interval, out ev_per_sec float8, out ev_new bigint, out last_tick_id bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the settings and the state of queues.
-- Parameters:
--      i_queue_name    - the queue; null for all
-- Returns:
--      The settings, and:
--      ticker_lag      - age of the newest tick
--      ev_per_sec      - events per second over the last 20 nominal ticks
--      ev_new          - events since the newest tick, as counted by the event sequence. A standby knows sequences up to
--                        32 numbers ahead: there it is the number that there are at least. Null while another
--                        transaction drops, restricts or opens the queue
--      last_tick_id    - the newest tick
    select q.queue_name, q.queue_ntables, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time,
           q.queue_external_ticker, q.queue_ticker_paused,
           q.queue_ticker_max_count, q.queue_ticker_max_lag, q.queue_ticker_idle_period,
           current_timestamp - newest.tick_time,
           (select * from pgq._count_events(q.queue_id, past.tick_event_seq, newest.tick_event_seq))
               / nullif(extract(epoch from newest.tick_time - past.tick_time), 0)::float8,
           case when pg_is_in_recovery() then greatest(fresh.events - 32, 0) else fresh.events end,
           newest.tick_id
      from pgq.queue q
      left join lateral (
           select * from pgq.tick_log
            where tick_queue = q.queue_id order by tick_id desc limit 1) newest on true
      left join lateral (
           select min(tick_time) as tick_time, min(tick_event_seq) as tick_event_seq
             from (select tick_time, tick_event_seq from pgq.tick_log
                    where tick_queue = q.queue_id and not tick_early and tick_id < newest.tick_id
                    order by tick_id desc limit 20) nominal) past on true
     cross join lateral pgq._count_events(q.queue_id, newest.tick_event_seq,
                                          case when pgq._may_read_sequences(q.queue_id, q.queue_event_seq_id)
                                               then pgq._event_seq_value(q.queue_event_seq_id) end) fresh (events)
     where i_queue_name is null or q.queue_name = i_queue_name
     order by q.queue_name;
$$;

create or replace function pgq.get_queue_info(
    out queue_name text, out queue_ntables integer, out queue_cur_table integer,
    out queue_rotation_period interval, out queue_switch_time timestamptz,
    out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count integer, out queue_ticker_max_lag interval, out queue_ticker_idle_period interval,
    out ticker_lag interval, out ev_per_sec float8, out ev_new bigint, out last_tick_id bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the settings and the state of all queues; see pgq.get_queue_info(1).
    select * from pgq.get_queue_info(null);
$$;

create or replace function pgq.tick_channel(i_queue_name text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the channel on which each tick of a queue is notified, with the tick id as payload. Other changes that its
-- consumers must know are notified with the payload 'changed'.
-- Returns: a name for LISTEN.
begin
    return 'pgq_tick_' || (pgq._find_queue(i_queue_name)).queue_id;
end;
$$;

create or replace function pgq._notify_consumers(i_queue_id int4)
returns void
language sql
as $$
-- Wakes consumers that wait for a tick, because the queue was dropped, or one of them was moved or unregistered.
    select pg_catalog.pg_notify('pgq_tick_' || i_queue_id, 'changed');
$$;

create or replace function pgq.version()
returns text
language sql
as $$
-- Returns the version of PgQ whose interface this is.
    select '3.5';
$$;
