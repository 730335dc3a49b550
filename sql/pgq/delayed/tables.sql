-- Events to be delivered later: events inserted with a time, and retries. A row is written once and never updated. Each
-- pass of pgq.maint_delayed_events() copies the events that are due into the queues, and notes in a log how far it came
-- and with which snapshot, so no row has to be marked or deleted.
--
-- Each range of delays has two tables. While one is filled, all events of the other become due, and it is truncated. So
-- an event that is due next year does not keep the tables of the others from being truncated.

create sequence pgq.delayed_due_nr_seq;

-- Passes copy what is due up to this time, in microseconds since 1970. The value is the same for all sessions, whatever
-- their snapshots. A session that writes afterwards takes a later time, or a later pass finds its rows by the
-- transaction id.
create sequence pgq.delayed_until_seq minvalue -9223372036854775808;

-- Which of the two tables of each range is filled: a bit for each range.
create sequence pgq.delayed_parity_seq minvalue 0 start 0;

create table pgq.delayed (
    due             timestamptz     not null,
    -- ascending: distinguishes rows with the same time
    due_nr          bigint          not null default nextval('pgq.delayed_due_nr_seq'),
    due_txid        bigint          not null default txid_current(),
    ev_queue        int4            not null,
    ev_id           bigint          not null,
    ev_time         timestamptz     not null,
    -- for retries: the subscription that retries the event, and the batch it was retried from
    ev_owner        int4,
    ev_batch        bigint,
    ev_retry        int4,
    ev_type         text,
    ev_data         text,
    ev_extra1       text,
    ev_extra2       text,
    ev_extra3       text,
    ev_extra4       text,
    due_slot        int4            not null
) partition by list (due_slot);

-- No event is retried twice from one batch. (Of delayed events ev_owner is null, and no two are the same.)
create unique index delayed_event_idx on pgq.delayed (ev_id, ev_queue, ev_owner, ev_batch, due_slot);
create index delayed_due_idx on pgq.delayed (due, due_nr);
create index delayed_txid_idx on pgq.delayed (due_txid);

do $$
begin
    for slot in 0 .. 11 loop
        execute pg_catalog.format('create table pgq.delayed_%s partition of pgq.delayed for values in (%s) '
                                  'with (fillfactor = 100, autovacuum_enabled = off, toast.autovacuum_enabled = off)', slot, slot);
        execute pg_catalog.format('alter table pgq.delayed_%s replica identity full', slot);
    end loop;
    -- So that the sequences have a last value from the start.
    perform pg_catalog.setval('pgq.delayed_parity_seq', 0);
end;
$$;

-- Progress of the passes: a log like those of ticks and positions (core/tables.sql), of which the newest row counts.
-- The passes have copied the rows up to (moved_due, moved_due_nr) that are visible in moved_snapshot, except the held
-- rows: those were being cancelled at that moment.
create sequence pgq.moved_log_seq minvalue 0 start 0;
do $$
begin
    perform pg_catalog.setval('pgq.moved_log_seq', 0);
end;
$$;

create table pgq.moved_0 (
    moved_nr        bigint          not null,
    moved_due       timestamptz     not null,
    moved_due_nr    bigint          not null,
    moved_snapshot  txid_snapshot   not null,
    -- No transaction with an id from here on has written rows up to moved_due that the snapshot does not see.
    moved_fence     bigint          not null,
    held_due        timestamptz[]   not null,
    held_due_nr     bigint[]        not null,
    constraint moved_0_pkey primary key (moved_nr)
) with (fillfactor = 100, autovacuum_enabled = off);
create table pgq.moved_1 (
    like pgq.moved_0,
    constraint moved_1_pkey primary key (moved_nr)
) with (fillfactor = 100, autovacuum_enabled = off);

-- The waiting events. (Under an old snapshot it shows more than those: functions that decide use pgq._last_move().)
create view pgq.waiting_event as
with m as (
    select * from pgq.moved_0
    union all
    select * from pgq.moved_1
    order by moved_nr desc limit 1)
select d.*
  from pgq.delayed d
  left join m on true
 where ((d.due, d.due_nr) <= (m.moved_due, m.moved_due_nr)
        and txid_visible_in_snapshot(d.due_txid, m.moved_snapshot)
        and d.due_nr not in (select unnest(held_due_nr) from m)) is not true
   and exists (select from pgq.queue where queue_id = d.ev_queue)
   and (d.ev_owner is null or exists (select from pgq.registration where sub_id = d.ev_owner));

-- PgQ's table of events to be retried, one row per event and consumer.
create view pgq.retry_queue as
select due as ev_retry_after, ev_queue, ev_id, ev_time, null::bigint as ev_txid, ev_owner, ev_retry,
       ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4
  from pgq.waiting_event
 where ev_owner is not null;
