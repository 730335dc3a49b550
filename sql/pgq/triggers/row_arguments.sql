create or replace function pgq._row_arguments(
    i_arguments text[],
    out key_list text[], out ignored text[], out has_ignore boolean, out skip boolean, out backup boolean,
    out deny boolean, out expressions text[])
language plpgsql
immutable
as $$
-- ----------------------------------------------------------------------
-- Function: pgq._row_arguments(1)
--
--      Reads the arguments of a row trigger. If an argument is given twice, the last list of columns counts, but the
--      first expression, as in PgQ. Internal.
--
-- Parameters:
--      i_arguments - the trigger's arguments: queue name, then options
-- Returns:
--      key_list    - columns of pkey=, as written; null without it
--      ignored     - columns of ignore=, trimmed
--      has_ignore  - whether there is an ignore=
--      skip, backup, deny
--      expressions - when=, ev_type=, ev_data=, ev_extra1=..4=, null where not given
-- Errors:
--      PQ020 no queue name, or an unknown argument
-- ----------------------------------------------------------------------
declare
    v_names     constant text[] := '{when,ev_type,ev_data,ev_extra1,ev_extra2,ev_extra3,ev_extra4}';
    v_argument  text;
    v_name      text;
    v_value     text;
    v_position  int;
begin
    ignored := '{}';
    has_ignore := false;
    skip := false;
    backup := false;
    deny := false;
    expressions := pg_catalog.array_fill(null::text, array[7]);

    if coalesce(pg_catalog.cardinality(i_arguments), 0) = 0 then
        raise exception using
            errcode = 'PQ020',
            message = 'trigger without a queue name',
            hint = 'The first argument is the queue: execute function pgq.jsontriga(''queue'').';
    end if;

    foreach v_argument in array i_arguments[pg_catalog.array_lower(i_arguments, 1) + 1 :]
    loop
        v_name := pg_catalog.split_part(v_argument, '=', 1);
        v_value := pg_catalog.substr(v_argument, pg_catalog.length(v_name) + 2);
        v_position := pg_catalog.array_position(v_names, v_name);
        if v_argument = 'SKIP' then
            skip := true;
        elsif v_argument = 'backup' then
            backup := true;
        elsif v_argument = 'deny' then
            deny := true;
        elsif v_argument = v_name then
            v_name := null;
        elsif v_name = 'ignore' then
            has_ignore := true;
            ignored := array(select pg_catalog.btrim(c, E' \t\r\n')
                               from pg_catalog.unnest(pg_catalog.string_to_array(v_value, ',')) c);
        elsif v_name = 'pkey' then
            key_list := case v_value when '' then array[''] else pg_catalog.string_to_array(v_value, ',') end;
        elsif v_position is not null then
            expressions[v_position] := coalesce(expressions[v_position], v_value);
        else
            v_name := null;
        end if;

        if v_name is null then
            raise exception using
                errcode = 'PQ020',
                message = pg_catalog.format('unknown trigger argument %L', v_argument),
                hint = 'Known are SKIP, backup, deny, ignore=columns, pkey=columns, when=expression and '
                       'ev_type=, ev_data=, ev_extra1= to ev_extra4=expression.';
        end if;
    end loop;
end;
$$;
