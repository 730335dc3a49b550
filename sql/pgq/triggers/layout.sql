create or replace function pgq._row_columns(i_relation oid)
returns table (attnum int2, attname name, atttypid oid, by_operator boolean, plain boolean, is_domain boolean)
language sql stable
as $$
-- Returns a table's columns, and the properties of their types that the row triggers need.
-- Returns:
--      by_operator - whether two texts may stand for equal values, so that '=' has to decide whether the
--                    column has changed (1.5 and 1.50). False for types without an equality of their own,
--                    and for arrays, as in PgQ.
--      plain       - whether to_json writes it as jsontriga does: builtin types, but not those which become
--                    bare numbers with fractions, arrays, or JSON inside the JSON
--      is_domain   - whether the type is a domain
with recursive attribute as (
    select attnum, attname, atttypid, attcollation
      from pg_catalog.pg_attribute
     where attrelid = i_relation
       and attnum > 0
       and not attisdropped
), base as (
    select attnum, atttypid as typid
      from attribute
    union all
    select b.attnum, d.typbasetype
      from base b
      join pg_catalog.pg_type d on d.oid = b.typid
     where d.typtype = 'd'
)
select a.attnum, a.attname, a.atttypid,
       case
           when t.typcategory = 'A' or t.typtype = 'e' then false
           when t.oid = any (array['bool', 'bytea', '"char"', 'name', 'int8', 'int2', 'int4', 'oid', 'xid', 'xid8', 'tid',
                                   'pg_lsn', 'uuid', 'date', 'timestamp', 'timestamptz', 'time', 'timetz', 'macaddr',
                                   'macaddr8', 'bit', 'varbit', 'inet', 'cidr', 'money']::regtype[]) then false
           when t.oid = any (array['text', 'varchar']::regtype[]) then
               exists (select from pg_catalog.pg_collation c where c.oid = a.attcollation and not c.collisdeterministic)
           when t.typtype in ('c', 'r', 'm') then true
           else exists (
               select
                 from pg_catalog.pg_opclass o
                 join pg_catalog.pg_am m on m.oid = o.opcmethod
                where o.opcdefault
                  and m.amname in ('btree', 'hash')
                  and (o.opcintype = t.oid
                       or exists (select
                                    from pg_catalog.pg_cast
                                   where castsource = t.oid
                                     and casttarget = o.opcintype
                                     and castmethod = 'b'
                                     and castcontext = 'i')))
       end,
       a.atttypid < 16384 and t.typtype in ('b', 'r', 'm') and t.typcategory <> 'A'
           and a.atttypid <> all (array['float4', 'float8', 'numeric', 'json', 'jsonb']::regtype[]),
       b.typid <> a.atttypid
  from attribute a
  join base b on b.attnum = a.attnum
  join pg_catalog.pg_type t on t.oid = b.typid and t.typtype <> 'd'
 order by a.attnum;
$$;

create or replace function pgq._row_layout_build(i_relation oid, i_arguments text[])
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off
as $$
-- Determines what a row trigger needs to know about its table, and stores it in pgq.row_layout. It reads the catalog
-- and the arguments, but no row: it runs as the schema's owner and must not evaluate anything made by users. Any
-- producer can call it, for any table: then it stores nothing that the table's triggers would not.
declare
    v_magic     constant name[] := '{_pgq_ev_type,_pgq_ev_data,_pgq_ev_extra1,_pgq_ev_extra2,_pgq_ev_extra3,_pgq_ev_extra4}';
    a           record;
    l           pgq.row_layout;
    v_key       text[];
    v_plain     boolean;
    v_domains   boolean;
    v_count     int;
    v_width     int;
begin
    -- In one function: it fills the fields of one row, one after the other.
    a := pgq._row_arguments(i_arguments);
    -- Arrays with other bounds are other arrays: there may be any number of them.
    if array_ndims(i_arguments) <> 1 or array_lower(i_arguments, 1) <> 0
       or not exists (select from pg_trigger
                       where tgrelid = i_relation
                         and tgfoid = any (array['pgq.sqltriga()', 'pgq.logutriga()', 'pgq.jsontriga()']::regprocedure[])
                         and tgargs = (select string_agg(convert_to(g, getdatabaseencoding()) || decode('00', 'hex'), '' order by n)
                                         from unnest(i_arguments) with ordinality as u (g, n)))
    then
        return; -- the snapshot has no such trigger: the caller raises an error
    end if;
    l.relation := i_relation;
    l.arguments := i_arguments;
    l.skip := a.skip;
    l.backup := a.backup;
    l.deny := a.deny;
    l.has_ignore := a.has_ignore;

    -- the table; blank_text and shape are the results of row_to_json and record_send for a row full of nulls
    select coalesce(array_agg(attname), '{}'), coalesce(array_agg(atttypid), '{}'), coalesce(array_agg(by_operator), '{}'),
           coalesce(array_agg(starts_with(attname, '_pgq_ev_') or attname = any (a.ignored)), '{}'),
           coalesce(jsonb_object_agg(attname, null::text), '{}'),
           '{' || coalesce(string_agg(to_json(attname)::text || ':null', ','), '') || '}',
           int4send(count(*)::int) || coalesce(string_agg(oidsend(atttypid) || int4send(-1), ''), ''),
           coalesce(bool_and(plain), true), coalesce(bool_or(is_domain), false), count(*)
      into l.columns, l.types, l.by_operator, l.hidden, l.blank, l.blank_text, l.shape, v_plain, v_domains, v_count
      from pgq._row_columns(i_relation);
    if v_domains then
        l.blank := null;
    end if;
    v_width := case when v_count <= 16 then 16 when v_count <= 64 then 64 else v_count end;
    if v_count > 64 then
        l.values_query := (
            select 'select array['
                   || string_agg(format('case when pg_catalog.num_nulls(($1).%1$I) = 0 then pg_catalog.concat(($1).%1$I) end', c),
                                 ', ')
                   || ']'
              from unnest(l.columns) c);
    end if;

    -- the key
    if a.key_list is not null then
        v_key := a.key_list;
        l.keyless := a.key_list = '{""}';
    else
        select i.indexrelid, array(select k.attname::text from pg_attribute k where k.attrelid = i.indexrelid order by k.attnum)
          into l.key_index, v_key
          from pg_index i
         where i.indrelid = i_relation
           and i.indisprimary;
        v_key := coalesce(v_key, '{}');
        l.keyless := l.key_index is null;
    end if;
    l.has_pkey := a.key_list is not null;
    l.key_list := array_to_string(v_key, ',');
    l.key_json := '[' || coalesce((select string_agg(to_json(k)::text, ',') from unnest(v_key) k), '') || ']';
    l.key_columns := array(
        select c.position
          from unnest(l.columns) with ordinality as c (name, position)
         where c.name = any (select btrim(k, E' \t\r\n') from unnest(v_key) k)
           and not starts_with(c.name, '_pgq_ev_')
         order by c.position);

    -- In a BEFORE trigger the new row has null where a generated column will be; see pgq._row_event.
    l.has_generated := exists (
        select
          from pg_attribute
         where attrelid = i_relation
           and attgenerated = 's'
           and not attisdropped);

    -- replacements of the ordinary fields
    if exists (select from unnest(l.columns) c where starts_with(c, '_pgq_ev_')) then
        l.magic_columns := array(select array_position(l.columns, m) from unnest(v_magic) m);
        if exists (select from unnest(l.columns) c where starts_with(c, '_pgq_ev_') and c <> all (v_magic)) then
            raise exception using errcode = 'PQ020',
                message = format('unknown column %I in table %s: names that start with _pgq_ev_ are special',
                                 (select c from unnest(l.columns) c where starts_with(c, '_pgq_ev_') and c <> all (v_magic) limit 1),
                                 i_relation::regclass),
                hint = 'Such a column replaces a field of the event: ' || array_to_string(v_magic, ', ') || '.';
        end if;
    end if;
    l.queries := array(select pgq._bind_columns(e, l.columns) from unnest(a.expressions) e);
    l.special := l.deny or l.backup or l.has_ignore
                 or l.magic_columns is not null or num_nonnulls(variadic l.queries) > 0;

    -- Templates: for format(), with an argument for each column as a JSON string, then one for each as it is.
    l.json_plain := v_plain and not true = any (l.hidden) and not l.has_generated;
    select '{' || coalesce(string_agg(
               format('%s:%%%s$s', replace(to_json(c.name)::text, '%', '%%'),
                      case when c.type = any (array['int2', 'int4', 'int8', 'bool', 'date', 'timestamp', 'timestamptz']::regtype[])
                           then v_width else 0 end + c.position),
               ',' order by c.position), '') || '}',
           coalesce(array_agg(c.position order by c.position)
                    filter (where c.type = any (array['bool', 'date', 'timestamp', 'timestamptz']::regtype[])), '{}'),
           coalesce(string_agg(
               format('%s%%%s$s', replace(pgq._urlencode(c.name), '%', '%%'), c.position),
               '&' order by c.position), '')
      into l.json_template, l.json_convert, l.url_template
      from unnest(l.columns, l.types, l.hidden) with ordinality as c (name, type, hidden, position)
     where not c.hidden;

    -- A call that finds nothing new stores nothing: copies would slow the table's other triggers.
    l.made := (select max(made) from pgq.row_layout where relation = l.relation and arguments = l.arguments);
    if exists (select from pgq.row_layout r where r.relation = l.relation and r = l) then
        return;
    end if;
    l.made := nextval('pgq.row_layout_made');

    -- Remove layouts of this trigger that no longer fit, copies, and layouts of dropped tables, without waiting for
    -- other sessions. In a transaction with one snapshot, deleting a row that another session has deleted would be an
    -- error.
    if current_setting('transaction_isolation') = 'read committed' then
        delete from pgq.row_layout
         where ctid in (select r.ctid
                          from pgq.row_layout r
                         where (r.relation = l.relation and r.arguments = l.arguments)
                            or not exists (select from pg_class c where c.oid = r.relation)
                           for update skip locked);
    end if;
    insert into pgq.row_layout select l.*;
end;
$$;

create or replace function pgq._has_primary_key(i_relation oid)
returns boolean
language sql
as $$
-- Whether a table has got a primary key since its layout was made.
select exists (select from pg_catalog.pg_index where indrelid = i_relation and indisprimary);
$$;

create or replace function pgq._row_has_columns(i_relation oid, i_row anyelement, i_columns name[], i_types oid[])
returns boolean
language sql
as $$
-- Whether a table has exactly these columns and types, for tables with a domain, whose rows cannot be set to null to
-- compare their structure. Names come from the row, types from the catalog.
select i_columns = array(select k::name from pg_catalog.json_object_keys(pg_catalog.row_to_json(i_row)) k)
       and i_types = array(select c.atttypid
                             from pg_catalog.pg_attribute c
                            where c.attrelid = i_relation
                              and c.attnum > 0
                              and not c.attisdropped
                            order by c.attnum);
$$;
