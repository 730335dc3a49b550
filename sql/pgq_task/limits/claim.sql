create or replace function pgq_task._claim_limited(
    i_queue_id int4, i_queue text, i_priority int2, i_claimant text, i_lease interval, i_max_attempts int4, i_max_tasks int4,
    i_random boolean)
returns setof pgq_task.claimed
language plpgsql
security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Does the work of pgq_task.claim(5) for one lane of a queue with limits. Claims of such a queue are serialised, so
-- that each sees what the previous ones have claimed, and none exceeds the limits.
--
-- A task whose key has no room leaves its position in the lane, so that it does not block other keys. If the maximum
-- number of tasks of its key is running, it is parked at a position that is not a time, see pgq_task._parking_of(1),
-- and claimed from there when one of the running tasks has ended. If its key's rate is used up, it gets a slot: the
-- time of its turn. A task that comes while others of its key have future slots gets a slot after theirs. A slot is
-- recognized by its last 8 bits, see pgq_task._is_slot(1).
--
-- The running tasks are determined from the tasks themselves: no end has to be reported, so limits survive workers that
-- crash.
declare
    at_once     constant int4 := 64;
    -- maximum number of tasks to look at before other claims get their turn
    looks       constant int4 := 2000;
    q           pgq_task.queue_limit;
    s           pgq_task.limit_log;
    v_xid       xid8;
    v_now       timestamptz;
    v_at        timestamptz;
    v_pos       bigint;
    v_room      int4;
    v_seen      int4 := 0;
    v_took      int4;
    v_after     bigint;
    v_low       bigint;
    v_ahead     bigint;
    v_lane      regclass;
    v_chunk     int4;
    v_parked    bigint;
    v_changed   boolean := false;
    v_claimed   bigint[] := '{}';
    v_running   jsonb := '{}';
    v_left      jsonb := '{}';
    v_slots     jsonb := '{}';
    v_nexts     jsonb := '{}';
    v_counts    jsonb := '{}';
    v_live      boolean[];
    v_ids       bigint[];
    v_keys      text[];
    v_parkings  bigint[];
    v_key       text;
    v_mark      bigint;
    v_keep      text[] := '{}';
    v_marks     jsonb := '{}';
    v_slot      timestamptz;
    v_turn      boolean;
    v_totals    jsonb := '{}';
    o           pgq_task.limit_log;
    t           record;
begin
    perform pgq._require_read_committed('claim() from a queue with limits');
    if not pgq_task._lock_limits(i_queue_id) then
        return;
    end if;
    select * into q from pgq_task.queue_limit l where l.queue_id = i_queue_id;
    if not found then
        return;
    end if;
    v_xid := pg_current_xact_id();
    s := pgq_task._last_of_limit(i_queue_id, '', q.written);
    v_now := clock_timestamp();
    v_pos := pgq_task._position_of(v_now);
    if s.at > v_now + interval '1 second' then
        -- The clock has gone back.
        for n in 0 .. 1
        loop
            execute format('update pgq_task.limit_%s_%s set at = at - $1, slot = slot - $1', i_queue_id, n) using s.at - v_now;
        end loop;
        s := pgq_task._last_of_limit(i_queue_id, '', q.written);
    end if;
    -- Never before the last slot, or the newest would not be the last.
    v_at := greatest(v_now, s.at);
    v_ids := coalesce(s.ids, '{}');
    v_keys := coalesce(s.keys, '{}');
    v_parkings := coalesce(s.marks, '{}');
    v_parked := coalesce(s.parked, 0);

    -- The running tasks by key; tasks without a key have an empty one in JSON.
    v_live := array(
        select exists (select from pgq_task.task k where k.id = e.id and k.queue_id = i_queue_id and k.lease > clock_timestamp())
          from unnest(v_ids) with ordinality e (id, nr) order by e.nr);
    select coalesce(jsonb_object_agg(r.key, r.n), '{}') into v_running
      from (select coalesce(e.key, '') as key, count(*) filter (where e.live) as n
              from unnest(v_keys, v_live) e (key, live) group by 1) r;
    v_room := least(i_max_tasks,
                    q.max_running - (select count(*) from unnest(v_live) live where live),
                    case when q.rate is not null
                         then q.rate - pgq_task._count_limited(i_queue_id, '', v_at - q.rate_period, s.total) end);
    if v_room <= 0 then
        return;
    end if;

    -- The tasks that wait for one that has ended.
    for v_key, v_mark in
        select e.key, min(e.mark)
          from unnest(v_keys, v_live, v_parkings) e (key, live, mark)
         where e.key is not null
         group by e.key having not bool_and(e.live)
    loop
        v_took := 0;
        for t in
            select k.id, k.pos, pgq_task._limit_key_of(k.headers) as key
              from pgq_task.task k
             where k.queue_id = i_queue_id and k.priority = i_priority
               and k.pos > v_mark and k.pos < pgq_task._parking_of(v_key) + (1::bigint << 38)
               and (k.order_key is null or pgq_task._is_first(k.queue_id, k.order_key, k.id))
             order by k.queue_id, k.priority, k.pos
             limit greatest(least(v_room, coalesce(q.max_running_per_key, 10000) - coalesce((v_running ->> v_key)::int4, 0)), 0)
               for no key update skip locked
        loop
            v_changed := true;
            if q.rate_per_key is not null and not v_totals ? v_key then
                o := pgq_task._last_of_limit(i_queue_id, v_key, q.written);
                v_totals := v_totals || jsonb_build_object(v_key, o.total);
                v_slots := v_slots || jsonb_build_object(v_key, case when o.at > q.since then o.slot end);
                v_left := v_left || jsonb_build_object(
                    v_key, q.rate_per_key - pgq_task._count_limited(i_queue_id, v_key, v_at - q.rate_period, o.total));
            end if;
            if t.key is distinct from v_key or (v_left ->> v_key)::int4 <= 0 then
                -- a task of another key with the same number, or one that needs a slot
                update pgq_task.task k set pos = pgq_task._position_now() where k.id = t.id;
                continue;
            end if;
            update pgq_task.task k set pos = pgq_task._position_of(v_now + i_lease) where k.id = t.id;
            v_claimed := v_claimed || t.id;
            v_ids := v_ids || t.id;
            v_keys := v_keys || v_key;
            v_parkings := v_parkings || pgq_task._parking_of(v_key);
            v_live := v_live || true;
            v_left := case when v_left ? v_key then v_left || jsonb_build_object(v_key, (v_left ->> v_key)::int4 - 1) else v_left end;
            v_took := v_took + 1;
            v_room := v_room - 1;
        end loop;
        v_running := v_running || jsonb_build_object(v_key, coalesce((v_running ->> v_key)::int4, 0) + v_took);
        if v_took > 0 then
            v_counts := v_counts || jsonb_build_object(v_key, v_took);
        end if;
        -- An ended entry stays for tasks that wait for it, in any lane.
        select min(k.pos) - 1 into v_mark
          from pgq_task.lane l
         cross join lateral (
               select k.pos from pgq_task.task k
                where k.queue_id = i_queue_id and k.priority = l.priority
                  and k.pos > v_mark and k.pos < pgq_task._parking_of(v_key) + (1::bigint << 38)
                order by k.queue_id, k.priority, k.pos
                limit 1) k
         where l.queue_id = i_queue_id;
        if v_mark is not null then
            v_keep := v_keep || v_key;
        end if;
        v_marks := v_marks || jsonb_build_object(v_key, coalesce(v_mark, pgq_task._parking_of(v_key) + (v_parked & 274877906943)));
        exit when v_room = 0;
    end loop;
    -- Keep the keys that were not reached, too.
    if v_room = 0 then
        v_keep := v_keep || array(select distinct e.key from unnest(v_keys) e (key) where e.key is not null);
    end if;

    -- The tasks in the lane.
    select l.lane_ahead, pg_sequence_last_value(l.lane_low) - 1, pg_sequence_last_value(l.lane_ahead) - 1
      into v_lane, v_low, v_ahead
      from pgq_task.lane l where l.queue_id = i_queue_id and l.priority = i_priority;
    v_ahead := greatest(v_ahead, v_low);
    v_after := v_ahead;
    if i_random and v_room < 32 then
        -- beginning at random, like claim()
        select c.pos - 1 into v_after
          from pgq_task.task c
         where c.queue_id = i_queue_id and c.priority = i_priority and c.pos > v_ahead and c.pos <= v_pos
           and (c.lease is null or c.lease <= v_now and pgq_task._comes_again(c, i_max_attempts))
         order by c.queue_id, c.priority, c.pos
        offset floor(random() * 32)::int4 limit 1;
        v_after := coalesce(v_after, v_ahead);
    end if;
    v_low := nullif(v_low, v_after);
    if coalesce(q.max_running_per_key, q.rate_per_key) is null then
        -- No keys to look at.
        while v_room > 0
        loop
            v_claimed := array(
                select c.id
                  from pgq_task.task c
                 where c.queue_id = i_queue_id and c.priority = i_priority and c.pos > v_after and c.pos <= v_pos
                   and (c.lease is null or c.lease <= v_now and pgq_task._comes_again(c, i_max_attempts))
                   and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
                 order by c.queue_id, c.priority, c.pos
                 limit v_room
                   for no key update skip locked);
            exit when v_claimed <> '{}' or v_low is null;
            v_after := v_low;
            v_low := null;
        end loop;
        v_ids := v_ids || v_claimed;
        v_keys := v_keys || array_fill(null::text, array[cardinality(v_claimed)]);
        v_parkings := v_parkings || array_fill(null::bigint, array[cardinality(v_claimed)]);
        v_live := v_live || array_fill(true, array[cardinality(v_claimed)]);
        v_room := 0;
    end if;
    while v_room > 0 and v_seen < looks
    loop
        v_took := 0;
        v_chunk := case when v_changed then at_once else least(at_once, v_room) end;
        for t in
            select c.id, c.pos, pgq_task._limit_key_of(c.headers) as key
              from pgq_task.task c
             where c.queue_id = i_queue_id and c.priority = i_priority and c.pos > v_after and c.pos <= v_pos
               and (c.lease is null or c.lease <= v_now and pgq_task._comes_again(c, i_max_attempts))
               and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
             order by c.queue_id, c.priority, c.pos
             limit v_chunk
               for no key update skip locked
        loop
            v_took := v_took + 1;
            v_after := t.pos;
            v_seen := v_seen + 1;
            v_key := coalesce(t.key, '');
            if v_key <> '' then
                if coalesce((v_running ->> v_key)::int4, 0) >= q.max_running_per_key then
                    v_parked := v_parked + 1;
                    v_changed := true;
                    update pgq_task.task k set pos = pgq_task._parking_of(v_key) + (v_parked & 274877906943) where k.id = t.id;
                    continue;
                end if;
                if q.rate_per_key is not null then
                    if not v_left ? v_key then
                        o := pgq_task._last_of_limit(i_queue_id, v_key, q.written);
                        v_left := v_left || jsonb_build_object(
                            v_key, q.rate_per_key - pgq_task._count_limited(i_queue_id, v_key, v_at - q.rate_period, o.total));
                        v_slots := v_slots || jsonb_build_object(v_key, case when o.at > q.since then o.slot end);
                        v_totals := v_totals || jsonb_build_object(v_key, o.total);
                    end if;
                    v_slot := (v_slots ->> v_key)::timestamptz;
                    -- The task had a slot, and is claimed not much later than that.
                    v_turn := pgq_task._is_slot(t.pos) and t.pos > pgq_task._position_of(v_now - q.rate_period);
                    if (v_left ->> v_key)::int4 <= 0 or v_slot > v_now and not v_turn then
                        if not v_nexts ? v_key then
                            v_nexts := v_nexts || jsonb_build_object(
                                v_key, pgq_task._next_of_limit(i_queue_id, v_key, v_at, q.rate_per_key, q.rate_period));
                        end if;
                        v_slot := greatest(case when not v_turn then v_slot + q.rate_period / q.rate_per_key end,
                                           (v_nexts ->> v_key)::timestamptz);
                        v_slots := v_slots || jsonb_build_object(v_key, greatest(v_slot, (v_slots ->> v_key)::timestamptz));
                        v_counts := jsonb_build_object(v_key, 0) || v_counts;
                        v_changed := true;
                        update pgq_task.task k set pos = (pgq_task._position_of(v_slot) | 255) where k.id = t.id;
                        continue;
                    end if;
                    v_left := v_left || jsonb_build_object(v_key, (v_left ->> v_key)::int4 - 1);
                end if;
            end if;
            v_claimed := v_claimed || t.id;
            v_ids := v_ids || t.id;
            v_keys := v_keys || t.key;
            v_parkings := v_parkings || pgq_task._parking_of(v_key) + (v_parked & 274877906943);
            v_live := v_live || true;
            if v_key <> '' then
                v_running := v_running || jsonb_build_object(v_key, coalesce((v_running ->> v_key)::int4, 0) + 1);
                v_counts := v_counts || jsonb_build_object(v_key, coalesce((v_counts ->> v_key)::int4, 0) + 1);
            end if;
            v_room := v_room - 1;
            exit when v_room = 0;
        end loop;
        if v_took < v_chunk then
            exit when v_claimed <> '{}' or v_low is null;
            -- The tasks before the one to begin with.
            v_after := v_low;
            v_low := null;
        end if;
    end loop;

    if v_claimed = '{}' and not v_changed then
        return;
    end if;
    if v_claimed = '{}' and v_seen >= looks then
        -- There may be other tasks behind those that had to leave the lane.
        perform pgq_task._wake_workers(i_queue_id, i_queue);
    end if;
    -- Live entries, once each; entries whose worker may still renew an ended lease; and ended entries of keys for which
    -- a task waits.
    select array_agg(e.id order by e.nr), array_agg(e.key order by e.nr), array_agg(coalesce((v_marks ->> e.key)::bigint, e.mark) order by e.nr)
      into v_ids, v_keys, v_parkings
      from (select e.*, row_number() over (partition by e.id order by e.nr desc) as again,
                   row_number() over (partition by e.key, e.live order by e.mark) as nth
              from unnest(v_ids, v_keys, v_parkings, v_live) with ordinality e (id, key, mark, live, nr)) e
     where e.again = 1
       and (e.live or e.nth = 1 and e.key = any (v_keep)
            or exists (select from pgq_task.task k where k.id = e.id and k.queue_id = i_queue_id and k.lease is not null))
       and (q.max_running is not null or q.max_running_per_key is not null);
    execute format('insert into pgq_task.limit_%s_%s (key, at, total, number, ids, keys, marks, parked)'
                   ' values ('''', $1, $2, $3, $4, $5, $6, $7)', i_queue_id, q.written)
        using v_at, coalesce(s.total, 0) + cardinality(v_claimed), cardinality(v_claimed), v_ids, v_keys, v_parkings, v_parked;
    if q.rate_per_key is not null and v_counts <> '{}' then
        execute format('insert into pgq_task.limit_%s_%s (key, at, total, number, slot)'
                       ' select c.key, $1, coalesce(($2 ->> c.key)::int8, 0) + c.value::int4, c.value::int4, ($3 ->> c.key)::timestamptz'
                       '   from jsonb_each_text($4) c', i_queue_id, q.written)
            using v_at, v_totals, v_slots, v_counts;
    end if;
    return query
        update pgq_task.task k
           set version = k.version + 1, lease = v_now + i_lease, claimant = i_claimant,
               attempts = k.attempts + 1, last_attempt = v_now, lost = case when k.lease is null then k.lost else k.lost + 1 end,
               error = case when k.lease is null then k.error else pgq_task._lost_error() end
         where k.id = any (v_claimed)
        returning k.id, k.version, i_queue, k.priority, k.attempts, k.lease, k.created,
                  k.payload, k.headers, k.error, k.unique_key, k.order_key;
    perform pgq_task._count_up('claimed', i_queue_id, cardinality(v_claimed));
    if random() * 32 < cardinality(v_claimed) then
        -- like claim()
        select c.pos into v_mark
          from pgq_task.task c
         where c.queue_id = i_queue_id and c.priority = i_priority and c.pos > v_ahead and c.pos <= v_pos
           and (c.lease is null or c.lease <= v_now)
         order by c.queue_id, c.priority, c.pos
         limit 1;
        v_mark := least(v_mark, v_pos - 10000 * 256);
        if v_mark > v_ahead + 1 then
            perform setval(v_lane, v_mark);
        end if;
    end if;
    if random() < 0.01 then
        perform pgq_task._rotate_limits(i_queue_id);
    end if;
end;
$$;

create or replace function pgq_task._limit_key_of(i_headers jsonb)
returns text
language sql
immutable
as $$
-- Returns the key by which limits count a task, short enough for an index; null for none. Inlined.
    select case when pg_catalog.octet_length(i_headers ->> 'limit_key') > 200 then pg_catalog.md5(i_headers ->> 'limit_key')
                else nullif(i_headers ->> 'limit_key', '') end;
$$;

create or replace function pgq_task._parking_of(i_key text)
returns bigint
language sql
immutable
as $$
-- Returns the first of the 2^38 positions, after all times, where tasks of a key wait. Keys may share them.
    select 4611686018427387904 + ((pg_catalog.hashtext(i_key) & 8388607)::bigint << 38);
$$;

create or replace function pgq_task._is_slot(i_pos bigint)
returns boolean
language sql
immutable
as $$
-- Returns whether a position was given to a task because its key's rate is used up. No other position ends with these
-- bits: tasks that are pushed together skip them. Inlined.
    select i_pos & 255 = 255 and i_pos < 4611686018427387904;
$$;
