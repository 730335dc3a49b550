-- Streams that write into queues in numbered batches. A stream sends the same number again if it does not know whether
-- the batch was written.

create table pgq.stream_writer (
    sw_queue    int4            not null,
    sw_name     text            not null,
    -- the stream's id in its checkpoint; for Spark, the id of the query
    sw_stream   text            not null,
    -- the last batch that was written
    sw_batch    bigint          not null,
    sw_time     timestamptz     not null default now(),
    constraint stream_writer_pkey primary key (sw_queue, sw_name),
    constraint sw_queue_fkey foreign key (sw_queue) references pgq.queue (queue_id) on delete cascade
) with (fillfactor = 10);
