-- Claims of a queue with limits are serialised, so that each sees what the previous ones have claimed, and none exceeds
-- the limits.
--
-- A task whose key has no room leaves its position in the lane, so that it does not block other keys. If the maximum
-- number of tasks of its key is running, it is parked at a position that is not a time, see pgq_task._parking_of(1), and
-- claimed from there when one of the running tasks has ended. If its key's rate is used up, it gets a turn: the time from
-- which it may be claimed. A task that comes while others of its key have future turns gets a turn after theirs. A turn
-- is recognized by its last 8 bits, see pgq_task._is_turn(1).
--
-- The running tasks are determined from the tasks themselves: no end has to be reported, so limits survive workers that
-- crash.

create or replace function pgq_task._claim_limited(
    i_queue_id int4, i_queue text, i_priority int2, i_claimant text, i_lease interval, i_max_attempts int4, i_max_tasks int4,
    i_random boolean)
returns setof pgq_task.claimed
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
-- Does the work of pgq_task.claim(5) for one lane of a queue with limits.
declare
    q       pgq_task.queue_limit;
    r       pgq_task.limited_claim;
    v_low   bigint;
    v_ahead bigint;
    v_from  bigint;
    v_generation    bigint;
begin
    perform pgq._require_read_committed('claim() from a queue with limits');
    if not pgq_task._lock_limits(i_queue_id) then
        return;
    end if;
    select * into q from pgq_task.queue_limit l where l.queue_id = i_queue_id;
    if not found then
        return;
    end if;
    r := pgq_task._begin_limited_claim(q, i_max_tasks);
    if r.room <= 0 then
        return;
    end if;
    r := pgq_task._claim_parked(q, r, i_priority, i_lease);

    select l.low - 1, l.ahead - 1, l.generation into v_low, v_ahead, v_generation
      from pgq_task.marked_lane l where l.queue_id = i_queue_id and l.priority = i_priority;
    if i_random and r.room < 32 then
        -- beginning at random, like claim()
        select c.pos - 1 into v_from
          from pgq_task.task c
         where c.queue_id = i_queue_id and c.priority = i_priority and c.pos > v_ahead and c.pos <= pgq_task._position_of(r.now)
           and (c.lease is null or c.lease <= r.now and pgq_task._comes_again(c, i_max_attempts))
         order by c.queue_id, c.priority, c.pos
        offset floor(random() * 32)::int4 limit 1;
    end if;
    v_from := coalesce(v_from, v_ahead);
    if coalesce(q.max_running_per_key, q.rate_per_key) is null then
        r := pgq_task._claim_without_keys(q, r, i_priority, i_max_attempts, v_from, v_ahead, v_low);
    else
        r := pgq_task._claim_by_key(q, r, i_priority, i_max_attempts, v_from, v_ahead, v_low);
    end if;

    if r.claimed = '{}' and not r.changed then
        return;
    end if;
    if r.claimed = '{}' and r.is_stopped then
        -- There may be other tasks behind those that had to leave the lane.
        perform pgq_task._wake_workers(i_queue_id, i_queue);
    end if;
    perform pgq_task._log_limited_claim(q, r);
    return query
        update pgq_task.task k
           set version = k.version + 1, lease = r.now + i_lease, claimant = i_claimant,
               attempts = k.attempts + 1, last_attempt = r.now, lost = case when k.lease is null then k.lost else k.lost + 1 end,
               error = case when k.lease is null then k.error else pgq_task._lost_error() end
         where k.id = any (r.claimed)
        returning k.id, k.version, i_queue, k.priority, k.attempts, k.lease, k.created,
                  k.payload, k.headers, k.error, k.unique_key, k.order_key;
    perform pgq_task._count('claimed', i_queue_id, cardinality(r.claimed));
    if random() * 32 < cardinality(r.claimed) then
        -- like claim()
        perform pgq_task._move_ahead(i_queue_id, i_priority, v_generation, v_low + 1, v_ahead + 1, r.now);
    end if;
    if random() < 0.01 then
        perform pgq_task._rotate_limits(i_queue_id);
    end if;
end;
$$;

create or replace function pgq_task._begin_limited_claim(q pgq_task.queue_limit, i_max_tasks int4)
returns pgq_task.limited_claim
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the running tasks of a queue, and the room that they and the rate leave.
declare
    s       pgq_task.limit_log;
    r       pgq_task.limited_claim;
begin
    -- An id first, then the clock: see pgq_task._position_now().
    perform pg_current_xact_id();
    s := pgq_task._last_of_limit(q.queue_id, '', q.written);
    r.now := clock_timestamp();
    if s.at > r.now + interval '1 second' then
        -- The clock has gone back.
        for n in 0 .. 1
        loop
            execute format('update pgq_task.limit_%s_%s set at = at - $1, turn = turn - $1', q.queue_id, n) using s.at - r.now;
        end loop;
        s := pgq_task._last_of_limit(q.queue_id, '', q.written);
    end if;
    -- Never before the last turn, or the newest would not be the last.
    r.at := greatest(r.now, s.at);
    r.claimed := '{}';
    r.changed := false;
    r.is_stopped := false;
    r.parked := coalesce(s.parked, 0);
    r.total := coalesce(s.total, 0);
    r.ids := coalesce(s.ids, '{}');
    r.keys := coalesce(s.keys, '{}');
    r.marks := coalesce(s.marks, '{}');
    r.live := array(
        select exists (select from pgq_task.task k where k.id = e.id and k.queue_id = q.queue_id and k.lease > clock_timestamp())
          from unnest(r.ids) with ordinality e (id, nr) order by e.nr);
    select coalesce(jsonb_object_agg(k.key, jsonb_build_object('running', k.n)), '{}') into r.by_key
      from (select e.key, count(*) filter (where e.live) as n
              from unnest(r.keys, r.live) e (key, live)
             where e.key is not null
             group by 1) k;
    r.room := least(i_max_tasks,
                    q.max_running - (select count(*) from unnest(r.live) live where live),
                    case when q.rate is not null
                         then q.rate - pgq_task._count_limited(q.queue_id, '', r.at - q.rate_period, s.total) end);
    return r;
end;
$$;

create or replace function pgq_task._with(i_map jsonb, i_key text, i_changes jsonb)
returns jsonb
language sql stable
as $$
-- Returns a JSON object of objects with changes to one of them. Inlined.
    select i_map || pg_catalog.jsonb_build_object(i_key, coalesce(i_map -> i_key, '{}') || i_changes);
$$;

create or replace function pgq_task._rate_of_key(q pgq_task.queue_limit, i_key text, i_at timestamptz)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns how many tasks of a key may be claimed by its rate, the last turn that was given, and its total so far.
declare
    o   constant pgq_task.limit_log := pgq_task._last_of_limit(q.queue_id, i_key, q.written);
begin
    return jsonb_build_object(
        'left', q.rate_per_key - pgq_task._count_limited(q.queue_id, i_key, i_at - q.rate_period, o.total),
        'turn', case when o.at > q.since then o.turn end,
        'total', o.total);
end;
$$;

create or replace function pgq_task._take_limited(r pgq_task.limited_claim, i_id bigint, i_key text, i_mark bigint)
returns pgq_task.limited_claim
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Adds a task to a claim, and counts it for its key.
declare
    k   constant jsonb := r.by_key -> i_key;
begin
    r.claimed := r.claimed || i_id;
    r.ids := r.ids || i_id;
    r.keys := r.keys || i_key;
    r.marks := r.marks || i_mark;
    r.live := r.live || true;
    r.room := r.room - 1;
    if i_key is not null then
        r.by_key := pgq_task._with(r.by_key, i_key, jsonb_build_object(
            'running', coalesce((k ->> 'running')::int4, 0) + 1, 'count', coalesce((k ->> 'count')::int4, 0) + 1,
            'left', (k ->> 'left')::int4 - 1));
    end if;
    return r;
end;
$$;

create or replace function pgq_task._claim_parked(q pgq_task.queue_limit, r pgq_task.limited_claim, i_priority int2, i_lease interval)
returns pgq_task.limited_claim
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Claims the tasks that wait for one of their key that has ended.
declare
    v_key   text;
    v_mark  bigint;
    t       record;
begin
    for v_key, v_mark in
        select e.key, min(e.mark)
          from unnest(r.keys, r.live, r.marks) e (key, live, mark)
         where e.key is not null
         group by e.key having not bool_and(e.live)
    loop
        for t in
            select k.id, k.pos, pgq_task._limit_key_of(k.headers) as key
              from pgq_task.task k
             where k.queue_id = q.queue_id and k.priority = i_priority
               and k.pos > v_mark and k.pos < pgq_task._parking_of(v_key) + (1::bigint << 38)
               and (k.order_key is null or pgq_task._is_first(k.queue_id, k.order_key, k.id))
             order by k.queue_id, k.priority, k.pos
             limit greatest(least(r.room, coalesce(q.max_running_per_key, 10000) - (r.by_key -> v_key ->> 'running')::int4), 0)
               for no key update skip locked
        loop
            r.changed := true;
            if q.rate_per_key is not null and not r.by_key -> v_key ? 'left' then
                r.by_key := pgq_task._with(r.by_key, v_key, pgq_task._rate_of_key(q, v_key, r.at));
            end if;
            if t.key is distinct from v_key or (r.by_key -> v_key ->> 'left')::int4 <= 0 then
                -- a task of another key with the same number, or one that needs a turn
                update pgq_task.task k set pos = pgq_task._position_now() where k.id = t.id;
                continue;
            end if;
            update pgq_task.task k set pos = pgq_task._position_of(r.now + i_lease) where k.id = t.id;
            r := pgq_task._take_limited(r, t.id, v_key, pgq_task._parking_of(v_key));
        end loop;
        -- An ended entry stays for tasks that wait for it, in any lane.
        select min(k.pos) - 1 into v_mark
          from pgq_task.lane l
         cross join lateral (
               select k.pos from pgq_task.task k
                where k.queue_id = q.queue_id and k.priority = l.priority
                  and k.pos > v_mark and k.pos < pgq_task._parking_of(v_key) + (1::bigint << 38)
                order by k.queue_id, k.priority, k.pos
                limit 1) k
         where l.queue_id = q.queue_id;
        r.by_key := pgq_task._with(r.by_key, v_key, jsonb_build_object(
            'keep', v_mark is not null, 'mark', coalesce(v_mark, pgq_task._parking_position(v_key, r.parked))));
        exit when r.room = 0;
    end loop;
    if r.room = 0 then
        -- Keep the keys that were not reached, too.
        select coalesce(jsonb_object_agg(k.key, k.value || '{"keep": true}'), '{}') into r.by_key from jsonb_each(r.by_key) k;
    end if;
    return r;
end;
$$;

create or replace function pgq_task._claim_without_keys(
    q pgq_task.queue_limit, r pgq_task.limited_claim, i_priority int2, i_max_attempts int4, i_from bigint, i_ahead bigint,
    i_low bigint)
returns pgq_task.limited_claim
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Claims tasks of a lane whose queue has no limits by key.
declare
    v_upto      bigint := pgq_task._position_of(r.now);
    v_ids       bigint[];
    v_from      bigint;
begin
    -- Then those before the one to begin with; if there was nothing, from the lane's low end.
    foreach v_from in array array[i_from, i_ahead, i_low]
    loop
        exit when r.room <= 0 or v_from < i_ahead and r.claimed <> '{}';
        continue when v_from >= v_upto;
        v_ids := array(
            select c.id
              from pgq_task.task c
             where c.queue_id = q.queue_id and c.priority = i_priority and c.pos > v_from and c.pos <= v_upto
               and (c.lease is null or c.lease <= r.now and pgq_task._comes_again(c, i_max_attempts))
               and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
             order by c.queue_id, c.priority, c.pos
             limit r.room
               for no key update skip locked);
        r.claimed := r.claimed || v_ids;
        r.ids := r.ids || v_ids;
        r.keys := r.keys || array_fill(null::text, array[cardinality(v_ids)]);
        r.marks := r.marks || array_fill(null::bigint, array[cardinality(v_ids)]);
        r.live := r.live || array_fill(true, array[cardinality(v_ids)]);
        r.room := r.room - cardinality(v_ids);
        v_upto := v_from;
    end loop;
    return r;
end;
$$;

create or replace function pgq_task._claim_by_key(
    q pgq_task.queue_limit, r pgq_task.limited_claim, i_priority int2, i_max_attempts int4, i_from bigint, i_ahead bigint,
    i_low bigint)
returns pgq_task.limited_claim
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Claims tasks of a lane, in their order, and moves away those whose keys have no room.
declare
    at_once     constant int4 := 64;
    -- maximum number of tasks to look at before other claims go on
    looks       constant int4 := 2000;
    v_upto      bigint := pgq_task._position_of(r.now);
    v_begin     bigint := i_from;
    v_from      bigint := i_from;
    v_chunk     int4;
    v_took      int4;
    v_seen      int4 := 0;
    v_pos       bigint;
    t           record;
begin
    while r.room > 0 and v_seen < looks
    loop
        v_took := 0;
        v_chunk := case when r.changed then at_once else least(at_once, r.room) end;
        for t in
            select c.id, c.pos, pgq_task._limit_key_of(c.headers) as key
              from pgq_task.task c
             where c.queue_id = q.queue_id and c.priority = i_priority and c.pos > v_from and c.pos <= v_upto
               and (c.lease is null or c.lease <= r.now and pgq_task._comes_again(c, i_max_attempts))
               and (c.order_key is null or pgq_task._is_first(c.queue_id, c.order_key, c.id))
             order by c.queue_id, c.priority, c.pos
             limit v_chunk
               for no key update skip locked
        loop
            v_took := v_took + 1;
            v_from := t.pos;
            v_seen := v_seen + 1;
            v_pos := null;
            if (r.by_key -> t.key ->> 'running')::int4 >= q.max_running_per_key then
                r.parked := r.parked + 1;
                v_pos := pgq_task._parking_position(t.key, r.parked);
            elsif t.key is not null and q.rate_per_key is not null then
                if not coalesce(r.by_key -> t.key ? 'left', false) then
                    r.by_key := pgq_task._with(r.by_key, t.key, pgq_task._rate_of_key(q, t.key, r.at));
                end if;
                select * into v_pos, r.by_key from pgq_task._turn_for(q, r, t.key, t.pos);
            end if;
            if v_pos is not null then
                r.changed := true;
                update pgq_task.task k set pos = v_pos where k.id = t.id;
                continue;
            end if;
            r := pgq_task._take_limited(r, t.id, t.key, pgq_task._parking_position(t.key, r.parked));
            exit when r.room = 0;
        end loop;
        if v_took < v_chunk then
            -- Then those before the one to begin with; if there was nothing, from the lane's low end.
            v_upto := v_begin;
            v_begin := case when v_begin > i_ahead then i_ahead when r.claimed = '{}' then i_low else v_begin end;
            exit when (v_begin < v_upto) is not true;
            v_from := v_begin;
        end if;
    end loop;
    r.is_stopped := v_seen >= looks;
    return r;
end;
$$;

create or replace function pgq_task._turn_for(
    q pgq_task.queue_limit, r pgq_task.limited_claim, i_key text, i_pos bigint, out pos bigint, out by_key jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns a turn for a task whose key's rate is used up, and the keys after that; null if the task can be claimed.
declare
    k         jsonb := r.by_key -> i_key;
    v_turn    timestamptz := k ->> 'turn';
    -- The task had a turn, and is claimed not much later than that.
    v_had_one constant boolean := pgq_task._is_turn(i_pos) and i_pos > pgq_task._position_of(r.now - q.rate_period);
begin
    by_key := r.by_key;
    if (k ->> 'left')::int4 > 0 and (v_turn > r.now and not v_had_one) is not true then
        return;
    end if;
    if not k ? 'next' then
        k := k || jsonb_build_object('next', pgq_task._next_of_limit(q.queue_id, i_key, r.at, q.rate_per_key, q.rate_period));
    end if;
    v_turn := greatest(case when not v_had_one then v_turn + q.rate_period / q.rate_per_key end, (k ->> 'next')::timestamptz);
    pos := pgq_task._position_of(v_turn) | 255;
    by_key := pgq_task._with(by_key, i_key, '{"count": 0}' || k
                             || jsonb_build_object('turn', greatest(v_turn, (k ->> 'turn')::timestamptz)));
end;
$$;

create or replace function pgq_task._log_limited_claim(q pgq_task.queue_limit, r pgq_task.limited_claim)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Appends a claim to the counts of its queue and of its keys.
begin
    -- Live entries, once each; entries whose worker may still renew an ended lease; and ended entries of keys for which
    -- a task waits.
    select array_agg(e.id order by e.nr), array_agg(e.key order by e.nr),
           array_agg(coalesce((r.by_key -> e.key ->> 'mark')::bigint, e.mark) order by e.nr)
      into r.ids, r.keys, r.marks
      from (select e.*, row_number() over (partition by e.id order by e.nr desc) as again,
                   row_number() over (partition by e.key, e.live order by e.mark) as nth
              from unnest(r.ids, r.keys, r.marks, r.live) with ordinality e (id, key, mark, live, nr)) e
     where e.again = 1
       and (e.live or e.nth = 1 and (r.by_key -> e.key ->> 'keep')::boolean
            or exists (select from pgq_task.task k where k.id = e.id and k.queue_id = q.queue_id and k.lease is not null))
       and (q.max_running is not null or q.max_running_per_key is not null);
    execute format('insert into pgq_task.limit_%s_%s (key, at, total, number, ids, keys, marks, parked)'
                   ' values ('''', $1, $2, $3, $4, $5, $6, $7)', q.queue_id, q.written)
        using r.at, r.total + cardinality(r.claimed), cardinality(r.claimed), r.ids, r.keys, r.marks, r.parked;
    if q.rate_per_key is not null then
        execute format('insert into pgq_task.limit_%s_%s (key, at, total, number, turn)'
                       ' select k.key, $1, coalesce((k.value ->> ''total'')::int8, 0) + (k.value ->> ''count'')::int4,'
                       '        (k.value ->> ''count'')::int4, (k.value ->> ''turn'')::timestamptz'
                       '   from jsonb_each($2) k where k.value ? ''count''', q.queue_id, q.written)
            using r.at, r.by_key;
    end if;
end;
$$;

create or replace function pgq_task._limit_key_of(i_headers jsonb)
returns text
language sql immutable
as $$
-- Returns the key by which limits count a task, short enough for an index; null for none. Inlined.
    select case when pg_catalog.octet_length(i_headers ->> 'limit_key') > 200 then pg_catalog.md5(i_headers ->> 'limit_key')
                else nullif(i_headers ->> 'limit_key', '') end;
$$;

create or replace function pgq_task._parking_of(i_key text)
returns bigint
language sql immutable
as $$
-- Returns the first of the 2^38 positions, after all times, where tasks of a key wait. Keys may share them.
    select 4611686018427387904 + ((pg_catalog.hashtext(i_key) & 8388607)::bigint << 38);
$$;

create or replace function pgq_task._parking_position(i_key text, i_parked bigint)
returns bigint
language sql immutable
as $$
-- Returns the position of the task of a key that is parked as this one in a row; null without a key. Inlined.
    select pgq_task._parking_of(i_key) + (i_parked & 274877906943);
$$;

create or replace function pgq_task._is_turn(i_pos bigint)
returns boolean
language sql immutable
as $$
-- Returns whether a position was given to a task because its key's rate is used up. No other position ends with these
-- bits: tasks that are pushed together skip them. Inlined.
    select i_pos & 255 = 255 and i_pos < 4611686018427387904;
$$;
