-- Shards: a queue here may be a part of a logical queue, whose other parts are in other databases.

create table pgq.shard (
    shard_queue             int4            not null,
    -- the shard's name in the shard map
    shard_name              text            not null,
    -- version of the shard in the only map with which producers may write
    shard_version           bigint          not null,
    -- the version with which it last got keys from other shards: a map that is older does not tell readers to wait for those
    shard_gained            bigint          not null,
    constraint shard_pkey primary key (shard_queue),
    constraint shard_queue_fkey foreign key (shard_queue) references pgq.queue (queue_id) on delete cascade,
    constraint shard_version_range check (shard_version > 0),
    constraint shard_gained_range check (shard_gained between 0 and shard_version)
);
