-- Who may do what with the tasks of a restricted queue. Of a role that is dropped a row may stay, which
-- allows nobody anything.
create table pgq_task.queue_grant (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    grantee             regrole         not null,
    -- some of pgq_task.actions()
    actions             text[]          not null,
    constraint queue_grant_pkey primary key (queue_id, grantee)
);
