create or replace function pgq_task._position_of(i_time timestamptz)
returns bigint
language sql stable
-- Returns the position in a lane of a task that is available from a time on: 256 positions per microsecond, so that
-- tasks of one microsecond still have an order. Simple enough to be inlined. Not a text in quotes, like the others of
-- these: a view calls them, and a text would take operators of its reader's search_path.
return pg_catalog.int8(pg_catalog.date_part('epoch', i_time) * 1000000::double precision) * 256;

create or replace function pgq_task._position_now()
returns bigint
language sql
as $$
-- Returns the position of a task that is available at once. The transaction has an id before the clock is read:
-- pgq_task.sweep() relies on that. Inlined.
    select case when pg_catalog.pg_current_xact_id() is not null
                then pg_catalog.int8(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000) * 256 end;
$$;

create or replace function pgq_task._time_of(i_pos bigint)
returns timestamptz
language sql stable
-- Returns the time of a position; infinity for a stopped task.
return case when i_pos = 9223372036854775807 then 'infinity'::pg_catalog.timestamptz
            else pg_catalog.to_timestamp((i_pos / 256)::double precision / 1000000::double precision) end;

create or replace function pgq_task._position_at(i_at timestamptz, i_delay interval)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the position of a task that is to be available at a time, or after a delay. A time in the past is now. One
-- that is farther away than places go is the year 2500.
declare
    -- An id first, then the clock: see pgq_task._position_now().
    v_xid   constant xid8 := pg_current_xact_id();
    v_now   constant timestamptz := clock_timestamp();
    v_last  constant timestamptz := '2500-01-01 00:00:00+00';
    v_at    timestamptz := i_at;
begin
    if i_at is not null and i_delay is not null then
        perform pgq_task._raise_invalid('both a time and a delay are given', 'Give one of them.');
    elsif i_delay < '0' then
        perform pgq_task._raise_invalid(format('delay %s is negative', i_delay), 'Give an interval that is not, or none.');
    elsif i_delay > '200 years' then
        perform pgq_task._raise_invalid(format('delay %s is too long', i_delay), 'Give an interval of less than 200 years.');
    elsif i_delay is not null then
        v_at := v_now + i_delay;
    elsif i_at = 'infinity' then
        perform pgq_task._raise_invalid('a task cannot be available at infinity',
                                        'Give a time, or stop the task with pgq_task.stop(id, version).');
    end if;
    return pgq_task._position_of(least(greatest(v_at, v_now), v_last));
end;
$$;

create or replace function pgq_task._is_parked(i_pos bigint)
returns boolean
language sql immutable
-- Returns whether a position is one of pgq_task._parking_of(1), and not a time. Inlined.
return i_pos between 4611686018427387904 and 9223372036854775806;
