-- Grants. A function that is not named here can be executed by the owner only.

grant usage on schema pgq_task to public;
revoke execute on all functions in schema pgq_task from public;

grant execute on function
    pgq_task._push_slowly, pgq_task._wake, pgq_task.push, pgq_task.push_unique, pgq_task.push_many,
    pgq_task.run_periodic, pgq_task.push_flow
to pgq_writer;

grant execute on function
    pgq_task.claim, pgq_task.pop, pgq_task.set_waiting, pgq_task.find_queues, pgq_task.sweep, pgq_task.catch_up,
    pgq_task.finish, pgq_task.finish_many, pgq_task.finish_and_claim, pgq_task.fail, pgq_task.fail_many,
    pgq_task.release, pgq_task.renew, pgq_task.get_leases, pgq_task.heartbeat, pgq_task.get_progress, pgq_task.cancel,
    pgq_task.modify, pgq_task.stop, pgq_task.start, pgq_task.change_tasks, pgq_task.remove_tasks, pgq_task.requeue,
    pgq_task.list_tasks, pgq_task.finished_tasks, pgq_task.get_result, pgq_task.get_flow,
    pgq_task.list_flows,
    pgq_task.get_statistics, pgq_task.queue_is_empty, pgq_task.next_time, pgq_task.set_station, pgq_task.get_stations,
    pgq_task.get_workers
to pgq_reader;

grant execute on function
    pgq_task.reserve_ids, pgq_task.get_queue_info, pgq_task.server_time,
    -- workers of an application register its periodic tasks
    pgq_task.set_periodic, pgq_task.get_periodic_info, pgq_task.push_periodic
to pgq_reader, pgq_writer;

grant execute on function
    pgq_task.create_queue, pgq_task.drop_queue, pgq_task.set_queue_config, pgq_task.pause_queue, pgq_task.resume_queue,
    pgq_task.restrict_queue, pgq_task.grant_queue, pgq_task.revoke_queue, pgq_task.get_queue_grants,
    pgq_task.set_limits, pgq_task.get_limits, pgq_task.pause_periodic, pgq_task.resume_periodic, pgq_task.drop_periodic,
    pgq_task.replay, pgq_task.reset_statistics, pgq_task.index_payload, pgq_task.payload_index_sql, pgq_task.drop_payload_index
to pgq_admin;

-- For pgq_task.push(8).
grant usage on schema pgq_task_queues to public;
grant usage on sequence pgq_task.task_id_seq to pgq_writer;
select pgq_task._grant_sequences(queue_id) from pgq_task.queue;
select pgq_task._guard_inbox();

grant select on pgq_task.tasks to pgq_reader;
-- The functions of a view run as the role that reads it.
grant execute on function
    pgq_task._position_of, pgq_task._time_of, pgq_task._is_parked, pgq_task._has_right, pgq_task._shown
to pgq_reader;

-- For tables of applications: these run as the caller, with the caller's rights on the table.
grant execute on function
    pgq_task.add_columns, pgq_task.remove_columns, pgq_task.table_index_sql, pgq_task.describe_table, pgq_task.table_sizes,
    pgq_task._column_names, pgq_task._require_key, pgq_task._require_types, pgq_task._has_index, pgq_task._raise_invalid,
    pgq_task.notify_workers, pgq_task._notify_of_table, pgq_task._quiet_sequence, pgq_task._table_signal,
    pgq_task.was_left, pgq_task.want_quiet
to pgq_reader, pgq_writer;
