create or replace function pgq_task.was_left(i_xmin xid, i_xmax xid)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq_task.was_left(2)
--
--      Whether the transaction that had a row last did not commit. PostgreSQL leaves the number of whoever
--      locks or changes a row in it, so this says of a row of an application's table that a worker began with
--      it and came to no end, also if its process was killed, and nothing had to be written for that.
--
--      It may be wrong: true only makes the row go alone, and false is looked at again when that too ends badly.
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
        -- Nobody can have locked it before it was there: this is the number of a MultiXact, of several who
        -- had it at once.
        return true;
    end if;
    v_ago := (v_next - i_xmax::text::bigint) & 4294967295;
    -- What is yet to come is a number that was drawn since.
    -- This is asked before the row is locked. Where it can be locked then, whoever is in progress now, or has begun
    -- since this statement did, has left it.
    return v_ago not between 1 and 2147483647 or coalesce(pg_xact_status((v_next - v_ago)::text::xid8) <> 'committed', false);
end;
$$;
