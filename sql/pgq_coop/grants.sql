-- Grants. A function that is not named here can be executed by the owner only.

grant usage on schema pgq_coop to public;
revoke execute on all functions in schema pgq_coop from public;

grant execute on function pgq_coop.version() to public;
grant execute on function
    pgq_coop.register_subconsumer(text, text, text),
    pgq_coop.unregister_subconsumer(text, text, text, integer),
    pgq_coop.next_batch(text, text, text),
    pgq_coop.next_batch(text, text, text, interval),
    pgq_coop.next_batch_custom(text, text, text, interval, integer, interval),
    pgq_coop.next_batch_custom(text, text, text, interval, integer, interval, interval),
    pgq_coop.open_next_batch(text, text, text, interval, interval, integer, interval, integer, integer),
    pgq_coop.keep_batch(text, text, text, bigint),
    pgq_coop.finish_batch(bigint),
    pgq_coop.finish_batch(text, text, text, bigint)
to pgq_reader;
