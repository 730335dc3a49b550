-- Finished tasks of the queues that keep them, in separate tables for each queue: finished_<queue_id>_0 to _4, created
-- when the queue's settings require it. The time determines which of them is written, a third of queue_keep each, and
-- before its turn comes again a table is truncated, see pgq_task._expire_finished(). Rows are only appended, and only
-- whole tables are removed.

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
    -- of the last failed attempt, if any; or why its result is not kept
    error               text,
    payload             jsonb,
    headers             jsonb,
    unique_key          text,
    order_key           text
);
