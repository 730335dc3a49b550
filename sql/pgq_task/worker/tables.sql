-- Progress reported by workers, and cancellations of tasks. Both are removed when the task is gone: by
-- pgq_task.heartbeat(), and by pgq_task._forget_cancelled().
create unlogged table pgq_task.progress (
    id                  bigint          not null,
    claimant            text            not null,
    done                float8          not null,
    total               float8,
    note                text,
    at                  timestamptz     not null,
    constraint progress_pkey primary key (id)
);

create table pgq_task.cancellation (
    id                  bigint          not null,
    -- The queue of the task, and which task of that id: if it is in another queue, or gone, the cancellation is over.
    queue_id            int4            not null,
    created             timestamptz     not null,
    reason              text            not null,
    cancelled_at        timestamptz     not null default now(),
    constraint cancellation_pkey primary key (id)
);
