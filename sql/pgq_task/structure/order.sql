-- Keys of which a task may be held back though no earlier one is left: it could not be released when that went,
-- because somebody had it locked or the transaction's snapshot was too old to know which it is; or it was
-- pushed at that moment. The next sweep looks.

create table pgq_task.to_release (
    queue_id            int4            not null,
    order_key           text            not null,
    -- the earlier task
    id                  bigint          not null
);
