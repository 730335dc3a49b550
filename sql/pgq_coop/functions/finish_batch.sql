create or replace function pgq_coop.finish_batch(i_batch_id bigint)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.finish_batch(1)
--
--      Finishes a member's batch, whichever member has it. Called in the transaction that processed the events it makes
--      the processing exactly-once, provided that the transaction is rolled back if the result is 0.
--
-- Parameters:
--      i_batch_id  - an open batch
-- Returns:
--      1, or 0 with a warning if no member has the batch open (any more).
-- Errors:
--      PQ038 the batch is that of a partition of a consumer group
-- Tables:
--      locks pgq.registration; appends a position
-- ----------------------------------------------------------------------
declare
    p   constant pgq.position_0 := pgq.lock_position(pgq.find_batch(i_batch_id), true);
begin
    -- The main consumer exists before its members.
    if p.pos_batch = i_batch_id
       and exists (select from pgq.registration member
                     join pgq.registration main on main.sub_id = member.sub_id and main.reg_id < member.reg_id
                    where member.reg_id = p.pos_registration)
    then
        perform pgq.append_position(p.pos_registration, pgq_coop.next_state(p.pos_nr), null, null, null);
        return 1;
    end if;
    raise warning 'finish_batch: no member has batch % open', i_batch_id;
    return 0;
end;
$$;

create or replace function pgq_coop.finish_batch(
    i_queue_name text, i_consumer_name text, i_subconsumer_name text, i_batch_id bigint)
returns integer
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_coop.finish_batch(4)
--
--      Finishes a batch for the member that has it, and for no other. A member that has lost the batch to another gets
--      an error, which rolls back the effects.
--
-- Parameters:
--      i_queue_name, i_consumer_name, i_subconsumer_name   - the member
--      i_batch_id                                          - its open batch
-- Returns:
--      1
-- Errors:
--      PQ031 the batch is not the member's (any more)
-- Tables:
--      locks pgq.registration; appends a position
-- ----------------------------------------------------------------------
declare
    member  constant pgq.registration :=
        pgq.find_member(pgq.find_registration(i_queue_name, i_consumer_name), i_consumer_name, i_subconsumer_name);
    p       constant pgq.position_0 := pgq_coop.lock_member(member);
begin
    if p.pos_batch = i_batch_id then
        perform pgq.append_position(p.pos_registration, pgq_coop.next_state(p.pos_nr), null, null, null);
        return 1;
    end if;
    raise exception using
        errcode = 'PQ031',
        message = format('batch %s is not that of member %L of consumer %L on queue %L',
                         coalesce(i_batch_id::text, 'NULL'), i_subconsumer_name, i_consumer_name, i_queue_name),
        hint = 'The member was taken for dead and another one has its batch, or it was finished. Roll back. If the member was at work '
               'all the time: give it more time, or let it call pgq_coop.keep_batch() meanwhile.';
end;
$$;
