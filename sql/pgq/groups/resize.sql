-- Changing the number of partitions moves keys between partitions. So all partitions first go to the same tick: the
-- farthest that one of them has opened or finished. The tick cannot be forgotten, because that partition is at it.

create or replace function pgq.resize_group(i_queue_name text, i_group_name text, i_partitions int4)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Changes the number of a group's partitions. Workers take all partitions to a common tick; then the keys are divided
-- again and processing continues. Passing the present number cancels a resize that has not happened yet.
-- Parameters:
--      i_partitions    - new number of partitions, 1 to 1024
-- Returns: the tick that all partitions must reach first, or null if the resize is done.
-- Errors: PQ011 invalid number, PQ012 not in READ COMMITTED, PQ036 group does not exist, PQ038 a consumer has the name
--      of a partition
declare
    g       pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
    tick    bigint;
begin
    perform pgq._require_read_committed('pgq.resize_group()');
    if (i_partitions between 1 and 1024) is not true then
        raise exception using errcode = 'PQ011',
            message = format('a group cannot have %s partitions', coalesce(i_partitions::text, 'NULL')),
            hint = 'Give 1 to 1024.';
    end if;
    -- A session that parks a key of the group has locked its position already, and refers to this row.
    select * into g from pgq.consumer_group where group_id = g.group_id for no key update;
    if not found then
        -- It was dropped meanwhile.
        return pgq.resize_group(i_queue_name, i_group_name, i_partitions);
    end if;
    perform pgq._check_partition_names(g, g.group_partitions, i_partitions - 1);
    -- No session opens a batch meanwhile, and a session that opens one later sees the tick.
    select max(coalesce(p.pos_next_tick, p.pos_last_tick)) into tick
      from (select part_reg from pgq.group_partition where part_group = g.group_id order by part_reg) part
     cross join lateral pgq._lock_position(part.part_reg) p;
    update pgq.consumer_group
       set group_resize_to = nullif(i_partitions, group_partitions),
           group_resize_tick = case when i_partitions <> group_partitions then tick end
     where group_id = g.group_id;
    if i_partitions = g.group_partitions or pgq._switch_group(g.group_id) then
        return null;
    end if;
    return tick;
end;
$$;

create or replace function pgq._switch_group(i_group_id int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Resizes a group if all its partitions are at the required tick. It never waits.
-- Returns: true if it resized the group.
declare
    g   pgq.consumer_group;
    p   pgq.position_0;
    r   int4;
begin
    if not (pgq._is_read_committed() and pgq._lock_group(i_group_id)) then
        return false;
    end if;
    -- Lock it before the positions: other sessions that change it do the same.
    select * into g from pgq.consumer_group where group_id = i_group_id for no key update skip locked;
    if g.group_resize_to is null then
        return false;
    end if;
    for r in select part_reg from pgq.group_partition where part_group = i_group_id order by part_reg loop
        if not pgq._try_lock_position(r) then
            return false;
        end if;
    end loop;
    for r in select part_reg from pgq.group_partition where part_group = i_group_id order by part_reg loop
        p := pgq._get_position(r);
        if p.pos_batch is not null or p.pos_last_tick <> g.group_resize_tick then
            return false;
        end if;
    end loop;

    begin
        for n in g.group_partitions .. g.group_resize_to - 1 loop
            perform pgq._add_group_partition(g, n, g.group_resize_tick);
        end loop;
    exception when sqlstate 'PQ038' or insufficient_privilege then
        -- A consumer has taken the name meanwhile. Workers need not stop for that.
        return false;
    end;
    perform pgq._remove_group_partition(part_group, part_nr)
       from pgq.group_partition
      where part_group = i_group_id and part_nr >= g.group_resize_to;
    update pgq.group_partition
       set part_member = null, part_generation = default
     where part_group = i_group_id;
    update pgq._parked_key
       set parked_part = pgq.key_partition(parked_key, g.group_resize_to)
     where parked_group = i_group_id;
    update pgq.consumer_group
       set group_partitions = group_resize_to, group_resize_to = null, group_resize_tick = null
     where group_id = i_group_id;
    return true;
end;
$$;
