-- Ticks and consumer positions change with every batch. Updated or deleted rows would pile up as long as any
-- transaction holds back the horizon, so both are logs: append only, two tables each, filled in turn. When the current
-- table of a log has grown, writers move to the other one. Rows that are still needed are carried over, the others are
-- truncated. See pgq.maint_rotate_logs().

create table pgq.log (
    log_name            text            not null primary key,
    -- As in pgq.queue: the current table is number log_rotations % 2, and the sequence gives the same number
    -- independently of snapshots.
    log_rotations       bigint          not null default 0,
    log_seq             regclass        not null,
    -- Rotate when the current table is larger than this, and larger than twice what was carried over into it.
    log_rotate_bytes    bigint          not null default 8388608,
    log_carried_bytes   bigint          not null default 0
);

create sequence pgq.tick_log_seq minvalue 0 start 0;
create sequence pgq.position_log_seq minvalue 0 start 0;
do $$
begin
    perform pg_catalog.setval('pgq.tick_log_seq', 0);
    perform pg_catalog.setval('pgq.position_log_seq', 0);
end;
$$;

-- The rows of pgq.log are inserted with the first queue: a dump of an extension must find the table empty.

-- Autovacuum has nothing to do: the tables are truncated before dead rows could pile up. And statistics of a log that
-- is nearly empty would be wrong for the same log an hour later.

create table pgq.tick_0 (
    tick_queue      int4            not null,
    tick_id         bigint          not null,
    tick_time       timestamptz     not null default now(),
    tick_snapshot   txid_snapshot   not null default txid_current_snapshot(),
    tick_event_seq  bigint          not null,
    -- early tick, made for latency between two nominal ticks; forgotten when the log rotates
    tick_early      boolean         not null default false,
    -- Transactions with ids from here on had drawn none of the event ids that tick_event_seq counts. Transactions with
    -- lower ids that were running may still commit such events: see pgq.due_queues().
    tick_fence      bigint          not null default 0,
    constraint tick_0_pkey primary key (tick_queue, tick_id)
) with (fillfactor = 100, autovacuum_enabled = off);
create table pgq.tick_1 (
    like pgq.tick_0 including defaults including storage,
    constraint tick_1_pkey primary key (tick_queue, tick_id)
) with (fillfactor = 100, autovacuum_enabled = off);
create index tick_0_nominal_idx on pgq.tick_0 (tick_queue, tick_id) where not tick_early;
create index tick_1_nominal_idx on pgq.tick_1 (tick_queue, tick_id) where not tick_early;

create view pgq.tick_log as
select tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early, tick_fence from pgq.tick_0
union all
select tick_queue, tick_id, tick_time, tick_snapshot, tick_event_seq, tick_early, tick_fence from pgq.tick_1;

-- PgQ counts an unused sequence as 1, the value of its column last_value.
create view pgq.tick as
select tick_queue, tick_id, tick_time, tick_snapshot, greatest(tick_event_seq, 1) as tick_event_seq from pgq.tick_log;

create table pgq.position_0 (
    pos_registration    int4            not null,
    pos_nr              bigint          not null,
    pos_last_tick       bigint,
    pos_active          timestamptz     not null default now(),
    pos_batch           bigint,
    pos_next_tick       bigint,
    -- the last batch whose retries and dead letters came from another database, see pgq.settle_batch()
    pos_settled         bigint,
    constraint position_0_pkey primary key (pos_registration, pos_nr)
) with (fillfactor = 100, autovacuum_enabled = off);
create table pgq.position_1 (
    like pgq.position_0 including defaults,
    constraint position_1_pkey primary key (pos_registration, pos_nr)
) with (fillfactor = 100, autovacuum_enabled = off);
create index position_0_batch_idx on pgq.position_0 (pos_batch) where pos_batch is not null;
create index position_1_batch_idx on pgq.position_1 (pos_batch) where pos_batch is not null;
