-- Access to the log of positions. As with ticks, the table that is not current is read only when it must be.

create or replace function pgq.find_registration(i_queue_name text, i_consumer_name text)
returns pgq.registration
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.find_registration(2)
--
--      A consumer's registration on a queue; raises PQ001 or PQ002 if there is none. Internal.
-- ----------------------------------------------------------------------
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
        if not exists (select from pgq.queue where queue_name = i_queue_name) then
            perform pgq.raise_queue_not_found(i_queue_name);
        end if;
        raise exception using
            errcode = 'PQ002',
            message = pg_catalog.format('consumer %s is not registered on queue %L',
                             coalesce(pg_catalog.quote_literal(i_consumer_name), 'NULL'), i_queue_name),
            hint = 'Register it with pgq.register_consumer(queue, consumer); it gets the events that come after that.';
    end if;
    return r;
end;
$$;

create or replace function pgq.get_position(i_registration int4)
returns pgq.position_0
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.get_position(1)
--
--      The newest position of a registration. Internal.
--
-- Tables:
--      reads pgq.position_0, pgq.position_1
-- ----------------------------------------------------------------------
declare
    p pgq.position_0;
begin
    -- Twice: between two statements rotation may carry the row from one table to the other.
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
        -- Every registration has a position. Ours was carried over after the snapshot of this transaction.
        perform pgq.raise_stale_snapshot();
    end if;
    return p;
end;
$$;

create or replace function pgq.find_batch(i_batch_id bigint)
returns int4
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.find_batch(1)
--
--      The registration that has or had this batch, null if none is known. Internal.
--
-- Tables:
--      reads pgq.position_0, pgq.position_1
-- ----------------------------------------------------------------------
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
        perform pgq.check_log_snapshot('position');
    end if;
    return r;
end;
$$;

create or replace function pgq.get_batch_position(i_batch_id bigint)
returns pgq.position_0
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.get_batch_position(1)
--
--      The position that has this batch open, null if the batch is not open. Internal.
-- ----------------------------------------------------------------------
declare
    r   constant int4 := pgq.find_batch(i_batch_id);
    p   pgq.position_0;
begin
    if exists (select from pgq.registration where reg_id = r) then
        p := pgq.get_position(r);
        if p.pos_batch = i_batch_id then
            return p;
        end if;
    end if;
    perform pgq.check_log_snapshot('position');
    return null;
end;
$$;

create or replace function pgq.lock_position(i_registration int4)
returns pgq.position_0
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.lock_position(1)
--
--      Locks a registration until the end of the transaction. Internal.
--
-- Returns:
--      Its newest position, null if the registration has gone.
-- ----------------------------------------------------------------------
declare
    done    text;  -- assigned to, which is cheaper than PERFORM
begin
    -- Not by its row: that would be written, and to the log of the server, twice a batch.
    done := pg_catalog.pg_advisory_xact_lock(1886875908, i_registration);
    if pgq.is_read_committed() then
        perform from pgq.registration where reg_id = i_registration;
    else
        -- Under an old snapshot the newest row of the log may be out of sight. Two rows with one number
        -- collide in one table; whether there was a change of tables, the sequence tells. That the
        -- registration has gone is an error here.
        perform pgq.check_log_snapshot('position');
        perform from pgq.registration where reg_id = i_registration for no key update;
    end if;
    if not found then
        return null;
    end if;
    return pgq.get_position(i_registration);
end;
$$;

create or replace function pgq.append_position(
    i_registration int4, i_nr bigint, i_last_tick bigint, i_batch bigint, i_next_tick bigint,
    i_active timestamptz default pg_catalog.now())
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.append_position(6)
--
--      Stores the new position of a registration that the caller has locked. Internal.
--
-- Parameters:
--      i_nr        - one more than the number of the position before
-- ----------------------------------------------------------------------
declare
    done    text;  -- assigned to, which is cheaper than PERFORM
begin
    if pgq.is_read_committed() then
        done := pgq.insert_position(i_registration, i_nr, i_last_tick, i_batch, i_next_tick, i_active);
        return;
    end if;
    begin
        perform pgq.insert_position(i_registration, i_nr, i_last_tick, i_batch, i_next_tick, i_active);
    exception when unique_violation then
        perform pgq.raise_stale_snapshot();
    end;
end;
$$;

create or replace function pgq.insert_position(
    i_registration int4, i_nr bigint, i_last_tick bigint, i_batch bigint, i_next_tick bigint, i_active timestamptz)
returns void
language plpgsql
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_position(6)
--
--      Stores a position; fails if there is one with this number. Internal.
--
-- Tables:
--      inserts into pgq.position_0 or pgq.position_1
-- ----------------------------------------------------------------------
declare
    rotations   bigint;
begin
    loop
        rotations := pg_catalog.pg_sequence_last_value('pgq.position_log_seq');
        if rotations % 2 = 0 then
            insert into pgq.position_0 (pos_registration, pos_nr, pos_last_tick, pos_active, pos_batch, pos_next_tick)
            values (i_registration, i_nr, i_last_tick, i_active, i_batch, i_next_tick);
        else
            insert into pgq.position_1 (pos_registration, pos_nr, pos_last_tick, pos_active, pos_batch, pos_next_tick)
            values (i_registration, i_nr, i_last_tick, i_active, i_batch, i_next_tick);
        end if;
        -- Now we hold a lock on the table; see pgq.append_ticks(). A row in both tables does no harm.
        exit when pg_catalog.pg_sequence_last_value('pgq.position_log_seq') = rotations;
    end loop;
end;
$$;

create or replace function pgq.subscription_view_write()
returns trigger
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.subscription_view_write(0)
--
--      Lets pgq.subscription be written as the table that it is in PgQ.
-- ----------------------------------------------------------------------
declare
    r   int4;
begin
    if tg_op = 'INSERT' then
        insert into pgq.registration (sub_id, sub_queue, sub_consumer)
        values (coalesce(new.sub_id, nextval('pgq.subscription_sub_id_seq')), new.sub_queue, new.sub_consumer)
        returning reg_id, sub_id into r, new.sub_id;
        new.sub_active := coalesce(new.sub_active, now());
        perform pgq.append_position(r, 1, new.sub_last_tick, new.sub_batch, new.sub_next_tick, new.sub_active);
        return new;
    end if;

    select reg_id into r from pgq.registration where sub_queue = old.sub_queue and sub_consumer = old.sub_consumer;
    if tg_op = 'DELETE' then
        perform pgq.lock_position(r);
        delete from pgq.registration where reg_id = r;
        return old;
    end if;

    if (new.sub_id, new.sub_queue, new.sub_consumer) is distinct from (old.sub_id, old.sub_queue, old.sub_consumer) then
        update pgq.registration
           set sub_id = new.sub_id, sub_queue = new.sub_queue, sub_consumer = new.sub_consumer
         where reg_id = r;
    end if;
    perform pgq.append_position(r, (pgq.lock_position(r)).pos_nr + 1,
                                new.sub_last_tick, new.sub_batch, new.sub_next_tick, new.sub_active);
    return new;
end;
$$;
