create or replace function pgq.capture_table(
    i_table regclass, i_queue_name text,
    operations text default 'insert,update,delete,truncate',
    columns text[] default null,
    exclude text[] default null,
    key text[] default null,
    old_values text default 'none',
    condition text default null,
    format text default 'row_json',
    key_changes text default 'split',
    replace boolean default false)
returns text
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Captures a table: every change of its rows becomes an event in a queue, in the transaction of the change. Statement
-- triggers with transition tables write all events of a statement at once. For statements of many rows this is several
-- times as fast as row triggers.
--
-- Events: ev_type {"op":"INSERT","table":["public","flight"],"pkey":["id"]}, ev_extra1 public.flight, ev_data the row
-- in the form of row_to_json(): the new row for INSERT and UPDATE, the old one for DELETE, {} for TRUNCATE. Their order
-- is that of the rows. An UPDATE that changes a row's key becomes a DELETE of the old row and an INSERT of the new one.
--
-- Call it as the owner of the table (or a member of the owner). The owner must be a pgq_writer and must have the right
-- to create in the table's schema: a function is created there that runs as this owner whichever role writes, so
-- writers of the table need no right on the queue. The session setting session_replication_role = local (or replica)
-- silences the capture.
--
-- The partitions of a table are captured with it; later ones by pgq.capture_new_partitions(). Columns may be added,
-- dropped, renamed and retyped, tables and schemas renamed, at any time.
-- Parameters:
--      i_table         - table; not a view, foreign table or partition
--      operations      - a list of insert, update, delete, truncate
--      columns         - capture only these columns, and those of the key. Here and with exclude, an UPDATE of other
--                        columns alone makes no event
--      exclude         - capture all columns but these
--      key             - columns that identify a row; by default the primary key at the time of the change
--      old_values      - content of ev_extra2 of an UPDATE: none; row: the old row; changed: the old values of changed
--                        columns, as JSON
--      condition       - boolean SQL expression: capture only rows for which it is true. It may use columns, new.column
--                        and old.column (in INSERT old is null, in DELETE new); names of functions, types and operators
--                        outside pg_catalog need their schema
--      format          - row_json, jsontriga, logutriga: ev_type, ev_data and
--                        ev_extra2 as these triggers write them
--      key_changes     - split: see above; error: raise PQ022
--      replace         - replace an earlier capture of the same table and queue; otherwise an earlier capture is an
--                        error
-- Returns: name of the generated trigger function.
-- Errors: PQ011 invalid parameter, PQ021 no key for updates and deletes, PQ024 captured already, 42501 not the table's
--      owner, or the owner is not a pgq_writer, or may not create in the schema or insert into the queue
declare
    v_schema    text;
    v_name      text;
    v_function  oid;
    v_options   jsonb;
begin
    perform pgq._capture_check_table(i_table);
    -- One session at a time, here and in pgq.release_table(2): the table itself is locked more than once.
    perform pg_advisory_xact_lock(pgq._lock_key('capture'), hashoid(i_table));
    v_options := pgq._capture_check_options(i_table, i_queue_name, operations, columns, exclude, key,
                                            old_values, condition, format, key_changes);

    if exists (select from pgq.capture c where c.capture_table = i_table and c.capture_queue = i_queue_name) then
        if not replace then
            raise exception using errcode = 'PQ024',
                message = pg_catalog.format('table %s is captured into queue %L already', i_table, i_queue_name),
                hint = 'Give replace => true to change how, or call pgq.release_table(table, queue) first.';
        end if;
        perform pgq.release_table(i_table, i_queue_name);
    end if;

    -- Never "or replace": an existing function may belong to another role, or be granted to it.
    select n.nspname, f.name into v_schema, v_name from pgq._capture_free_name(i_table, i_queue_name) f join pg_namespace n on n.oid = f.schema;
    execute 'create ' || pgq._capture_definition(v_schema, v_name, i_table, v_options);
    v_function := pg_catalog.format('%I.%I()', v_schema, v_name)::regprocedure;
    perform pgq._capture_give_function(v_function, i_table);
    perform pgq._capture_add_triggers(i_table, v_function, array(select jsonb_array_elements_text(v_options -> 'operations')), null);
    perform pgq.capture_new_partitions(i_table);
    perform pgq._capture_contract(v_function, true);
    return pg_catalog.format('%I.%I', v_schema, v_name);
end;
$$;

create or replace function pgq._capture_check_table(i_table regclass)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises unless the caller can capture the table.
declare
    r   pg_class;
begin
    select * into r from pg_class where oid = i_table;
    if r.oid is null then
        raise exception using errcode = 'PQ011', message = 'no table is given',
            hint = 'Write pgq.capture_table(''schema.table'', ''queue'').';
    elsif r.relkind not in ('r', 'p') or r.relnamespace = 'pg_catalog'::regnamespace then
        raise exception using errcode = 'PQ024',
            message = format('%s cannot be captured', i_table),
            hint = 'Only ordinary and partitioned tables have transition tables; capture the tables beneath a view.';
    elsif pg_get_userbyid(r.relowner) = 'pgq_owner' then
        raise exception using errcode = 'PQ024',
            message = format('%s cannot be captured: it belongs to the queues themselves', i_table),
            hint = 'Capture tables of your own.';
    elsif r.relispartition then
        raise exception using errcode = 'PQ024',
            message = format('%s is a partition', i_table),
            hint = format('Capture the table it belongs to: %s.', pg_partition_root(i_table)::regclass);
    elsif not pg_has_role(r.relowner, 'usage') then
        raise exception using errcode = 'insufficient_privilege',
            message = format('must be owner of table %s', i_table),
            hint = format('Call this as role %I or as a member of it.', pg_get_userbyid(r.relowner));
    elsif not pg_has_role(r.relowner, 'pgq_writer', 'usage') then
        raise exception using errcode = 'insufficient_privilege',
            message = format('%s belongs to role %I, which may not write to queues', i_table, pg_get_userbyid(r.relowner)),
            hint = format('grant pgq_writer to %I', pg_get_userbyid(r.relowner));
    elsif not has_schema_privilege(r.relowner, r.relnamespace, 'create')
          and not (select rolsuper from pg_roles where rolname = current_user)
    then
        raise exception using errcode = 'insufficient_privilege',
            message = format('%s belongs to role %I, which may not create the trigger function in schema %s',
                             i_table, pg_get_userbyid(r.relowner), r.relnamespace::regnamespace),
            hint = format('grant create on schema %s to %I', r.relnamespace::regnamespace, pg_get_userbyid(r.relowner));
    end if;
end;
$$;

create or replace function pgq._capture_free_name(i_table regclass, i_queue_name text, out schema oid, out name text)
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns a name for a new trigger function in the table's schema: made of table and queue, shortened so that the names
-- of the triggers fit too, and with a number if it is taken.
    select c.relnamespace, s.short
      from pg_class c,
           lateral (select c.relname || '_' || i_queue_name) w (wanted),
           generate_series(1, 10000) k,
           lateral (select case when octet_length(w.wanted) <= 48 then w.wanted
                                else left(w.wanted, 9) || '_' || left(md5(w.wanted), 10) end
                           || case when k > 1 then '_' || k else '' end) s (short)
     where c.oid = i_table
       and not exists (select from pg_proc p
                        where p.pronamespace = c.relnamespace and p.proname = s.short and p.pronargs = 0)
     order by k
     limit 1;
$$;

create or replace function pgq._capture_give_function(i_function oid, i_table regclass)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Gives a trigger function that the caller has just created to the owner of the table, and to no other role: on a table
-- of its own another role could make it run code with the owner's rights.
declare
    v_grantee   oid;
begin
    execute (select format('alter function %s owner to %I', i_function::regprocedure, pg_get_userbyid(c.relowner))
               from pg_class c where c.oid = i_table);
    for v_grantee in
        select a.grantee
          from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         where p.oid = i_function
           and a.grantee <> p.proowner
    loop
        execute format('revoke all on function %s from %s', i_function::regprocedure,
                       case v_grantee when 0 then 'public' else quote_ident(pg_get_userbyid(v_grantee)) end);
    end loop;
end;
$$;

create or replace function pgq.release_table(i_table regclass, i_queue_name text default null)
returns integer
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Ends the capture of a table and of its partitions. Call it as the owner of the table. Captured events stay in the
-- queue.
-- Parameters:
--      i_queue_name    - queue; null for all queues that it is captured into
-- Returns: number of captures ended.
-- Errors: PQ024 the table is not captured
declare
    v_functions oid[];
    t           record;
begin
    perform pg_advisory_xact_lock(pgq._lock_key('capture'), hashoid(i_table));  -- as in pgq.capture_table(11)
    select array_agg(c.capture_function)
      into v_functions
      from pgq.capture c
     where c.capture_table = i_table and (i_queue_name is null or c.capture_queue = i_queue_name);
    if v_functions is null then
        raise exception using errcode = 'PQ024',
            message = format('table %s is not captured%s', i_table, coalesce(format(' into queue %L', i_queue_name), '')),
            hint = 'pgq.capture_info() lists what is captured.';
    end if;

    -- Include detached partitions. Lock a table before its partitions, in the order of inserts. Tables of other owners
    -- may have triggers that only look like ours.
    for t in
        select g.tgname, g.tgrelid::regclass as relid
          from pg_trigger g
          join pg_class c on c.oid = g.tgrelid
         where g.tgfoid = any (v_functions)
           and (g.tgrelid = i_table or pg_has_role(c.relowner, 'usage'))
         order by (select count(*) from pg_partition_ancestors(g.tgrelid)), g.tgrelid
    loop
        execute format('drop trigger %I on %s', t.tgname, t.relid);
    end loop;
    perform pgq._capture_drop_unused(v_functions);
    return cardinality(v_functions);
end;
$$;
