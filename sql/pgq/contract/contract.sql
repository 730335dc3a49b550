-- Contracts of queues. Invariants:
--   1. An event that does not fit an enforced contract never gets into its queue. A row trigger on the queue's event
--      tables checks it, by whichever statement it comes; an event to be delivered later is checked when it is inserted.
--   2. A change waits for the transactions that have inserted into the queue, and later ones wait for it: so an event is
--      checked against the version that is in force when its transaction commits.
--   3. An incompatible version changes nothing.
--   4. A queue without an enforced contract has no such trigger, and pays nothing.
--   5. The contract that a captured table makes neither changes what is checked nor slows the check down.

create or replace function pgq._find_contract(i_queue_id int4, i_type text, i_version int4 default null)
returns pgq.contract
language sql stable
as $$
-- Returns the contract for a type of event: its own, or else that for all types. By default its version in force.
    select c
      from pgq.contract c
     where contract_queue = i_queue_id
       and (contract_type = i_type
            or contract_type is null and not exists (select from pgq.contract where contract_queue = i_queue_id and contract_type = i_type))
       and (i_version is null or contract_version = i_version)
     order by contract_version desc
     limit 1;
$$;

create or replace function pgq._checked_data(i_queue_id int4, i_type text, i_data text)
returns text
language plpgsql
as $$
-- Returns the payload of an event; raises PQ054 if it does not fit the queue's contract.
declare
    c       record;
    v_data  jsonb;
    v_path  text;
    v_error text;
begin
    -- pgq._find_contract(3), faster, and without those of captured tables
    select contract_enforced, contract_version, contract_path, contract_schema into c
      from pgq.contract
     where contract_queue = i_queue_id
       and coalesce(contract_type, '') in (i_type, '')
       and not contract_captured
     order by contract_type, contract_version desc
     limit 1;
    if c.contract_enforced is not true then
        return i_data;
    end if;
    begin
        v_data := i_data::jsonb;
        if pg_catalog.jsonb_path_match(v_data, c.contract_path, silent => true) then
            return i_data;
        end if;
        perform pgq._limit_references(pg_catalog.octet_length(i_data));
        select path, error into v_path, v_error
          from pgq._schema_errors(c.contract_schema, v_data, '', c.contract_schema)
         order by path collate "C"
         limit 1;
        if i_data is null then
            v_path := '';
            v_error := 'expected JSON, found NULL';
        end if;
    -- no JSON, a number or text that jsonb cannot hold, too deeply nested
    exception when data_exception or program_limit_exceeded or statement_too_complex then
        v_path := '';
        v_error := 'expected JSON that PostgreSQL can check: ' || sqlerrm;
    end;
    if v_error is not null then
        raise exception using errcode = 'PQ054',
            message = pg_catalog.format('an event of type %s does not fit version %s of the contract of queue %L at %s: %s',
                             coalesce(pg_catalog.quote_literal(i_type), 'NULL'), c.contract_version,
                             (select queue_name from pgq.queue where queue_id = i_queue_id), coalesce(nullif(v_path, ''), 'the top'), v_error),
            detail = '#' || v_path,
            hint = 'Mend the payload; pgq.get_contract(queue, type) returns the schema.';
    end if;
    return i_data;
end;
$$;

create or replace function pgq._hold_contracts(i_queue_id int4, i_slot int4)
returns boolean
language plpgsql
as $$
-- Has changes of a queue's contracts wait for this transaction, as an insert into an event table does: for events that
-- do not go there now.
-- Parameters:
--      i_slot  - the current ev_slot
-- Returns: true if pgq._checked_data(3) has to check payloads.
declare
    v_table     text;
    v_txid      bigint;
    v_newest    bigint;
begin
    select queue_data_pfx || '_' || i_slot - queue_slot0 into v_table from pgq.queue where queue_id = i_queue_id;
    execute pg_catalog.format('lock table %s in row exclusive mode', v_table);
    -- A statement of its own: it sees the change that it has waited for.
    select queue_contract_txid into v_txid from pgq.queue where queue_id = i_queue_id;
    if not pgq._is_read_committed() then
        -- These two look at the newest catalog, whatever the snapshot.
        begin
            v_newest := pg_catalog.substring(pg_catalog.pg_get_triggerdef((pg_catalog.pg_get_object_address(
                'trigger', pg_catalog.array_append(pg_catalog.parse_ident(v_table), 'check_contract'), '{}')).objid), '''([0-9]+)''[)]$')::bigint;
        exception when undefined_object then
            null;
        end;
        if v_newest is distinct from v_txid then
            perform pgq._raise_stale_snapshot();
        end if;
    end if;
    return v_txid is not null;
end;
$$;

create or replace function pgq._check_contract()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
-- Row trigger of the event tables of a queue with an enforced contract.
-- Arguments: queue id, the transaction that last changed its contracts
declare
    v_data  text;
begin
    if pg_sequence_last_value('pgq.moving_seq') <> txid_current() then
        -- PostgreSQL shows every transaction the newest trigger, so a snapshot that is too old is noticed.
        if not pgq._is_read_committed()
           and (select queue_contract_txid from pgq.queue where queue_id = tg_argv[0]::int4) is distinct from tg_argv[1]::bigint
        then
            perform pgq._raise_stale_snapshot();
        end if;
        v_data := pgq._checked_data(tg_argv[0]::int4, new.ev_type, new.ev_data);  -- faster than perform
    end if;
    return new;
end;
$$;

create or replace function pgq._apply_contracts(q pgq.queue, i_is_dropped boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Has the event tables of a queue check their events, if a contract is enforced and the queue is not being dropped.
declare
    v_enforced  constant boolean := not i_is_dropped and exists (select from pgq.contract where contract_queue = q.queue_id and contract_enforced);
    v_tables    constant text[] := array(select q.queue_data_pfx || '_' || n from generate_series(0, q.queue_ntables - 1) n);
    v_table     text;
begin
    if not v_enforced and q.queue_contract_txid is null then
        return;
    end if;
    perform pgq._execute_soon(q.queue_name, format('select pgq._announce_lock(%L, %s); lock table %s in %s mode',
                                                   'event tables', q.queue_id, array_to_string(v_tables, ', '),
                                                   case when v_enforced then 'share row exclusive' else 'access exclusive' end));
    update pgq.queue set queue_contract_txid = case when v_enforced then txid_current() end where queue_id = q.queue_id;
    foreach v_table in array v_tables loop
        if v_enforced then
            execute format('create or replace trigger check_contract before insert on %s '
                           'for each row execute function pgq._check_contract(%s, %s)', v_table, q.queue_id, txid_current());
        else
            execute format('drop trigger check_contract on %s', v_table);
        end if;
    end loop;
end;
$$;

create or replace function pgq.set_contract(
    queue text, ev_type text, schema jsonb, compatibility text default null, enforced boolean default null)
returns int4
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
-- Adds a version to the contract for a type of event, or changes its rules. It waits for transactions that have
-- inserted into the queue, if events are checked.
-- Parameters:
--      ev_type         - type of the events; null for all types without a contract of their own
--      schema          - JSON Schema (draft 2020-12) that payloads (ev_data) must fit
--      compatibility   - null for what it was, at first backward:
--                          backward  a new version accepts every payload that the last one accepts
--                          full      and the last one accepts every payload that a new one accepts
--                          none      no rule
--      enforced        - true if PostgreSQL checks every insert, false if only clients check; null for what it was, at
--                        first false
-- Returns: the version in force, 1, 2, ...; the last version again if it has this schema.
-- Errors: PQ001 no such queue, PQ011 bad type or rule, PQ012 not in READ COMMITTED, PQ056 not a schema, or one that
--      PostgreSQL cannot check, PQ057 the new version is not compatible, 55P03 transactions that have inserted into the
--      queue stay open
#variable_conflict use_variable
declare
    q   pgq.queue;
    c   pgq.contract;
begin
    if ev_type = '' or compatibility not in ('none', 'backward', 'full') then
        raise exception using errcode = 'PQ011',
            message = case ev_type when '' then 'the type of a contract is empty' else format('there is no compatibility %L', compatibility) end,
            hint = case ev_type when '' then 'Give a type of events, or NULL for all types without a contract of their own.'
                        else 'Give none, backward or full.' end;
    end if;
    perform pgq._require_schema(schema, false);
    q := pgq._lock_to_administer(queue, 'changing a contract');
    c := pgq._find_contract(q.queue_id, ev_type);
    if c.contract_type is distinct from ev_type then
        c := null;
    end if;
    enforced := coalesce(enforced, c.contract_enforced, false);
    -- What a captured table has made is no rule for others.
    compatibility := coalesce(compatibility, case when not c.contract_captured then c.contract_compatibility end, 'backward');
    if enforced then
        perform pgq._require_schema(schema, true);
    end if;
    if c.contract_schema is distinct from schema then
        if not c.contract_captured and compatibility <> 'none' then
            perform pgq._require_compatible(c, schema, compatibility);
        end if;
        c.contract_version := coalesce(c.contract_version, 0) + 1;
        insert into pgq.contract (contract_queue, contract_type, contract_version, contract_schema, contract_compatibility, contract_enforced)
        values (q.queue_id, ev_type, c.contract_version, schema, compatibility, enforced);
    end if;
    update pgq.contract
       set contract_compatibility = compatibility,
           contract_enforced = enforced,
           contract_path = case when enforced and contract_version = c.contract_version then pgq._schema_path(schema) end,
           contract_captured = false
     where contract_queue = q.queue_id
       and contract_type is not distinct from ev_type;
    perform pgq._apply_contracts(q);
    return c.contract_version;
end;
$$;

create or replace function pgq.drop_contract(queue text, ev_type text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Drops the contract for a type of event, with all its versions.
-- Parameters:
--      ev_type - type of the events; null for the contract of all types without one of their own
-- Errors: PQ001 no such queue, PQ012 not in READ COMMITTED, PQ055 no such contract, 55P03 transactions that have inserted
--      into the queue stay open
declare
    q   constant pgq.queue := pgq._lock_to_administer(queue, 'changing a contract');
begin
    delete from pgq.contract where contract_queue = q.queue_id and contract_type is not distinct from ev_type;
    if not found then
        perform pgq._raise_contract_not_found(queue, ev_type, null);
    end if;
    perform pgq._apply_contracts(q);
end;
$$;

create or replace function pgq._raise_contract_not_found(i_queue_name text, i_type text, i_version int4)
returns void
language plpgsql
as $$
-- Raises PQ055.
begin
    raise exception using errcode = 'PQ055',
        message = pg_catalog.format('queue %L has no %scontract for %s', i_queue_name, 'version ' || i_version || ' of a ',
                                    coalesce('type ' || pg_catalog.quote_literal(i_type), 'all types')),
        hint = 'pgq.get_contract_info(queue) lists the contracts there are; pgq.set_contract(queue, type, schema) adds one.';
end;
$$;

create or replace function pgq.get_contract(
    queue text, inout ev_type text, inout version int4 default null,
    out schema jsonb, out compatibility text, out enforced boolean, out added timestamptz)
returns setof record
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the contract that holds for a type of event: its own, or else that for all types. No row if there is none.
-- Parameters:
--      version         - a version; null for the one in force
-- Returns:
--      ev_type         - the contract's type; null for that of all types
--      version         - the version
--      schema          - JSON Schema that payloads must fit
--      compatibility   - the rule for new versions: none, backward or full
--      enforced        - true if PostgreSQL checks every insert
--      added           - when the version was added
-- Errors: PQ001 no such queue, PQ055 no such version
declare
    c   constant pgq.contract := pgq._find_contract((pgq._find_queue(queue)).queue_id, ev_type, version);
begin
    if c.contract_version is not null then
        return query
        select c.contract_type, c.contract_version, c.contract_schema, c.contract_compatibility, c.contract_enforced, c.contract_added;
    elsif version is not null then
        perform pgq._raise_contract_not_found(queue, ev_type, version);
    end if;
end;
$$;

create or replace function pgq.get_contract_info(
    queue text default null,
    out queue_name text, out ev_type text, out version int4, out compatibility text, out enforced boolean, out added timestamptz,
    out captured boolean)
returns setof record
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the contracts of queues, each with its version in force.
-- Parameters:
--      queue   - name of a queue; null for all
-- Returns: as pgq.get_contract(3), and
--      queue_name  - the queue
--      captured    - true for the columns of a captured table, against which nothing is checked
    select distinct on (q.queue_name, c.contract_type)
           q.queue_name, c.contract_type, c.contract_version, c.contract_compatibility, c.contract_enforced, c.contract_added,
           c.contract_captured
      from pgq.contract c
      join pgq.queue q on q.queue_id = c.contract_queue
     where q.queue_name = coalesce(get_contract_info.queue, q.queue_name)
     order by q.queue_name, c.contract_type, c.contract_version desc;
$$;
