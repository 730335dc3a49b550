-- Tasks that are pushed again and again. Who computes when they are due is a program beside: cron
-- expressions and time zones are not PostgreSQL's. That each run is pushed once is ensured here.
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
    -- of runs that were due while nobody was there: last, all, skip
    missed              text            not null,
    -- The last run that was pushed, or left out; before the first, since when it is known.
    last_due            timestamptz     not null,
    -- since when it is not pushed
    paused              timestamptz,
    constraint periodic_pkey primary key (periodic_name)
);
create index periodic_queue_idx on pgq_task.periodic (queue_id);
