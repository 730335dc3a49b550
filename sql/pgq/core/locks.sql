-- All advisory locks of the project: of the schema, the client library and the programs. A new lock gets a number of
-- its own in this list. Every role that may connect to the database may take any advisory lock. Row locks would be safe
-- from other roles, but each tick and each batch would write the row, and to the server's log. So instead
-- pgq.get_foreign_locks() names the sessions that hold one of our locks without having a role of ours.

create or replace function pgq._lock_keys(
    out lock_class bigint, out lock_object bigint, out lock_pair boolean, out lock_key text, out lock_name text)
returns setof record
language sql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the list of advisory locks.
-- Returns:
--      lock_class  - classid in pg_locks
--      lock_object - objid in pg_locks; null if there are many
--      lock_pair   - true if the key is two numbers (objsubid 2 in pg_locks), false if it is one (1)
--      lock_key    - for pgq._lock_key(1); null if a program takes it, whose constant a test compares
--      lock_name   - the work that waits for it
    values
        -- one number
        (0::bigint, 1886875904::bigint, false, 'create queue'::text, 'creating queues, and the ticker that falls asleep'),
        (0, 1886875907, false, 'slots', 'rotation, settings of queues, and the ticker that falls asleep or wakes up'),
        (0, 1886875914, false, 'delayed events', 'delayed and retried events'),
        (0, 1886875926, false, 'wake workers', 'wake-ups of task workers'),
        (0, 1886875927, false, 'rights', 'restricting queues, and opening them'),
        (0, 1886875923, false, 'task rights', 'restricting task queues, and opening them'),
        (0, 1886875928, false, 'dropped task queues', 'removing dropped task queues'),
        (112, 1735487609, false, null, 'pgqpy migrate'),
        (7366513, 1887002468, false, null, 'pgqpy demo'),
        -- two numbers; the second is a queue, 0 for all of them, registration, table, group, or the hash of a name
        (1886875905, null, true, 'capture', 'pgq.capture_table'),
        (1886875906, null, true, 'ticks', 'ticks'),
        (1886875908, null, true, 'positions', 'batches of consumers'),
        (1886875930, null, true, 'sequences', 'ticks, and dropping, restricting and opening queues'),
        (1886875931, null, true, 'event tables', 'delayed events, and changing contracts'),
        (1886875909, null, true, 'staging', 'sending staged events'),
        (1886875910, null, true, 'pgq_ext progress', 'progress of consumers in pgq_ext'),
        (1886875929, null, true, 'shards', 'moving keys between shards'),
        (1886875920, null, true, 'groups', 'members of consumer groups'),
        (1886875921, 0, true, 'sweep', 'sweeping task queues'),
        (1886875922, null, true, 'task limits', 'task queues with limits'),
        (1885827440, 1, true, 'lead', 'the ticker''s lead'),
        (1885827425, null, true, null, 'the archive that Spark writes'),
        (1885827442, null, true, null, 'replicated tables'),
        (1885827443, null, true, null, 'Spark streams'),
        (1885827444, null, true, null, 'consumers of shards');
$$;

create or replace function pgq._lock_key(i_key text)
returns int4
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of a lock, which is the first of two if it has two. It is immutable: a constant in every plan.
declare
    v_number    constant int4 := (select case when lock_pair then lock_class else lock_object end
                                    from pgq._lock_keys() where lock_key = i_key);
begin
    if v_number is null then
        raise exception 'there is no lock %', i_key;
    end if;
    return v_number;
end;
$$;

create or replace function pgq._announce_lock(i_key text, i_queue_id int4)
returns void
language sql
as $$
-- Announces that this transaction is about to lock a queue's relations. Sessions that use those of many queues pass over
-- this one then, or they would wait for the end of this transaction.
-- Parameters:
--      i_key   - which relations: sequences or event tables
    select pg_catalog.pg_advisory_xact_lock_shared(pgq._lock_key('sequences'), 0),
           pg_catalog.pg_advisory_xact_lock(pgq._lock_key(i_key), i_queue_id);
$$;

create or replace function pgq._may_read_sequences(i_queue_id int4, i_seq regclass)
returns boolean
language sql
as $$
-- Returns whether a queue's sequences exist, and no other transaction is about to lock them until this one ends. Inlined.
-- Parameters:
--      i_seq   - one of them: the queue may have been dropped after the snapshot in which it was found. Its size is
--                asked of the newest catalog
    select pg_catalog.pg_try_advisory_xact_lock_shared(pgq._lock_key('sequences'), i_queue_id)
           and pg_catalog.pg_relation_size(i_seq) is not null;
$$;

create or replace function pgq.get_foreign_locks(out pid int4, out holder text, out role_name text, out lock_name text)
returns setof record
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the sessions that hold an advisory lock of pgqpy in this database without being a member of any of its roles:
-- no pgqpy function has taken the lock, and the named work waits for it.
-- Returns:
--      pid         - pid of the session; null for a prepared transaction
--      holder      - application_name of the session, or name of the prepared transaction
--      role_name   - role of the session
--      lock_name   - the work that waits
    with held as (
        select l.pid, l.transactionid, l.virtualtransaction, k.lock_name
          from pg_locks l
          join pg_database d on d.oid = l.database
          join pgq._lock_keys() k on k.lock_class = l.classid::bigint
                                and (k.lock_object is null or k.lock_object = l.objid::bigint)
                                and l.objsubid = case when k.lock_pair then 2 else 1 end
         where l.locktype = 'advisory'
           and l.granted
           and d.datname = current_database()),
    holders as (
        select h.pid, a.application_name as holder, a.usesysid as role_id, h.lock_name
          from held h
          join pg_stat_activity a on a.pid = h.pid
        union all
        select null, p.gid, r.oid, h.lock_name
          from held h
          join pg_locks x on x.virtualtransaction = h.virtualtransaction and x.locktype = 'transactionid'
          join pg_prepared_xacts p on p.transaction = x.transactionid
          join pg_roles r on r.rolname = p.owner
         where h.pid is null)
    select pid, holder, role_id::regrole::text, lock_name
      from holders
     where not pg_has_role(role_id, 'pgq_reader', 'member')
       and not pg_has_role(role_id, 'pgq_writer', 'member')
       and not pg_has_role(role_id, 'pgq_owner', 'member')
     order by pid, lock_name;
$$;
