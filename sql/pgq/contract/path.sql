-- The fast check of a payload: a jsonpath takes microseconds where pgq._schema_errors(4) takes hundreds. Invariant: if the
-- path of a schema is true of a payload, pgq.contract_errors(schema, payload) is empty. If not, the slow check decides.

create or replace function pgq._schema_condition(i_schema jsonb, i_root jsonb, i_seen jsonb)
returns text
language plpgsql immutable
as $$
-- Returns a condition of a strict jsonpath: true if @ fits the schema, false or unknown if it does not. So it may be
-- negated, but by !exists(@ ? (...)) alone: what is unknown stays unknown after !.
-- Raises 0A000 for a schema that jsonpath cannot express.
-- Parameters:
--      i_root      - the whole schema, for its references
--      i_seen      - the references that have led here
declare
    s           constant jsonb := case i_schema when 'false' then '{"enum": []}' when 'true' then '{}' else i_schema end;
    only_type   constant text := case s -> 'type' when '"integer"' then 'number' else s ->> 'type' end;
    prefixed    constant int4 := coalesce(pg_catalog.jsonb_array_length(s -> 'prefixItems'), 0);
    conditions  text[] := '{}';
    inner_ones  text[];
    k           text;
    v           jsonb;
    of_type     text;
    c           text;
begin
    -- In one function: each keyword has its condition. The type is first: after "false &&" nothing is evaluated.
    for k, v in select * from pg_catalog.jsonb_each(s) order by key <> 'type' loop
        if k = 'const' then
            k := 'enum';
            v := pg_catalog.jsonb_build_array(v);
        end if;
        of_type := case when k in ('properties', 'required', 'additionalProperties', 'patternProperties', 'propertyNames', 'dependentRequired') then 'object'
                        when k in ('items', 'prefixItems', 'contains', 'minItems', 'maxItems') then 'array'
                        when k in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf') then 'number'
                        when k in ('minLength', 'maxLength', 'pattern') then 'string' end;
        inner_ones := case when k in ('allOf', 'anyOf', 'oneOf') then
                           array(select '(' || pgq._schema_condition(e, i_root, i_seen) || ')' from pg_catalog.jsonb_array_elements(v) e) end;
        if k in ('$defs', '$schema', 'then', 'else') or k like 'x-%' or pgq._schema_keywords() ->> k like 'note%' then
            continue;
        elsif k = 'type' then
            c := (select pg_catalog.string_agg(case t when '"integer"' then '@.type() == "number" && @.floor() == @' else '@.type() == ' || t::text end, ' || ')
                    from pg_catalog.jsonb_path_query(v, '$[*]') t);
        elsif k = 'enum' and not pg_catalog.jsonb_path_exists(v, 'strict $[*] ? (@.type() == "object" || @.type() == "array")') then
            c := coalesce((select pg_catalog.string_agg('@ == ' || e::text, ' || ') from pg_catalog.jsonb_array_elements(v) e), '1 == 0');
        elsif k = '$ref' and not i_seen @> v then
            c := pgq._schema_condition(pgq._schema_at(i_root, v #>> '{}'), i_root, i_seen || v);
        elsif k = 'allOf' then
            c := pg_catalog.array_to_string(inner_ones, ' && ');
        elsif k = 'anyOf' then
            c := pg_catalog.array_to_string(inner_ones, ' || ');
        elsif k = 'oneOf' then
            c := (select pg_catalog.string_agg(one || coalesce((select pg_catalog.string_agg(pg_catalog.format(' && !exists(@ ? %s)', other), '')
                                                                  from pg_catalog.unnest(inner_ones) with ordinality o (other, other_nr)
                                                                 where other_nr <> nr), ''), ' || ')
                    from pg_catalog.unnest(inner_ones) with ordinality u (one, nr));
        elsif k = 'not' then
            c := pg_catalog.format('!exists(@ ? (%s))', pgq._schema_condition(v, i_root, i_seen));
        elsif k = 'if' then
            c := pg_catalog.format('exists(@ ? ((%1$s) && (%2$s))) || !exists(@ ? (%1$s)) && (%3$s)', pgq._schema_condition(v, i_root, i_seen),
                                   pgq._schema_condition(coalesce(s -> 'then', 'true'), i_root, i_seen),
                                   pgq._schema_condition(coalesce(s -> 'else', 'true'), i_root, i_seen));
        elsif k = 'properties' then
            -- Strict: what is missing makes exists() unknown.
            c := (select pg_catalog.string_agg(pg_catalog.format(case when s -> 'required' ? key then 'exists(@.%1$s ? (%2$s))'
                                                                      else '((exists(@.%1$s)) is unknown || exists(@.%1$s ? (%2$s)))' end,
                                                                 pg_catalog.to_json(key), pgq._schema_condition(value, i_root, i_seen)), ' && ')
                    from pg_catalog.jsonb_each(v));
        elsif k = 'required' then
            c := (select pg_catalog.string_agg(pg_catalog.format('exists(@.%s)', e), ' && ')
                    from pg_catalog.jsonb_array_elements(v) e where not coalesce(s -> 'properties' ? (e #>> '{}'), false));
        elsif k = 'additionalProperties' then
            c := (select pg_catalog.string_agg(other, ' && ')
                    from (select pg_catalog.format('@.key != %s', pg_catalog.to_json(p)) from pg_catalog.jsonb_object_keys(s -> 'properties') p
                          union all
                          select pg_catalog.format('!(@.key like_regex %s flag "s")', pg_catalog.to_json(pgq._schema_pattern(p)))
                            from pg_catalog.jsonb_object_keys(s -> 'patternProperties') p) u (other));
            c := pg_catalog.format('!exists(@.keyvalue() ? (%s!exists(@.value ? (%s))))', c || ' && ', pgq._schema_condition(v, i_root, i_seen));
        elsif k = 'patternProperties' then
            c := (select pg_catalog.string_agg(pg_catalog.format('!exists(@.keyvalue() ? (@.key like_regex %s flag "s" && !exists(@.value ? (%s))))',
                                                                 pg_catalog.to_json(pgq._schema_pattern(key)), pgq._schema_condition(value, i_root, i_seen)), ' && ')
                    from pg_catalog.jsonb_each(v));
        elsif k = 'propertyNames' then
            c := pg_catalog.format('!exists(@.keyvalue().key ? (!exists(@ ? (%s))))', pgq._schema_condition(v, i_root, i_seen));
        elsif k = 'dependentRequired' then
            c := (select pg_catalog.string_agg(pg_catalog.format('((exists(@.%s)) is unknown || exists(@.%s))', pg_catalog.to_json(key), e), ' && ')
                    from pg_catalog.jsonb_each(v), pg_catalog.jsonb_array_elements(value) e);
        elsif k = 'prefixItems' then
            c := (select pg_catalog.string_agg(pg_catalog.format('((exists(@[%1$s])) is unknown || exists(@[%1$s] ? (%2$s)))',
                                                                 nr - 1, pgq._schema_condition(e, i_root, i_seen)), ' && ')
                    from pg_catalog.jsonb_array_elements(v) with ordinality u (e, nr));
        elsif k = 'items' then
            c := pg_catalog.format('@.size() <= %1$s || !exists(@[%1$s to last] ? (!exists(@ ? (%2$s))))', prefixed, pgq._schema_condition(v, i_root, i_seen));
        elsif k = 'contains' and not s ?| '{minContains,maxContains}' then
            c := pg_catalog.format('exists(@[*] ? (%s))', pgq._schema_condition(v, i_root, i_seen));
        elsif k in ('minItems', 'maxItems') then
            c := pg_catalog.format('@.size() %s %s', case k when 'minItems' then '>=' else '<=' end, v);
        elsif k in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum') then
            c := pg_catalog.format('@ %s %s', case k when 'minimum' then '>=' when 'maximum' then '<=' when 'exclusiveMinimum' then '>' else '<' end, v);
        elsif k = 'multipleOf' then
            c := pg_catalog.format('@ %% %s == 0', v);
        elsif k = 'pattern' then
            c := pg_catalog.format('@ like_regex %s flag "s"', pg_catalog.to_json(pgq._schema_pattern(v #>> '{}')));
        elsif k in ('minLength', 'maxLength') and v::numeric < 1000 then
            -- an exact number of characters, since ".{0,20}" has 20 states at once; a bound is 255 at most
            c := (select pg_catalog.format(case when k = 'maxLength' then '!(@ like_regex "^(?:.{100}){%s}.{%s}" flag "s")'
                                                else '@ like_regex "^(?:.{100}){%s}.{%s}" flag "s"' end, n / 100, n % 100)
                    from (select v::int4 + case k when 'maxLength' then 1 else 0 end) u (n));
        else
            raise exception using errcode = 'feature_not_supported', message = 'jsonpath cannot express ' || k;
        end if;
        conditions := conditions || ('(' || coalesce('@.type() != "' || nullif(of_type, only_type) || '" || ', '') || c || ')');
    end loop;
    c := coalesce(nullif(pg_catalog.array_to_string(conditions, ' && '), ''), '1 == 1');
    if pg_catalog.length(c) > 20000 then
        raise exception using errcode = 'feature_not_supported', message = 'the jsonpath is too long';
    end if;
    return c;
end;
$$;

create or replace function pgq._schema_path(i_schema jsonb)
returns jsonpath
language plpgsql immutable
as $$
-- Returns the jsonpath that is true of the payloads that fit a schema; null if there is none.
begin
    return ('strict exists($ ? (' || pgq._schema_condition(i_schema, i_schema, '[]') || '))')::jsonpath;
-- or the stack or a regular expression becomes too large
exception when feature_not_supported or program_limit_exceeded or statement_too_complex or invalid_regular_expression then
    return null;
end;
$$;
