-- Finished tasks of the queues that keep them, each in tables of its queue's own: finished_<queue_id>_0 to
-- _4, made when the queue's settings ask for it. The time says which of them is written, a third of
-- queue_keep each, and before one's turn comes again it is emptied as a whole, see
-- pgq_task.expire_finished(). Nothing is written here but by appending, nothing but whole tables goes.

create table pgq_task.finished (
    queue_id            int4            not null,
    id                  bigint          not null,
    priority            int2            not null,
    created             timestamptz     not null,
    finished            timestamptz     not null,
    -- finished, popped or deleted
    outcome             text            not null,
    claimant            text,
    attempts            int4            not null,
    last_attempt        timestamptz,
    result              jsonb,
    -- of the last attempt that failed, if one did; or why its result is not kept
    error               text,
    payload             jsonb,
    headers             jsonb,
    unique_key          text,
    order_key           text
);
