-- Sequences of queues, by their names, since a sequence is found by name far more cheaply than a row:
-- pgq_ids.<queue> gives event ids, pgq_slots.<queue> says where events go; pgq_task_queues.<queue> says which
-- number a task queue has. They need the installer's right to create schemas, so they come before the change
-- to pgq_owner.

do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = 'pgq_ids') then
        create schema pgq_ids authorization pgq_owner;
    end if;
    if not exists (select from pg_catalog.pg_namespace where nspname = 'pgq_slots') then
        create schema pgq_slots authorization pgq_owner;
    end if;
    if not exists (select from pg_catalog.pg_namespace where nspname = 'pgq_task_queues') then
        create schema pgq_task_queues authorization pgq_owner;
    end if;
end;
$$;
