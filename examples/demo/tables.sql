-- The application's tables, and the results of the demo's two consumers, in a schema of their own.
-- By its comment a later run recognizes a schema that it may drop.

create schema pgqpy_demo;
comment on schema pgqpy_demo is 'made by pgqpy demo';

-- ------------------------------------------------------------ the application

create table pgqpy_demo.flight (
    id          int4        not null primary key,
    carrier     text        not null,
    number      int4        not null,
    tail        text,
    origin      text        not null,
    dest        text        not null,
    scheduled   timestamptz not null,
    arr_delay   int4
);

-- ------------------------------------------------------------ the consumers' results

-- kept up to date by a pgqpy.Consumer
create table pgqpy_demo.delay_by_carrier (
    carrier     text        not null primary key,
    flights     int8        not null,
    delay       int8        not null
);

-- kept up to date by a SparkConsumer
create table pgqpy_demo.delay_by_month (
    carrier     text        not null,
    month       date        not null,
    flights     int8        not null,
    delay       int8        not null,
    primary key (carrier, month)
);

-- ------------------------------------------------------------ for the report

-- One row a batch, written in the transaction that finishes it.
create table pgqpy_demo.batch_log (
    consumer    text        not null,
    batch_id    int8        not null,
    received_at float8      not null,   -- seconds since 1970, when the consumer's method was called
    events      int8        not null,
    txids       int8[]      not null,   -- the transactions that were delivered, if the consumer tells them
    primary key (consumer, batch_id)
);

-- The demo's own queue: a queue of the same name with another id is not the demo's.
create table pgqpy_demo.queue (
    queue_id    int4        not null
);
