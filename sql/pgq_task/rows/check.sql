create or replace function pgq_task._column_names(i_names jsonb)
returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the names of all five columns, with some of them given.
declare
    v_names constant jsonb := '{"status": "status", "next_attempt": "next_attempt", "attempts": "attempts",
                                "last_attempt": "last_attempt", "last_error": "last_error"}';
    v_all   constant jsonb := v_names || coalesce(i_names, '{}');
    v_wrong text := 'the names of columns are no JSON object';
begin
    if jsonb_typeof(v_all) = 'object' then
        select min(p.problem) into v_wrong
          from (select key, value, count(*) over (partition by value) as times from jsonb_each(v_all)) k
         cross join lateral (select case
               when not v_names ? k.key then format('there is no column %s to name', k.key)
               when jsonb_typeof(k.value) <> 'string' or octet_length(k.value #>> '{}') not between 1 and 63
                   then format('%s is no name for column %s', k.value, k.key)
               when k.times > 1 then 'two columns have the same name' end as problem) p;
    end if;
    if v_wrong is not null then
        perform pgq_task._raise_invalid(v_wrong, 'Give status, next_attempt, attempts, last_attempt and last_error different names '
                                                 'of 1 to 63 bytes, as in ''{"status": "mail_status"}''.');
    end if;
    return v_all;
end;
$$;

create or replace function pgq_task._require_key(i_table regclass)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ078 for a relation that is not a table, is a partition, has children, or has no primary key.
declare
    c       pg_class;
    v_wrong text[];
begin
    select * into c from pg_class where oid = i_table;
    v_wrong := case
        when c.oid is null then array['there is no such table', 'Give the name of a table.']
        when c.relkind not in ('r', 'p') then array[format('%s is not a table', i_table), 'Only rows of tables can be locked and processed.']
        when c.relispartition then array[format('%s is a partition', i_table), format('Give the whole table: %s.', pg_partition_root(i_table))]
        -- Rows of both may have the same key.
        when c.relkind = 'r' and exists (select from pg_inherits where inhparent = i_table)
            then array[format('tables inherit from %s', i_table),
                       'Add the columns to each of these by itself, or partition the table instead.']
        when not exists (select from pg_constraint where conrelid = i_table and contype = 'p')
            then array[format('table %s has no primary key', i_table),
                       format('Add one: alter table %s add column id bigint generated always as identity primary key.', i_table)] end;
    if v_wrong is not null then
        perform pgq_task._raise_invalid(v_wrong[1], v_wrong[2], 'PQ078');
    end if;
end;
$$;

create or replace function pgq_task._require_types(i_table regclass, i_names jsonb)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Raises PQ078 if a column of one of these names has an unsuitable type.
declare
    a   record;
begin
    select n.value as name, format_type(c.atttypid, c.atttypmod) as type,
           case n.key when 'status' then 'text' when 'last_error' then 'text' when 'attempts' then 'integer'
                      else 'timestamp with time zone' end as wanted
      into a
      from jsonb_each_text(i_names) n
      join pg_attribute c on c.attrelid = i_table and c.attname = n.value and not c.attisdropped
     where c.attgenerated <> ''
        or not case n.key
               when 'status' then c.atttypid in ('text'::regtype, 'varchar'::regtype) and (c.atttypmod = -1 or c.atttypmod >= 13)
               when 'last_error' then c.atttypid in ('text'::regtype, 'varchar'::regtype) and c.atttypmod = -1
               when 'attempts' then c.atttypid in ('int4'::regtype, 'int8'::regtype)
               else c.atttypid = 'timestamptz'::regtype end
     limit 1;
    if found then
        perform pgq_task._raise_invalid(format('column %I of table %s is %s, not %s', a.name, i_table, a.type, a.wanted),
                                        'Give the column another name, as in ''{"status": "task_status"}''.', 'PQ078');
    end if;
end;
$$;

create or replace function pgq_task._has_index(i_table regclass, i_column text)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a table has an index that begins with a column.
    select exists (
        select from pg_index i
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
         where i.indrelid = i_table and a.attname = i_column and i.indisvalid
           and (i.indpred is null or pg_get_expr(i.indpred, i.indrelid) = format('(%I IS NOT NULL)', i_column)));
$$;
