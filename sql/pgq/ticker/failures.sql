create or replace function pgq.note_failures(i_operations text[], i_arguments text[], i_errors text[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Replaces the notes about what the ticker cannot do now. The ticker calls it when that changes.
-- Parameters:
--      i_operations    - jobs of the ticker, or operations of pgq.maint_operations()
--      i_arguments     - for each its argument, or null
--      i_errors        - for each the error
begin
    -- Two tickers, of which one has just lost the lead, must write one after the other.
    lock table pgq.ticker_failure in share row exclusive mode;
    delete from pgq.ticker_failure
     where not exists (select from unnest(i_operations, i_arguments) failing (operation, argument)
                        where operation = tf_operation
                          and coalesce(argument, '') = tf_argument);
    insert into pgq.ticker_failure as known (tf_operation, tf_argument, tf_error)
    select distinct on (1, 2) operation, coalesce(argument, ''), left(error, 1000)
      from unnest(i_operations, i_arguments, i_errors) failing (operation, argument, error)
        on conflict (tf_operation, tf_argument) do update set tf_error = excluded.tf_error
     where known.tf_error <> excluded.tf_error;
end;
$$;
