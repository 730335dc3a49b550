-- Whether a payload fits a schema. pgq._schema_keywords(0) says what is understood; anything else is an error in
-- pgq._schema_problems(3), and pgq._schema_errors(4) does not see it.

create or replace function pgq._schema_keywords()
returns jsonb
language sql immutable
as $$
-- Returns the keywords of JSON Schema 2020-12 that are understood, with the shape of their values: schema, schemas (an
-- array of them), map (an object of them), patterns (a map by patterns), note (does not decide anything), and others.
    select '{"type": "type", "properties": "map", "required": "names", "items": "schema", "additionalProperties": "schema",
             "enum": "array", "const": "any", "$ref": "ref", "$defs": "map", "patternProperties": "patterns",
             "propertyNames": "schema", "dependentRequired": "name map", "minProperties": "count", "maxProperties": "count",
             "prefixItems": "schemas", "contains": "schema", "minContains": "count", "maxContains": "count",
             "minItems": "count", "maxItems": "count", "uniqueItems": "boolean", "minimum": "number", "maximum": "number",
             "exclusiveMinimum": "number", "exclusiveMaximum": "number", "multipleOf": "positive", "minLength": "count",
             "maxLength": "count", "pattern": "pattern", "allOf": "schemas", "anyOf": "schemas", "oneOf": "schemas",
             "not": "schema", "if": "schema", "then": "schema", "else": "schema", "$schema": "dialect", "$id": "note at the top",
             "$comment": "note", "title": "note", "description": "note", "default": "note", "examples": "note",
             "deprecated": "note", "readOnly": "note", "writeOnly": "note", "format": "note", "contentEncoding": "note",
             "contentMediaType": "note", "contentSchema": "note"}'::jsonb;
$$;

create or replace function pgq._pointer(i_path text, i_name text)
returns text
language sql immutable
as $$
-- Returns the JSON pointer of a member.
    select i_path || '/' || pg_catalog.replace(pg_catalog.replace(i_name, '~', '~0'), '/', '~1');
$$;

create or replace function pgq._schema_at(i_root jsonb, i_ref text)
returns jsonb
language sql immutable
as $$
-- Returns the schema that a reference names: # or #/$defs/<name>.
    select case i_ref when '#' then i_root else i_root -> '$defs' -> pg_catalog.substr(i_ref, 9) end;
$$;

create or replace function pgq._is_endless(i_ref text, i_root jsonb)
returns boolean
language sql immutable
as $$
-- Returns whether a reference leads back to itself by keywords that apply to the same value.
    with recursive applied (s) as (
        select pgq._schema_at(i_root, i_ref)
        union
        select part.s
          from applied a
         cross join lateral (
               select a.s -> k from pg_catalog.unnest('{not,if,then,else}'::text[]) k
               union all
               select e from pg_catalog.unnest('{allOf,anyOf,oneOf}'::text[]) k, pg_catalog.jsonb_path_query(a.s -> k, '$[*]') e
               union all
               select pgq._schema_at(i_root, a.s ->> '$ref')) part (s)
         where pg_catalog.jsonb_typeof(part.s) = 'object')
    select coalesce(pg_catalog.bool_or(s ->> '$ref' = i_ref), false) from applied;
$$;

create or replace function pgq._schema_pattern(i_pattern text)
returns text
language plpgsql immutable
as $$
-- Returns a pattern (ECMA 262) as PostgreSQL writes it; null if it holds what the two understand differently. Without
-- back references and captures PostgreSQL matches it with a finite automaton, which never backtracks.
declare
    -- one token each: escape, class, group, other character, quantifier
    v_token     constant text := pg_catalog.replace(
        $re$(\\(?:[dDwWtnrfv]|SYMBOL)|\[\^?(?:[^][\\]|\\(?:[dwtnrfv]|SYMBOL))+\]|\(\?:|\((?!\?)|[^][\\(){}*+?]|\))$re$
        || $re$((?:[*+?]|\{[0-9]{1,2}(?:,(?:[0-9]{1,2})?)?\})\??)?$re$,
        -- No half of a surrogate pair: PostgreSQL would look for it alone.
        'SYMBOL', 'u(?:[0-9a-cefA-CEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}|[^a-zA-Z0-9[:space:]]');
    v_pattern   text;
begin
    if pg_catalog.length(i_pattern) > 1000 or i_pattern collate "C" !~ ('^(?:' || v_token || ')*$') then
        return null;
    end if;
    select coalesce(pg_catalog.string_agg(case t[1] when '.' then $re$[^\n\r\u2028\u2029]$re$ when '(' then '(?:'
                                                    when E'\\d' then '[0-9]' when E'\\D' then '[^0-9]'
                                                    when E'\\w' then '[0-9A-Z_a-z]' when E'\\W' then '[^0-9A-Z_a-z]'
                                                    else pg_catalog.regexp_replace(pg_catalog.regexp_replace(t[1],
                                                         $re$(?<!\\)((?:\\\\)*)\\d$re$, E'\\10-9', 'g'),
                                                         $re$(?<!\\)((?:\\\\)*)\\w$re$, E'\\10-9A-Z_a-z', 'g') end
                                          || coalesce(t[2], ''), ''), '')
      into v_pattern
      from pg_catalog.regexp_matches(i_pattern, v_token, 'g') t;
    perform '' ~ v_pattern collate "C";
    return v_pattern;
exception when invalid_regular_expression then
    return null;
end;
$$;

create or replace function pgq._shape_problem(i_shape text, i_value jsonb, i_root jsonb)
returns text
language plpgsql immutable
as $$
-- Returns why a value does not have the shape that its keyword needs, null if it has.
begin
    return case
        when i_shape in ('schemas', 'array', 'names') and pg_catalog.jsonb_typeof(i_value) <> 'array' then 'expected an array'
        when i_shape in ('map', 'patterns', 'name map') and pg_catalog.jsonb_typeof(i_value) <> 'object' then 'expected an object'
        when i_shape = 'schemas' and i_value = '[]' then 'expected at least one schema'
        when i_shape = 'boolean' and pg_catalog.jsonb_typeof(i_value) <> 'boolean' then 'expected true or false'
        when i_shape in ('number', 'positive', 'count') and pg_catalog.jsonb_typeof(i_value) <> 'number' then 'expected a number'
        when i_shape in ('pattern', 'ref', 'dialect') and pg_catalog.jsonb_typeof(i_value) <> 'string' then 'expected a string'
        when i_shape = 'positive' and i_value::numeric <= 0 then 'expected a number above 0'
        when i_shape = 'count' and (i_value::numeric < 0 or i_value::numeric <> pg_catalog.trunc(i_value::numeric)) then 'expected 0, 1, 2, ...'
        when i_shape = 'names' and pg_catalog.jsonb_path_exists(i_value, '$[*] ? (@.type() != "string")') then 'expected names'
        when i_shape = 'name map' and pg_catalog.jsonb_path_exists(i_value, 'strict $.* ? (@.type() != "array")') then 'expected arrays of names'
        when i_shape = 'ref' and pgq._schema_at(i_root, i_value #>> '{}') is null then pg_catalog.format('there is no %s', i_value #>> '{}')
        when i_shape = 'type' and (i_value = '[]' or exists (
            select from pg_catalog.jsonb_path_query(i_value, '$[*]') t
             where not '["null", "boolean", "object", "array", "number", "string", "integer"]' @> t))
            then 'expected null, boolean, object, array, number, integer or string'
    end;
end;
$$;

create or replace function pgq._schema_problems(
    i_schema jsonb, i_path text, i_root jsonb,
    out path text, out problem text, out is_invalid boolean)
returns setof record
language plpgsql immutable
as $$
-- Returns what keeps a schema from being checked by PostgreSQL.
-- Parameters:
--      i_path      - where the schema is in the root
-- Returns:
--      path        - where the keyword is
--      is_invalid  - true if it has a wrong value, false if the keyword or value is not understood here
declare
    k       text;
    v       jsonb;
    shape   text;
begin
    if pg_catalog.jsonb_typeof(i_schema) = 'boolean' and i_path <> '' then
        return;
    elsif pg_catalog.jsonb_typeof(i_schema) <> 'object' then
        return query select i_path, case i_path when '' then 'expected an object' else 'expected a schema: an object, true or false' end, true;
        return;
    end if;
    for k, v in select * from pg_catalog.jsonb_each(i_schema) loop
        shape := coalesce(pgq._schema_keywords() ->> k, case when k like 'x-%' then 'note' end);
        path := pgq._pointer(i_path, k);
        is_invalid := false;
        problem := case
            when shape is null then 'the keyword ' || k || ' is not understood'
            when shape in ('note', 'any', 'schema') then null
            when shape = 'note at the top' then case when i_path <> '' then 'a schema inside must not have ' || k end
            when shape = 'dialect' then case when pg_catalog.rtrim(v #>> '{}', '#') <> 'https://json-schema.org/draft/2020-12/schema'
                then 'expected https://json-schema.org/draft/2020-12/schema' end
            when shape = 'ref' then case when v #>> '{}' <> '#'
                and (not pg_catalog.starts_with(v #>> '{}', '#/$defs/') or v #>> '{}' ~ '[~%]' or v #>> '{}' like '#/$defs/%/%')
                then 'only # and #/$defs/NAME are understood' end
        end;
        if problem is null then
            is_invalid := true;
            problem := pgq._shape_problem(shape, v, i_root);
        end if;
        if problem is null and shape in ('pattern', 'patterns') then
            select pg_catalog.concat('the pattern ', p, ' is not understood'), false into problem, is_invalid
              from pg_catalog.jsonb_path_query(case shape when 'patterns' then (select pg_catalog.jsonb_agg(n) from pg_catalog.jsonb_object_keys(v) n) else v end, '$[*]') p
             where pgq._schema_pattern(p #>> '{}') is null
             limit 1;
        end if;
        if problem is null and shape = 'ref' and pgq._is_endless(v #>> '{}', i_root) then
            problem := 'the reference leads back to itself, and never to a part of the payload';
        end if;
        if problem is not null then
            return next;
        elsif shape in ('schema', 'schemas', 'map', 'patterns') then
            return query
            select p.*
              from (select v as s, path as at where shape = 'schema'
                    union all
                    select e, path || '/' || nr - 1 from pg_catalog.jsonb_array_elements(case shape when 'schemas' then v end) with ordinality u (e, nr)
                    union all
                    select m.value, pgq._pointer(path, m.key) from pg_catalog.jsonb_each(case when shape in ('map', 'patterns') then v end) m) inside
             cross join pgq._schema_problems(inside.s, inside.at, i_root) p;
        end if;
    end loop;
end;
$$;

create or replace function pgq._schema_errors(
    i_schema jsonb, i_data jsonb, i_path text, i_root jsonb,
    out path text, out error text)
returns setof record
language plpgsql immutable
as $$
-- Returns where a value does not fit a schema, and what was expected there.
-- Parameters:
--      i_path      - where the value is in the payload
--      i_root      - the whole schema, for its references
declare
    s           constant jsonb := i_schema;
    kind        constant text := pg_catalog.jsonb_typeof(i_data);
    is_object   constant boolean := kind = 'object';
    is_array    constant boolean := kind = 'array';
    n           constant numeric := case kind when 'number' then i_data::numeric end;
    t           constant text := case kind when 'string' then i_data #>> '{}' end;
    size        constant int4 := case kind when 'array' then pg_catalog.jsonb_array_length(i_data)
                                      when 'string' then pg_catalog.length(t) end;
    k           text;
    v           jsonb;
    m           record;
    found_n     int8;
begin
    -- In one function: it is called for each value, and the keywords of a schema look at each other.
    if s = 'true' then
        return;
    elsif s = 'false' then
        return query select i_path, 'nothing is expected here';
        return;
    end if;
    for k, v in select * from pg_catalog.jsonb_each(s) loop
        path := i_path;
        error := null;
        -- what applies to any value
        if k = 'type' then
            if not (v ? kind or kind = 'number' and v ? 'integer' and n = pg_catalog.trunc(n)) then
                error := pg_catalog.format('expected %s, found %s',
                    (select pg_catalog.string_agg(e, ' or ') from pg_catalog.jsonb_path_query(v, '$[*]') q, lateral (select q #>> '{}' as e) x), kind);
            end if;
        elsif k = 'enum' then
            error := case when not exists (select from pg_catalog.jsonb_array_elements(v) e where e = i_data) then pg_catalog.concat('expected one of ', v) end;
        elsif k = 'const' then
            error := case when v <> i_data then pg_catalog.concat('expected ', v) end;
        elsif k = '$ref' then
            -- A schema that leads to itself in two ways could double the time with each level of the payload.
            if pg_catalog.set_config('pgq.references_left', (nullif(pg_catalog.current_setting('pgq.references_left', true), '')::int8 - 1)::text,
                                     true) = '0' then
                raise exception using errcode = 'program_limit_exceeded', message = 'the schema''s references lead to too many checks';
            end if;
            return query select * from pgq._schema_errors(pgq._schema_at(i_root, v #>> '{}'), i_data, i_path, i_root);
        elsif k = 'allOf' then
            return query select f.* from pg_catalog.jsonb_array_elements(v) e, pgq._schema_errors(e, i_data, i_path, i_root) f;
        elsif k in ('anyOf', 'oneOf') then
            select pg_catalog.count(*) into found_n
              from pg_catalog.jsonb_array_elements(v) e
             where not exists (select from pgq._schema_errors(e, i_data, i_path, i_root));
            error := case when found_n = 0 then 'expected what one of the schemas in ' || k || ' describes'
                          when found_n > 1 and k = 'oneOf' then 'expected what exactly one of the schemas in oneOf describes, but ' || found_n || ' do' end;
        elsif k = 'not' then
            error := case when not exists (select from pgq._schema_errors(v, i_data, i_path, i_root)) then 'expected what "not" does not describe' end;
        elsif k = 'if' then
            k := case when exists (select from pgq._schema_errors(v, i_data, i_path, i_root)) then 'else' else 'then' end;
            return query select * from pgq._schema_errors(coalesce(s -> k, 'true'), i_data, i_path, i_root);
        elsif is_object then
            if k = 'properties' then
                return query
                select f.*
                  from pg_catalog.jsonb_each(v) p, pgq._schema_errors(p.value, i_data -> p.key, pgq._pointer(i_path, p.key), i_root) f
                 where i_data ? p.key;
            elsif k = 'required' then
                return query
                select i_path, pg_catalog.format('expected property %s', e) from pg_catalog.jsonb_array_elements(v) e where not i_data ? (e #>> '{}');
            elsif k = 'additionalProperties' then
                for m in
                    select d.key, d.value
                      from pg_catalog.jsonb_each(i_data) d
                     where not coalesce(s -> 'properties' ? d.key, false)
                       and not exists (select from pg_catalog.jsonb_object_keys(s -> 'patternProperties') p
                                        where d.key ~ pgq._schema_pattern(p) collate "C")
                loop
                    if v = 'false' then
                        return query select i_path, pg_catalog.format('expected no property %s', pg_catalog.to_json(m.key));
                    else
                        return query select * from pgq._schema_errors(v, m.value, pgq._pointer(i_path, m.key), i_root);
                    end if;
                end loop;
            elsif k = 'patternProperties' then
                return query
                select f.*
                  from pg_catalog.jsonb_each(i_data) d
                  join pg_catalog.jsonb_each(v) p on d.key ~ pgq._schema_pattern(p.key) collate "C"
                 cross join pgq._schema_errors(p.value, d.value, pgq._pointer(i_path, d.key), i_root) f;
            elsif k = 'propertyNames' then
                return query
                select i_path, pg_catalog.format('property name %s: %s', pg_catalog.to_json(d), f.error)
                  from pg_catalog.jsonb_object_keys(i_data) d, pgq._schema_errors(v, pg_catalog.to_jsonb(d), i_path, i_root) f;
            elsif k = 'dependentRequired' then
                return query
                select i_path, pg_catalog.format('expected property %s, which %s needs', e, pg_catalog.to_json(p.key))
                  from pg_catalog.jsonb_each(v) p, pg_catalog.jsonb_array_elements(p.value) e
                 where i_data ? p.key and not i_data ? (e #>> '{}');
            elsif k in ('minProperties', 'maxProperties') then
                found_n := (select pg_catalog.count(*) from pg_catalog.jsonb_object_keys(i_data));
                error := case when k = 'minProperties' and found_n < v::numeric then pg_catalog.format('expected at least %s properties, found %s', v, found_n)
                              when k = 'maxProperties' and found_n > v::numeric then pg_catalog.format('expected at most %s properties, found %s', v, found_n) end;
            end if;
        elsif is_array then
            if k in ('items', 'prefixItems') then
                return query
                select f.*
                  from pg_catalog.jsonb_array_elements(i_data) with ordinality d (e, nr),
                       pgq._schema_errors(case k when 'items' then v else v -> (nr - 1)::int4 end, d.e, i_path || '/' || d.nr - 1, i_root) f
                 where case k when 'items' then d.nr > coalesce(pg_catalog.jsonb_array_length(s -> 'prefixItems'), 0)
                              else d.nr <= pg_catalog.jsonb_array_length(v) end;
            elsif k = 'contains' then
                found_n := (select pg_catalog.count(*) from pg_catalog.jsonb_array_elements(i_data) e
                             where not exists (select from pgq._schema_errors(v, e, i_path, i_root)));
                error := case when found_n < coalesce((s -> 'minContains')::numeric, 1)
                                then pg_catalog.format('expected at least %s items that "contains" describes, found %s', coalesce(s -> 'minContains', '1'), found_n)
                              when found_n > (s -> 'maxContains')::numeric
                                then pg_catalog.format('expected at most %s items that "contains" describes, found %s', s -> 'maxContains', found_n) end;
            elsif k = 'uniqueItems' then
                error := case when v = 'true' and size > (select pg_catalog.count(distinct e) from pg_catalog.jsonb_array_elements(i_data) e)
                                then 'expected items that differ' end;
            elsif k in ('minItems', 'maxItems') then
                error := case when k = 'minItems' and size < v::numeric then pg_catalog.format('expected at least %s items, found %s', v, size)
                              when k = 'maxItems' and size > v::numeric then pg_catalog.format('expected at most %s items, found %s', v, size) end;
            end if;
        elsif n is not null then
            error := case when k = 'minimum' and n < v::numeric then pg_catalog.concat('expected at least ', v)
                          when k = 'maximum' and n > v::numeric then pg_catalog.concat('expected at most ', v)
                          when k = 'exclusiveMinimum' and n <= v::numeric then pg_catalog.concat('expected more than ', v)
                          when k = 'exclusiveMaximum' and n >= v::numeric then pg_catalog.concat('expected less than ', v)
                          when k = 'multipleOf' and n % v::numeric <> 0 then pg_catalog.concat('expected a multiple of ', v) end || ', found ' || n;
        elsif t is not null then
            error := case when k = 'minLength' and size < v::numeric then pg_catalog.format('expected at least %s characters, found %s', v, size)
                          when k = 'maxLength' and size > v::numeric then pg_catalog.format('expected at most %s characters, found %s', v, size)
                          when k = 'pattern' and (t ~ pgq._schema_pattern(v #>> '{}') collate "C") is not true then pg_catalog.concat('expected text that matches ', v) end;
        end if;
        if error is not null then
            return next;
        end if;
    end loop;
end;
$$;

create or replace function pgq._limit_references(i_size int4)
returns text
language sql
as $$
-- Limits how many references pgq._schema_errors(4) follows, until the end of the calling function with settings.
    select pg_catalog.set_config('pgq.references_left', (1000 + 10 * i_size::int8)::text, true);
$$;

create or replace function pgq.contract_errors(schema jsonb, data jsonb, out path text, out error text)
returns setof record
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
-- Returns where a payload does not fit a schema; no row if it does.
-- Parameters:
--      schema  - JSON Schema, draft 2020-12
--      data    - the payload
-- Returns:
--      path    - JSON pointer into the payload, such as /order/lines/3/price; empty for the whole
--      error   - what is expected there
-- Errors: PQ056 not a schema, or one that PostgreSQL cannot check
begin
    perform pgq._require_schema(schema, true);
    if data is null then
        return query select '', 'expected JSON, found NULL';
        return;
    end if;
    perform pgq._limit_references(octet_length(data::text));
    return query select * from pgq._schema_errors(schema, data, '', schema);
end;
$$;

create or replace function pgq._require_schema(i_schema jsonb, i_is_checked boolean)
returns void
language plpgsql
as $$
-- Raises PQ056 for what is no schema.
-- Parameters:
--      i_is_checked    - true if PostgreSQL will check payloads: then also for a schema that it does not understand
declare
    p   record;
begin
    select * into p from pgq._schema_problems(coalesce(i_schema, 'null'), '', i_schema) f where f.is_invalid or i_is_checked order by f.is_invalid desc limit 1;
    if found then
        raise exception using errcode = 'PQ056',
            message = pg_catalog.format('%s: at %s: %s', case when p.is_invalid then 'not a JSON Schema' else 'PostgreSQL cannot check this JSON Schema' end,
                                        coalesce(nullif(p.path, ''), 'the top'), p.problem),
            hint = case when p.is_invalid then 'Give a JSON Schema, draft 2020-12, as an object.'
                        else 'Write it with the keywords that docs/contracts.md lists; or set enforced to false: Python checks all of JSON Schema.' end;
    end if;
end;
$$;
