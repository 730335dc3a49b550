create or replace function pgq.quote_fqname(i_name text)
returns text
language plpgsql immutable strict
as $$
-- Quotes a name with schema, for use in SQL.
-- Parameters:
--      i_name  - schema.name; without schema it means public. What follows the first dot is the name.
-- Returns: the quoted name, with schema.
begin
    return case when pg_catalog.int4eq(pg_catalog.strpos(i_name, '.'), 0) then pg_catalog.format('public.%I', i_name)
        else pg_catalog.format('%I.%I', pg_catalog.split_part(i_name, '.', 1),
                                        pg_catalog.substr(i_name, pg_catalog.int4pl(pg_catalog.strpos(i_name, '.'), 1)))
    end;
end;
$$;

create or replace function pgq.seq_getval(i_seq_name text)
returns bigint
language plpgsql strict set search_path = pg_catalog, pg_temp
as $$
-- Returns the last value of a sequence that the caller may read.
-- Parameters:
--      i_seq_name  - its name, with schema
-- Returns: the column last_value; 1 if the sequence has not been used.
-- Errors: 42809 not a sequence
declare
    v_seq   constant regclass := pgq.quote_fqname(i_seq_name);
    res     bigint;
begin
    -- This fails for anything but a sequence, since a view may have a column of that name, and any code in it; and it
    -- locks the sequence, so that it stays one.
    perform pg_sequence_last_value(v_seq);
    execute format('select last_value from %s', v_seq) into res;
    return res;
end;
$$;

create or replace function pgq.seq_setval(i_seq_name text, i_new_value bigint)
returns bigint
language plpgsql strict set search_path = pg_catalog, pg_temp
as $$
-- Moves a sequence that the caller may update forward, never back.
-- Parameters:
--      i_seq_name  - its name, with schema
--      i_new_value - value to reach
-- Returns: the sequence's last value afterwards.
-- Errors: 42809 not a sequence
declare
    res bigint := pgq.seq_getval(i_seq_name);
begin
    if res < i_new_value then
        res := setval(pgq.quote_fqname(i_seq_name)::regclass, i_new_value);
    end if;
    return res;
end;
$$;

create or replace function pgq._event_seq_value(i_seq regclass)
returns bigint
language sql
as $$
-- Returns the last value of a sequence, 0 if it has not been used. (last_value would be 1 then, as after the first
-- event, which would go unnoticed.) Simple enough to be inlined.
    select coalesce(pg_catalog.pg_sequence_last_value(i_seq), 0);
$$;

create or replace function pgq._count_events(i_queue_id int4, i_from_seq bigint, i_to_seq bigint)
returns setof bigint
language sql stable
as $$
-- A set of one, since PostgreSQL then plans it with the query that calls it.
-- Returns the number of events that drew their ids between two values of a queue's event sequence, as counted by the
-- sequence.
    select i_to_seq - i_from_seq - least(coalesce(sum(forced_numbers), 0)::bigint, greatest(i_to_seq - i_from_seq, 0))
      from pgq.forced_tick
     where forced_queue = i_queue_id
       and forced_seq > i_from_seq
       and forced_seq <= i_to_seq;
$$;
