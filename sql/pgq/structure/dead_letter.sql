-- Events that a consumer has given up, until somebody replays or purges them. A row is written once and deleted
-- once, by hand; a consumer that works leaves nothing here.

create table pgq.dead_letter (
    dl_id           bigint          not null generated always as identity,
    dl_time         timestamptz     not null default now(),
    -- By name: they outlive the consumer's registration, and one that is registered again may have them.
    dl_queue        text            not null,
    dl_consumer     text            not null,
    dl_batch        bigint          not null,
    -- how often it was processed in vain
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
create index dead_letter_consumer_idx on pgq.dead_letter (dl_queue, dl_consumer, dl_id);
