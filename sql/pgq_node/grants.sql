-- Grants. A function that is not named here can be executed by the owner only.

revoke execute on all functions in schema pgq_node from public;

grant execute on function pgq_node.is_root_node(text), pgq_node.is_leaf_node(text), pgq_node.version() to public;
-- A worker reads at its provider, and writes at its node.
grant execute on function
    pgq_node.get_consumer_info(text), pgq_node.get_consumer_state(text, text), pgq_node.get_queue_locations(text),
    pgq_node.get_node_info(text), pgq_node.get_subscriber_info(text), pgq_node.get_epoch(text),
    pgq_node.register_subscriber(text, text, text, bigint), pgq_node.unregister_subscriber(text, text),
    pgq_node.advance_subscriber(text, text, bigint), pgq_node.set_subscriber_watermark(text, text, bigint)
    to pgq_reader, pgq_writer, pgq_admin;
grant execute on function
    pgq_node.register_consumer(text, text, text, bigint), pgq_node.unregister_consumer(text, text),
    pgq_node.change_consumer_provider(text, text, text), pgq_node.set_consumer_uptodate(text, text, boolean),
    pgq_node.set_consumer_paused(text, text, boolean), pgq_node.set_consumer_completed(text, text, bigint),
    pgq_node.set_consumer_error(text, text, text)
    to pgq_writer, pgq_admin;
grant execute on function
    pgq_node.create_node(text, text, text, text, text, bigint, text), pgq_node.drop_node(text, text),
    pgq_node.demote_root(text, integer, text), pgq_node.promote_branch(text), pgq_node.set_node_attrs(text, text),
    pgq_node.get_worker_state(text), pgq_node.set_global_watermark(text, bigint),
    pgq_node.set_partition_watermark(text, text, bigint), pgq_node.register_location(text, text, text, boolean),
    pgq_node.unregister_location(text, text), pgq_node.maint_watermark(text), pgq_node.upgrade_schema(),
    pgq_node.begin_copy(text), pgq_node.learn_epoch(text, bigint), pgq_node.fence_root(text, text, bigint, bigint),
    pgq_node.get_rest_events(text, bigint), pgq_node.take_delayed(text, jsonb), pgq_node.leave_gap(text, bigint, bigint)
    to pgq_admin;

grant select on pgq_node.node_location, pgq_node.node_info, pgq_node.subscriber_info, pgq_node.root_epoch
    to pgq_reader, pgq_writer, pgq_admin;
-- Without cur_error, which may quote an event of a restricted queue: functions show it.
revoke select on pgq_node.local_state from pgq_reader, pgq_writer;
grant select (queue_name, consumer_name, provider_node, last_tick_id, paused, uptodate) on pgq_node.local_state
    to pgq_reader, pgq_writer;
grant select on pgq_node.local_state to pgq_admin;
-- Payloads, which may be those of a restricted queue.
grant select, delete on pgq_node.handed_over to pgq_admin;
grant insert, update, delete on pgq_node.node_location, pgq_node.node_info, pgq_node.local_state, pgq_node.subscriber_info
    to pgq_admin;

-- Before 17 only an owner could vacuum.
do $$
begin
    if pg_catalog.current_setting('server_version_num')::int >= 170000 then
        grant maintain on pgq_node.local_state to pgq_admin;
    end if;
end;
$$;
