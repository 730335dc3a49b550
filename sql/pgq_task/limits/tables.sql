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
    -- Time of the last change of the limits. Turns that were given before are void.
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
    -- For a key whose rate is used up: the last turn that was given to one of its tasks.
    turn                timestamptz,
    -- For the queue: the claimed tasks, with keys, and the position from which on tasks wait for the end of one of
    -- these. Ended tasks stay until it is seen that no task waits.
    ids                 bigint[],
    keys                text[],
    marks               bigint[],
    -- number of tasks that had to wait so far
    parked              bigint
);

-- A claim of a queue with limits while it is made: see pgq_task._claim_limited(8).
create type pgq_task.limited_claim as (
    -- the clock, and the time that is logged, which never goes back
    now                 timestamptz,
    at                  timestamptz,
    -- number of tasks that may still be claimed
    room                int4,
    claimed             bigint[],
    -- true if tasks got other positions; and if it stopped before the end of the lane
    changed             boolean,
    is_stopped          boolean,
    -- of the queue: the last total, and the number of tasks that had to wait so far
    total               bigint,
    parked              bigint,
    -- running tasks, their keys, as in limit_log, and whether their leases last
    ids                 bigint[],
    keys                text[],
    marks               bigint[],
    live                boolean[],
    -- By key an object: running, count (claimed now), mark, and keep (a task waits for an ended one);
    -- of its rate left, turn (the last one given), next (the first one free), total (so far).
    by_key              jsonb
);
