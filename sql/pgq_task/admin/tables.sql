-- Rights of roles on the tasks of a restricted queue. The row of a dropped role may stay; it grants nothing.
create table pgq_task.queue_grant (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    grantee             regrole         not null,
    -- some of pgq_task._actions()
    actions             text[]          not null,
    constraint queue_grant_pkey primary key (queue_id, grantee)
);

-- Stations of pipelines, as their workers know them: see pgq_task.set_station(4).
create table pgq_task.station (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    pipeline            text            not null,
    is_start            boolean         not null,
    leads_to            text[]          not null,
    constraint station_pkey primary key (queue_id)
);
