-- Grants, as data. A function that is not named here can be executed by the owner only.

do $$
declare
    public_functions constant text[] := array[
        'version()', 'quote_fqname(text)', 'queue_relation(text)', '_cluster_tag()', '_refuse_insert(regclass)', '_require_type(text)',
        'seq_getval(text)',
        'get_queue_info()', 'get_queue_info(text)',
        'get_consumer_info()', 'get_consumer_info(text)', 'get_consumer_info(text, text)',
        'capture_info(regclass)', 'row_count(regclass)',
        'get_contract(text, text, integer)', 'get_contract_info(text)', 'contract_errors(jsonb, jsonb)',
        'get_shard_info(text)'];
    reader_functions constant text[] := array[
        'register_consumer(text, text)', 'register_consumer(text, text, text)', 'find_tick(text, text)',
        'register_consumer_at(text, text, bigint)', 'unregister_consumer(text, text)',
        'advance_consumer(text, text, bigint)', 'pause_consumer(text, text)', 'resume_consumer(text, text)',
        'get_paused_consumers(text)',
        'next_batch(text, text)', 'next_batch_info(text, text)',
        'next_batch_custom(text, text, interval, integer, interval)',
        'next_batch_upto(text, text, integer, interval)',
        'open_next_batch(text, text, interval, integer, interval, integer, integer, text, boolean)',
        'get_consumer_start(text, text)', 'settle_batch(bigint)', 'note_failure(bigint, text, bigint)',
        'reopen_batch(text, text, bigint, bigint, timestamptz, bigint, timestamptz)', 'get_tick_snapshot(text, bigint)',
        'next_ticks(text, bigint, integer, integer)',
        'find_tick_helper(integer, bigint, timestamptz, bigint, bigint, interval)',
        'batch_event_sql(bigint)', 'batch_event_tables(bigint)', 'get_batch_events(bigint)', 'get_batch_info(bigint)',
        'get_batch_cursor(bigint, text, integer)', 'get_batch_cursor(bigint, text, integer, text)',
        'check_event_condition(text)', '_expression_tokens(text)', '_assert_readable(integer, bigint)',
        'tick_range_sql(text, bigint, bigint)', 'snapshot_range_sql(text, bigint, txid_snapshot, bigint, txid_snapshot, text)',
        'where_is_event(text, bigint)', 'has_replayed(text, bigint, timestamptz, boolean)', 'payload_values(text, jsonpath)',
        'tick_channel(text)', 'finish_batch(bigint)', 'get_delayed_events(text, integer)', 'get_delayed_info(text)', 'get_dead_letter_info(text)',
        'find_counted_tables(text[])', 'row_counts_to_start(text, text, regclass[])', 'start_row_count(text, text, regclass, bigint, txid_snapshot, bigint)',
        'count_batch_rows(bigint, regclass[])',
        'event_retry(bigint, bigint, integer)', 'event_retry(bigint, bigint, timestamptz)',
        'event_retry_many(bigint, bigint[], timestamptz[])',
        'create_group(text, text, integer, text, interval, integer, bigint, text)', 'drop_group(text, text, boolean)',
        'set_group_config(text, text, text, text)', 'resize_group(text, text, integer)',
        'join_group(text, text, text)', 'leave_group(integer)', 'group_heartbeat(integer)',
        'next_group_batch(integer, integer, interval, text[], integer, integer, integer[], boolean)',
        'finish_group_batch(bigint, bigint, bigint[], text[], interval[], text[])', 'group_batch_keys(bigint)',
        'open_parked(integer, integer)', 'finish_parked(bigint, bigint, bigint[], boolean, text, interval, bigint[], text[], text[])',
        'unpark_key(text, text, text)', 'give_up_parked(text, text, text, integer)',
        'get_group_info(text, text)', 'get_group_partitions(text, text)', 'get_parked_keys(text, text)',
        'event_pkey(text, text)', 'key_partition(text, integer)',
        'batch_retry(bigint, integer)',
        'get_foreign_locks()', '_lock_keys()', 'log_action(text, jsonb, bigint)',
        'event_dead_letter(bigint, bigint, text)', 'event_dead_letter_many(bigint, bigint[], text[], text[])', 'force_tick(text)',
        '_may_see(integer, text, name)', '_shown(anyelement)',
        -- With a grant on the queue; members of pgq_admin need none.
        'replay_dead_letters(bigint[], text)', 'replay_dead_letters_patched(bigint[], jsonb)', 'purge_dead_letters(bigint[])',
        'drop_queue(text)', 'drop_queue(text, boolean)', '_remove_queue(text, boolean)', 'set_queue_config(text, text, text)',
        'restrict_queue(text, boolean)', 'grant_queue(text, text[], text, text)', 'revoke_queue(text, text[], text, text)',
        'get_queue_grants(text)',
        'set_contract(text, text, jsonb, text, boolean)', 'drop_contract(text, text)',
        'set_shard(text, text, bigint, boolean)', 'drop_shard(text)', 'shard_writers(text)',
        'has_finished(text, text, bigint)'];
    writer_functions constant text[] := array[
        'insert_event(text, text, text)', 'insert_event(text, text, text, text, text, text, text)',
        'insert_events(text, text[], text[], text[], text[], text[], text[])', 'current_event_table(text)',
        'insert_event_at(text, timestamptz, text, text, text, text, text, text)',
        'insert_events_at(text, timestamptz[], text[], text[], text[], text[], text[], text[])',
        'cancel_event(text, bigint)', 'enter_shard(text)',
        'insert_event_once(text, text, text, text, text, text, text, text, timestamptz)',
        'insert_events_once(text, text[], text[], text[], text[], text[], text[], text[], timestamptz[])',
        'get_delayed_events(text, integer)', 'get_delayed_info(text)',
        'write_stream_batch(text, text, text, bigint)', 'forget_stream_writer(text, text)',
        'create_staging(text, name)', 'staging_tables(text)', 'drop_staging(text)',
        'sqltriga()', 'logutriga()', 'jsontriga()', '_lock_key(text)',
        'log_action(text, jsonb, bigint)',
        'release_table(regclass, text)', 'maint_capture()', '_raise_key_changed(text)', '_raise_queue_not_found(text)',
        '_node_here(text)'];
    -- Families of functions that the triggers call as the role that changes the table, or as its owner.
    writer_families constant text[] := array[
        '^_?capture_(?!columns|refuse_drop)', '^_row_(?!count|columns)',
        '^_(bind_columns|changed_columns|has_primary_key|raise_denied|statement_event|urlencode|wide_row_values)$'];
    admin_functions constant text[] := array[
        'create_queue(text)',
        'insert_event_raw(text, bigint, timestamptz, integer, integer, text, text, text, text, text, text)',
        'event_retry_raw(text, text, timestamptz, bigint, timestamptz, integer, text, text, text, text, text, text)',
        'ticker()', 'ticker(text)', 'ticker(text, bigint, timestamptz, bigint)',
        'copy_ticks(text, bigint[], timestamptz[], bigint[], boolean[])',
        'ticker_round(boolean, integer, integer[], bigint[])', 'ticker_sleep()', 'ticker_awake()',
        'maint_operations()', '_maint_own_operations()', '_maint_function(text)', 'maint_refused(text)',
        '_trusts_owner(oid)', '_require_trusted(text, text, boolean)',
        'maint_retry_events()', 'maint_delayed_events()', 'maint_rotate_delayed()', 'maint_rotate_keys(text)',
        'maint_tables_to_vacuum()', 'note_failures(text[], text[], text[])', 'maint_rotate_logs()', 'maint_guards()', 'maint_row_counts()', 'maint_staging(interval)',
        'maint_rotate_tables_step1(text)', 'maint_rotate_tables_step2()',
        'grant_perms(text)', '_grant_perms_from(text, text, text, text)', 'tune_storage(text)',
        'seq_setval(text, bigint)', 'upgrade_schema()', 'adopt_restored()',
        'rewind_consumer(text, text, bigint, timestamptz, txid_snapshot, bigint)'];
    f   record;
begin
    revoke execute on all functions in schema pgq from public;
    for f in
        select 'public' as grantee, unnest(public_functions) as signature
        union all
        select 'pgq_reader', unnest(reader_functions)
        union all
        select 'pgq_writer', unnest(writer_functions)
        union all
        select 'pgq_admin', unnest(admin_functions)
    loop
        execute pg_catalog.format('grant execute on function pgq.%s to %s', f.signature, f.grantee);
    end loop;
    for f in
        select oid::pg_catalog.regprocedure as signature
          from pg_catalog.pg_proc
         where pronamespace = 'pgq'::regnamespace
           and proname ~ any (writer_families)
    loop
        execute pg_catalog.format('grant execute on function %s to pgq_writer', f.signature);
    end loop;
end;
$$;

grant select on pgq.queue, pgq.consumer, pgq.subscription, pgq.tick, pgq.row_counts to public;
-- An installer reads it before it becomes the owner.
grant select on pgq.alembic_version to public;
grant select on pgq.event_template, pgq.registration, pgq.tick_log, pgq.dead_letter, pgq.ticker_failure, pgq.failing_consumer to pgq_reader;
grant select on pgq.consumer_group, pgq.group_member, pgq.group_partition, pgq.parked_key, pgq.parked_event to pgq_reader;
-- Rates of the past, for forecasts.
grant select on pgq.position_0, pgq.position_1 to pgq_reader;
grant select on pgq.stream_writer to pgq_reader, pgq_writer;
grant select, insert, update, delete on pgq.consumer, pgq.subscription, pgq.tick, pgq.retry_queue to pgq_admin;
-- Settings only: the other columns name relations that definer functions work on, and functions that the ticker
-- calls with its own rights and a queue's name, which may be any text.
grant update (queue_rotation_period, queue_external_ticker, queue_disable_insert, queue_ticker_paused,
              queue_ticker_max_count, queue_ticker_max_lag, queue_ticker_idle_period, queue_ticker_latency,
              queue_per_tx_limit) on pgq.queue to pgq_admin;
grant select on pgq.action_log, pgq.event, pgq.log, pgq.late_write, pgq.spare_slots, pgq.waiting_event to pgq_admin;
grant update (log_rotate_bytes) on pgq.log to pgq_admin;

-- For the triggers that PgQ has, and for the functions that pgq.capture_table() generates, which run as the
-- captured table's owner.
grant select on pgq.row_layout to pgq_writer;
grant select on sequence pgq.txid_high_seq, pgq.ticker_sleep_seq to pgq_writer;
grant select on sequence pgq.delayed_due_nr_seq to pgq_admin;
grant select on pgq.capture to pgq_writer;
grant usage on schema pgq_staging to pgq_writer;

-- Its trigger declares pgq._shown(1).
delete from pgq.restricted_queue where false;

-- Before 17 only an owner could vacuum.
do $$
begin
    if pg_catalog.current_setting('server_version_num')::int >= 170000 then
        grant maintain on pgq.queue, pgq.log, pgq.consumer, pgq.registration, pgq.late_write,
                          pgq.forced_tick, pgq.stream_writer, pgq.ticker_failure, pgq.consumer_failure, pgq._dead_letter
            to pgq_admin;
    end if;
end;
$$;
