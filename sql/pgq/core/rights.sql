-- Rights of roles on queues.
--
-- A queue is open or restricted; grants add to what the roles pgq_writer and pgq_reader may do with an open one. Where a
-- role names a relation, PostgreSQL checks its rights, which pgq.grant_perms(1) sets. Functions that run as pgq_owner
-- check the role here.
--
-- Invariants:
--   1. Without a grant, no statement of a role gives the content of a restricted queue's events, inserts any, or acts on
--      its consumers; whichever function, view or table it names, and whichever number it guesses.
--   2. With a grant for a named consumer, it acts on no other.
--   3. Code that PostgreSQL runs for another role has no rights of the session's role.
--   4. Grants and the restriction belong to the name: they outlive the queue, and are in a dump.
--   5. An open queue pays nothing: the flag is in a row that is read anyway.

create or replace function pgq._caller()
returns name
language sql stable
-- Returns the role that acts: that of SET ROLE, or else of the session. In a function that runs as its owner,
-- current_user is the owner. Not a text in quotes, since NULLIF would take an operator of the caller's search_path.
return coalesce(nullif(pg_catalog.current_setting('role'), 'none')::name, session_user);

create or replace function pgq._runs_for_another()
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether PostgreSQL runs this for the owner of a table, whichever role has the session: in the expression of
-- an index during autovacuum, ANALYZE, REINDEX or CREATE INDEX, or in the query of a materialized view during a
-- refresh. These are PostgreSQL's security-restricted operations. PostgreSQL does not expose this state, but refuses a
-- few statements in it, of which UNLISTEN is the cheapest, and allowed on a standby.
begin
    unlisten pgq_no_channel;
    return false;
exception when insufficient_privilege then
    return true;
end;
$$;

create or replace function pgq._role_has_right(i_role name, i_queue_id int4, i_actions text[], i_consumer text)
returns boolean
language plpgsql stable
as $$
-- Returns whether a role has one of these rights on a queue, by a grant or as a member of pgq_admin.
-- Parameters:
--      i_consumer  - the consumer or group for which the right to consume is needed; null if any will do
begin
    return pg_catalog.pg_has_role(i_role, 'pgq_admin', 'usage')
        or exists (select from pgq.queue q
                     join pgq.queue_grant g on g.queue_name = q.queue_name
                    where q.queue_id = i_queue_id
                      and (g.action = 'admin' or g.action = any (i_actions) and (g.consumer in ('', i_consumer) or i_consumer is null))
                      and pg_catalog.pg_has_role(i_role, g.grantee, 'usage'));
end;
$$;

create or replace function pgq._require_right(i_queue_id int4, i_actions text[], i_consumer text default '')
returns boolean
language plpgsql
as $$
-- Returns true, or raises 42501 unless the caller has one of these rights on a queue. The parameters are those of
-- pgq._role_has_right(4).
declare
    v_other constant boolean := pgq._runs_for_another();
    v_queue text;
    v_fact  text;
begin
    if not v_other and pgq._role_has_right(pgq._caller(), i_queue_id, i_actions, i_consumer) then
        return true;
    end if;
    select q.queue_name, case when q.queue_restricted then 'The queue is restricted. ' end
      into v_queue, v_fact from pgq.queue q where q.queue_id = i_queue_id;
    raise exception using errcode = '42501',
        message = pg_catalog.format('role %I may not %s queue %L%s', pgq._caller(),
            case i_actions[1] when 'insert' then 'insert into' when 'consume' then 'consume from' when 'admin' then 'administer' else 'read' end,
            v_queue, case when i_consumer <> '' then pg_catalog.format(' as %L', i_consumer) end),
        hint = case when v_other
            then 'PostgreSQL runs this for the owner of an index or materialized view, which has no rights of the session.'
            else pg_catalog.format('%sAn administrator grants it: select pgq.grant_queue(%L, ''{%s}'', %L%s).',
                                   v_fact, v_queue, i_actions[1], pgq._caller(),
                                   case when i_consumer <> '' then pg_catalog.format(', %L', i_consumer) end) end;
end;
$$;

create or replace function pgq._find_queue_for(i_queue_name text, i_action text)
returns pgq.queue
language plpgsql
as $$
-- Returns a queue; raises PQ001 if there is none, and 42501 if it is restricted and the caller lacks this right.
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
begin
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, array[i_action]);
    end if;
    return q;
end;
$$;

create or replace function pgq._consume_roles(i_queue_id int4, i_consumer text)
returns text[]
language plpgsql stable
as $$
-- Returns reg_roles for a consumer or group: the roles with the right, so that consumers need not look up grants for
-- each batch; first the one that most likely consumes. A dump may hold the numbers of other roles, and a role may be
-- gone, so number and name have to fit.
begin
    return (select array(select pg_catalog.concat(g.grantee::oid, ' ', pg_catalog.pg_get_userbyid(g.grantee))
                           from pgq.queue_grant g
                          where g.queue_name = q.queue_name
                            and (g.action = 'admin' or g.action = 'consume' and g.consumer in ('', i_consumer))
                          group by g.grantee
                          order by min(case when g.consumer = i_consumer then 1 when g.action = 'consume' then 2 else 3 end), g.grantee::oid)
              from pgq.queue q
             where q.queue_id = i_queue_id
               and q.queue_restricted);
end;
$$;

create or replace function pgq._consumer_of(r pgq.registration)
returns text
language plpgsql stable
as $$
-- Returns the name for which the right to consume as a registration is granted: that of the consumer whose position its
-- members share, or of the group of a partition.
begin
    return case when r.reg_is_partition then (select group_name from pgq.consumer_group where group_sub_id = r.sub_id)
                else (select co_name
                        from pgq.registration main
                        join pgq.consumer on co_id = main.sub_consumer
                       where main.sub_id = r.sub_id
                       order by main.reg_id
                       limit 1) end;
end;
$$;

create or replace function pgq._acts_as(i_role oid, i_name name)
returns boolean
language sql stable
as $$
-- Returns whether the caller has the rights of this role, which must have this name.
    select pg_catalog.pg_has_role(pgq._caller(), i_role, 'usage') and pg_catalog.pg_get_userbyid(i_role) = i_name;
$$;

create or replace function pgq._require_consumer(i_registration int4, i_roles text[])
returns boolean
language plpgsql
as $$
-- Returns true, or raises 42501 unless the caller may consume as the consumer of a registration on a restricted queue.
-- Call it only if reg_roles is not null.
declare
    r       pgq.registration;
    v_role  text;
begin
    -- Once for each batch and each end of one, so usually without a query. See pgq._runs_for_another(0) for the first.
    unlisten pgq_no_channel;
    foreach v_role in array i_roles loop
        if pgq._acts_as(pg_catalog.split_part(v_role, ' ', 1)::oid, pg_catalog.substr(v_role, pg_catalog.strpos(v_role, ' ') + 1)::name) then
            return true;
        end if;
    end loop;
    select * into r from pgq.registration where reg_id = i_registration;
    return pgq._require_right(r.sub_queue, '{consume}', coalesce(pgq._consumer_of(r), ''));
end;
$$;

create or replace function pgq._apply_rights(i_queue_id int4)
returns void
language plpgsql
as $$
-- Writes the rights on a queue to where they are checked.
begin
    -- A session that registers under an older snapshot fails on this row.
    update pgq.queue set queue_restricted = queue_restricted where queue_id = i_queue_id;
    update pgq.registration r
       set reg_roles = pgq._consume_roles(i_queue_id, pgq._consumer_of(r))
     where r.sub_queue = i_queue_id
       and r.reg_roles is distinct from pgq._consume_roles(i_queue_id, pgq._consumer_of(r));
    perform pgq.grant_perms(queue_name) from pgq.queue where queue_id = i_queue_id;
end;
$$;

create or replace function pgq._require_group(g pgq.consumer_group, i_or_read boolean default false)
returns void
language plpgsql
as $$
-- Raises 42501 if a group's queue is restricted and the caller may not consume as the group (nor read, if that will do).
begin
    if exists (select from pgq.queue where queue_id = g.group_queue and queue_restricted) then
        perform pgq._require_right(g.group_queue, case when i_or_read then '{consume,read}'::text[] else '{consume}' end, g.group_name);
    end if;
end;
$$;

create or replace function pgq._may_see(i_queue_id int4, i_consumer text, i_user name)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether what a consumer has stored of a restricted queue's events may be seen: for the views that show it.
-- Parameters:
--      i_consumer  - the consumer or group; null for events that all consumers read
--      i_user      - current_user: that role must have the right, too. It is the owner of a function or of a
--                    materialized view that PostgreSQL runs for another role, or ours
begin
    return pgq._role_has_right(pgq._caller(), i_queue_id, '{read,consume}', i_consumer)
       and (i_user = 'pgq_owner' or pgq._role_has_right(i_user, i_queue_id, '{read,consume}', i_consumer));
end;
$$;

create or replace function pgq._lock_to_administer(i_queue_name text, i_what text default 'changing rights')
returns pgq.queue
language plpgsql
as $$
-- Returns a queue, locked until the end of the transaction; registering a consumer waits for that. Raises PQ001, or
-- 42501 if the caller may not administer it.
declare
    q   pgq.queue;
begin
    perform pgq._require_read_committed(i_what);
    select * into q from pgq.queue where queue_name = i_queue_name for update;
    if not found then
        perform pgq._raise_queue_not_found(i_queue_name);
    end if;
    perform pgq._require_right(q.queue_id, '{admin}');
    return q;
end;
$$;

create or replace function pgq.restrict_queue(queue text, restricted boolean default true)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Restricts a queue: from the commit on only members of pgq_admin, and roles with rights from pgq.grant_queue(4), insert
-- into it, read it and consume from it. It waits for transactions that have inserted into the queue.
-- Parameters:
--      restricted  - false opens it again: to pgq_writer for inserting, to pgq_reader for the rest; the grants stay
-- Errors: PQ001 no such queue, PQ011 neither true nor false, PQ012 not in READ COMMITTED, 55P03 transactions that have
--      inserted into the queue stay open
declare
    q   pgq.queue;
begin
    if restricted is null then
        raise exception using errcode = 'PQ011', message = 'restricted is NULL', hint = 'Give true or false.';
    end if;
    q := pgq._lock_to_administer(queue);
    q.queue_restricted := restricted;
    update pgq.queue
       set queue_restricted = restrict_queue.restricted,
           queue_event_seq = (pgq._sequence_names(q))[1]
     where queue_id = q.queue_id
    returning * into q;
    if restricted then
        insert into pgq.restricted_queue values (queue) on conflict do nothing;
    else
        delete from pgq.restricted_queue r where r.queue_name = queue;
    end if;
    perform pgq._rename_sequences(q), pgq._apply_rights(q.queue_id);
end;
$$;

create or replace function pgq._sequence_names(q pgq.queue)
returns text[]
language plpgsql stable
as $$
-- Returns the names that the sequences of a queue's event ids and of its slots have to have. pgq.insert_event(7) finds
-- those in pgq_ids and pgq_slots. It must not find those of a restricted queue, or of one whose name PostgreSQL would
-- truncate, so that two might become the same: then pgq._insert_event_slowly(7) finds the queue, and checks.
begin
    return case when q.queue_restricted then array[q.queue_data_pfx || '_id_seq', q.queue_data_pfx || '_slot_seq']
                -- another name, since pgq._write_target(3) sees by it that the queue has been restricted
                when pg_catalog.octet_length(q.queue_name) >= 60
                then array[q.queue_data_pfx || '_open_id_seq', q.queue_data_pfx || '_open_slot_seq']
                else array[pg_catalog.format('pgq_ids.%I', q.queue_name), pg_catalog.format('pgq_slots.%I', q.queue_name)] end;
end;
$$;

create or replace function pgq._rename_sequences(q pgq.queue)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Gives a queue's sequences the names that they have to have.
declare
    v_names constant text[] := pgq._sequence_names(q);
    v_seq   constant regclass[] := array[q.queue_event_seq_id, q.queue_slot_seq];
    v_open  constant text := format('pgq_slots.%I', q.queue_name);
    -- No queue's name is as long, so no sequence has these names.
    v_over  constant text[] := array[rpad('event_seq_' || q.queue_id, 62, '_'), rpad('slot_seq_' || q.queue_id, 62, '_')];
begin
    if to_regclass(v_names[1]) = v_seq[1] then
        return;
    end if;
    -- In the order of producers.
    perform pgq._execute_soon(q.queue_name, concat_ws('; ',
        format('select pgq._announce_lock(%L, %s)', 'sequences', q.queue_id),
        format('alter sequence %s rename to %I', v_seq[1], v_over[1]),
        format('alter sequence %s rename to %I', v_seq[2], v_over[2]),
        case when to_regclass(v_open) <> v_seq[2] then 'drop sequence ' || v_open || ' cascade' end));
    for n in 1 .. 2 loop
        execute format('alter sequence %s set schema %I', v_seq[n], (parse_ident(v_names[n]))[1]);
        execute format('alter sequence %s rename to %I', v_seq[n], (parse_ident(v_names[n]))[2]);
    end loop;
    if q.queue_restricted and octet_length(q.queue_name) < 60 then
        -- For those that wait in pgq.insert_event(7) and have found the event sequence already: a state with no tag.
        execute format('create sequence %s minvalue 0', v_open);
        perform setval(v_open, q.queue_slot0);
    end if;
end;
$$;

create or replace function pgq._execute_soon(i_queue_name text, i_statements text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Producers and the ticker wait behind this.
set lock_timeout = '100ms'
as $$
-- Executes statements that need locks on a queue's relations, as soon as it gets them. It gives up after 5 seconds.
begin
    for attempt in 1 .. 50 loop
        begin
            execute i_statements;
            return;
        exception when lock_not_available then
            if attempt = 50 then
                raise exception using errcode = 'lock_not_available',
                    message = format('transactions that have inserted into queue %L are still open', i_queue_name),
                    hint = 'Try again when they have ended; see pg_stat_activity.';
            end if;
            perform pg_sleep(0.1);
        end;
    end loop;
end;
$$;

create or replace function pgq.grant_queue(queue text, actions text[], role text, consumer text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Grants a role and its members rights on a queue. To call functions they must also be members of pgq_writer (insert)
-- or pgq_reader (the rest); INSERT INTO the queue's relation, COPY and SELECT need the grant alone.
-- Parameters:
--      actions     - some of
--                insert   insert events, at once, later or once; cancel delayed events
--                consume  register, move and unregister a consumer, take and finish its batches, retry events, see and
--                         replay its dead letters; the same for a consumer group. And read the events that are stored
--                read     read the queue's relation, its tables, delayed events, and what any consumer has set aside
--                admin    all of this, and configure the queue, drop it, and grant rights on it
--      role        - name of the role
--      consumer    - the consumer or group for which consume is granted; null for all
-- Errors: PQ001 no such queue, PQ011 no such role or action, PQ012 not in READ COMMITTED
declare
    v_grantee   constant oid := pgq._require_role(role, 'PQ011');
    q           pgq.queue;
begin
    perform pgq._require_queue_actions(actions, consumer);
    q := pgq._lock_to_administer(queue);
    insert into pgq.queue_grant (queue_name, grantee, action, consumer)
    select queue, v_grantee, a, case a when 'consume' then coalesce(grant_queue.consumer, '') else '' end
      from unnest(actions) a
    on conflict do nothing;
    perform pgq._apply_rights(q.queue_id);
end;
$$;

create or replace function pgq.revoke_queue(queue text, actions text[], role text, consumer text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Revokes rights that pgq.grant_queue(4) has granted to a role. Its rights as a member of other roles do not change.
-- Parameters:
--      actions, role   - as for pgq.grant_queue(4)
--      consumer        - the consumer or group for which consume was granted; null for all, named ones too
-- Errors: PQ001 no such queue, PQ011 no such role or action, PQ012 not in READ COMMITTED
declare
    v_grantee   constant oid := pgq._require_role(role, 'PQ011');
    q           pgq.queue;
begin
    perform pgq._require_queue_actions(actions, consumer);
    q := pgq._lock_to_administer(queue);
    delete from pgq.queue_grant g
     where g.queue_name = queue
       and g.grantee = v_grantee
       and g.action = any (actions)
       and (revoke_queue.consumer is null or g.action <> 'consume' or g.consumer = revoke_queue.consumer);
    execute format('revoke all on %s from %s', pgq._queue_relations(q), v_grantee::regrole);
    execute format('revoke all on %s from %s', q.queue_event_seq, v_grantee::regrole);
    perform pgq._apply_rights(q.queue_id);
end;
$$;

create or replace function pgq.get_queue_grants(
    queue text default null,
    out queue_name text, out restricted boolean, out role text, out consumer text, out actions text[])
returns setof record
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the grants on queues that the caller may administer.
-- Parameters:
--      queue       - name of a queue; null for all
-- Returns:
--      queue_name  - its name
--      restricted  - whether it is restricted; otherwise the grants only add to the rights of pgq_writer and pgq_reader
--      role        - the role; null for a restricted queue without grants
--      consumer    - the consumer or group for which the actions are granted; null for all
--      actions     - the granted actions
-- Errors: PQ001 no such queue
#variable_conflict use_column
begin
    if get_queue_grants.queue is not null then
        perform pgq._require_right((pgq._find_queue(get_queue_grants.queue)).queue_id, '{admin}');
    end if;
    if pgq._runs_for_another() then
        return;
    end if;
    return query
        select q.queue_name, q.queue_restricted, r.rolname::text, nullif(g.consumer, ''), array_agg(g.action order by g.action) filter (where r.oid is not null)
          from pgq.queue q
          left join (pgq.queue_grant g join pg_roles r on r.oid = g.grantee) on g.queue_name = q.queue_name
         where (g.queue_name is not null or q.queue_restricted)
           and q.queue_name = coalesce(get_queue_grants.queue, q.queue_name)
           and pgq._role_has_right(pgq._caller(), q.queue_id, '{admin}', '')
         group by q.queue_name, q.queue_restricted, r.rolname, g.consumer
         order by q.queue_name, r.rolname, g.consumer;
end;
$$;

create or replace function pgq._require_role(i_role text, i_sqlstate text)
returns oid
language plpgsql stable
as $$
-- Returns the role of this name; raises an error of this code if there is none.
declare
    -- The owner's rights are fixed.
    v_role  constant oid := (select oid from pg_catalog.pg_roles where rolname = nullif(i_role, 'pgq_owner'));
begin
    if v_role is null then
        raise exception using errcode = i_sqlstate,
            message = pg_catalog.format('there is no role %s', coalesce(pg_catalog.quote_literal(i_role), 'NULL')),
            hint = 'Give the name of a role, as pg_roles has it.';
    end if;
    return v_role;
end;
$$;

create or replace function pgq._require_actions(i_actions text[], i_known text[], i_sqlstate text)
returns void
language plpgsql immutable
as $$
-- Raises an error of this code unless these are actions, of those known.
declare
    v_wrong constant text := (select pg_catalog.string_agg(coalesce(pg_catalog.quote_literal(a), 'NULL'), ', ')
                                from pg_catalog.unnest(i_actions) a where coalesce(a, '') <> all (i_known));
begin
    if v_wrong is not null or coalesce(pg_catalog.cardinality(i_actions), 0) = 0 then
        raise exception using errcode = i_sqlstate,
            message = coalesce('there is no action ' || v_wrong, 'no action is given'),
            hint = 'Actions: ' || pg_catalog.array_to_string(i_known, ', ') || '.';
    end if;
end;
$$;

create or replace function pgq._require_queue_actions(i_actions text[], i_consumer text)
returns void
language plpgsql immutable
as $$
-- Raises PQ011 unless these are actions on a queue, and PQ003 for a name that a consumer cannot have.
begin
    perform pgq._require_actions(i_actions, '{insert,consume,read,admin}', 'PQ011');
    if i_consumer is null then
        return;
    elsif 'consume' <> all (i_actions) then
        raise exception using errcode = 'PQ011',
            message = pg_catalog.format('a consumer is given without the action consume: %L', i_consumer),
            hint = 'The other actions are for the whole queue: leave the consumer out.';
    end if;
    perform pgq._check_name('consumer', i_consumer);
end;
$$;

create or replace function pgq._queue_relations(q pgq.queue)
returns text
language plpgsql stable
as $$
-- Returns the names of a queue's relations with events, for GRANT.
begin
    return pg_catalog.concat_ws(', ', q.queue_data_pfx, pgq.queue_relation(q.queue_name),
        (select pg_catalog.string_agg(pg_catalog.concat(q.queue_data_pfx, '_', n), ', ') from pg_catalog.generate_series(0, q.queue_ntables - 1) n));
end;
$$;

create or replace function pgq.grant_perms(x_queue_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Grants the rights on a queue's relations and sequences to the roles, as the queue is open or restricted. A writer
-- gives the content of events, not their ids, times and transactions.
-- Returns: 1
declare
    q           constant pgq.queue := pgq._find_queue(x_queue_name);
    v_relation  constant text := pgq.queue_relation(x_queue_name);
    v_tables    constant text := (select string_agg(q.queue_data_pfx || '_' || n, ', ') from generate_series(0, q.queue_ntables - 1) n);
    r           record;
begin
    execute format('grant select on %s, %s, %s to public', q.queue_event_seq, q.queue_tick_seq, q.queue_slot_seq);
    execute format('revoke all on %s from pgq_reader, pgq_writer', pgq._queue_relations(q));
    execute format('revoke all on %s from pgq_writer', q.queue_event_seq);
    for r in
        select role, bool_or(inserts) as inserts, bool_or(reads) as reads
          from (values ('pgq_admin', true, true),
                       ('pgq_writer', not q.queue_restricted, false),
                       ('pgq_reader', false, not q.queue_restricted)) w (role, inserts, reads)
         group by role
        union all
        select rolname, bool_or(action in ('insert', 'admin')), bool_or(action in ('consume', 'read', 'admin'))
          from pgq.queue_grant
          join pg_roles on oid = grantee
         where queue_name = x_queue_name
         group by rolname
    loop
        if r.inserts then
            execute format('grant usage on %s to %I', q.queue_event_seq, r.role);
            execute format('grant insert (ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) on %s, %s to %I',
                           v_relation, v_tables, r.role);
            execute format('grant select (ev_id) on %s to %I', v_relation, r.role);
        end if;
        if r.reads then
            execute format('grant select on %s to %I', pgq._queue_relations(q), r.role);
        end if;
    end loop;
    execute format('grant select, insert, truncate on %s to pgq_admin', v_tables);
    return 1;
end;
$$;

create or replace function pgq._revoke_all(i_table regclass)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Takes a table from all roles but its owner: another queue will use it.
declare
    v_grantee   oid;
begin
    for v_grantee in
        select a.grantee from pg_class c, aclexplode(c.relacl) a where c.oid = i_table and a.grantee <> c.relowner
        union
        select a.grantee from pg_attribute c, aclexplode(c.attacl) a where c.attrelid = i_table
    loop
        execute format('revoke all on %s from %s', i_table, case v_grantee when 0 then 'public' else v_grantee::regrole::text end);
    end loop;
end;
$$;

create or replace function pgq._shown(anyelement)
returns anyelement
language sql volatile
as $$
-- Returns its argument: for the content in views that hide rows. PostgreSQL applies no condition on a volatile column
-- before those of the view, and estimates it without statistics, so that EXPLAIN tells nothing of the hidden rows. The
-- plan then has the column itself. See pgq._protect_views(0).
    select $1;
$$;

create or replace function pgq._protect_views()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Trigger of pgq.restricted_queue: while it is empty, PostgreSQL may plan queries of our views freely. (A trigger, since
-- a dump of an extension has the table's rows, but not how the function is declared.)
begin
    -- One session at a time, including those that have not committed yet.
    perform pg_advisory_xact_lock(pgq._lock_key('rights'));
    if exists (select from pgq.restricted_queue) then
        alter function pgq._shown(anyelement) volatile;
    else
        alter function pgq._shown(anyelement) immutable;
    end if;
    return null;
end;
$$;

create or replace trigger protect_views
    after insert or delete on pgq.restricted_queue
    for each statement execute function pgq._protect_views();

create or replace view pgq.event_template with (security_barrier) as
select ev_id, ev_time, ev_txid, ev_owner, ev_retry,
       pgq._shown(ev_type) as ev_type, pgq._shown(ev_data) as ev_data, pgq._shown(ev_extra1) as ev_extra1,
       pgq._shown(ev_extra2) as ev_extra2, pgq._shown(ev_extra3) as ev_extra3, pgq._shown(ev_extra4) as ev_extra4
  from pgq.event
 where ev_slot >= 0
   and ev_slot < 262144
   -- A queue has up to 16 slots.
   and ev_slot / 16 * 16 <> all (array(select queue_slot0 from pgq.queue
                                        where queue_restricted and not pgq._may_see(queue_id, null, current_user)));

create or replace view pgq.failing_consumer with (security_barrier) as
select q.queue_name, c.co_name as consumer_name, f.cf_batch as batch_id, pgq._shown(f.cf_event) as event_id,
       pgq._shown(split_part(f.cf_error, E'\n\n', 1)) as error, f.cf_attempts as attempts,
       f.cf_since as failing_since, f.cf_last as last_attempt,
       pgq._shown(substr(f.cf_error, nullif(strpos(f.cf_error, E'\n\n'), 0) + 2)) as traceback
  from pgq.consumer_failure f
  join pgq.registration r on r.reg_id = f.cf_registration
  join pgq.subscription s on s.sub_queue = r.sub_queue and s.sub_consumer = r.sub_consumer and s.sub_batch = f.cf_batch
  join pgq.queue q on q.queue_id = r.sub_queue
  join pgq.consumer c on c.co_id = r.sub_consumer
 where not q.queue_restricted
    -- as pgq._consumer_of(1)
    or pgq._may_see(q.queue_id, case when r.reg_is_partition then (select group_name from pgq.consumer_group where group_sub_id = r.sub_id)
                                     else coalesce((select main.co_name from pgq.registration m join pgq.consumer main on main.co_id = m.sub_consumer
                                                     where m.sub_id = r.sub_id order by m.reg_id limit 1), '') end, current_user);

create or replace view pgq.dead_letter with (security_barrier) as
select dl_id, dl_time, dl_queue, dl_consumer, dl_group, dl_batch, dl_attempts,
       pgq._shown(dl_reason) as dl_reason, pgq._shown(dl_traceback) as dl_traceback,
       pgq._shown(ev_id) as ev_id, pgq._shown(ev_time) as ev_time, pgq._shown(ev_txid) as ev_txid,
       pgq._shown(ev_retry) as ev_retry, pgq._shown(ev_type) as ev_type, pgq._shown(ev_data) as ev_data,
       pgq._shown(ev_extra1) as ev_extra1, pgq._shown(ev_extra2) as ev_extra2,
       pgq._shown(ev_extra3) as ev_extra3, pgq._shown(ev_extra4) as ev_extra4
  from pgq._dead_letter
 where dl_queue not in (select queue_name from pgq.queue where queue_restricted)
    or pgq._may_see((select queue_id from pgq.queue where queue_name = dl_queue), coalesce(dl_group, dl_consumer), current_user)
 -- PostgreSQL does not find the newest by index otherwise, since the view hides rows.
 order by dl_id desc;

create or replace view pgq.parked_key with (security_barrier) as
select parked_id, parked_group, parked_part, pgq._shown(parked_key) as parked_key, parked_since, parked_attempts, parked_next,
       pgq._shown(parked_error) as parked_error
  from pgq._parked_key
 where parked_group not in (select group_id from pgq.consumer_group join pgq.queue on queue_id = group_queue where queue_restricted)
    or exists (select from pgq.consumer_group where group_id = parked_group and pgq._may_see(group_queue, group_name, current_user));

create or replace view pgq.parked_event with (security_barrier) as
select pe_id, pe_key,
       pgq._shown(ev_id) as ev_id, pgq._shown(ev_time) as ev_time, pgq._shown(ev_txid) as ev_txid,
       pgq._shown(ev_retry) as ev_retry, pgq._shown(ev_type) as ev_type, pgq._shown(ev_data) as ev_data,
       pgq._shown(ev_extra1) as ev_extra1, pgq._shown(ev_extra2) as ev_extra2,
       pgq._shown(ev_extra3) as ev_extra3, pgq._shown(ev_extra4) as ev_extra4
  from pgq._parked_event
 where pe_key in (select parked_id from pgq.parked_key);
