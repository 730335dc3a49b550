create table pgq_task.queue (
    queue_id            int4            not null generated always as identity,
    queue_name          text            not null,
    queue_created       timestamptz     not null default now(),
    -- since when nobody gets a task of it; null while it runs
    queue_paused        timestamptz,
    -- how long a claim holds unless it says otherwise
    queue_lease         interval        not null default '30 seconds',
    -- A task that was tried so often goes to the error queue; null: never.
    queue_max_attempts  int4,
    queue_error_queue   text,
    -- Finished tasks are kept so long in pgq_task.finished.
    queue_keep          interval        not null default '0',
    -- Only roles that were granted it may do something with its tasks: see pgq_task.queue_grant.
    queue_restricted    boolean         not null default false,
    -- Claims are limited: see pgq_task.queue_limit.
    queue_limited       boolean         not null default false,
    -- Its sequences that are used most: to look one up by name costs more than to draw from it. Null only
    -- while the queue is being created.
    queue_waiting       regclass,
    -- Its lower 40 bits count. It is called pgq_task_queues.<queue>, and its upper bits are queue_id, so that
    -- pgq_task.push(8) needs no row. Where the name is too long, or the id, it is pgq_task.pushed_<id> instead,
    -- and the upper bits are 0.
    queue_pushed        regclass,
    queue_claimed       regclass,
    queue_finished      regclass,
    constraint queue_pkey primary key (queue_id),
    constraint queue_name_key unique (queue_name)
);

-- A lane holds the tasks of one queue and priority, in the order of their positions. What stands before
-- its mark low is dead, claimed long ago and not to be looked at: see pgq_task.sweep(). Claims begin at
-- its mark ahead, which is a guess; what it leaves out is found from low on. Marks are sequences
-- because these have one version only, whichever transactions are open.
create table pgq_task.lane (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    priority            int2            not null,
    lane_ahead          regclass        not null,
    lane_low            regclass        not null,
    constraint lane_pkey primary key (queue_id, priority)
);
