-- What the ticker tries beside the ticks and cannot do now: for those who look at the database, not at its log.

create table pgq.ticker_failure (
    -- a duty of the ticker, or an operation of pgq.maint_operations()
    tf_operation    text            not null,
    -- empty for none
    tf_argument     text            not null,
    tf_error        text            not null,
    tf_since        timestamptz     not null default now(),
    constraint ticker_failure_pkey primary key (tf_operation, tf_argument)
) with (fillfactor = 10);
