-- What workers say of tasks they have, and people of tasks that shall end. Both are forgotten when the task
-- is gone: by pgq_task.attend(), and by pgq_task.forget_cancelled().
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
    -- Where it was, and which one of that id: when it is somewhere else, or gone, that was it.
    queue_id            int4            not null,
    created             timestamptz     not null,
    reason              text            not null,
    cancelled_at        timestamptz     not null default now(),
    constraint cancellation_pkey primary key (id)
);
