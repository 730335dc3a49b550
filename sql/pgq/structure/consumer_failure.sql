-- Failures of consumers' open batches. Nothing is written while batches succeed. A row is valid only while its batch is
-- open.

create table pgq.consumer_failure (
    cf_registration int4            not null,
    cf_batch        bigint          not null,
    -- the event that raised the error, if known
    cf_event        bigint,
    cf_error        text            not null,
    cf_attempts     int4            not null,
    -- the first and the last attempt that failed
    cf_since        timestamptz     not null default clock_timestamp(),
    cf_last         timestamptz     not null default clock_timestamp(),
    constraint consumer_failure_pkey primary key (cf_registration),
    constraint cf_registration_fkey foreign key (cf_registration) references pgq.registration (reg_id) on delete cascade
) with (fillfactor = 10);

create view pgq.failing_consumer as
select q.queue_name, c.co_name as consumer_name, f.cf_batch as batch_id, f.cf_event as event_id, f.cf_error as error,
       f.cf_attempts as attempts, f.cf_since as failing_since, f.cf_last as last_attempt
  from pgq.consumer_failure f
  join pgq.registration r on r.reg_id = f.cf_registration
  join pgq.subscription s on s.sub_queue = r.sub_queue and s.sub_consumer = r.sub_consumer and s.sub_batch = f.cf_batch
  join pgq.queue q on q.queue_id = r.sub_queue
  join pgq.consumer c on c.co_id = r.sub_consumer;
