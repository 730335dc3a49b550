create or replace function pgq.insert_guarded()
returns trigger
language plpgsql
security definer set search_path = pg_catalog, pg_temp
as $$
-- ----------------------------------------------------------------------
-- Function: pgq.insert_guarded(0)
--
--      Row trigger of pgq.event_guard_<n>, to which events of guarded queues are routed: makes all checks, wakes the
--      ticker, and inserts the event into the current table.
-- Errors:
--      as pgq.insert_event(7)
-- Tables:
--      reads pgq.queue; inserts into pgq.event
-- ----------------------------------------------------------------------
declare
    q   pgq.queue;
    t   record;
begin
    select * into q from pgq.queue where queue_slot0 = new.ev_slot & 262128;
    if not found then
        raise exception using
            errcode = 'PQ001',
            message = format('no queue has slot %s', new.ev_slot & 262143),
            hint = 'Insert with pgq.insert_event().';
    end if;
    select * into t from pgq.write_target(q.queue_name);
    new.ev_slot := t.ev_slot;
    insert into pgq.event values (new.*);
    return null;
end;
$$;

create or replace trigger insert_guarded
    before insert on pgq.event_guard_0
    for each row execute function pgq.insert_guarded();

create or replace trigger insert_guarded
    before insert on pgq.event_guard_1
    for each row execute function pgq.insert_guarded();
