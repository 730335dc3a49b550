create or replace function pgq.note_failure(i_batch_id bigint, i_error text, i_event_id bigint default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Notes that an open batch has failed, for pgq.failing_consumer. Call it after the transaction that failed. It does
-- nothing if the batch is not open. When the batch ends, the note is void.
-- Parameters:
--      i_error     - the error and, after an empty line, its traceback; of both together 10,000 characters are kept
--      i_event_id  - the event that raised the error, if known
declare
    reg     constant int4 := pgq._find_batch(i_batch_id);
begin
    if reg is null or (pgq._get_position(reg)).pos_batch is distinct from i_batch_id then
        return;
    end if;
    perform pgq._require_consumer(reg_id, reg_roles) from pgq.registration where reg_id = reg and reg_roles is not null;
    insert into pgq.consumer_failure as known (cf_registration, cf_batch, cf_event, cf_error, cf_attempts)
    values (reg, i_batch_id, i_event_id, coalesce(left(i_error, 10000), '?'), 1)
        on conflict (cf_registration) do update
       set cf_batch = excluded.cf_batch,
           cf_event = excluded.cf_event,
           cf_error = excluded.cf_error,
           cf_attempts = case when known.cf_batch = excluded.cf_batch then least(known.cf_attempts, 2147483646) + 1 else 1 end,
           cf_since = case when known.cf_batch = excluded.cf_batch then known.cf_since else excluded.cf_since end,
           cf_last = excluded.cf_last;
end;
$$;
