-- The number of events that a transaction has inserted into a queue with a per_tx_limit, after each of its inserts. A
-- row would be rewritten as often; and what a savepoint takes back is gone. pgq.maint_guards() removes them.
create unlogged table pgq.limit_log (
    ll_txid     bigint  not null,
    ll_queue    int4    not null,
    ll_events   bigint  not null
) with (autovacuum_enabled = off);
create index limit_log_idx on pgq.limit_log (ll_txid, ll_queue, ll_events);

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
