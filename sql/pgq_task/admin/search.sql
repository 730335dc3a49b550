create or replace function pgq_task.index_payload(queue text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates an index for one queue, with which filters by "payload" find tasks quickly. Claims do not touch it; pushing
-- into this queue costs more from then on. While it is created, no session can push, claim or finish in any queue. If
-- there are many tasks, let a superuser, or a member of pgq_owner, run the statement that pgq_task.payload_index_sql(1)
-- returns, which does not block other sessions.
-- Returns: 1 if it was created, 0 if it existed.
declare
    v_id    constant int4 := pgq_task._id_of_queue(queue);
begin
    if pgq_task._has_payload_index(v_id) then
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
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the statement that creates the index of pgq_task.index_payload(1) without blocking workers. It cannot run in
-- a transaction. If it fails, call pgq_task.drop_payload_index(1) before running it again.
-- Returns: the statement.
declare
    v_id    constant int4 := pgq_task._id_of_queue(queue);
begin
    return format('create index concurrently task_payload_%s_idx on pgq_task.task using gin (payload jsonb_path_ops) where queue_id = %s',
                  v_id, v_id);
end;
$$;

create or replace function pgq_task.drop_payload_index(queue text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops the index that pgq_task.index_payload(1) has created. It waits for all open transactions that have used tasks,
-- and no session can use tasks until it is committed: do it at a quiet time.
-- Returns: 1 if it was dropped, 0 if there was none.
begin
    return pgq_task._drop_payload_index_of(pgq_task._id_of_queue(queue));
end;
$$;

create or replace function pgq_task._drop_payload_index_of(i_queue_id int4)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops the index of a queue, which may be dropped itself.
declare
    v_index constant regclass := to_regclass(format('pgq_task.task_payload_%s_idx', i_queue_id));
begin
    if v_index is null then
        return 0;
    end if;
    execute format('drop index %s', v_index);
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

create or replace function pgq_task._id_of_queue(i_queue text)
returns int4
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the id of the queue; raises PQ070 if there is none.
declare
    v_id    constant int4 := (select queue_id from pgq_task.queue where queue_name = i_queue);
begin
    if v_id is null then
        perform pgq_task._raise_queue_not_found(i_queue);
    end if;
    return v_id;
end;
$$;
