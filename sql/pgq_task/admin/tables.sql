-- Rights of roles on the tasks of a restricted queue. The row of a dropped role may stay; it grants nothing.
create table pgq_task.queue_grant (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    grantee             regrole         not null,
    -- some of pgq_task._actions()
    actions             text[]          not null,
    constraint queue_grant_pkey primary key (queue_id, grantee)
);
