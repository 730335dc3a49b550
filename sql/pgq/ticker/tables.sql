-- Duties of the ticker, other than ticks, that fail at present: visible in the database, not only in the ticker's log.

create table pgq.ticker_failure (
    -- a job of the ticker, or an operation of pgq.maint_operations()
    tf_operation    text            not null,
    -- empty if there is none
    tf_argument     text            not null,
    tf_error        text            not null,
    tf_since        timestamptz     not null default now(),
    constraint ticker_failure_pkey primary key (tf_operation, tf_argument)
) with (fillfactor = 10);
