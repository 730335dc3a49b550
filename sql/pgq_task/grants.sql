-- Grants. A function that is not named here can be executed by the owner only.

grant usage on schema pgq_task to public;
revoke execute on all functions in schema pgq_task from public;

grant execute on function
    pgq_task._push_slowly(text, jsonb, timestamptz, interval, int4, jsonb, text, text),
    pgq_task._wake(int4, text, bigint),
    pgq_task.push(text, jsonb, timestamptz, interval, int4, jsonb, text, text),
    pgq_task.push_unique(text, jsonb, text, text, interval, boolean, timestamptz, interval, int4, jsonb, text),
    pgq_task.push_many(text, jsonb[], timestamptz, interval, int4, jsonb, text[], text[], text, interval, boolean),
    pgq_task.run_periodic(text),
    pgq_task.push_flow(jsonb)
to pgq_writer;

grant execute on function
    pgq_task.claim(text[], text, interval, int4, boolean),
    pgq_task.pop(text, int4, text),
    pgq_task.get_statistics(text),
    pgq_task.finished_tasks(text, int4, bigint[], timestamptz, timestamptz, jsonb, text),
    pgq_task.set_waiting(text[]),
    pgq_task.find_queues(text[]),
    pgq_task.sweep(),
    pgq_task.catch_up(text[]),
    pgq_task.renew(text, bigint[], int4[], interval),
    pgq_task.release(text, bigint[], int4[], interval[]),
    pgq_task.get_leases(text, bigint[], boolean),
    pgq_task.finish(text, bigint, int4, jsonb),
    pgq_task.finish_many(text, bigint[], int4[], jsonb[], text[]),
    pgq_task.finish_and_claim(text, bigint, int4, text, jsonb, interval, boolean),
    pgq_task.fail(text, bigint, int4, text, interval, boolean),
    pgq_task.fail_many(text, bigint[], int4[], text[], interval[], boolean[]),
    pgq_task.modify(text, jsonb, jsonb, jsonb, jsonb, boolean, boolean),
    pgq_task.stop(bigint, int4),
    pgq_task.start(bigint, int4),
    pgq_task.list_tasks(text, jsonb, int4),
    pgq_task.change_tasks(text, jsonb, jsonb, int4, boolean),
    pgq_task.remove_tasks(text, jsonb, int4, boolean),
    pgq_task.requeue(text, jsonb, int4),
    pgq_task.queue_is_empty(text[]),
    pgq_task.next_time(text[]),
    pgq_task.cancel(bigint, text),
    pgq_task.get_result(bigint),
    pgq_task.get_flow(bigint),
    pgq_task.heartbeat(text, bigint[], bigint[], float8[], float8[], text[]),
    pgq_task.get_progress(text, bigint[])
to pgq_reader;

grant execute on function
    pgq_task.reserve_ids(int4),
    pgq_task.get_queue_info(text, int4, int4),
    pgq_task.server_time(),
    -- workers of an application register its periodic tasks
    pgq_task.set_periodic(text, text, text, text, jsonb, int4, text, jsonb, text, text),
    pgq_task.get_periodic_info(text),
    pgq_task.push_periodic(text, timestamptz, timestamptz, timestamptz[])
to pgq_reader, pgq_writer;

grant execute on function
    pgq_task.create_queue(text),
    pgq_task.set_limits(text, int4, int4, int4, int4, interval),
    pgq_task.get_limits(text),
    pgq_task.pause_periodic(text),
    pgq_task.resume_periodic(text),
    pgq_task.drop_periodic(text),
    pgq_task.replay(text, text, bigint[], timestamptz, timestamptz, jsonb, text, int4),
    pgq_task.drop_queue(text, boolean),
    pgq_task.set_queue_config(text, text, text),
    pgq_task.pause_queue(text),
    pgq_task.resume_queue(text),
    pgq_task.restrict_queue(text, boolean),
    pgq_task.grant_queue(text, text[], text),
    pgq_task.revoke_queue(text, text[], text),
    pgq_task.get_queue_grants(text),
    pgq_task.index_payload(text),
    pgq_task.payload_index_sql(text),
    pgq_task.drop_payload_index(text)
to pgq_admin;

-- For pgq_task.push(8).
grant usage on schema pgq_task_queues to public;
grant usage on sequence pgq_task.task_id_seq to pgq_writer;
select pgq_task._grant_sequences(queue_id) from pgq_task.queue;
select pgq_task._guard_inbox();

grant select on pgq_task.tasks to pgq_reader;
-- The functions of a view run as the role that reads it.
grant execute on function
    pgq_task._position_of(timestamptz),
    pgq_task._time_of(bigint),
    pgq_task._is_parked(bigint),
    pgq_task._has_right(int4, text, name),
    pgq_task._shown(anyelement)
to pgq_reader;

-- For tables of applications: these run as the caller, with the caller's rights on the table.
grant execute on function
    pgq_task.add_columns(regclass, jsonb, boolean, boolean, boolean),
    pgq_task.remove_columns(regclass, jsonb, boolean),
    pgq_task.table_index_sql(regclass, jsonb, boolean),
    pgq_task.describe_table(regclass, jsonb),
    pgq_task.table_sizes(regclass, jsonb),
    pgq_task._column_names(jsonb),
    pgq_task._require_key(regclass),
    pgq_task._require_types(regclass, jsonb),
    pgq_task._has_index(regclass, text),
    pgq_task._raise_table(text, text),
    pgq_task._raise_invalid(text, text),
    pgq_task.notify_workers(regclass, jsonb),
    pgq_task._drop_notify_triggers(regclass, text),
    pgq_task._notify_of_table(),
    pgq_task._quiet_sequence(regclass, text),
    pgq_task._table_signal(regclass, text),
    pgq_task.was_left(xid, xid),
    pgq_task.want_quiet(regclass, text)
to pgq_reader, pgq_writer;
