-- Cascaded queues: a queue of the same name in several databases, its nodes. The root takes inserts and ticks. A branch
-- holds an exact copy: ticks and events with their ids. A leaf holds none; with a combined queue it copies into that.
--
-- Each node knows itself, the locations of all, and the nodes that copy from it. A worker copies from the node's
-- provider, and tells the provider the lowest tick that its node and those below still need: its watermark there is the
-- position of a consumer, which holds rotation back. The lowest of the root is the global watermark. It travels down as
-- an event, and is the position of the consumer .global_watermark at each node.
--
-- Events about nodes, by type:
--      pgq.location-info           ev_data node, ev_extra1 queue, ev_extra2 connection string, ev_extra3 dead,
--                                  ev_extra4 epoch of the root, null if it is 0
--      pgq.unregister-location     ev_data node, ev_extra1 queue
--      pgq.global-watermark        ev_data tick, ev_extra1 queue
--      pgq.tick-id                 in a combined queue: ev_data tick, ev_extra1 queue that was copied up to it

create table if not exists pgq_node.node_location (
    queue_name      text            not null,
    node_name       text            not null,
    node_location   text            not null,
    dead            boolean         not null default false,
    primary key (queue_name, node_name)
);

-- One row a queue: the node that this database is.
create table if not exists pgq_node.node_info (
    queue_name      text            not null primary key,
    node_type       text            not null,
    node_name       text            not null,
    worker_name     text            not null,
    combined_queue  text,
    -- as in the query of a URL, for the worker
    node_attrs      text,
    foreign key (queue_name, node_name) references pgq_node.node_location,
    check (node_type in ('root', 'branch', 'leaf')),
    check (combined_queue is null or node_type = 'leaf')
);

-- Positions of consumers, and of the worker, that write into this database what they read at another node.
create table if not exists pgq_node.local_state (
    queue_name      text            not null references pgq_node.node_info,
    consumer_name   text            not null,
    provider_node   text            not null,
    last_tick_id    bigint          not null,
    cur_error       text,
    paused          boolean         not null default false,
    uptodate        boolean         not null default false,
    primary key (queue_name, consumer_name),
    foreign key (queue_name, provider_node) references pgq_node.node_location
);

-- Nodes that copy from this one.
create table if not exists pgq_node.subscriber_info (
    queue_name      text            not null references pgq_node.node_info,
    subscriber_node text            not null,
    worker_name     text            not null references pgq.consumer (co_name),
    watermark_name  text            not null references pgq.consumer (co_name),
    primary key (queue_name, subscriber_node),
    foreign key (queue_name, subscriber_node) references pgq_node.node_location
);

-- Which root a node has heard of last; PgQ has no such table. Each takeover makes a higher epoch: so of two roots, one
-- of them back from the dead, the newer is known. No row: 0, the first root.
create table if not exists pgq_node.root_epoch (
    queue_name      text            not null primary key references pgq_node.node_info on delete cascade,
    epoch           bigint          not null,
    -- if this node is a root that was taken over: the new root, its epoch, and the last tick that it has from here
    fenced_by       text,
    fenced_epoch    bigint,
    fenced_tick     bigint
);

-- Delayed events of a root that became a branch, for the new root, which notes the ids of those that it has taken: see
-- pgq_node.take_delayed(2). PgQ has no delayed events.
create table if not exists pgq_node.handed_over (
    queue_name      text            not null references pgq_node.node_info on delete cascade,
    ev_id           bigint          not null,
    due             timestamptz     not null,
    ev_time         timestamptz     not null,
    ev_type         text,
    ev_data         text,
    ev_extra1       text,
    ev_extra2       text,
    ev_extra3       text,
    ev_extra4       text,
    -- by this node; then there is no content
    taken           boolean         not null default false,
    primary key (queue_name, ev_id)
);
