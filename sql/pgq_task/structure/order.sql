-- Keys whose next task could not be released when the one before it went, because somebody had it locked
-- or the transaction's snapshot was too old to know which it is. The next sweep does it.

create table pgq_task.to_release (
    queue_id            int4            not null,
    order_key           text            not null,
    -- the task that is gone
    id                  bigint          not null
);
