-- The key of a group: an expression over the columns of an event. It is evaluated by each session that reads a batch,
-- so it must be harmless and always give the same result. It may fail for an event, which then has no key.
--
-- Its author may not be the owner of this schema, but the checks here evaluate parts of it as the owner: functions
-- during planning, and literals even during parsing. So nothing is parsed before it is clear that every name in it is
-- one of PostgreSQL's own.

create or replace function pgq.event_pkey(i_ev_type text, i_ev_data text)
returns text
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
-- Returns the primary key of the row in a captured change, for use as the key of a consumer group.
-- Parameters:
--      i_ev_type, i_ev_data    - type and data of an event from pgq.capture_table(), jsontriga or logutriga
-- Returns: a text that is the same for all changes of a row; null if the event names no key.
declare
    kind    jsonb;
    res     text;
begin
    if left(i_ev_type, 1) = '{' then
        kind := i_ev_type::jsonb;
        select jsonb_agg(i_ev_data::jsonb -> col order by nr) into res
          from jsonb_array_elements_text(kind -> 'pkey') with ordinality k (col, nr);
        return (kind ->> 'table') || res;
    elsif i_ev_type ~ '^[IUD]:.' then
        select string_agg(pair, '&' order by nr) into res
          from unnest(string_to_array(i_ev_data, '&')) with ordinality p (pair, nr)
         where split_part(pair, '=', 1) = any (string_to_array(substr(i_ev_type, 3), ','));
        return res;
    end if;
    return null;
end;
$$;

create or replace function pgq._check_group_key(i_key text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Refuses text that cannot be the key of a group: it must be one immutable expression over columns of the event, and
-- use no object made by a user.
declare
    tokens          constant text[] := pgq._expression_tokens(i_key);
    names           text[];
    foreign_object  text;
begin
    if tokens is null then
        raise exception 'it is no plain expression';
    end if;
    -- Names as PostgreSQL folds and truncates them; a token of another kind is not a name.
    names := array(select case when t like '"%' then replace(substr(t, 2, length(t) - 2), '""', '"') else lower(t collate "C") end::name
                     from unnest(tokens) with ordinality k (t, nr)
                    order by nr);
    -- A name without a schema means an object of pg_catalog or a temporary type: functions and operators are never
    -- looked up in pg_temp.
    select names[nr - 1] || '.' || names[nr + 1] into foreign_object
      from unnest(tokens) with ordinality k (t, nr)
     where t = '.'
       and (names[nr - 1] = 'pg_catalog' or names[nr - 1] = 'pgq' and names[nr + 1] = 'event_pkey'
            and tokens[nr + 2] = '(') is not true
     limit 1;
    if foreign_object is null then
        select 'type ' || oid::regtype into foreign_object
          from pg_type
         where typnamespace = pg_my_temp_schema()
           and typname = any (names)
         limit 1;
    end if;
    if foreign_object is null then
        -- Let PostgreSQL decide what is immutable. The index does not stay.
        execute format('create index group_key_check_idx on pgq.group_key_check (((%s)::text))', i_key);
        select pg_describe_object(refclassid, refobjid, refobjsubid) into foreign_object
          from pg_depend
         where classid = 'pg_class'::regclass
           and objid = 'pgq.group_key_check_idx'::regclass
           and refobjid not in ('pgq.group_key_check'::regclass, 'pgq.event_pkey(text, text)'::regprocedure)
         limit 1;
    end if;
    if foreign_object is not null then
        raise exception 'it uses %', foreign_object;
    end if;
    -- (A code that ends in 000 would stand for its whole class.)
    raise exception using errcode = 'PQZZZ', message = 'all is well';
exception
    when sqlstate 'PQZZZ' then
        return;
    when others then
        raise exception using errcode = 'PQ011',
            message = format('not a key of events: %s', coalesce(quote_literal(i_key), 'NULL')),
            detail = sqlerrm,
            hint = 'Give one immutable expression over ev_type, ev_data and ev_extra1 to ev_extra4, with functions of '
                   'PostgreSQL only, as in: ev_extra1, or ev_data::jsonb ->> ''customer''; or pkey, the primary key of '
                   'captured rows.';
end;
$$;

create or replace function pgq._make_group_key(i_group_id int4, i_key text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the functions for a group's key, if the key is not just a column.
-- Returns: the key as SQL over the columns of the batch query, never null.
declare
    parameters  constant text := 'ev_id int8, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text';
    arguments   constant text := 'ev_id, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4';
    f           text;
begin
    if i_key ~ '^ev_(type|data|extra[1-4])$' then
        return format('coalesce(%s, ev_id::pg_catalog.text)', i_key);
    end if;
    perform pgq._check_group_key(i_key);
    -- The first binds names to their meaning here. The second lets no event stop the group.
    execute format('create function pgq._group_key_%s_expression(%s) returns text language sql immutable parallel safe '
                   'return (%s)::text', i_group_id, parameters, i_key);
    execute format($sql$create function pgq._group_key_%1$s(%2$s) returns text language plpgsql immutable parallel safe as $f$
begin
    return coalesce(pgq._group_key_%1$s_expression(%3$s), ev_id::pg_catalog.text);
exception when others then
    return ev_id::pg_catalog.text;
end;
$f$ $sql$, i_group_id, parameters, arguments);
    foreach f in array array['pgq._group_key_' || i_group_id || '_expression', 'pgq._group_key_' || i_group_id] loop
        execute format('revoke execute on function %s from public', f);
        execute format('grant execute on function %s to pgq_reader', f);
    end loop;
    return format('pgq._group_key_%s(%s)', i_group_id, arguments);
end;
$$;
