-- The members of a group.
--
-- Members share the position of the group's consumer, the main consumer. Each is registered as a consumer named
-- main.member with the main consumer's sub_id, so that retries belong to all. When a member takes a batch, the main
-- consumer moves behind the batch at once, and the member gets a position, which keeps rotation from removing the
-- events. When the member finishes the batch, it has no position again.

create or replace function pgq_coop._next_state(i_nr bigint)
returns bigint
language sql immutable
as $$
-- Returns the number of the next position of a member, after the one with this number and all heartbeats that may
-- follow it already. So a transaction with an older snapshot, which does not see the heartbeats, can still finish the
-- batch; any other change of the batch conflicts with it.
    select (i_nr | 1048575) + 1;
$$;

create or replace function pgq_coop._lock_member(i_member pgq.registration)
returns pgq.position_0
language plpgsql
as $$
-- Locks a member until the end of the transaction.
-- Returns: the member's newest position, or null if the member is gone: after waiting for the lock, its registration
--      may belong to another member.
declare
    p   constant pgq.position_0 := pgq._lock_position(i_member.reg_id);
begin
    if exists (select from pgq.registration where reg_id = i_member.reg_id and sub_consumer = i_member.sub_consumer) then
        return p;
    end if;
    return null;
end;
$$;

create or replace function pgq_coop._remove_registration(p pgq.position_0)
returns void
language plpgsql
as $$
-- Removes the registration of a member that the caller has locked, with its position.
begin
    if not pgq._is_read_committed() then
        -- An old snapshot does not see a batch that was opened since; this row conflicts with it.
        perform pgq._append_position(p.pos_registration, p.pos_nr + 1, null, null, null);
    end if;
    delete from pgq.registration where reg_id = p.pos_registration;
end;
$$;

create or replace function pgq_coop._remove_member(i_member pgq.registration, p pgq.position_0)
returns void
language plpgsql
as $$
-- Removes a member that the caller has locked, with its position.
begin
    perform pgq_coop._remove_registration(p);
    perform pgq._forget_consumer(i_member.sub_consumer);
end;
$$;

create or replace function pgq_coop.register_subconsumer(i_queue_name text, i_consumer_name text, i_subconsumer_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Registers a member of a consumer's group under the name consumer.subconsumer, and the consumer itself if it is not
-- registered. pgq_coop.next_batch() registers a member by itself.
-- Parameters:
--      i_consumer_name     - name of the consumer whose position the members share
--      i_subconsumer_name  - name of the member
-- Returns: 1 if the member was registered, 0 if it already was.
-- Errors: PQ015 queue has no tick, PQ016 consumer.subconsumer is registered as a consumer of its own, PQ038 the
--      consumer is a partition of a consumer group
declare
    main    pgq.registration;
    member  int4;
begin
    perform pgq._check_name('subconsumer', i_subconsumer_name);
    loop
        perform pgq.register_consumer(i_queue_name, i_consumer_name);
        main := pgq._find_registration(i_queue_name, i_consumer_name);
        -- Serialises changes of the membership, and keeps the consumer from being removed.
        exit when (pgq._lock_position(main.reg_id)).pos_nr is not null;
    end loop;
    perform pgq._check_name('subconsumer', i_consumer_name || '.' || i_subconsumer_name);
    if (pgq._find_member(main, i_consumer_name, i_subconsumer_name)).reg_id is not null then
        return 0;
    end if;
    if main.reg_is_partition then
        raise exception using errcode = 'PQ038',
            message = format('consumer %L on queue %L is a partition of a consumer group, and has no members', i_consumer_name, i_queue_name),
            hint = 'Workers join the group: pgq.join_group(queue, group, worker). To share a position, take another consumer.';
    end if;
    insert into pgq.registration (sub_id, sub_queue, sub_consumer, reg_roles)
    values (main.sub_id, main.sub_queue, pgq._keep_consumer(i_consumer_name || '.' || i_subconsumer_name), main.reg_roles)
    returning reg_id into member;
    perform pgq._append_position(member, 1, null, null, null);
    return 1;
end;
$$;

create or replace function pgq_coop.unregister_subconsumer(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_handling integer)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Removes a member from a consumer's group. The consumer and its position stay.
-- Parameters:
--      i_subconsumer_name  - name of the member
--      i_batch_handling    - what to do if the member has a batch open: 0 refuse, 1 close the batch, which skips its
--                            events
-- Returns: 1, or 0 if there is no such member.
-- Errors: PQ016 consumer.subconsumer is a consumer of its own, PQ032 the member has a batch open
declare
    main    pgq.registration;
    member  pgq.registration;
    p       pgq.position_0;
begin
    select r.* into main
      from pgq.queue q, pgq.consumer c, pgq.registration r
     where q.queue_name = i_queue_name
       and c.co_name = i_consumer_name
       and r.sub_queue = q.queue_id
       and r.sub_consumer = c.co_id;
    if not found then
        return 0;
    end if;
    member := pgq._find_member(main, i_consumer_name, i_subconsumer_name);
    p := pgq_coop._lock_member(member);
    if p.pos_nr is null then
        return 0;
    end if;
    if p.pos_batch is not null and i_batch_handling is distinct from 1 then
        raise exception using errcode = 'PQ032',
            message = format('member %L of consumer %L has batch %s of queue %L open',
                             i_subconsumer_name, i_consumer_name, p.pos_batch, i_queue_name),
            hint = format('Finish it first. If the member is gone, leave it: another takes the batch over that calls pgq_coop.next_batch() '
                          'with a dead interval. To pass over its events: select pgq_coop.unregister_subconsumer(%L, %L, %L, 1).',
                          i_queue_name, i_consumer_name, i_subconsumer_name);
    end if;
    if p.pos_batch is not null then
        perform pgq._note_move(member, p.pos_last_tick, p.pos_next_tick);
    end if;
    perform pgq_coop._remove_member(member, p);
    return 1;
end;
$$;
