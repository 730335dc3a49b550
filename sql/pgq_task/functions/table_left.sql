create or replace function pgq_task.was_left(i_xmin xid, i_xmax xid)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.was_left(2)
--
--      Returns whether the last transaction that locked or changed a row did not commit. PostgreSQL stores the id of
--      such a transaction in the row. So this shows, for a row of an application's table, that a worker began with it
--      and did not finish, even if its process was killed, without any extra write.
--
--      It may be wrong: true only makes the row be processed alone, and a wrong false is checked again after the next
--      failure.
--
-- Parameters:
--      i_xmin      - the row's xmin
--      i_xmax      - its xmax, as it was before it was locked
-- ----------------------------------------------------------------------
declare
    v_next  constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_ago   bigint;
begin
    if i_xmax = '0' then
        return false;
    elsif age(i_xmax) > age(i_xmin) then
        -- A row cannot have been locked before it existed, so this is the number of a MultiXact: several transactions
        -- had the row at once.
        return true;
    end if;
    v_ago := (v_next - i_xmax::text::bigint) & 4294967295;
    -- A number that is still in the future was drawn since. This is asked before the row is locked. If the row can be
    -- locked afterwards, a transaction that is in progress now, or has begun since this statement started, has left it.
    return v_ago not between 1 and 2147483647 or coalesce(pg_xact_status((v_next - v_ago)::text::xid8) <> 'committed', false);
end;
$$;
