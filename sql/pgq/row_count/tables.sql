-- Row counts kept by a consumer of captured changes: see row_count.sql.

-- The static part: written when the rows of a table are counted, never updated.
create table pgq.counted_table (
    ct_id           int4            not null generated always as identity,
    ct_registration int4            not null,
    ct_table        regclass        not null,
    -- the name in events, without quotes
    ct_name         text            not null,
    -- The triggers and partitions at the time of the count. If they are others now, changes may have been missed.
    ct_identity     oid[]           not null,
    -- The snapshot of the count. Events of transactions that it sees are not added.
    ct_snapshot     txid_snapshot   not null,
    constraint counted_table_pkey primary key (ct_id),
    constraint counted_table_uq unique (ct_registration, ct_table),
    constraint ct_registration_fkey foreign key (ct_registration) references pgq.registration (reg_id) on delete cascade
);

-- A row for each batch and table; the newest is the number. Append only: see pgq.maint_row_counts().
create table pgq.row_count_log (
    rc_counted      int4            not null,
    rc_nr           bigint          not null,
    rc_rows         bigint          not null,
    -- the tick up to which is counted; its event sequence and time
    rc_tick         bigint          not null,
    rc_seq          bigint          not null,
    rc_time         timestamptz     not null,
    constraint row_count_log_pkey primary key (rc_counted, rc_nr)
) with (fillfactor = 100, autovacuum_enabled = off);

-- A role sees the numbers of the tables that it may read.
create view pgq.row_counts as
select ct.ct_table as table_name, n.rc_rows as row_count, n.rc_time as as_of, q.queue_name, c.co_name as consumer_name
  from pgq.counted_table ct
  join pgq.registration r on r.reg_id = ct.ct_registration
  join pgq.queue q on q.queue_id = r.sub_queue
  join pgq.consumer c on c.co_id = r.sub_consumer
  left join lateral (
       select * from pgq.row_count_log where rc_counted = ct.ct_id order by rc_nr desc limit 1) n on true
 where pg_catalog.has_table_privilege(ct.ct_table, 'select');
