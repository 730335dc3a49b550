-- Access to the log of positions. As with ticks, the table that is not current is read only if necessary.

create or replace function pgq._find_registration(i_queue_name text, i_consumer_name text)
returns pgq.registration
language plpgsql
as $$
-- Returns a consumer's registration on a queue; raises PQ001 or PQ002 if there is none.
declare
    r   pgq.registration;
begin
    select r1.* into r
      from pgq.queue q, pgq.consumer c, pgq.registration r1
     where q.queue_name = i_queue_name
       and c.co_name = i_consumer_name
       and r1.sub_queue = q.queue_id
       and r1.sub_consumer = c.co_id;
    if not found then
        perform pgq._find_queue(i_queue_name);
        raise exception using errcode = 'PQ002',
            message = pg_catalog.format('consumer %s is not registered on queue %L',
                             coalesce(pg_catalog.quote_literal(i_consumer_name), 'NULL'), i_queue_name),
            hint = 'Register it with pgq.register_consumer(queue, consumer); it gets the events that come after that.';
    end if;
    return r;
end;
$$;

create or replace function pgq._find_member(i_main pgq.registration, i_consumer_name text, i_member_name text)
returns pgq.registration
language plpgsql
as $$
-- Returns the registration of a member of a consumer's group: of the consumer named consumer.member, on the same queue
-- and with the same sub_id. Returns null if there is none; raises PQ016 if a consumer of this name is not a member.
declare
    r   pgq.registration;
begin
    select r1.* into r
      from pgq.consumer c, pgq.registration r1
     where c.co_name = i_consumer_name || '.' || i_member_name
       and r1.sub_consumer = c.co_id
       and r1.sub_queue = i_main.sub_queue;
    if r.sub_id <> i_main.sub_id then
        raise exception using errcode = 'PQ016',
            message = pg_catalog.format('consumer %L has the name of member %L of consumer %L, and is none',
                                        i_consumer_name || '.' || i_member_name, i_member_name, i_consumer_name),
            hint = 'Take another name for the member, or unregister that consumer.';
    end if;
    return r;
end;
$$;

create or replace function pgq._get_member_position(i_main pgq.registration, i_position pgq.position_0, i_member_name text)
returns pgq.position_0
language plpgsql
as $$
-- Returns the newest position of a member of a consumer's group, null if it is not registered. Raises PQ016 if the
-- consumer, whose own position is given, has a batch open: then a program outside the group consumes under the
-- consumer's name.
declare
    consumer    constant text := (select co_name from pgq.consumer where co_id = i_main.sub_consumer);
    r           constant pgq.registration := pgq._find_member(i_main, consumer, i_member_name);
begin
    if i_position.pos_batch is not null then
        raise exception using errcode = 'PQ016',
            message = pg_catalog.format('consumer %L has batch %s open itself, not one of its members', consumer, i_position.pos_batch),
            hint = pg_catalog.format('Stop the program that consumes as %L; then select pgq.finish_batch(%s) if it has processed the '
                                     'batch, else move the consumer back with pgq.register_consumer_at().',
                                     consumer, i_position.pos_batch);
    end if;
    if r.reg_id is null then
        return null;
    end if;
    return pgq._get_position(r.reg_id);
end;
$$;

create or replace function pgq._get_position(i_registration int4)
returns pgq.position_0
language plpgsql
as $$
-- Returns the newest position of a registration.
declare
    p pgq.position_0;
begin
    -- Look twice: between two statements rotation may carry the row from one table to the other.
    for attempt in 1..2 loop
        if pg_catalog.pg_sequence_last_value('pgq.position_log_seq') % 2 = 0 then
            select * into p from pgq.position_0 where pos_registration = i_registration order by pos_nr desc limit 1;
            exit when found;
            select * into p from pgq.position_1 where pos_registration = i_registration order by pos_nr desc limit 1;
        else
            select * into p from pgq.position_1 where pos_registration = i_registration order by pos_nr desc limit 1;
            exit when found;
            select * into p from pgq.position_0 where pos_registration = i_registration order by pos_nr desc limit 1;
        end if;
        exit when found;
    end loop;
    if p.pos_nr is null then
        -- Every registration has a position. This one was carried over after the snapshot of this transaction.
        perform pgq._raise_stale_snapshot();
    end if;
    return p;
end;
$$;

create or replace function pgq._find_batch(i_batch_id bigint)
returns int4
language plpgsql
as $$
-- Returns the registration that has or had this batch, null if none is known.
declare
    r   int4;
begin
    for attempt in 1..2 loop
        if pg_catalog.pg_sequence_last_value('pgq.position_log_seq') % 2 = 0 then
            select pos_registration into r from pgq.position_0 where pos_batch = i_batch_id;
            exit when found;
            select pos_registration into r from pgq.position_1 where pos_batch = i_batch_id;
        else
            select pos_registration into r from pgq.position_1 where pos_batch = i_batch_id;
            exit when found;
            select pos_registration into r from pgq.position_0 where pos_batch = i_batch_id;
        end if;
        exit when found;
    end loop;
    if r is null then
        perform pgq._check_log_snapshot('position');
    end if;
    return r;
end;
$$;

create or replace function pgq._get_batch_position(i_batch_id bigint)
returns pgq.position_0
language plpgsql
as $$
-- Returns the position that has this batch open, null if the batch is not open.
declare
    r   constant int4 := pgq._find_batch(i_batch_id);
    p   pgq.position_0;
begin
    if exists (select from pgq.registration where reg_id = r) then
        p := pgq._get_position(r);
        if p.pos_batch = i_batch_id then
            return p;
        end if;
    end if;
    perform pgq._check_log_snapshot('position');
    return null;
end;
$$;

create or replace function pgq._raise_is_partition(i_registration int4)
returns void
language plpgsql
as $$
-- Raises PQ038.
declare
    g   record;
begin
    select group_name, part_nr, queue_name into g
      from pgq.group_partition
      join pgq.consumer_group on group_id = part_group
      join pgq.queue on queue_id = group_queue
     where part_reg = i_registration;
    raise exception using errcode = 'PQ038',
        message = pg_catalog.format('consumer %L on queue %L is a partition of consumer group %L: only the group''s members take and finish its batches',
                                    g.group_name || '#' || g.part_nr, g.queue_name, g.group_name),
        hint = 'It would pass over events. Join the group: pgq.join_group(queue, group, worker), pgq.next_group_batch(member), '
               'pgq.finish_group_batch(batch, generation); or be a consumer of another name.';
end;
$$;

create or replace function pgq._lock_position(
    i_registration int4, i_as_consumer boolean default false, i_is_allowed boolean default false)
returns pgq.position_0
language plpgsql
as $$
-- Locks a registration until the end of the transaction: to act as its consumer, for which the caller must have the
-- right.
-- Parameters:
--      i_as_consumer   - raise PQ038 if it is a partition of a consumer group, whose batches belong to members
--      i_is_allowed    - the right was checked
-- Returns: its newest position, or null if the registration is gone.
declare
    done            text;  -- assigned to, which is cheaper than PERFORM
    is_partition    boolean;
    roles           text[];
    role            oid;
    role_name       name;
begin
    -- Not a row lock: that would write the row, and to the server's log, twice per batch.
    done := pg_catalog.pg_advisory_xact_lock(pgq._lock_key('positions'), i_registration);
    if pgq._is_read_committed() then
        select reg_is_partition, reg_roles, reg_role, reg_role_name into is_partition, roles, role, role_name
          from pgq.registration where reg_id = i_registration;
    else
        -- Under an old snapshot the newest row of the log may be invisible. Two rows with the same number conflict in
        -- one table; the sequence tells whether the tables were switched. A missing registration is an error here.
        perform pgq._check_log_snapshot('position');
        select reg_is_partition, reg_roles, reg_role, reg_role_name into is_partition, roles, role, role_name
          from pgq.registration where reg_id = i_registration for no key update;
    end if;
    if is_partition is null then
        return null;
    end if;
    if roles is not null and not i_is_allowed then
        -- as in pgq.open_next_batch()
        unlisten pgq_no_channel;
        if pgq._acts_as(role, role_name) is not true then
            done := pgq._require_consumer(i_registration, roles);
        end if;
    end if;
    if is_partition and i_as_consumer then
        perform pgq._raise_is_partition(i_registration);
    end if;
    return pgq._get_position(i_registration);
end;
$$;

create or replace function pgq._try_lock_position(i_registration int4)
returns boolean
language sql
as $$
-- Locks a registration like pgq._lock_position(), but only if no other session has locked it. Sufficient only in READ
-- COMMITTED.
    select pg_catalog.pg_try_advisory_xact_lock(pgq._lock_key('positions'), i_registration);
$$;

create or replace function pgq._append_position(
    i_registration int4, i_nr bigint, i_last_tick bigint, i_batch bigint, i_next_tick bigint,
    i_active timestamptz default pg_catalog.now(), i_settled bigint default null)
returns void
language plpgsql
as $$
-- Stores the new position of a registration that the caller has locked.
-- Parameters:
--      i_nr        - number of the previous position plus one
--      i_settled   - the value of the previous position, if the consumer may have its effects in another database
declare
    done    text;  -- assigned to, which is cheaper than PERFORM
begin
    if pgq._is_read_committed() then
        done := pgq._insert_position(i_registration, i_nr, i_last_tick, i_batch, i_next_tick, i_active, i_settled);
        return;
    end if;
    begin
        perform pgq._insert_position(i_registration, i_nr, i_last_tick, i_batch, i_next_tick, i_active, i_settled);
        -- The conflicting row may be in the other table.
        perform pgq._check_log_snapshot('position');
    exception when unique_violation then
        perform pgq._raise_stale_snapshot();
    end;
end;
$$;

create or replace function pgq._insert_position(
    i_registration int4, i_nr bigint, i_last_tick bigint, i_batch bigint, i_next_tick bigint, i_active timestamptz, i_settled bigint)
returns void
language plpgsql
as $$
-- Stores a position; fails if this number exists already.
declare
    rotations   bigint;
begin
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq.position_log_seq');
        if rotations % 2 = 0 then
            insert into pgq.position_0 (pos_registration, pos_nr, pos_last_tick, pos_active, pos_batch, pos_next_tick, pos_settled)
            values (i_registration, i_nr, i_last_tick, i_active, i_batch, i_next_tick, i_settled);
        else
            insert into pgq.position_1 (pos_registration, pos_nr, pos_last_tick, pos_active, pos_batch, pos_next_tick, pos_settled)
            values (i_registration, i_nr, i_last_tick, i_active, i_batch, i_next_tick, i_settled);
        end if;
        -- Now the table is locked; see pgq._append_ticks(). A row in both tables does no harm.
        exit when pg_catalog.pg_sequence_last_value('pgq.position_log_seq') = rotations;
    end loop;
end;
$$;

create or replace function pgq._subscription_view_write()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes pgq.subscription writable, like the table that it is in PgQ.
declare
    r   int4;
    p   pgq.position_0;
begin
    if tg_op = 'INSERT' then
        insert into pgq.registration (sub_id, sub_queue, sub_consumer, reg_roles)
        values (coalesce(new.sub_id, nextval('pgq.subscription_sub_id_seq')), new.sub_queue, new.sub_consumer,
                pgq._consume_roles(new.sub_queue, (select co_name from pgq.consumer where co_id = new.sub_consumer)))
        returning reg_id, sub_id into r, new.sub_id;
        new.sub_active := coalesce(new.sub_active, now());
        perform pgq._append_position(r, 1, new.sub_last_tick, new.sub_batch, new.sub_next_tick, new.sub_active);
        perform pgq._note_move(n, null, new.sub_last_tick) from pgq.registration n where reg_id = r;
        return new;
    end if;

    perform pgq._notify_consumers(old.sub_queue);
    select reg_id into r from pgq.registration where sub_queue = old.sub_queue and sub_consumer = old.sub_consumer;
    if tg_op = 'DELETE' then
        perform pgq._lock_position(r);
        delete from pgq.registration where reg_id = r;
        return old;
    end if;

    p := pgq._lock_position(r);
    if (new.sub_id, new.sub_queue, new.sub_consumer) is distinct from (old.sub_id, old.sub_queue, old.sub_consumer) then
        update pgq.registration
           set sub_id = new.sub_id, sub_queue = new.sub_queue, sub_consumer = new.sub_consumer,
               reg_roles = pgq._consume_roles(new.sub_queue, (select co_name from pgq.consumer where co_id = new.sub_consumer))
         where reg_id = r;
    end if;
    perform pgq._append_position(r, p.pos_nr + 1,
                                 new.sub_last_tick, new.sub_batch, new.sub_next_tick, new.sub_active, p.pos_settled);
    update pgq.registration set reg_dropped = p.pos_batch where reg_id = r and p.pos_batch <> coalesce(new.sub_batch, 0);
    perform pgq._note_move(n, p.pos_last_tick, new.sub_last_tick) from pgq.registration n where reg_id = r;
    return new;
end;
$$;
