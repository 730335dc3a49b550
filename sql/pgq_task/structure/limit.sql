-- Limits of queues: of how many tasks are claimed at a time, and in a period. What counts is kept in tables of
-- the queue's own, limit_<queue_id>_0 and _1, made when it gets limits: each claim appends to one of them what
-- is claimed from then on, the other one is emptied as a whole when it is not needed any more. So there is
-- nothing dead to step over, whoever holds back the horizon, and a rolled back claim leaves nothing.
create table pgq_task.queue_limit (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    -- claimed at a time: of the queue, and of tasks with the same limit_key in their headers
    max_running         int4,
    max_running_per_key int4,
    -- claims in a period, of the queue and with the same key
    rate                int4,
    rate_per_key        int4,
    rate_period         interval        not null default '1 minute',
    -- Since when they are these. Slots that were given before are void.
    since               timestamptz     not null default clock_timestamp(),
    -- which of the two tables is written
    written             int2            not null default 0,
    constraint queue_limit_pkey primary key (queue_id)
);

create table pgq_task.limit_log (
    -- empty for the queue as a whole
    key                 text            not null,
    at                  timestamptz     not null,
    -- claims so far, those of this row included
    total               bigint          not null,
    number              int4            not null,
    -- Of a key whose rate is used up: the last place in time that was given to one of its tasks.
    slot                timestamptz,
    -- Of the queue: who is claimed, with keys, and from which position on tasks wait for the end of one of
    -- these. Those that have ended stay until it is seen that nobody waits.
    ids                 bigint[],
    keys                text[],
    marks               bigint[],
    -- how many were made to wait so far
    parked              bigint
);
