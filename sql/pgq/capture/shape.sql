create or replace function pgq._capture_names(i_table oid, i_list jsonb, i_table_then oid)
returns table (attnum int2, attname text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the columns that an option lists, under their present names. The number of a column survives renaming, its
-- name survives dump and restore.
-- Parameters:
--      i_list          - [{"name": ..., "number": ...}, ...]
--      i_table_then    - the table's oid when the list was made
-- Returns: one row per column, in the order of the list, without dropped columns.
declare
    entry   jsonb;
begin
    for entry in select e.value from jsonb_array_elements(i_list) with ordinality as e (value, n) order by e.n
    loop
        select a.attnum, a.attname::text into _capture_names.attnum, _capture_names.attname
          from pg_attribute a
         where a.attrelid = i_table and not a.attisdropped
           and case when i_table = i_table_then then a.attnum = (entry ->> 'number')::int2
                    else a.attname = entry ->> 'name' end;
        if found then
            return next;
        elsif i_table <> i_table_then then
            raise exception using errcode = 'PQ024',
                message = format('column %I of captured table %s does not exist', entry ->> 'name', i_table::regclass),
                hint = 'Name the columns again: pgq.capture_table(table, queue, ..., replace => true).';
        end if;
    end loop;
end;
$$;

create or replace function pgq._capture_options_renamed(i_table oid, i_options jsonb)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the options with the present names and numbers of all columns.
    select i_options || jsonb_build_object('table_oid', i_table::int8)
           || coalesce(jsonb_object_agg(l.option, l.columns), '{}')
      from (select o.option,
                   (select coalesce(jsonb_agg(jsonb_build_object('name', n.attname, 'number', n.attnum)), '[]')
                      from pgq._capture_names(i_table, i_options -> o.option, (i_options ->> 'table_oid')::oid) n) as columns
              from unnest(array['columns', 'exclude', 'key']) as o (option)
             where i_options ? o.option) l;
$$;

create or replace function pgq._capture_shape(i_table oid, i_options jsonb)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off
as $$
-- Returns all that a generated trigger function knows about its table. If this changes, the function is out of date.
-- Returns:
--      schema, table   - names
--      key             - names of the key's columns
--      columns         - [{name, type, modifier, not_null, expression}, ...] (expression: for a column that is
--                        computed when read)
--      whole_row       - whether the row can be taken as it is
--      key_in_arrays   - whether array_agg() accepts the key's columns, which it does not if they are arrays themselves
--      key_by_bytes    - whether equal keys have the same bytes, so that the faster operator can compare them
--      plain           - whether only the server's own code writes a row as text, and the same on any search_path
--      relation        - the queue's relation
declare
    then_oid    oid := (i_options ->> 'table_oid')::oid;
    listed      int2[];
    key_columns jsonb := '[]';
    key_column  text;
    columns     jsonb;
    names       text[];
begin
    -- In one function: it fills the fields of one value.
    if not exists (select from pg_class where oid = i_table) then
        raise exception using errcode = 'serialization_failure',
            message = format('captured table %s was created since this transaction took its snapshot', i_table::regclass),
            hint = 'Roll back and run the transaction again; in READ COMMITTED this does not happen.';
    end if;
    if i_options ? 'key' then
        select coalesce(jsonb_agg(k.attname), '[]')
          into key_columns
          from pgq._capture_names(i_table, i_options -> 'key', then_oid) k;
    else
        -- The server's present names, which a query of the catalog under an old snapshot would miss.
        for key_column in
            select (parse_ident(pg_get_indexdef(i.indexrelid, k.n, false)))[1]
              from pg_index i, generate_series(1, i.indnkeyatts) as k (n)
             where i.indrelid = i_table and i.indisprimary
             order by k.n
        loop
            if key_column is null then
                raise exception using errcode = 'serialization_failure',
                    message = format('the primary key of captured table %s has changed since this transaction '
                                     'took its snapshot', i_table::regclass),
                    hint = 'Roll back and run the transaction again; in READ COMMITTED this does not happen.';
            end if;
            key_columns := key_columns || to_jsonb(key_column);
        end loop;
    end if;

    if i_options ?| array['columns', 'exclude'] then
        select array_agg(n.attnum)
          into listed
          from pgq._capture_names(i_table, coalesce(i_options -> 'columns', i_options -> 'exclude'), then_oid) n;
    end if;

    -- A row in a transition table holds null for virtual generated columns (PostgreSQL 18), so they have
    -- to be computed. The catalog column attgenerated = 'v' simply does not occur on older versions.
    select jsonb_agg(
               jsonb_build_object(
                   'name', a.attname,
                   'type', a.atttypid::regtype,
                   'modifier', a.atttypmod,
                   'not_null', a.attnotnull,
                   'expression', case when a.attgenerated = 'v' then pg_get_expr(d.adbin, d.adrelid) end)
               order by a.attnum)
      into columns
      from pg_attribute a
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = 'v'
     where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped
       and (not i_options ? 'columns' or a.attnum = any (listed) or key_columns ? a.attname)
       and (not i_options ? 'exclude' or a.attnum <> all (coalesce(listed, '{}')));

    -- The same goes for the names of schema and table. Temporary tables come without their schema.
    names := parse_ident(i_table::regclass::text);
    if cardinality(names) = 1 then
        names := array[(select relnamespace::regnamespace::text from pg_class where oid = i_table), names[1]];
    end if;
    return jsonb_build_object(
        'schema', names[1], 'table', names[2], 'key', key_columns, 'columns', columns,
        'whole_row', i_options ->> 'format' = 'row_json' and not i_options ?| array['columns', 'exclude']
                     and not jsonb_path_exists(coalesce(columns, '[]'), '$[*].expression ? (@ != null)'),
        'key_in_arrays', not exists (
            select from pg_attribute a join pg_type t on t.oid = a.atttypid
             where a.attrelid = i_table and key_columns ? a.attname and t.typcategory = 'A'),
        'key_by_bytes', not exists (
            select
              from pg_attribute a
              left join pg_collation c on c.oid = a.attcollation
             where a.attrelid = i_table and a.attnum > 0 and key_columns ? a.attname
               and not (a.atttypid = any ('{bool,int2,int4,int8,oid,uuid,date,timestamp,timestamptz,text,varchar}'::regtype[])
                        and coalesce(c.collisdeterministic, true))),
        -- Types of users may have casts to json, names of relations appear with or without a schema, and urlencoding is
        -- not in C.
        'plain', not i_options ? 'condition' and i_options ->> 'format' <> 'logutriga' and not exists (
            select
              from pg_attribute a
              join pg_type t on t.oid = a.atttypid
              join pg_type e on e.oid = case when t.typcategory = 'A' then t.typelem else t.oid end
             where a.attrelid = i_table and a.attnum > 0 and not a.attisdropped
               and (e.oid >= 16384 or e.typtype not in ('b', 'r', 'm') or e.typname like 'reg%' or a.attgenerated = 'v')),
        'relation', (select pgq.queue_relation(q.queue_name) from pgq.queue q where q.queue_name = i_options ->> 'queue'));
end;
$$;

create or replace function pgq._capture_may_run(i_table oid, i_shape jsonb)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether the caller, the owner of a generated trigger function, may write a table's rows as text. Types, casts
-- and expressions of users in the rows run as that role. The owner of the table has chosen them, and after ALTER TABLE
-- ... OWNER that is another role, whose code must not run so.
    select (i_shape -> 'plain')::boolean
        or exists (select from pg_class c where c.oid = i_table and pg_has_role(c.relowner, current_user, 'member'));
$$;

create or replace function pgq._capture_is_fresh(i_table regclass, i_options jsonb, i_fingerprint text)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a generated trigger function fits its table. It is declared immutable though it reads the catalog, so
-- that the planner makes it a constant: then the check costs nothing. It is computed again with every new plan, and
-- that is after every ALTER of the table, because a constant of type regclass makes the plan depend on the table. Only
-- for READ COMMITTED: otherwise the transaction's snapshot may be older than the table's shape, and the answer would
-- stay.
-- Parameters:
--      i_table         - the table when the function was generated
--      i_options       - its options then
--      i_fingerprint   - md5 of pgq._capture_shape(2) then
declare
    v_shape constant jsonb := pgq._capture_shape(i_table, i_options);
begin
    return md5(v_shape::text) = i_fingerprint and pgq._capture_may_run(i_table, v_shape);
end;
$$;

create or replace function pgq._capture_is_fresh_now(i_table oid, i_options jsonb, i_fingerprint text)
returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a generated trigger function fits its table, looked up on each call: for any isolation level, and for
-- partitions.
-- Parameters:
--      i_table         - the captured table
declare
    v_shape constant jsonb := pgq._capture_shape(i_table, i_options);
    v_owner constant text := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = i_table);
begin
    if not pgq._capture_may_run(i_table, v_shape) then
        raise exception using errcode = 'insufficient_privilege',
            message = format('table %s belongs to %I now, but is captured with the rights of %I', i_table::regclass, v_owner, current_user),
            hint = format('As %I: select pgq.capture_table(%L, %L, ..., replace => true), or pgq.release_table(%2$L).',
                          v_owner, i_table::regclass, i_options ->> 'queue');
    end if;
    if v_shape ->> 'relation' is null then
        perform pgq._raise_queue_not_found(i_options ->> 'queue');
    end if;
    return (i_options ->> 'table_oid')::oid = i_table and md5(v_shape::text) = i_fingerprint;
end;
$$;
