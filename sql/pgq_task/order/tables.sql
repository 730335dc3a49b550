-- Keys with a task that may be held back although no earlier one is left: it could not be released when the earlier one
-- went, because another session had locked it or the transaction's snapshot was too old to find it; or it was pushed at
-- that moment. The next sweep checks them.

create table pgq_task.to_release (
    queue_id            int4            not null,
    order_key           text            not null,
    -- the earlier task
    id                  bigint          not null
);
alter table pgq_task.to_release replica identity full;

-- Facts: no task of the key has, or will have, an id below low, unless it is late. The greatest one says most; any may be
-- deleted. So the dead rows of tasks that were done long ago need not be stepped over.
create table pgq_task.key_low (
    queue_id            int4            not null,
    order_key           text            not null,
    low                 bigint          not null,
    noted               timestamptz     not null default now()
);
alter table pgq_task.key_low replica identity full;
create index key_low_idx on pgq_task.key_low (queue_id, order_key, low);
