create or replace function pgq.log_action(i_action text, i_arguments jsonb default '{}', i_count bigint default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes in pgq.action_log what the caller does, in the caller's transaction; the console calls it with each action. Removes
-- notes that are older than 90 days.
-- Parameters:
--      i_action        - name of the action
--      i_arguments     - what was given
--      i_count         - how much was changed
-- Returns: the note's number.
declare
    v_id    bigint;
begin
    delete from pgq.action_log where al_time < now() - interval '90 days';
    insert into pgq.action_log (al_role, al_action, al_arguments, al_count)
    values (pgq._caller(), i_action, coalesce(i_arguments, '{}'), i_count)
    returning al_id into v_id;
    return v_id;
end;
$$;
