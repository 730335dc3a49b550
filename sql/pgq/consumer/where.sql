-- Where is an event? For each consumer of its queue, exactly, by the snapshots of ticks: ids are not in the order in
-- which consumers see the events.
--
-- An event is stored once, and once more for each retry, with the consumer that it is for; all these copies have its
-- id. There is no index on ids, which every insert would pay for. So copies are looked up by their transactions:
--
--   1. Ticks tell which transactions may have drawn the id: those between the ticks before and after it.
--   2. A retry that a consumer has not read lies behind its position. Only consumers that have read the event can have
--      one, so reading on from the last of these finds it.
--   3. If 1 finds nothing, the event was delayed, or inserted with a given id, or is not there: all tables are read.

create or replace function pgq._note_move(r pgq.registration, i_from_tick bigint, i_to_tick bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes that a consumer, whose registration the caller has locked, begins after a tick, or was moved there: it will not
-- read what lies between, or reads it again.
-- Parameters:
--      i_from_tick     - the position before; null if it has just been registered
--      i_to_tick       - the position now
declare
    from_tick   constant pgq.tick_0 := case when i_from_tick is not null then pgq._get_tick(r.sub_queue, i_from_tick) end;
    to_tick     constant pgq.tick_0 := pgq._get_tick(r.sub_queue, i_to_tick);
    back        constant boolean := coalesce(i_to_tick < i_from_tick, false);
    -- the registration that stays as long as the consumer or group
    main        constant int4 := (select min(reg_id) from pgq.registration where sub_id = r.sub_id);
begin
    if i_from_tick = i_to_tick or to_tick.tick_id is null then
        return;
    end if;
    delete from pgq._consumer_move m
     where m.move_registration = main
       and m.move_high_tick < (select queue_horizon_tick from pgq.queue where queue_id = r.sub_queue);
    insert into pgq._consumer_move (move_registration, move_part, move_parts, move_back, move_low, move_high, move_high_tick)
    select main, part_nr, group_partitions, back,
           case when back then to_tick.tick_snapshot else from_tick.tick_snapshot end,
           case when back then from_tick.tick_snapshot else to_tick.tick_snapshot end,
           greatest(i_from_tick, i_to_tick)
      from (select) one
      left join (pgq.group_partition join pgq.consumer_group on group_id = part_group)
        on part_reg = r.reg_id and i_from_tick is not null;
end;
$$;

create or replace function pgq._passed_state(i_main int4, i_key text, i_txid bigint)
returns text
language plpgsql stable
as $$
-- Returns how a consumer has passed an event that lies before its position: done, skipped, or registered later.
-- Parameters:
--      i_main  - the registration that pgq._note_move(3) noted the moves for
--      i_key   - the event's key, if it is a group
--      i_txid  - the event's transaction
declare
    m       pgq._consumer_move;
    is_read boolean := true;
    started boolean := true;
begin
    for m in
        select *
          from pgq._consumer_move
         where move_registration = i_main
           and (move_part is null or pgq.key_partition(i_key, move_parts) = move_part)
         order by move_id
    loop
        if m.move_low is null then
            is_read := not pg_catalog.txid_visible_in_snapshot(i_txid, m.move_high);
            started := is_read;
        elsif m.move_back then
            if is_read and pg_catalog.txid_visible_in_snapshot(i_txid, m.move_high) then
                return 'done';  -- before the consumer was moved back
            end if;
            is_read := not pg_catalog.txid_visible_in_snapshot(i_txid, m.move_low);
            started := started or is_read;
        elsif pg_catalog.txid_visible_in_snapshot(i_txid, m.move_high)
          and not pg_catalog.txid_visible_in_snapshot(i_txid, m.move_low)
        then
            is_read := false;
        end if;
    end loop;
    return case when is_read then 'done' when started then 'skipped' else 'registered later' end;
end;
$$;

create or replace function pgq._event_range(
    q pgq.queue, i_event_id bigint, out low_tick bigint, out others bigint[], out from_txid bigint, out before_txid bigint)
language plpgsql stable
as $$
-- Returns the transactions that may have inserted an event whose id was drawn from the queue's sequence.
-- Returns:
--      low_tick                - a tick that does not see them; null if there is none
--      others                  - transactions that were running then
--      from_txid, before_txid  - and these, the last one not included
begin
    -- The last tick but one before the id: a tick reads the sequence before it takes its snapshot, but after the tick
    -- before it was committed.
    select t.tick_id, array(select pg_catalog.txid_snapshot_xip(t.tick_snapshot)), pg_catalog.txid_snapshot_xmax(t.tick_snapshot)
      into low_tick, others, from_txid
      from pgq.tick_log t
     where t.tick_queue = q.queue_id
       and t.tick_event_seq < i_event_id
     order by t.tick_id desc
    offset 1
     limit 1;
    select nullif(t.tick_fence, 0) into before_txid
      from pgq.tick_log t
     where t.tick_queue = q.queue_id
       and t.tick_event_seq >= i_event_id
       and t.tick_id > coalesce(low_tick, 0)
     order by t.tick_id
     limit 1;
    others := coalesce(others, '{}');
    from_txid := coalesce(from_txid, 0);
    before_txid := coalesce(before_txid, 9223372036854775807);
end;
$$;

create or replace function pgq._event_copies(q pgq.queue, i_event_id bigint)
returns pgq.event[]
language plpgsql stable
as $$
-- Returns the stored copies of an event that are in an open batch or not read by some consumer, and the event itself.
declare
    -- Each range has two ends: event tables are never analyzed, and of a range with one a third of the table is expected.
    look    constant text := pg_catalog.format(
        'select pg_catalog.array_agg(row(ev_txid, ev_id, ev_time, ev_owner, ev_retry, ev_type, ev_data,'
        ' ev_extra1, ev_extra2, ev_extra3, ev_extra4, 0)::pgq.event order by ev_owner is not null, ev_txid)'
        ' from %s where ev_id = $1 and (ev_txid >= $2 and ev_txid < $3 or ev_txid = any ($4)'
        ' or ev_txid >= $5 and ev_txid < 9223372036854775807)', q.queue_data_pfx);
    range   record;
    behind  bigint;
    copies  pgq.event[];
begin
    select * into range from pgq._event_range(q, i_event_id);
    execute look into copies using i_event_id, range.from_txid, range.before_txid, range.others, null::bigint;
    if copies is null or (copies[1]).ev_owner is not null then
        execute look into copies using i_event_id, 0::bigint, 0::bigint, range.others, 0::bigint;
        return copies;
    end if;
    select min(pg_catalog.txid_snapshot_xmin(t.tick_snapshot)) into behind
      from pgq.subscription s
      join pgq.tick_log t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
     where s.sub_queue = q.queue_id
       and pg_catalog.txid_visible_in_snapshot((copies[1]).ev_txid, t.tick_snapshot);
    if behind is not null then
        execute look into copies using i_event_id, range.from_txid, range.before_txid, range.others, behind;
    end if;
    return copies;
end;
$$;

create or replace function pgq._event_state(
    q pgq.queue, i_event_id bigint, i_copies pgq.event[], out state text, out since timestamptz, out due timestamptz)
language plpgsql stable
as $$
-- Returns what has become of an event itself; see pgq.where_is_event(2).
declare
    range   record;
begin
    select w.ev_time, w.due into since, due
      from pgq.waiting_event w
     where w.ev_id = i_event_id
       and w.ev_queue = q.queue_id
       and w.ev_owner is null
       and (not q.queue_restricted or pgq._role_has_right(pgq._caller(), q.queue_id, '{read}', ''));
    if found then
        state := 'delayed';
        since := null;
    elsif (i_copies[1]).ev_id is not null and (i_copies[1]).ev_owner is null then
        state := 'stored';
        since := (i_copies[1]).ev_time;
    elsif i_event_id > pgq._event_seq_value(q.queue_event_seq_id) and i_copies is null then
        state := 'absent';
    else
        select * into range from pgq._event_range(q, i_event_id);
        state := case
            -- Rotation removes only what the horizon's tick sees.
            when q.queue_horizon_tick > 1 and (range.low_tick >= q.queue_horizon_tick) is not true then 'not kept'
            when pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot()) < range.before_txid then 'not committed'
            else 'absent' end;
    end if;
end;
$$;

create or replace function pgq._event_keys(q pgq.queue, i_event pgq.event, out group_id int4, out key text)
returns setof record
language plpgsql stable
as $$
-- Returns the key that an event has for each group of its queue.
declare
    g   pgq.consumer_group;
begin
    for g in select * from pgq.consumer_group where group_queue = q.queue_id loop
        group_id := g.group_id;
        execute pg_catalog.format('select %s from (select ($1).*) ev', g.group_key_sql) into key using i_event;
        return next;
    end loop;
end;
$$;

create or replace function pgq._where_for_consumers(
    q pgq.queue, i_event_id bigint, i_copies pgq.event[],
    out consumer text, out worker text, out partition int4, out state text, out since timestamptz, out due timestamptz,
    out attempt int4, out events bigint, out ticks bigint, out batch_id bigint, out reason text)
returns setof record
language sql stable
as $$
-- Returns the state of an event for each consumer that the caller may see; see pgq.where_is_event(2).
-- In one function: it is one query, in which each state is found once for all consumers.
with place as (
    -- the positions that decide: the consumer's, those of members with open batches, that of the key's partition
    select r.reg_id, r.sub_id, main.reg_id as main, coalesce(g.group_name, main.co_name) as name, g.group_id, k.key, p.part_nr,
           case when g.group_id is not null then m.member_name
                when r.reg_id <> main.reg_id then pg_catalog.substr(c.co_name, pg_catalog.length(main.co_name) + 2) end as member,
           s.sub_batch, s.sub_last_tick, last.tick_snapshot as last, next.tick_snapshot as next
      from pgq.registration r
      join pgq.consumer c on c.co_id = r.sub_consumer
      join pgq.subscription s on s.sub_queue = r.sub_queue and s.sub_consumer = r.sub_consumer
     cross join lateral (
           select o.reg_id, oc.co_name from pgq.registration o join pgq.consumer oc on oc.co_id = o.sub_consumer
            where o.sub_id = r.sub_id order by o.reg_id limit 1) main
      left join pgq.group_partition p on p.part_reg = r.reg_id
      left join pgq.consumer_group g on g.group_id = p.part_group
      left join pgq._event_keys(q, i_copies[1]) k on k.group_id = g.group_id
      left join pgq.group_member m on m.member_id = p.part_member
      left join pgq.tick_log last on last.tick_queue = r.sub_queue and last.tick_id = s.sub_last_tick
      left join pgq.tick_log next on next.tick_queue = r.sub_queue and next.tick_id = s.sub_next_tick
     where r.sub_queue = q.queue_id
       and (r.reg_id = main.reg_id or g.group_id is not null or s.sub_batch is not null)
       and (g.group_id is null or p.part_nr = coalesce(pgq.key_partition(k.key, g.group_partitions), 0))
       and (not q.queue_restricted
            or pgq._role_has_right(pgq._caller(), q.queue_id, '{read,consume}', coalesce(g.group_name, main.co_name)))),
owner as (
    select * from place where member is null or group_id is not null),
tick as materialized (
    select t.tick_id, t.tick_snapshot, t.tick_event_seq, pg_catalog.row_number() over (order by t.tick_id) as nr
      from pgq.tick_log t
     where t.tick_queue = q.queue_id
       and t.tick_id >= (select min(sub_last_tick) from place)),
copy as materialized (
    select c.ev_txid, c.ev_owner, coalesce(c.ev_retry, 0) as retry, seen.*
      from pg_catalog.unnest(i_copies) c
      left join lateral (
           select t.* from tick t where pg_catalog.txid_visible_in_snapshot(c.ev_txid, t.tick_snapshot) order by t.tick_id limit 1) seen on true),
-- rank: of several states the first counts
found as (
    select p.*, c.ev_txid, c.ev_owner, c.retry, c.tick_id, c.tick_event_seq, c.nr,
           case when p.sub_batch is not null and pg_catalog.txid_visible_in_snapshot(c.ev_txid, p.next)
                     and pg_catalog.txid_visible_in_snapshot(c.ev_txid, p.last) is not true then 1
                when p.member is not null and p.group_id is null then 9
                when pg_catalog.txid_visible_in_snapshot(c.ev_txid, p.last) is not true then 2
                else 6 end as rank
      from place p
      join copy c on c.ev_owner is null or c.ev_owner = p.sub_id),
state as (
    select f.main, f.name, f.rank, case when f.rank = 6 then - f.ev_txid else f.ev_txid end as place_nr, f.member, f.part_nr,
           case f.rank when 1 then 'in batch'
                       when 2 then case when f.tick_id is null then 'no tick yet' else 'not read' end
                       else pgq._passed_state(f.main, f.key, f.ev_txid) end as state,
           case f.rank when 1 then (select min(l.pos_active)
                                      from (select * from pgq.position_0 union all select * from pgq.position_1) l
                                     where l.pos_batch = f.sub_batch) end as since,
           null::timestamptz as due,
           case when f.rank < 6 then f.retry + 1 end as attempt,
           case f.rank when 2 then (select * from pgq._count_events(q.queue_id, here.tick_event_seq,
                                                                    coalesce(f.tick_event_seq, newest.tick_event_seq))) end as events,
           case f.rank when 2 then coalesce(f.nr, newest.nr) - here.nr end as ticks,
           case f.rank when 1 then f.sub_batch end as batch_id,
           case when f.rank = 1 then (select split_part(cf_error, E'\n\n', 1) from pgq.consumer_failure where cf_registration = f.reg_id and cf_batch = f.sub_batch)
                when f.rank = 2 and f.ev_owner is not null and f.retry = 0 then 'replayed' end as reason
      from found f
      left join tick here on here.tick_id = f.sub_last_tick
     cross join (select * from tick order by tick_id desc limit 1) newest
     where f.rank < 9
     union all
    select o.main, o.name, 3, w.due_nr, null, o.part_nr, 'retry', null, w.due, coalesce(w.ev_retry, 0) + 1, null, null, null,
           case when coalesce(w.ev_retry, 0) = 0 then 'replayed' end
      from owner o
      join pgq.waiting_event w on w.ev_queue = q.queue_id and w.ev_id = i_event_id and w.ev_owner = o.sub_id
     union all
    select o.main, o.name, 4, e.pe_id, o.member, k.parked_part, 'parked', k.parked_since, k.parked_next,
           coalesce(e.ev_retry, 0) + 1 + case when e.pe_id = first.pe_id then k.parked_attempts else 0 end, null, null, null,
           case when e.pe_id = first.pe_id then k.parked_error
                else pg_catalog.format('behind event %s: %s', first.ev_id, k.parked_error) end
      from owner o
      join pgq._parked_key k on k.parked_group = o.group_id
      join pgq._parked_event e on e.pe_key = k.parked_id and e.ev_id = i_event_id
     cross join lateral (select * from pgq._parked_event o where o.pe_key = k.parked_id order by o.pe_id limit 1) first
     union all
    select o.main, o.name, 5, - l.dl_id, null, o.part_nr, 'dead letter', l.dl_time, null, l.dl_attempts, null, null, nullif(l.dl_batch, 0), l.dl_reason
      from owner o
      join pgq._dead_letter l on l.dl_queue = q.queue_name and l.ev_id = i_event_id
                             and coalesce(l.dl_group, l.dl_consumer) = o.name and (l.dl_group is not null) = (o.group_id is not null)
     union all
    select o.main, o.name, 8, 0, null, case when i_copies is not null then o.part_nr end, 'unknown', null, null, null, null, null, null, null
      from owner o)
select distinct on (s.name, s.main) s.name, s.member, s.part_nr, s.state, s.since, s.due, s.attempt, s.events, s.ticks, s.batch_id, s.reason
  from state s
 order by s.name, s.main, s.rank, s.place_nr;
$$;

create or replace function pgq._where_is_event(
    i_queue_id int4, i_event_id bigint,
    out consumer text, out worker text, out partition int4, out state text, out since timestamptz, out due timestamptz,
    out attempt int4, out events bigint, out ticks bigint, out batch_id bigint, out reason text)
returns setof record
language plpgsql stable
as $$
-- Does the work of pgq.where_is_event(2), all with one snapshot.
declare
    q       pgq.queue;
    copies  pgq.event[];
begin
    select * into q from pgq.queue where queue_id = i_queue_id;
    copies := pgq._event_copies(q, i_event_id);
    select e.state, e.since, e.due into state, since, due from pgq._event_state(q, i_event_id, copies) e;
    return next;
    return query
    select w.*
      from pgq._where_for_consumers(q, i_event_id, copies) w
     where w.state <> 'unknown' or _where_is_event.state = 'not kept';
end;
$$;

create or replace function pgq.where_is_event(
    i_queue_name text, i_event_id bigint,
    out consumer text, out worker text, out partition int4, out state text, out since timestamptz, out due timestamptz,
    out attempt int4, out events bigint, out ticks bigint, out batch_id bigint, out reason text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns where an event is: first what has become of it, then a row for each consumer and consumer group of the queue.
-- It follows the snapshots of ticks, not the order of ids, and all rows are of one moment. It reads the events of two
-- ticks or so by index, and those not read by the slowest consumer that has read this one; all events of the queue if
-- the event was delayed, was inserted with a given id, or is not there. The queue is not rotated until the end of the
-- transaction.
-- Parameters:
--      i_event_id  - the event's id
-- Returns:
--      consumer    - the consumer or group; null in the first row, for the event itself. Of a restricted queue, a role
--                    with the right to consume sees its consumers, and delayed events as absent
--      worker      - the subconsumer that has the batch, or the owner of the group's partition
--      partition   - the partition of the event's key
--      state       - of the event: stored; delayed; not committed (its transaction is open, or was just rolled back);
--                    not kept (rotated away, or it was rolled back before); absent (rolled back, cancelled, never
--                    inserted). Of a consumer: no tick yet; not read; in batch (the open one); done; retry (it waits);
--                    parked; dead letter; skipped (the consumer was moved over it); registered later (it will not read
--                    it); unknown (the event is not kept)
--      since       - time of the event; time when the batch was opened, the key parked, the event given up
--      due         - time of delivery of a delayed event or retry; next attempt of the parked key, null: on request
--      attempt     - number of the coming or present attempt; for a dead letter, of the last
--      events      - not read, with it: about this number, as counted by the event sequence
--      ticks       - and this number of ticks
--      batch_id    - the open batch, or the one in which it was given up
--      reason      - the last error, if there was one; 'replayed' for a dead letter that comes again
-- Errors: 40001 rotation has removed tables that this transaction's snapshot may need
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
begin
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{read,consume}', null);
    end if;
    -- Afterwards no table can be truncated that the next snapshot shows filled.
    execute format('lock table %s, pgq.tick_0, pgq.tick_1, pgq.position_0, pgq.position_1, pgq.moved_0, pgq.moved_1, pgq.delayed '
                   'in access share mode', q.queue_data_pfx);
    perform pgq._check_log_snapshot(n) from unnest('{tick,position,moved}'::text[]) n;
    if not pgq._is_read_committed() and q.queue_rotations <> pgq._state_rotations(q.queue_slot_seq) then
        perform pgq._raise_stale_snapshot();
    end if;
    return query select * from pgq._where_is_event(q.queue_id, i_event_id);
end;
$$;

create or replace function pgq.payload_values(i_data text, i_path jsonpath)
returns text[]
language plpgsql immutable
as $$
-- Returns the values that a jsonpath finds in a payload, as text. To find events:
--     select * from pgq_queue.orders where '4711' = any (pgq.payload_values(ev_data, '$.order.id'))
-- Parameters:
--      i_data  - the payload, any text
--      i_path  - the jsonpath, in lax mode unless it says strict
-- Returns: an array, empty if there are none; null if the payload is no JSON.
begin
    return array(select v #>> '{}' from pg_catalog.jsonb_path_query(i_data::jsonb, i_path, silent => true) v);
exception when data_exception or program_limit_exceeded or statement_too_complex then
    return null;
end;
$$;
