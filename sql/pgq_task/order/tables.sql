-- Keys with a task that may be held back although no earlier one is left: it could not be released when the earlier one
-- went, because another session had locked it or the transaction's snapshot was too old to find it; or it was pushed at
-- that moment. The next sweep checks them.

create table pgq_task.to_release (
    queue_id            int4            not null,
    order_key           text            not null,
    -- the earlier task
    id                  bigint          not null
);
