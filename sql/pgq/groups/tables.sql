-- Consumer groups: the events of one key are processed in order, different keys in parallel.
--
-- A group divides a queue's events by a key into partitions. Each partition is a registered consumer <group>#<number>
-- with a position of its own, whose batches hold the events of its keys only. Workers are members of the group; a
-- partition belongs to one member at a time.
--
-- Invariants:
--   1. The events of a key are handed out in the order of the batches, and of ev_id within a batch, and always by the
--      same partition. Resizing changes this only when all partitions are at the same tick.
--   2. A partition has one owner. Each change of owner draws a new part_generation, and finishing a batch requires the
--      generation under which it was opened: an owner that lost the partition cannot commit.
--   3. Effects in the transaction that finishes the batch happen exactly once, at whatever point workers die: the batch
--      stays open, and the next owner gets the same batch.
--   4. A parked key's events go to pgq.parked_event in their order, in the transaction that finishes the batch. Only
--      the owner takes them out again, and the key is parked until none is left. So no event of the key overtakes
--      another.
--   5. Rotation waits for the slowest partition: each has its own registration.
--   6. While no member joins, leaves or fails, no row here is written. A member's heartbeats are rows of the position
--      log, under the negative of its id, and rotate with it.

create table pgq.consumer_group (
    group_id            int4        not null generated always as identity,
    group_queue         int4        not null,
    group_name          text        not null,
    -- All partitions have the same, so that retries belong to the group.
    group_sub_id        int4        not null,
    group_partitions    int4        not null,
    -- as given, and as used in the batch query: never null; the event id for an event without a key
    group_key           text        not null,
    group_key_sql       text        not null,
    -- A member that sends no heartbeat for this long loses its partitions.
    group_lease         interval    not null default '15 seconds',
    -- A partition with this number of parked events takes no more batches.
    group_park_limit    int4        not null default 10000,
    -- start of the pause, in which no batch is opened; null if it is not paused
    group_paused        timestamptz,
    -- During resizing: the new number of partitions, and the tick that all must reach first.
    group_resize_to     int4,
    group_resize_tick   bigint,

    constraint consumer_group_pkey primary key (group_id),
    constraint consumer_group_uq unique (group_queue, group_name),
    constraint group_queue_fkey foreign key (group_queue) references pgq.queue (queue_id),
    constraint group_partitions_range check (group_partitions between 1 and 1024),
    constraint group_resize_range check (group_resize_to between 1 and 1024),
    constraint group_lease_range check (group_lease between '100 milliseconds' and '1 day'),
    -- no days added to what is taken in years: that leads out of all times
    constraint group_lease_epoch check (extract(epoch from group_lease) between 0.1 and 86400),
    constraint group_park_limit_range check (group_park_limit >= 0)
);

create table pgq.group_member (
    member_id           int4        not null generated always as identity,
    member_group        int4        not null,
    -- the worker's name, for display
    member_name         text        not null,
    member_joined       timestamptz not null default now(),

    constraint group_member_pkey primary key (member_id),
    constraint member_group_fkey foreign key (member_group) references pgq.consumer_group (group_id) on delete cascade
);

-- Unique for each change of owner of any partition.
create sequence pgq.group_generation_seq;

create table pgq.group_partition (
    part_group          int4        not null,
    part_nr             int4        not null,
    part_reg            int4        not null,
    -- the owner; null if the partition is free
    part_member         int4,
    part_generation     bigint      not null default nextval('pgq.group_generation_seq'),

    constraint group_partition_pkey primary key (part_group, part_nr),
    constraint group_partition_reg_uq unique (part_reg),
    constraint part_group_fkey foreign key (part_group) references pgq.consumer_group (group_id),
    constraint part_reg_fkey foreign key (part_reg) references pgq.registration (reg_id)
);

-- Roles read these two as pgq.parked_key and pgq.parked_event, see core/rights.sql. Keys may be long, so there is no index on them. A key is unique because only the owner of its partition adds it.
create table pgq._parked_key (
    parked_id           bigint      not null generated always as identity,
    parked_group        int4        not null,
    parked_part         int4        not null,
    parked_key          text        not null,
    parked_since        timestamptz not null default clock_timestamp(),
    -- number of failures of its first event, time of the next attempt (null: only on request), and the error
    parked_attempts     int4        not null default 1,
    parked_next         timestamptz,
    parked_error        text,

    constraint parked_key_pkey primary key (parked_id),
    constraint parked_group_fkey foreign key (parked_group) references pgq.consumer_group (group_id) on delete cascade
);
create index parked_key_part_idx on pgq._parked_key (parked_group, parked_part);

create table pgq._parked_event (
    pe_id               bigint      not null generated always as identity,
    pe_key              bigint      not null,
    ev_id               bigint      not null,
    ev_time             timestamptz not null,
    ev_txid             bigint      not null,
    ev_retry            int4,
    ev_type             text,
    ev_data             text,
    ev_extra1           text,
    ev_extra2           text,
    ev_extra3           text,
    ev_extra4           text,

    constraint parked_event_pkey primary key (pe_id),
    constraint pe_key_fkey foreign key (pe_key) references pgq._parked_key (parked_id) on delete cascade
);
create index parked_event_key_idx on pgq._parked_event (pe_key, pe_id);

-- Always empty: an expression is a valid key if an index over these columns can have it.
create table pgq.group_key_check (
    ev_id               bigint,
    ev_type             text,
    ev_data             text,
    ev_extra1           text,
    ev_extra2           text,
    ev_extra3           text,
    ev_extra4           text
);
