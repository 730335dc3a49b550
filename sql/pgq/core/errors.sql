create or replace function pgq._node_here(i_queue_name text, out node_type text, out node_name text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns which node of a cascaded queue this database is; nulls if it is none. The part pgq_node may be missing, or be
-- another role's.
-- Returns:
--      node_type   - root, branch, leaf; old root if it is fenced
--      node_name   - its name
begin
    if exists (select from pg_proc
                where oid = to_regprocedure('pgq_node._here(text)') and proowner = current_user::regrole)
    then
        execute 'select * from pgq_node._here($1)' into node_type, node_name using i_queue_name;
    end if;
end;
$$;

create or replace function pgq._raise_queue_not_found(i_queue_name text)
returns void
language plpgsql
as $$
-- Raises PQ001.
declare
    here    constant record := pgq._node_here(i_queue_name);
begin
    raise exception using errcode = 'PQ001',
        message = pg_catalog.format('queue %s does not exist', coalesce(pg_catalog.quote_literal(i_queue_name), 'NULL')),
        hint = case when here.node_type is null
            then 'Create it with pgq.create_queue(name); pgq.get_queue_info() lists the queues there are. '
                 'A table that is captured into it is released by pgq.release_table(table).'
            else pg_catalog.format('This database is %s %s of the queue, and keeps no events: insert at the root; '
                                   '`pgqpy node status %s` shows it.', here.node_type, here.node_name, i_queue_name) end;
end;
$$;

create or replace function pgq._raise_insert_disabled(i_queue_name text)
returns void
language plpgsql
as $$
-- Raises PQ006.
declare
    here    constant record := pgq._node_here(i_queue_name);
begin
    raise exception using errcode = 'PQ006',
        message = pg_catalog.format('inserting into queue %L is disabled', i_queue_name),
        hint = case
            when here.node_type is null
                then 'The queue was closed: pgq.set_queue_config(queue, ''disable_insert'', ''false'') opens it. '
                     'If it is a copy that follows another database, insert there.'
            else pg_catalog.format('This database is %s %s of a cascaded queue: %s; `pgqpy node status %s` shows it.',
                                   here.node_type, here.node_name,
                                   case when here.node_type = 'root' then 'if another node takes over, insert there'
                                        else 'insert at the root' end, i_queue_name) end;
end;
$$;

create or replace function pgq._require_writable(i_queue_name text)
returns void
language plpgsql
as $$
-- Raises PQ011 if a queue copies a root's: events and ticks of its own would corrupt it.
declare
    here    constant record := pgq._node_here(i_queue_name);
begin
    if here.node_type in ('branch', 'old root') then
        raise exception using errcode = 'PQ011',
            message = pg_catalog.format('this database is %s %s of queue %L: events and ticks come from the root',
                                        here.node_type, here.node_name, i_queue_name),
            hint = pg_catalog.format('Insert at the root, which `pgqpy node status %s` shows; '
                                     '`pgqpy node takeover %1$s NODE` makes another node the root.', i_queue_name);
    end if;
end;
$$;

create or replace function pgq._require_no_node(i_queue_name text)
returns void
language plpgsql
as $$
-- Raises PQ007 if a queue is a node's, which has more to drop.
declare
    here    constant record := pgq._node_here(i_queue_name);
begin
    if here.node_type <> 'leaf' then
        raise exception using errcode = 'PQ007',
            message = pg_catalog.format('this database is %s %s of the cascaded queue %L',
                                        here.node_type, here.node_name, i_queue_name),
            hint = pg_catalog.format('Drop the node: pgqpy node drop %s %s', i_queue_name, here.node_name);
    end if;
end;
$$;

create or replace function pgq._find_queue(i_queue_name text)
returns pgq.queue
language plpgsql
as $$
-- Returns a queue; raises PQ001 if there is none.
declare
    q   pgq.queue;
begin
    select * into q from pgq.queue where queue_name = i_queue_name;
    if not found then
        perform pgq._raise_queue_not_found(i_queue_name);
    end if;
    return q;
end;
$$;

create or replace function pgq._try_lock_table(i_table text, i_mode text default 'access exclusive')
returns boolean
language plpgsql
as $$
-- Locks a table until the end of the transaction; returns false at once if other sessions have it.
begin
    execute pg_catalog.format('lock table %s in %s mode nowait', i_table, i_mode);
    return true;
exception when lock_not_available then
    return false;
end;
$$;

create or replace function pgq._require_equal_lengths(i_function text, variadic i_lengths int4[])
returns void
language plpgsql
as $$
-- Raises PQ011 if arrays differ in length; an array that is null may be left out.
begin
    if exists (select from pg_catalog.unnest(i_lengths) n where n <> i_lengths[1]) then
        raise exception using errcode = 'PQ011',
            message = i_function || ': the arrays differ in length',
            hint = 'Give one element for each event in every array; a field that no event has may be null as a whole.';
    end if;
end;
$$;

create or replace function pgq._raise_tick_not_found(i_queue_name text, i_tick_id bigint)
returns void
language plpgsql
as $$
-- Raises PQ008.
begin
    raise exception using errcode = 'PQ008',
        message = pg_catalog.format('tick %s of queue %L is not available', coalesce(i_tick_id::text, 'NULL'), i_queue_name),
        hint = 'It was never made, or rotation has removed its events. Look at pgq.tick for the ticks there are.';
end;
$$;

create or replace function pgq._is_read_committed()
returns boolean
language sql stable
as $$
-- Returns whether each statement sees what was committed before it.
    select pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
$$;

create or replace function pgq._require_read_committed(i_what text)
returns void
language plpgsql
as $$
-- Raises PQ012 unless each statement sees what was committed before it. Ticks and rotation decide by the present state;
-- with a snapshot from the start of the transaction they would lose events.
begin
    if not pgq._is_read_committed() then
        raise exception using errcode = 'PQ012',
            message = pg_catalog.format('%s must not run in a %s transaction', i_what,
                                        pg_catalog.upper(pg_catalog.current_setting('transaction_isolation'))),
            hint = 'Call it in its own transaction, in READ COMMITTED.';
    end if;
end;
$$;

create or replace function pgq._raise_stale_snapshot()
returns void
language plpgsql
as $$
-- Raises 40001, because the transaction's snapshot is older than a change that it must see.
begin
    raise exception using errcode = 'serialization_failure',
        message = 'ticks or positions have changed since this transaction took its snapshot',
        hint = 'Roll back and run the transaction again; in READ COMMITTED this does not happen.';
end;
$$;

create or replace function pgq._check_log_snapshot(i_log_name text)
returns void
language plpgsql
as $$
-- Raises 40001 if a log was rotated, or a table of it emptied, after this transaction's snapshot: a row that is not
-- found may then still exist.
begin
    if not pgq._is_read_committed()
       and (exists (select from pgq.log
                     where log_name = i_log_name
                       and log_rotations <> pg_catalog.pg_sequence_last_value(log_seq))
            -- The table was emptied: the snapshot sees the old file, the function the new one.
            or exists (select from pg_catalog.pg_class
                        where oid in (pg_catalog.to_regclass('pgq.' || i_log_name || '_0'), pg_catalog.to_regclass('pgq.' || i_log_name || '_1'))
                          and relfilenode <> pg_catalog.pg_relation_filenode(oid)))
    then
        perform pgq._raise_stale_snapshot();
    end if;
end;
$$;
