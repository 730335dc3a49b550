-- The members of a group, and the partitions that they own.
--
-- A member sends a heartbeat every third of the lease. If a member sends none for a whole lease, another member removes
-- it, and its partitions are free. All members should have the same number of partitions, plus or minus one. A member
-- with more gives up the surplus between two batches; a member with less takes free ones. A partition's position is
-- locked while the owner changes, so that no session is finishing a batch of it at that moment. No session waits for
-- these locks: the next call tries again what is not possible now. All times are the server's.

create or replace function pgq._raise_member_gone(i_member_id int4)
returns void
language plpgsql
as $$
-- Raises PQ035.
begin
    raise exception using errcode = 'PQ035',
        message = pg_catalog.format('member %s of a consumer group is not there any more', coalesce(i_member_id::text, 'NULL')),
        hint = 'It gave no sign of life for longer than the group''s lease, or the group was dropped. Join again.';
end;
$$;

create or replace function pgq.join_group(i_queue_name text, i_group_name text, i_worker_name text, out member_id int4, out lease interval)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a worker a member of a group. From then on it must call pgq.group_heartbeat() every third of the lease;
-- pgq.next_group_batch() gives it partitions.
-- Parameters:
--      i_worker_name   - name for display
-- Returns:
--      member_id       - id for the other functions
--      lease           - the lease of the group
-- Errors: PQ036 group does not exist
declare
    g   pgq.consumer_group := pgq._own_group(i_queue_name, i_group_name);
begin
    perform from pgq.consumer_group where group_id = g.group_id for key share;
    if not found then
        perform pgq._find_group(i_queue_name, i_group_name);  -- raises the error: just dropped
    end if;
    insert into pgq.group_member as m (member_group, member_name)
    values (g.group_id, coalesce(i_worker_name, ''))
    returning m.member_id into join_group.member_id;
    perform pgq._append_position(- member_id, 1, null, null, null, clock_timestamp());
    lease := g.group_lease;
end;
$$;

create or replace function pgq.leave_group(i_member_id int4)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends a membership. The member's partitions are free at once.
-- Returns: 1, or 0 if it was not a member any more.
declare
    g   int4;
begin
    select member_group into g from pgq.group_member where member_id = i_member_id;
    perform pgq._require_group(cg) from pgq.consumer_group cg where cg.group_id = g;
    -- Lock partitions before the member, in the order of pgq.drop_group(3).
    update pgq.group_partition
       set part_member = null, part_generation = default
     where part_group = g and part_member = i_member_id;
    delete from pgq.group_member where member_id = i_member_id and member_group = g;
    return case when found then 1 else 0 end;
end;
$$;

create or replace function pgq._lock_group(i_group_id int4)
returns boolean
language sql
as $$
-- Tries to lock a group until the end of the transaction, and returns whether the caller may hand out its partitions.
    select pg_catalog.pg_try_advisory_xact_lock(pgq._lock_key('groups'), i_group_id);
$$;

create or replace function pgq.group_heartbeat(i_member_id int4)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Sends a member's heartbeat, removes dead members of its group, and resizes the group if a pending resize is possible
-- now.
-- Returns: true if it is still a member.
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
    perform pgq._require_group(g);
    -- Otherwise another session is just sending it.
    if pgq._try_lock_position(- i_member_id) then
        perform pgq._append_position(- i_member_id, (pgq._get_position(- i_member_id)).pos_nr + 1, null, null, null, clock_timestamp());
    end if;

    if g.group_resize_to is not null then
        -- Workers that ask for batches under older snapshots cannot do this.
        perform pgq._switch_group(g.group_id);
    end if;
    if pgq._lock_group(g.group_id) then
        for dead in
            select m.member_id
              from pgq.group_member m
             where m.member_group = g.group_id
               and m.member_id <> i_member_id
               -- A heartbeat from the future was sent before the clock was set back: a live member sends another.
               and (pgq._get_position(- m.member_id)).pos_active
                   not between clock_timestamp() - g.group_lease and clock_timestamp() + g.group_lease
               and not exists (select from pgq.group_partition
                                where part_group = g.group_id and part_member = m.member_id
                                  and not pgq._try_lock_position(part_reg))
        loop
            perform pgq.leave_group(dead);
        end loop;
    end if;
    return true;
end;
$$;

create or replace function pgq._group_share(i_group_id int4, i_member_id int4, out has int4, out due int4)
language sql
as $$
-- Returns how many partitions a member has and how many it should have. The remainder of an uneven division goes to the
-- members that have most, so that few partitions move.
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

create or replace function pgq._balance_group(i_group_id int4, i_member_id int4)
returns void
language plpgsql
as $$
-- Gives up a member's surplus partitions, or takes free ones. The member is between two batches.
declare
    share   record;
begin
    select * into share from pgq._group_share(i_group_id, i_member_id);
    if share.has = share.due or not pgq._lock_group(i_group_id) then
        return;
    end if;
    select * into share from pgq._group_share(i_group_id, i_member_id);
    if share.has > share.due then
        -- Move partitions only if another member has less than its share.
        update pgq.group_partition
           set part_member = null, part_generation = default
         where part_group = i_group_id
           and part_nr in (select part_nr from pgq.group_partition
                            where part_group = i_group_id and part_member = i_member_id and pgq._try_lock_position(part_reg)
                            order by part_nr desc limit share.has - share.due);
    elsif share.has < share.due then
        update pgq.group_partition
           set part_member = i_member_id, part_generation = default
         where part_group = i_group_id
           and part_nr in (select part_nr from pgq.group_partition
                            -- A member may have taken it just while leaving.
                            where part_group = i_group_id
                              and not exists (select from pgq.group_member where member_id = part_member)
                              and pgq._try_lock_position(part_reg)
                            order by part_nr limit share.due - share.has);
    end if;
end;
$$;
