-- Tasks that are pushed periodically. A separate program computes when they are due: PostgreSQL does not evaluate cron
-- expressions. This table ensures that each run is pushed once.
create table pgq_task.periodic (
    periodic_name       text            not null,
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    cron                text            not null,
    time_zone           text            not null,
    payload             jsonb           not null,
    priority            int2            not null,
    headers             jsonb,
    unique_key          text,
    order_key           text,
    -- the runs to push of those that were due while no worker was running: last, all, skip
    missed              text            not null,
    -- The last run that was pushed or skipped; before the first run, the time of registration.
    last_due            timestamptz     not null,
    -- time of the last run that was pushed, by schedule or by hand; null before the first one
    last_run            timestamptz,
    -- start of the pause; null if not paused
    paused              timestamptz,
    constraint periodic_pkey primary key (periodic_name)
);
create index periodic_queue_idx on pgq_task.periodic (queue_id);
