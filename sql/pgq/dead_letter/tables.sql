-- Events that a consumer has given up, until they are replayed or purged. A row is written once and deleted once, by
-- hand; a consumer without failures leaves nothing here.

-- Roles read it as pgq.dead_letter, see core/rights.sql.
create table pgq._dead_letter (
    dl_id           bigint          not null generated always as identity,
    dl_time         timestamptz     not null default now(),
    -- By name: dead letters outlive the consumer's registration, and belong to a consumer that is registered again
    -- under the name.
    dl_queue        text            not null,
    dl_consumer     text            not null,
    -- the consumer group if dl_consumer is its first partition, as which the group is named
    dl_group        text,
    dl_batch        bigint          not null,
    -- number of failed attempts
    dl_attempts     int4            not null,
    dl_reason       text            not null,
    dl_traceback    text,
    ev_id           bigint          not null,
    ev_time         timestamptz     not null,
    ev_txid         bigint,
    ev_retry        int4,
    ev_type         text,
    ev_data         text,
    ev_extra1       text,
    ev_extra2       text,
    ev_extra3       text,
    ev_extra4       text,
    constraint dead_letter_pkey primary key (dl_id)
);
create index dead_letter_consumer_idx on pgq._dead_letter (dl_queue, dl_consumer, dl_id);
create index dead_letter_event_idx on pgq._dead_letter (dl_queue, ev_id);
