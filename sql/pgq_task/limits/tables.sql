-- Limits of queues: of the number of tasks claimed at a time, and in a period. The counts are kept in separate tables
-- for each queue, limit_<queue_id>_0 and _1, created when it gets limits: each claim appends the claimed tasks to one
-- of them, and the other one is truncated when it is not needed any more. So there are no dead rows to step over, even
-- if a transaction holds back the horizon, and a rolled back claim leaves nothing.
create table pgq_task.queue_limit (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    -- claimed at a time: of the queue, and of tasks with the same limit_key in their headers
    max_running         int4,
    max_running_per_key int4,
    -- claims in a period, of the queue and with the same key
    rate                int4,
    rate_per_key        int4,
    rate_period         interval        not null default '1 minute',
    -- Time of the last change of the limits. Slots that were given before are void.
    since               timestamptz     not null default clock_timestamp(),
    -- which of the two tables is written
    written             int2            not null default 0,
    constraint queue_limit_pkey primary key (queue_id)
);

create table pgq_task.limit_log (
    -- empty for the queue as a whole
    key                 text            not null,
    at                  timestamptz     not null,
    -- claims so far, including those of this row
    total               bigint          not null,
    number              int4            not null,
    -- For a key whose rate is used up: the last slot that was given to one of its tasks.
    slot                timestamptz,
    -- For the queue: the claimed tasks, with keys, and the position from which on tasks wait for the end of one of
    -- these. Ended tasks stay until it is seen that no task waits.
    ids                 bigint[],
    keys                text[],
    marks               bigint[],
    -- number of tasks that had to wait so far
    parked              bigint
);
