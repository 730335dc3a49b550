create or replace function pgq.log_action(i_action text, i_arguments jsonb default '{}', i_count bigint default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes in pgq.action_log what the caller does, in the caller's transaction; the console calls it with each action. Removes
-- notes that are older than 90 days.
-- Parameters:
--      i_action        - name of the action, at most 200 characters
--      i_arguments     - what was given, at most 20,000 characters
--      i_count         - how much was changed
-- Returns: the note's number.
-- Errors: PQ011 the note is too long. It is not cut: that could hide what was given.
declare
    v_id    bigint;
begin
    if length(i_action) > 200 or length(i_arguments::text) > 20000 then
        raise exception using errcode = 'PQ011',
            message = format('log_action: a note of %s characters', length(i_action) + coalesce(length(i_arguments::text), 0)),
            hint = 'Give at most 200 for the action and 20,000 for its arguments.';
    end if;
    -- Another session may be removing them, and stay in its transaction.
    delete from pgq.action_log
     where al_id = any (array(select al_id from pgq.action_log where al_time < now() - interval '90 days' for update skip locked));
    insert into pgq.action_log (al_role, al_action, al_arguments, al_count)
    values (pgq._caller(), i_action, coalesce(i_arguments, '{}'), i_count)
    returning al_id into v_id;
    return v_id;
end;
$$;
