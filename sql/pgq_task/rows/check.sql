create or replace function pgq_task._column_names(i_names jsonb)
returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
-- Returns the names of all five columns, with some of them given.
declare
    v_names constant jsonb := jsonb_object(array['status', 'next_attempt', 'attempts', 'last_attempt', 'last_error'],
                                           array['status', 'next_attempt', 'attempts', 'last_attempt', 'last_error']);
    v_all   jsonb;
    v_wrong text;
begin
    if jsonb_typeof(coalesce(i_names, '{}')) <> 'object' then
        perform pgq_task._raise_invalid('the names of columns are no JSON object', 'Give them as ''{"status": "mail_status"}''.');
    end if;
    v_all := v_names || coalesce(i_names, '{}');
    select k.key into v_wrong from jsonb_each(v_all) k where not v_names ? k.key;
    if v_wrong is not null then
        perform pgq_task._raise_invalid(format('there is no column %s to name', v_wrong),
                                        'They are status, next_attempt, attempts, last_attempt and last_error.');
    end if;
    select k.key into v_wrong from jsonb_each(v_all) k
     where jsonb_typeof(k.value) <> 'string' or octet_length(k.value #>> '{}') not between 1 and 63;
    if v_wrong is not null then
        perform pgq_task._raise_invalid(format('%s is no name for column %s', v_all -> v_wrong, v_wrong),
                                        'A name is a text of 1 to 63 bytes.');
    end if;
    if (select count(distinct k.value) < 5 from jsonb_each(v_all) k) then
        perform pgq_task._raise_invalid('two columns have the same name', 'Give each of the five a name of its own.');
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
    c   pg_class;
begin
    select * into c from pg_class where oid = i_table;
    if not found then
        perform pgq_task._raise_table('there is no such table', 'Give the name of a table.');
    elsif c.relkind not in ('r', 'p') then
        perform pgq_task._raise_table(format('%s is not a table', i_table), 'Only rows of tables can be locked and processed.');
    elsif c.relispartition then
        perform pgq_task._raise_table(
            format('%s is a partition', i_table), format('Give the whole table: %s.', pg_partition_root(i_table)));
    elsif c.relkind = 'r' and exists (select from pg_inherits where inhparent = i_table) then
        -- Rows of both may have the same key.
        perform pgq_task._raise_table(
            format('tables inherit from %s', i_table),
            'Add the columns to each of these by itself, or partition the table instead.');
    elsif not exists (select from pg_constraint where conrelid = i_table and contype = 'p') then
        perform pgq_task._raise_table(
            format('table %s has no primary key', i_table),
            format('Add one: alter table %s add column id bigint generated always as identity primary key.', i_table));
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
        perform pgq_task._raise_table(
            format('column %I of table %s is %s, not %s', a.name, i_table, a.type, a.wanted),
            'Give the column another name, as in ''{"status": "task_status"}''.');
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

create or replace function pgq_task._raise_table(i_message text, i_hint text)
returns void
language plpgsql
as $$
-- Raises PQ078: a table whose rows cannot be tasks.
begin
    raise exception using errcode = 'PQ078', message = i_message, hint = i_hint;
end;
$$;
