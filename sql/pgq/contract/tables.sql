-- Contracts: a JSON Schema for the payloads of a queue's events of one type, or of all types without one of their own.

create table pgq.contract (
    contract_queue          int4            not null,
    -- null for all types without a contract of their own
    contract_type           text,
    -- 1, 2, ...; the highest one is in force
    contract_version        int4            not null,
    contract_schema         jsonb           not null,
    -- true of payloads that fit the schema, see path.sql; null if there is none, or PostgreSQL does not check payloads
    contract_path           jsonpath,
    contract_added          timestamptz     not null default now(),
    -- the same in all versions
    contract_compatibility  text            not null,
    contract_enforced       boolean         not null,
    -- true for the columns of a captured table, against which nothing is checked; false as soon as set_contract() was used
    contract_captured       boolean         not null default false,
    constraint contract_compatibility_known check (contract_compatibility in ('none', 'backward', 'full')),
    constraint contract_queue_fkey foreign key (contract_queue) references pgq.queue (queue_id) on delete cascade
);
-- If the application publishes all tables, PostgreSQL refuses UPDATE and DELETE otherwise. So each table without a
-- primary key in which rows are changed has this.
alter table pgq.contract replica identity full;
create unique index contract_idx on pgq.contract (contract_queue, coalesce(contract_type, ''), (contract_type is null), contract_version);
create index contract_checked_idx on pgq.contract (contract_queue, coalesce(contract_type, '')) where not contract_captured;

-- The transaction that copies delayed events into their queues. They were checked when they were inserted.
create sequence pgq.moving_seq minvalue 0 start 0;
do $$
begin
    perform pg_catalog.setval('pgq.moving_seq', 0);
end;
$$;
