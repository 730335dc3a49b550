-- Grants. A function that is not named here can be executed by the owner only.
--
-- A consumer is a pgq_reader in the database of its queue. In the database of its effects it may be that too, or a
-- pgq_writer if the effects are events.

grant usage on schema pgq_ext to public;
revoke execute on all functions in schema pgq_ext from public;

grant execute on function pgq_ext.version() to public;
grant execute on function
    pgq_ext.get_last_tick(text), pgq_ext.get_last_tick(text, text),
    pgq_ext.set_last_tick(text, bigint), pgq_ext.set_last_tick(text, text, bigint),
    pgq_ext.is_batch_done(text, bigint), pgq_ext.is_batch_done(text, text, bigint),
    pgq_ext.set_batch_done(text, bigint), pgq_ext.set_batch_done(text, text, bigint),
    pgq_ext.is_event_done(text, bigint, bigint), pgq_ext.is_event_done(text, text, bigint, bigint),
    pgq_ext.is_event_done(text, text, bigint, bigint, int4),
    pgq_ext.set_event_done(text, bigint, bigint), pgq_ext.set_event_done(text, text, bigint, bigint),
    pgq_ext.set_event_done(text, text, bigint, bigint, int4),
    pgq_ext.begin_event(text, text, bigint, bigint, timestamptz, bigint, timestamptz, bigint, int4, timestamptz),
    pgq_ext.end_event(text, text, bigint, bigint, timestamptz, bigint, timestamptz, bigint, int4, timestamptz),
    pgq_ext.start_batches(text, text, bigint, timestamptz, boolean),
    pgq_ext.begin_batch(text, text, bigint, bigint, timestamptz, bigint, timestamptz),
    pgq_ext.end_batch(text, text, bigint, bigint, timestamptz, jsonb, txid_snapshot, bigint),
    pgq_ext.forget_retries(text, text), pgq_ext.forget_consumer(text, text), pgq_ext.rotate()
    to pgq_reader, pgq_writer;
grant execute on function pgq_ext.upgrade_schema() to pgq_admin;
grant select on pgq_ext.progress, pgq_ext.completed_tick, pgq_ext.completed_batch, pgq_ext.completed_event, pgq_ext.partial_batch
    to pgq_reader, pgq_writer;
grant select on pgq_ext.log to pgq_admin;
grant update (log_rotate_bytes) on pgq_ext.log to pgq_admin;
grant select on pgq_ext.replica_table, pgq_ext.replica_sequence to pgq_reader;
-- How many changes wait, not what they hold: they may be those of a restricted queue.
grant select (rpe_table, rpe_nr) on pgq_ext.replica_event to pgq_reader;
grant select on pgq_ext.replica_event to pgq_admin;
grant insert, update, delete on pgq_ext.replica_table, pgq_ext.replica_event, pgq_ext.replica_sequence to pgq_admin;
