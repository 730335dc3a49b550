-- Events. Producers insert into pgq.event with statements that are planned once a session; PostgreSQL's
-- tuple routing finds the queue's current table by ev_slot:
--
--   pgq.event                     by range of ev_slot
--     pgq.event_<queue>_<n>       a table of one of the first 32 queues: filled, read,
--                                 truncated and filled again
--     pgq.event_bucket_<k>        32 queues more, by list of ev_slot
--       pgq.event_<queue>_<n>
--     pgq.event_guard_<n>         stays empty; its trigger handles every insert that is not plain
--
-- The buckets keep a new connection's first insert cheap when there are thousands of queues. They cost a second
-- routing, so the first 32 queues have none.

create table pgq.event (
    ev_id       bigint          not null,
    ev_time     timestamptz     not null default now(),
    ev_txid     bigint          not null default txid_current(),
    ev_owner    int4,
    ev_retry    int4,
    ev_type     text,
    ev_data     text,
    ev_extra1   text,
    ev_extra2   text,
    ev_extra3   text,
    ev_extra4   text,
    ev_slot     int4            not null
) partition by range (ev_slot);

-- For values that are not slots see functions/slot_state.sql.
create table pgq.event_guard_0 partition of pgq.event for values from (minvalue) to (0);
create table pgq.event_guard_1 partition of pgq.event for values from (262144) to (maxvalue);

create view pgq.event_template as
select ev_id, ev_time, ev_txid, ev_owner, ev_retry,
       ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4
  from pgq.event;

-- Transactions that wrote directly (COPY) into a table of the queue that was no longer current. The batch query reads
-- this, so that a rotation between current_event_table() and the COPY loses nothing.
create table pgq.late_write (
    late_queue  int4            not null,
    late_table  int4            not null,
    late_txid   bigint          not null,
    constraint late_write_pkey primary key (late_queue, late_txid, late_table)
);

-- The steps by which pgq.force_tick() has moved an event sequence: these numbers belong to no events. Rotation removes
-- the rows that all consumers have passed.
create table pgq.forced_tick (
    forced_queue    int4            not null,
    forced_seq      bigint          not null,
    forced_numbers  bigint          not null,
    constraint forced_tick_pkey primary key (forced_queue, forced_seq)
);

-- The highest snapshot boundary that a tick has stored. If a new transaction has a lower id, this database was restored
-- from a dump of a cluster with higher transaction ids.
create sequence pgq.txid_high_seq minvalue 0 start 0;

-- The cluster in which the states of queues were made, see functions/slot_state.sql. The row is inserted with the first
-- queue: a dump of an extension must find the table empty.
create table pgq.cluster (
    cluster_is_one      boolean         not null default true,
    -- The table's own oid distinguishes a copy of a cluster's files, which counts as the same cluster, from a dump
    -- restored into such a copy.
    cluster_identifier  bigint          not null,
    cluster_table       oid             not null,
    cluster_tag         int4            not null,
    -- the transaction that noted it
    cluster_txid        bigint          not null default txid_current(),
    constraint cluster_pkey primary key (cluster_is_one),
    constraint cluster_is_one_true check (cluster_is_one),
    constraint cluster_tag_range check (cluster_tag between 1 and 4095)
);

-- 1: the ticker polls; 2: the ticker sleeps until it hears from producers, and all queues are guarded.
create sequence pgq.ticker_sleep_seq;

do $$
begin
    -- So that the sequences have a last value from the start.
    perform pg_catalog.setval('pgq.txid_high_seq', 0);
    perform pg_catalog.setval('pgq.ticker_sleep_seq', 1);
end;
$$;
