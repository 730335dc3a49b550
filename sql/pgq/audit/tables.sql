-- What users of the console have done.

create table pgq.action_log (
    al_id           bigint          generated always as identity,
    al_time         timestamptz     not null default now(),
    -- of the session, or of SET ROLE
    al_role         text            not null,
    al_action       text            not null,
    -- what was given, payloads by their lengths
    al_arguments    jsonb           not null,
    -- how many events, tasks and so on were changed; null if it says nothing
    al_count        bigint,
    constraint action_log_pkey primary key (al_id)
);
create index action_log_time on pgq.action_log (al_time);
