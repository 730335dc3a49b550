-- Whether one schema accepts every payload that another one accepts. The rules are safe: what cannot be judged counts as
-- a problem, and never the other way round.
--
-- The old schema is given as an array of schemas that all hold (allOf): each keyword of the new one has to follow from
-- one of them, and leaving one out can only add problems.

create or replace function pgq._schema_parts(i_schemas jsonb, i_root jsonb)
returns jsonb
language sql immutable
as $$
-- Returns schemas that all hold, with their allOf and references resolved.
    with recursive part (s) as (
        select e from pg_catalog.jsonb_array_elements(i_schemas) e
        union
        select inside.s
          from part
         cross join lateral (
               select pgq._schema_at(i_root, part.s ->> '$ref') where part.s ? '$ref'
               union all
               select e from pg_catalog.jsonb_array_elements(part.s -> 'allOf') e) inside (s))
    select coalesce(pg_catalog.jsonb_agg(case pg_catalog.jsonb_typeof(s) when 'object' then s - '{$ref,allOf}'::text[] else s end), '[]') from part;
$$;

create or replace function pgq._schema_types(i_schema jsonb)
returns text[]
language sql immutable
as $$
-- Returns the types that a schema names; a number includes integers.
    select case when i_schema ? 'type' then array(select t #>> '{}' from pg_catalog.jsonb_path_query(i_schema, '$.type[*]') t)
                                            || case when i_schema -> 'type' ? 'number' then '{integer}'::text[] else '{}' end
                else '{"null",boolean,object,array,string,number,integer}' end;
$$;

create or replace function pgq._property_schemas(i_schema jsonb, i_name text)
returns jsonb
language sql immutable
as $$
-- Returns the schemas, in an array, that an object's schema gives for a property.
    select coalesce(nullif(coalesce((select pg_catalog.jsonb_agg(p.value) from pg_catalog.jsonb_each(i_schema -> 'patternProperties') p
                                      where i_name ~ pgq._schema_pattern(p.key) collate "C"), '[]')
                           || coalesce(i_schema #> array['properties', i_name], '[]'), '[]'),
                    pg_catalog.jsonb_build_array(coalesce(i_schema -> 'additionalProperties', 'true')));
$$;

create or replace function pgq._schema_narrowed(
    i_old jsonb, i_new jsonb, i_path text, i_old_root jsonb, i_new_root jsonb, i_seen text[],
    out path text, out problem text)
returns setof record
language plpgsql immutable
as $$
-- Returns where a new schema may refuse what an old one accepts.
-- Parameters:
--      i_old       - the old schemas, all of which hold
--      i_path      - where the new schema is
--      i_seen      - pairs of old schemas and new references that are being compared
declare
    parts   constant jsonb := pgq._schema_parts(i_old, i_old_root);
    types   text[] := '{"null",boolean,object,array,string,number,integer}';
    facts   jsonb;
    is_same constant boolean := i_new::text !~ '"[$]ref"'
                or i_old_root -> '$defs' = i_new_root -> '$defs' and pg_catalog.concat(i_new, i_new_root -> '$defs') !~ '"[$]ref": "#"';
    k       text;
    v       jsonb;
    o       jsonb;
begin
    -- In one function: each keyword has a rule, and the rules share what is known of the old schema.
    for o in select * from pg_catalog.jsonb_array_elements(parts) loop
        types := array(select pg_catalog.unnest(types) intersect select pg_catalog.unnest(pgq._schema_types(o)));
    end loop;
    if parts @> '[false]' or types = '{}' or i_new = 'true' then
        return;
    elsif i_new = 'false' then
        return query select i_path, 'nothing is accepted any more';
        return;
    end if;

    -- a list of values: try each
    select coalesce(p -> 'enum', pg_catalog.jsonb_build_array(p -> 'const')) into v
      from pg_catalog.jsonb_array_elements(parts) p where p ?| '{enum,const}' limit 1;
    if found then
        return query
        select i_path, pg_catalog.concat(e, ' is not accepted any more')
          from pg_catalog.jsonb_array_elements(v) e
         where not exists (select from pg_catalog.jsonb_array_elements(i_old) s, pgq._schema_errors(s, e, '', i_old_root))
           and exists (select from pgq._schema_errors(i_new, e, '', i_new_root));
        return;
    end if;

    -- alternatives: the new schema may accept each of them
    for o, k in select p, key from pg_catalog.jsonb_array_elements(parts) p, pg_catalog.unnest('{anyOf,oneOf}'::text[]) key where p ? key loop
        if not exists (
            select from pg_catalog.jsonb_array_elements(o -> k) e,
                        pgq._schema_narrowed((select pg_catalog.jsonb_agg(case when p = o then p - k else p end) from pg_catalog.jsonb_array_elements(parts) p) || e,
                                             i_new, i_path, i_old_root, i_new_root, i_seen))
        then
            return;
        end if;
    end loop;

    facts := parts || '[{"minLength": 0, "minItems": 0, "minProperties": 0, "uniqueItems": false}]'
                   || case when 'number' <> all (types) then '[{"multipleOf": 1}]' else '[]'::jsonb end;
    for k, v in select * from pg_catalog.jsonb_each(i_new) loop
        path := pgq._pointer(i_path, k);
        problem := null;
        if k = '$ref' then
            if pg_catalog.concat(parts, v) <> all (i_seen) then
                return query select * from pgq._schema_narrowed(parts, pgq._schema_at(i_new_root, v #>> '{}'), i_path, i_old_root, i_new_root,
                                                                i_seen || pg_catalog.concat(parts, v));
            end if;
        elsif k = 'type' then
            problem := (select pg_catalog.string_agg(t, ' or ' order by t) || ' is not accepted any more' from pg_catalog.unnest(types) t
                         where t <> all (pgq._schema_types(i_new)));
        elsif k in ('enum', 'const') then
            problem := pg_catalog.concat('more than ', v, ' was accepted');
        elsif k = 'allOf' then
            return query select f.* from pg_catalog.jsonb_array_elements(v) with ordinality e (s, nr),
                                         pgq._schema_narrowed(parts, e.s, path || '/' || e.nr - 1, i_old_root, i_new_root, i_seen) f;
        elsif k = 'anyOf' or k = 'oneOf' and pgq._are_disjoint(v, i_new_root) then
            problem := case when not exists (
                select from pg_catalog.jsonb_array_elements(v) e
                 where not exists (select from pgq._schema_narrowed(parts, e, path, i_old_root, i_new_root, i_seen)))
                then 'none of these schemas alone accepts all that was accepted' end;
        elsif k in ('oneOf', 'not', 'if') or types && '{object}' and k = 'dependentRequired' or types && '{array}' and k = 'contains' then
            problem := case when not (is_same and exists (
                select from pg_catalog.jsonb_array_elements(parts) p
                 where p -> k = v
                   and (k <> 'if' or p -> 'then' is not distinct from i_new -> 'then' and p -> 'else' is not distinct from i_new -> 'else')
                   and (k <> 'contains' or coalesce(p -> 'minContains', '1') = coalesce(i_new -> 'minContains', '1')
                        and p -> 'maxContains' is not distinct from i_new -> 'maxContains')))
                then 'whether this accepts all that was accepted cannot be judged' end;
        elsif types && '{string}' and k in ('minLength', 'maxLength', 'pattern')
              or types && '{array}' and k in ('minItems', 'maxItems', 'uniqueItems')
              or types && '{object}' and k in ('minProperties', 'maxProperties')
              or types && '{integer}' and k in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf')
        then
            problem := case when not exists (
                select from pg_catalog.jsonb_array_elements(facts) p
                 where case
                       when k in ('pattern', 'uniqueItems') then p -> k = v
                       when k = 'multipleOf' then (p -> k)::numeric % v::numeric = 0
                       when k in ('minimum', 'exclusiveMinimum') then (p -> 'exclusiveMinimum')::numeric >= v::numeric
                            or (p -> 'minimum')::numeric > v::numeric or k = 'minimum' and p -> k = v
                       when k in ('maximum', 'exclusiveMaximum') then (p -> 'exclusiveMaximum')::numeric <= v::numeric
                            or (p -> 'maximum')::numeric < v::numeric or k = 'maximum' and p -> k = v
                       when k like 'min%' then (p -> k)::numeric >= v::numeric
                       else (p -> k)::numeric <= v::numeric end)
                then pg_catalog.concat(v, ' is a new or narrower limit') end;
        elsif types && '{object}' and k = 'required' then
            return query
            select path, pg_catalog.format('property %s was not required', e)
              from pg_catalog.jsonb_array_elements(v) e
             where not exists (select from pg_catalog.jsonb_array_elements(parts) p where p -> 'required' @> e);
        elsif types && '{object}' and k = 'propertyNames' then
            return query select * from pgq._schema_narrowed('[{"type": "string"}]' || pg_catalog.jsonb_path_query_array(parts, '$[*].propertyNames'),
                                                            v, path, i_old_root, i_new_root, i_seen);
        end if;
        if problem is not null then
            return next;
        end if;
    end loop;

    return query
    select f.*
      from (-- each property that a schema names
            select s as new, pgq._pointer(i_path || '/properties', name) as at,
                   (select pg_catalog.jsonb_agg(e) from pg_catalog.jsonb_array_elements(parts) p,
                                                        pg_catalog.jsonb_array_elements(pgq._property_schemas(p, name)) e) as old
              from (select pg_catalog.jsonb_object_keys(p -> 'properties') from pg_catalog.jsonb_array_elements(parts || i_new) p group by 1) n (name),
                   pg_catalog.jsonb_array_elements(pgq._property_schemas(i_new, name)) s
             where types && '{object}'
            union all
            -- other properties: with a name that a new pattern matches, and with any
            select m.value, pgq._pointer(i_path || '/patternProperties', m.key),
                   (select pg_catalog.jsonb_agg(case when p ? 'patternProperties' then p #> array['patternProperties', m.key] else p -> 'additionalProperties' end)
                      from pg_catalog.jsonb_array_elements(parts) p)
              from pg_catalog.jsonb_each(i_new -> 'patternProperties') m
             where types && '{object}'
            union all
            select i_new -> 'additionalProperties', i_path || '/additionalProperties',
                   (select pg_catalog.jsonb_agg(p -> 'additionalProperties') from pg_catalog.jsonb_array_elements(parts) p
                     where array(select pg_catalog.jsonb_object_keys(p -> 'patternProperties')) <@ array(select pg_catalog.jsonb_object_keys(i_new -> 'patternProperties')))
             where types && '{object}'
            union all
            -- items: each that has a place, and the rest
            select coalesce(i_new -> 'prefixItems' -> i, i_new -> 'items'), i_path || '/prefixItems/' || i,
                   (select pg_catalog.jsonb_agg(coalesce(p -> 'prefixItems' -> i, p -> 'items')) from pg_catalog.jsonb_array_elements(parts) p)
              from pg_catalog.generate_series(0, (select pg_catalog.max(pg_catalog.jsonb_array_length(p -> 'prefixItems'))
                                                    from pg_catalog.jsonb_array_elements(parts || i_new) p) - 1) i
             where types && '{array}'
            union all
            select i_new -> 'items', i_path || '/items',
                   (select pg_catalog.jsonb_agg(p -> 'items') from pg_catalog.jsonb_array_elements(parts) p)
             where types && '{array}') pair
     cross join pgq._schema_narrowed(pg_catalog.jsonb_path_query_array(coalesce(pair.old, '[]'), '$[*] ? (@ != null)'),
                                     pair.new, pair.at, i_old_root, i_new_root, i_seen) f
     where pair.new is not null;
end;
$$;

create or replace function pgq._are_disjoint(i_schemas jsonb, i_root jsonb)
returns boolean
language sql immutable
as $$
-- Returns whether no value fits two of the schemas, because each requires another constant in the same property.
    select exists (
        select from (select p, nr from pg_catalog.jsonb_array_elements(i_schemas) with ordinality e (s, nr),
                                       pg_catalog.jsonb_array_elements(pgq._schema_parts(pg_catalog.jsonb_build_array(s), i_root)) p) b,
                    pg_catalog.jsonb_each(p -> 'properties') m
         where p -> 'required' ? m.key
           and p -> 'type' = '"object"'
           and m.value ? 'const'
         group by m.key
        having pg_catalog.count(distinct m.value -> 'const') = pg_catalog.jsonb_array_length(i_schemas)
           and pg_catalog.count(distinct nr) = pg_catalog.jsonb_array_length(i_schemas));
$$;

create or replace function pgq._require_compatible(c pgq.contract, i_schema jsonb, i_compatibility text)
returns void
language plpgsql
as $$
-- Raises PQ057 unless a schema may follow a version of a contract.
declare
    v_wrong text;
begin
    select pg_catalog.string_agg(pg_catalog.format('at %s: %s', coalesce(nullif(f.path, ''), 'the top'), f.problem), E'\n') into v_wrong
      from (select path, problem || ' by PostgreSQL' as problem
              from (select i_schema as s union all select c.contract_schema) both_, pgq._schema_problems(s, '', s)
            union all
            select * from pgq._schema_narrowed(pg_catalog.jsonb_build_array(c.contract_schema), i_schema, '', c.contract_schema, i_schema, '{}')
            union all
            select path, problem || ' (by the last version)'
              from pgq._schema_narrowed(pg_catalog.jsonb_build_array(i_schema), c.contract_schema, '', i_schema, c.contract_schema, '{}')
             where i_compatibility = 'full') f;
    if v_wrong is not null then
        raise exception using errcode = 'PQ057',
            message = pg_catalog.format('the schema is not %s compatible with version %s: %s',
                                        case i_compatibility when 'full' then 'fully' else i_compatibility end, c.contract_version,
                                        pg_catalog.split_part(v_wrong, E'\n', 1)),
            detail = v_wrong,
            hint = pg_catalog.format('Accept all that the last version accepts%s; or, if no reader needs that, set compatibility to none.',
                                     case i_compatibility when 'full' then ', and nothing else' end);
    end if;
end;
$$;
