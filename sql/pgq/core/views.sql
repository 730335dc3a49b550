-- The views that PgQ has as tables can be written.

create or replace trigger tick_write
    instead of insert or update or delete on pgq.tick
    for each row execute function pgq._tick_view_write();

create or replace trigger subscription_write
    instead of insert or update or delete on pgq.subscription
    for each row execute function pgq._subscription_view_write();

create or replace trigger retry_write
    instead of insert or update or delete on pgq.retry_queue
    for each row execute function pgq._retry_view_write();
