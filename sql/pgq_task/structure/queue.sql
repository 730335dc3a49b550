create table pgq_task.queue (
    queue_id            int4            not null generated always as identity,
    queue_name          text            not null,
    queue_created       timestamptz     not null default now(),
    -- start of the pause, during which its tasks cannot be claimed; null if not paused
    queue_paused        timestamptz,
    -- default duration of a lease
    queue_lease         interval        not null default '30 seconds',
    -- Number of attempts after which a task goes to the error queue; null: never.
    queue_max_attempts  int4,
    queue_error_queue   text,
    -- Time for which finished tasks are kept in pgq_task.finished.
    queue_keep          interval        not null default '0',
    -- Only roles with grants may act on its tasks: see pgq_task.queue_grant.
    queue_restricted    boolean         not null default false,
    -- Claims are limited: see pgq_task.queue_limit.
    queue_limited       boolean         not null default false,
    -- Its most used sequences: looking one up by name costs more than drawing from it. Null only while the queue is
    -- being created.
    queue_waiting       regclass,
    -- Its lower 40 bits count. It is named pgq_task_queues.<queue>, and its upper bits are queue_id, so that
    -- pgq_task.push(8) reads no row. If the name or the id is too long, it is pgq_task.pushed_<id> instead, and the
    -- upper bits are 0.
    queue_pushed        regclass,
    queue_claimed       regclass,
    queue_finished      regclass,
    constraint queue_pkey primary key (queue_id),
    constraint queue_name_key unique (queue_name)
);

-- A lane holds the tasks of one queue and priority, in the order of their positions. Rows before its mark low are dead
-- or were claimed long ago, and need not be read: see pgq_task.sweep(). Claims begin at its mark ahead, which is a
-- guess; tasks that it skips are found from low on. Marks are sequences because these have one version only, whichever
-- transactions are open.
create table pgq_task.lane (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    priority            int2            not null,
    lane_ahead          regclass        not null,
    lane_low            regclass        not null,
    constraint lane_pkey primary key (queue_id, priority)
);
