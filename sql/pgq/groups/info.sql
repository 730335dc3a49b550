create or replace function pgq.get_group_partitions(
    i_queue_name text, i_group_name text,
    out partition int4, out consumer_name text, out worker text, out last_seen interval, out lag interval,
    out pending_events bigint, out last_tick bigint, out current_batch bigint,
    out parked_keys bigint, out parked_events bigint, out is_full boolean)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the progress and the owners of a group's partitions.
-- Returns:
--      partition       - its number, and consumer_name, the name under which it is registered
--      worker          - name of its owner, null if it is free; and last_seen, the owner's last heartbeat
--      lag             - age of the last tick that the partition has finished
--      pending_events  - events after that tick, of all keys, as counted by the event sequence
--      last_tick       - that tick; current_batch, the open batch
--      parked_keys, parked_events  - numbers of parked keys and events
--      is_full         - true if so much is parked that it takes no more batches
-- Errors: PQ036 group does not exist
declare
    g   pgq.consumer_group := pgq._find_group(i_queue_name, i_group_name);
begin
    return query
    select p.part_nr, c.consumer_name, m.member_name,
           case when m.member_id is not null then clock_timestamp() - (pgq._get_position(- m.member_id)).pos_active end,
           c.lag, c.pending_events, c.last_tick, c.current_batch, k.keys, k.events, k.events > g.group_park_limit
      from pgq.group_partition p
      join pgq.get_consumer_info(i_queue_name, null) c on c.consumer_name = format('%s#%s', g.group_name, p.part_nr)
      left join pgq.group_member m on m.member_id = p.part_member
     cross join lateral (
           select count(distinct parked_id) as keys, count(pe_id) as events
             from pgq._parked_key left join pgq._parked_event on pe_key = parked_id
            where parked_group = g.group_id and parked_part = p.part_nr) k
     where p.part_group = g.group_id
     order by p.part_nr;
end;
$$;

create or replace function pgq.get_group_info(
    i_queue_name text default null, i_group_name text default null,
    out queue_name text, out group_name text, out partitions int4, out key text, out lease interval, out park_limit int4,
    out workers bigint, out lag interval, out pending_events bigint,
    out parked_keys bigint, out parked_events bigint, out resize_to int4, out resize_tick bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the settings and the state of consumer groups.
-- Parameters:
--      i_queue_name, i_group_name  - the groups; null for all
-- Returns:
--      queue_name, group_name, partitions, key, lease, park_limit  - the settings
--      workers                     - present number of members
--      lag, pending_events         - those of the partition that is farthest behind
--      parked_keys, parked_events  - numbers of parked keys and events
--      resize_to, resize_tick      - during resizing: the new number of partitions, and the tick that all must reach
    select q.queue_name, g.group_name, g.group_partitions, g.group_key, g.group_lease, g.group_park_limit,
           (select count(*) from pgq.group_member where member_group = g.group_id),
           p.lag, p.pending, p.keys, p.events, g.group_resize_to, g.group_resize_tick
      from pgq.consumer_group g
      join pgq.queue q on q.queue_id = g.group_queue
     cross join lateral (
           select max(gp.lag), max(gp.pending_events), sum(gp.parked_keys)::int8, sum(gp.parked_events)::int8
             from pgq.get_group_partitions(q.queue_name, g.group_name) gp) p (lag, pending, keys, events)
     where (i_queue_name is null or q.queue_name = i_queue_name)
       and (i_group_name is null or g.group_name = i_group_name)
     order by 1, 2;
$$;

create or replace function pgq.get_parked_keys(
    i_queue_name text, i_group_name text,
    out key text, out partition int4, out events bigint, out first_event bigint, out attempts int4,
    out parked_since timestamptz, out next_attempt timestamptz, out error text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the parked keys of a group, the oldest first.
-- Returns:
--      key, partition
--      events, first_event     - number of parked events, and the id of the first
--      attempts                - number of failures of the first event; error, the last failure
--      parked_since            - time when the key was parked
--      next_attempt            - time of the next attempt; null: not before pgq.unpark_key() or pgq.give_up_parked()
-- Errors: PQ036 group does not exist
declare
    g   pgq.consumer_group := pgq._find_group(i_queue_name, i_group_name);
begin
    perform pgq._require_group(g, true);
    return query
    select k.parked_key, k.parked_part, count(e.pe_id), (array_agg(e.ev_id order by e.pe_id))[1], k.parked_attempts,
           k.parked_since, k.parked_next, k.parked_error
      from pgq._parked_key k
      left join pgq._parked_event e on e.pe_key = k.parked_id
     where k.parked_group = g.group_id
     group by k.parked_id
     order by k.parked_since, k.parked_id;
end;
$$;
