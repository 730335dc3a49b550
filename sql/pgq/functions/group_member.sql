-- Who works for a group, and on which partitions.
--
-- A member says every third of the lease that it is alive; who has not for a whole lease is buried by another,
-- and its partitions are free. Each member ought to have the same number of partitions, give or take one. Who has
-- more gives up what is too much between two batches; who has less takes what is free. A partition's position is
-- locked while it changes hands, so that nobody is finishing a batch of it then. Nobody waits for these locks: what
-- is not possible now is tried again at the next look. All times are the server's.

create or replace function pgq.raise_member_gone(i_member_id int4)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.raise_member_gone(1)
--
--      Raises PQ035. Internal.
-- ----------------------------------------------------------------------
begin
    raise exception using
        errcode = 'PQ035',
        message = pg_catalog.format('member %s of a consumer group is not there any more', coalesce(i_member_id::text, 'NULL')),
        hint = 'It gave no sign of life for longer than the group''s lease, or the group was dropped. Join again.';
end;
$$;

create or replace function pgq.join_group(i_queue_name text, i_group_name text, i_worker_name text, out member_id int4, out lease interval)
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.join_group(3)
--
--      Makes a worker a member of a group. From now on it has to call pgq.group_heartbeat() every third of the lease;
--      pgq.next_group_batch() gives it partitions.
--
-- Parameters:
--      i_queue_name    - name of the queue
--      i_group_name    - name of the group
--      i_worker_name   - what people shall see
-- Returns:
--      member_id       - for the other functions
--      lease           - of the group
-- Errors:
--      PQ001 queue does not exist, PQ036 group does not exist
-- Tables:
--      pgq.group_member; appends a position
-- ----------------------------------------------------------------------
declare
    g   pgq.consumer_group := pgq.find_group(i_queue_name, i_group_name);
begin
    perform from pgq.consumer_group where group_id = g.group_id for key share;
    if not found then
        perform pgq.find_group(i_queue_name, i_group_name);  -- dropped just now, which it raises
    end if;
    insert into pgq.group_member as m (member_group, member_name)
    values (g.group_id, coalesce(i_worker_name, ''))
    returning m.member_id into join_group.member_id;
    perform pgq.append_position(- member_id, 1, null, null, null, clock_timestamp());
    lease := g.group_lease;
end;
$$;

create or replace function pgq.leave_group(i_member_id int4)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.leave_group(1)
--
--      Ends a membership; the member's partitions are free at once.
--
-- Returns:
--      1, 0 if it was no member any more.
-- Tables:
--      pgq.group_member, pgq.group_partition
-- ----------------------------------------------------------------------
declare
    g   int4;
begin
    select member_group into g from pgq.group_member where member_id = i_member_id;
    -- Partitions before the member, as pgq.drop_group(3) has them.
    update pgq.group_partition
       set part_member = null, part_generation = default
     where part_group = g and part_member = i_member_id;
    delete from pgq.group_member where member_id = i_member_id;
    return case when found then 1 else 0 end;
end;
$$;

create or replace function pgq.lock_group(i_group_id int4)
returns boolean
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.lock_group(1)
--
--      Whether the caller may hand out a group's partitions, until the end of its transaction. Internal.
-- ----------------------------------------------------------------------
    select pg_catalog.pg_try_advisory_xact_lock(1886875920, i_group_id);
$$;

create or replace function pgq.group_heartbeat(i_member_id int4)
returns boolean
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.group_heartbeat(1)
--
--      Says that a member is alive, buries those of its group that are not, and resizes it if that can be now.
--
-- Returns:
--      Whether it is still a member.
-- Tables:
--      appends a position; deletes from pgq.group_member, updates pgq.group_partition
-- ----------------------------------------------------------------------
declare
    g       pgq.consumer_group;
    dead    int4;
begin
    select cg.* into g
      from pgq.group_member m
      join pgq.consumer_group cg on cg.group_id = m.member_group
     where m.member_id = i_member_id;
    if not found then
        return false;
    end if;
    -- If not, it is just being said elsewhere.
    if pgq.try_lock_position(- i_member_id) then
        perform pgq.append_position(- i_member_id, (pgq.get_position(- i_member_id)).pos_nr + 1, null, null, null, clock_timestamp());
    end if;

    if g.group_resize_to is not null then
        -- Workers that ask for batches under older snapshots cannot.
        perform pgq.switch_group(g.group_id);
    end if;
    if pgq.lock_group(g.group_id) then
        for dead in
            select m.member_id
              from pgq.group_member m
             where m.member_group = g.group_id
               and m.member_id <> i_member_id
               -- One from the future was given before the clock went back: who lives gives another.
               and (pgq.get_position(- m.member_id)).pos_active
                   not between clock_timestamp() - g.group_lease and clock_timestamp() + g.group_lease
               and not exists (select from pgq.group_partition
                                where part_group = g.group_id and part_member = m.member_id
                                  and not pgq.try_lock_position(part_reg))
        loop
            perform pgq.leave_group(dead);
        end loop;
    end if;
    return true;
end;
$$;

create or replace function pgq.group_share(i_group_id int4, i_member_id int4, out has int4, out due int4)
language sql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.group_share(2)
--
--      How many partitions a member has, and how many it ought to have. What does not divide evenly goes to those
--      who have most, so that little has to move. Internal.
-- ----------------------------------------------------------------------
    select ranked.has, all_parts / members + (rank <= all_parts % members)::int4
      from (select m.member_id, held.n as has,
                   pg_catalog.count(*) over () as members,
                   pg_catalog.row_number() over (order by held.n desc, m.member_id) as rank,
                   (select pg_catalog.count(*) from pgq.group_partition where part_group = i_group_id) as all_parts
              from pgq.group_member m
             cross join lateral (
                   select pg_catalog.count(*)::int4 as n
                     from pgq.group_partition
                    where part_group = i_group_id and part_member = m.member_id) held
             where m.member_group = i_group_id) ranked
     where ranked.member_id = i_member_id;
$$;

create or replace function pgq.balance_group(i_group_id int4, i_member_id int4)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.balance_group(2)
--
--      Gives up the partitions that a member has too many, or takes free ones. The member is between two
--      batches. Internal.
-- ----------------------------------------------------------------------
declare
    share   record;
begin
    select * into share from pgq.group_share(i_group_id, i_member_id);
    if share.has = share.due or not pgq.lock_group(i_group_id) then
        return;
    end if;
    select * into share from pgq.group_share(i_group_id, i_member_id);
    if share.has > share.due then
        -- Somebody has not got his share: only then is it worth the move.
        update pgq.group_partition
           set part_member = null, part_generation = default
         where part_group = i_group_id
           and part_nr in (select part_nr from pgq.group_partition
                            where part_group = i_group_id and part_member = i_member_id and pgq.try_lock_position(part_reg)
                            order by part_nr desc limit share.has - share.due);
    elsif share.has < share.due then
        update pgq.group_partition
           set part_member = i_member_id, part_generation = default
         where part_group = i_group_id
           and part_nr in (select part_nr from pgq.group_partition
                            -- Somebody may have taken it in the moment in which he left.
                            where part_group = i_group_id
                              and not exists (select from pgq.group_member where member_id = part_member)
                              and pgq.try_lock_position(part_reg)
                            order by part_nr limit share.due - share.has);
    end if;
end;
$$;
