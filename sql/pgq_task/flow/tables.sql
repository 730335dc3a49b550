-- Flows: tasks that wait until others have ended. A task of a flow is marked by the header flow, so that all others pay
-- nothing.
create table pgq_task.flow (
    flow_id             bigint          not null,
    flow_created        timestamptz     not null default now(),
    -- end of the last step; it is kept for a day after that
    flow_ended          timestamptz,
    constraint flow_pkey primary key (flow_id)
);
create index flow_ended_idx on pgq_task.flow (flow_ended) where flow_ended is not null;

create table pgq_task.flow_step (
    flow_id             bigint          not null references pgq_task.flow on delete cascade,
    nr                  int4            not null,
    -- the task
    id                  bigint          not null,
    -- the queue it was pushed into, and the one in which it ended, with the name of the last one known
    queue_id            int4            not null,
    ended_in            int4,
    queue_name          text            not null,
    name                text            not null,
    -- the steps that end before this one begins, all of them with lower numbers
    after               int4[]          not null,
    -- One of these that has not ended. When it ends, another one is looked for; if there is none, this step begins. So
    -- the end of a step does not look at all pairs of steps.
    waits_for           int4,
    -- finished, popped or deleted; null while the task is there
    outcome             text,
    result              jsonb,
    constraint flow_step_pkey primary key (flow_id, nr),
    constraint flow_step_id_key unique (id)
);
