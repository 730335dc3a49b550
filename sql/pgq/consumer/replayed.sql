create or replace function pgq.has_replayed(
    i_queue_name text, i_tick_id bigint, i_tick_time timestamptz default null, i_required boolean default false)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether this server has replayed the events up to a tick, for reading on a standby what was opened on the
-- primary. A tick is committed after the transactions that its snapshot sees, and a standby replays commits in their
-- order: so a statement that sees the tick, or a later one of its queue, sees these events.
-- Parameters:
--      i_tick_time - the tick's time, so that the tick of another server is not taken for it; null if the tick may be
--                    forgotten, as early ticks are: then a later one will do
--      i_required  - true for an error instead of false. As a condition of the query that reads, it looks with the
--                    snapshot of this query:  where (select pgq.has_replayed(..., true))
-- Errors: PQ018 not replayed, if required
declare
    seen    boolean;
begin
    -- As a subtransaction that is rolled back, it gives its locks back at once. A long query would keep them, and with
    -- them the replay of a rotation of the log.
    begin
        select exists (select from pgq.queue q
                         join pgq.tick_log t on t.tick_queue = q.queue_id
                        where q.queue_name = i_queue_name
                          and t.tick_id >= i_tick_id
                          and t.tick_id <= case when i_tick_time is null then 9223372036854775807 else i_tick_id end
                          and (i_tick_time is null or t.tick_time = i_tick_time))
          into seen;
        raise no_data_found;
    exception when no_data_found then
        null;
    end;
    if i_required and not seen then
        raise exception using errcode = 'PQ018',
            message = format('this server has not replayed tick %s of queue %L', i_tick_id, i_queue_name),
            hint = 'Wait until it has, or read on the primary.';
    end if;
    return seen;
end;
$$;
