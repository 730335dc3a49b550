create or replace function pgq._open_batch(
    i_batch_id bigint,
    out queue pgq.queue, out last_tick pgq.tick_0, out next_tick pgq.tick_0, out sub_id int4)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns all details of an open batch.
declare
    p   pgq.position_0 := pgq._get_batch_position(i_batch_id);
    r   pgq.registration;
begin
    if p.pos_batch is null then
        raise exception using errcode = 'PQ004',
            message = format('batch %s is not open', coalesce(i_batch_id::text, 'NULL')),
            hint = 'It was finished, or never opened: pgq.next_batch(queue, consumer) gives the open one.';
    end if;
    select * into r from pgq.registration where reg_id = p.pos_registration;
    if r.reg_roles is not null then
        perform pgq._require_consumer(r.reg_id, r.reg_roles);
    end if;
    select * into queue from pgq.queue where queue_id = r.sub_queue;
    last_tick := pgq._get_tick(r.sub_queue, p.pos_last_tick);
    next_tick := pgq._get_tick(r.sub_queue, p.pos_next_tick);
    if last_tick.tick_id is null or next_tick.tick_id is null then
        perform pgq._raise_tick_not_found(queue.queue_name, case when last_tick.tick_id is null then p.pos_last_tick else p.pos_next_tick end);
    end if;
    sub_id := r.sub_id;
end;
$$;

create or replace function pgq.get_batch_info(
    x_batch_id bigint,
    out queue_name text, out consumer_name text, out batch_start timestamptz, out batch_end timestamptz,
    out prev_tick_id bigint, out tick_id bigint, out lag interval, out seq_start bigint, out seq_end bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns information about an open batch.
-- Returns: its queue and consumer, the ticks at its begin and end with their times and event sequences, and the age of
--      its end; all null if the batch is not open.
declare
    p   pgq.position_0 := pgq._get_batch_position(x_batch_id);
    b   record;
begin
    if p.pos_batch is null then
        return;
    end if;
    select * into b from pgq._open_batch(x_batch_id);
    queue_name := (b.queue).queue_name;
    consumer_name := (select c.co_name from pgq.registration r join pgq.consumer c on c.co_id = r.sub_consumer
                       where r.reg_id = p.pos_registration);
    batch_start := (b.last_tick).tick_time;
    batch_end := (b.next_tick).tick_time;
    prev_tick_id := p.pos_last_tick;
    tick_id := p.pos_next_tick;
    lag := current_timestamp - batch_end;
    seq_start := greatest((b.last_tick).tick_event_seq, 1);
    seq_end := greatest((b.next_tick).tick_event_seq, 1);
end;
$$;

create or replace function pgq.get_batch_events(
    x_batch_id bigint,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry int4, out ev_type text,
    out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql set search_path = pg_catalog, pg_temp set jit = off
as $$
-- Returns the events of an open batch, in the order of their ids. For large batches read pgq.batch_event_sql() through
-- a cursor or COPY, which does not collect them first.
-- Errors: PQ004 batch is not open
begin
    return query execute pgq.batch_event_sql(x_batch_id);
end;
$$;

create or replace function pgq._expression_tokens(i_expression text)
returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Cuts an expression into the tokens that PostgreSQL would read, without white space. It accepts only text whose
-- meaning does not depend on settings. So an expression for which the result is not null cannot break out of the
-- parentheses that it is put into.
-- Returns: the tokens; null if the text is not a plain expression.
declare
    pattern     constant text := $re$[ \t\n\r\f]+|'(?:[^']|'')*'|"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*$re$
                                 || $re$|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?$re$
                                 || $re$|::|[][(),.:]|[-+*/<>=~!@#%^&|`?]+$re$;
    -- Matches are the longest possible, as they are in PostgreSQL's lexer.
    tokens      constant text[] := array(select m[1] from regexp_matches(i_expression, pattern, 'g') with ordinality t (m, nr)
                                          order by nr);
    code        text[] := '{}';
    depth       int4 := 0;
    previous    text := '';
    t           text;
begin
    -- Nothing else may stand between the tokens: no semicolon, backslash, dollar quote, parameter.
    if array_to_string(tokens, '') is distinct from i_expression then
        return null;
    end if;
    foreach t in array tokens loop
        if t ~ '--|/[*]' and t !~ $re$^['"]$re$
           -- E'', U&'' and their like
           or t ~ $re$^['"]$re$ and previous ~ '[A-Za-z0-9_$&]$'
           or t like $p$'%\\%$p$ and current_setting('standard_conforming_strings') <> 'on'
           or t ~* '^(select|table|with|values|insert|update|delete|merge|copy|order|union|limit)$'
        then
            return null;
        end if;
        depth := depth + case t when '(' then 1 when ')' then -1 else 0 end;
        if depth < 0 then
            return null;
        end if;
        if t !~ E'^[ \t\n\r\f]' then
            code := code || t;
        end if;
        previous := t;
    end loop;
    return case when depth = 0 then nullif(code, '{}') end;
end;
$$;

create or replace function pgq.check_event_condition(i_condition text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Refuses anything but a condition over the columns of events. The condition runs with the rights of the caller anyway;
-- this check keeps it inside the query that it is put into.
-- Errors: PQ011 it is not such a condition
begin
    if pgq._expression_tokens(i_condition) is null then
        raise exception using errcode = 'PQ011',
            message = pg_catalog.format('not a condition over events: %s', i_condition),
            hint = 'Compare columns of the event with literals, as in: ev_type = ''order'' and ev_extra1 like ''public.%''. '
                   'Sub-queries, comments, dollar quotes and literals like E'''' are not taken, nor backslashes unless '
                   'standard_conforming_strings is on; names of other than ASCII letters need double quotes.';
    end if;
end;
$$;

create or replace function pgq.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit int4, i_extra_where text,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry int4, out ev_type text,
    out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql set jit = off
as $$
-- Declares a cursor over an open batch and fetches the first events from it.
-- Parameters:
--      i_cursor_name   - name for the cursor
--      i_quick_limit   - number of events to fetch now
--      i_extra_where   - condition over the event's columns, or null; its names are looked up as the caller's
-- Returns: the first events, in the order of their ids.
-- Errors: PQ004 batch is not open, PQ011 i_extra_where is not just a condition
declare
    -- Here the search path is the caller's, because of the condition.
    sql     pg_catalog.text;
    batch   pg_catalog.refcursor := i_cursor_name::pg_catalog.name;
begin
    if i_batch_id is null or i_cursor_name is null or i_quick_limit is null then
        return;
    end if;
    sql := pgq.batch_event_sql(i_batch_id);
    if i_extra_where is not null then
        perform pgq.check_event_condition(i_extra_where);
        sql := pg_catalog.format('select * from (%s) events where (%s) order by 1', sql, i_extra_where);
    end if;
    -- This accepts one query only, whatever the condition is.
    open batch no scroll for execute sql;
    if i_quick_limit operator(pg_catalog.>) 0 then
        return query execute pg_catalog.format('fetch %s from %I', i_quick_limit, i_cursor_name);
    end if;
end;
$$;

create or replace function pgq.get_batch_cursor(
    i_batch_id bigint, i_cursor_name text, i_quick_limit int4,
    out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry int4, out ev_type text,
    out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text)
returns setof record
language plpgsql set search_path = pg_catalog, pg_temp
as $$
-- Declares a cursor over an open batch; see pgq.get_batch_cursor(4).
begin
    return query select * from pgq.get_batch_cursor(i_batch_id, i_cursor_name, i_quick_limit, null);
end;
$$;

create or replace function pgq.finish_batch(x_batch_id bigint)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Finishes an open batch: moves the consumer behind it. Called in the transaction that processed the events it makes
-- the processing exactly-once.
-- Returns: 1, or 0 with a warning if the batch is not open (any more).
-- Errors: PQ038 the batch is that of a partition of a consumer group
declare
    p       constant pgq.position_0 := pgq._lock_position(pgq._find_batch(x_batch_id), true);
    done    text;  -- assigned to, which is cheaper than PERFORM
begin
    if p.pos_batch = x_batch_id is not true then
        raise warning 'finish_batch: batch % not found', x_batch_id;
        return 0;
    end if;
    done := pgq._append_position(p.pos_registration, p.pos_nr + 1, p.pos_next_tick, null, null, i_settled => p.pos_settled);
    return 1;
end;
$$;
