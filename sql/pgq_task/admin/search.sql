create or replace function pgq_task.index_payload(queue text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates an index for one queue, with which filters by "payload" find tasks quickly. Claims do not touch it; pushing
-- into this queue costs more from then on. While it is created, no session can push, claim or finish in any queue. If
-- there are many tasks, let a superuser, or a member of pgq_owner, run the statement that pgq_task.payload_index_sql(1)
-- returns, which does not block other sessions.
-- Returns: 1 if it was created, 0 if it existed.
begin
    if pgq_task._has_payload_index((pgq_task._find_queue(queue)).queue_id) then
        return 0;
    end if;
    -- an index that a statement with CONCURRENTLY has left unfinished
    perform pgq_task.drop_payload_index(queue);
    execute replace(pgq_task.payload_index_sql(queue), ' concurrently ', ' ');
    return 1;
end;
$$;

create or replace function pgq_task.payload_index_sql(queue text)
returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the statement that creates the index of pgq_task.index_payload(1) without blocking workers. It cannot run in
-- a transaction. If it fails, call pgq_task.drop_payload_index(1) before running it again.
-- Returns: the statement.
    select format('create index concurrently task_payload_%1$s_idx on pgq_task.task using gin (payload jsonb_path_ops) where queue_id = %1$s',
                  (pgq_task._find_queue(queue)).queue_id);
$$;

create or replace function pgq_task.drop_payload_index(queue text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops the index that pgq_task.index_payload(1) has created. It waits for all open transactions that have used tasks,
-- and no session can use tasks until it is committed: do it at a quiet time.
-- Returns: 1 if it was dropped, 0 if there was none.
declare
    v_index constant regclass := to_regclass(format('pgq_task.task_payload_%s_idx', (pgq_task._find_queue(queue)).queue_id));
begin
    if v_index is null then
        return 0;
    end if;
    execute format('drop index %s cascade', v_index);
    return 1;
end;
$$;

create or replace function pgq_task._has_payload_index(i_queue_id int4)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether payloads of the queue are indexed.
    select exists (select from pg_index where indexrelid = to_regclass(format('pgq_task.task_payload_%s_idx', i_queue_id)) and indisvalid);
$$;
