-- Events that are done one by one: the functions that pgqpy's TrackedConsumer calls. A source that is restored from a
-- backup gives out the same batch and event ids again. So events are also distinguished by their times, and a batch
-- must not begin before the remembered events.

create or replace function pgq_ext._follows_events(
    p pgq_ext.progress_0, i_consumer text, i_subconsumer text, i_batch_id bigint,
    i_prev_tick_id bigint, i_prev_tick_time timestamptz)
returns boolean
language plpgsql
as $$
-- Returns whether all events that a tracker remembers are before a batch, so that they can be forgotten.
-- Parameters:
--      p   - the tracker's state
begin
    if p.prg_event_tick is null then
        return p.prg_event_batch is distinct from i_batch_id;
    elsif i_prev_tick_id > p.prg_event_tick
          or i_prev_tick_id = p.prg_event_tick and i_prev_tick_time = p.prg_event_tick_time
    then
        return true;
    elsif i_prev_tick_id = p.prg_event_prev_tick and i_prev_tick_time = p.prg_event_prev_tick_time
          or i_prev_tick_id > p.prg_event_prev_tick and i_prev_tick_id < p.prg_event_tick
    then
        -- The same batch, or another one over some of its events: the consumer was moved.
        return false;
    end if;
    raise exception using errcode = 'PQ041',
        message = pg_catalog.format('the next batch of consumer %L of queue %L begins behind tick %s of %s, but database %I remembers '
                                    'events behind tick %s of %s',
                                    i_consumer, i_subconsumer, i_prev_tick_id, i_prev_tick_time, pg_catalog.current_database(),
                                    p.prg_event_prev_tick, p.prg_event_prev_tick_time),
        detail = 'Some of what the batch holds may have been done already.',
        hint = pg_catalog.format(
                   'Does another database''s queue of this name have a consumer of this name? Then give one of them another name. '
                   'Was the queue''s database restored from an older backup, or the consumer moved back? To go on where this database '
                   'stands: pgqpy consumer rewind %1$I %2$I --target-dsn DSN, or in the queue''s '
                   'select pgq.register_consumer_at(%1$L, %2$L, %3$s). To do the batch as it is, in this one: '
                   'select pgq_ext.forget_consumer(%2$L, %1$L).',
                   i_subconsumer, i_consumer, p.prg_event_prev_tick);
end;
$$;

create or replace function pgq_ext.begin_event(
    a_consumer text, a_subconsumer text, a_batch_id bigint,
    a_prev_tick_id bigint, a_prev_tick_time timestamptz, a_tick_id bigint, a_tick_time timestamptz,
    a_event_id bigint, a_retry int4, a_event_time timestamptz)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Begins an event, and returns true if it is done already. If it is not, no other session can begin an event as this
-- consumer until the transaction ends.
-- Parameters:
--      a_subconsumer                       - its queue
--      a_batch_id                          - the batch
--      a_prev_tick_id, a_prev_tick_time    - the tick after which it begins
--      a_tick_id, a_tick_time              - the tick at which it ends
--      a_event_id, a_event_time            - the event
--      a_retry                             - number of retries of the event; a retry has the same id but counts as
--                                            another event
-- Errors: PQ041 the batch begins before the remembered events, or its ticks are of another history: events might be
--      done twice, 40001 the event was done after the transaction took its snapshot
declare
    id      constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
    p       constant pgq_ext.progress_0 := pgq_ext._get_progress(id);
begin
    if not pgq_ext._follows_events(p, a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time)
       and pgq_ext._has_event(p, a_event_id, a_retry, a_event_time)
    then
        return true;
    end if;
    if not pgq._is_read_committed() then
        -- Check now: after the event its effect cannot be rolled back. A row that the snapshot does not see is found by
        -- the conflict with it.
        begin
            perform pgq_ext.end_event(a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time, a_tick_id, a_tick_time,
                                      a_event_id, a_retry, a_event_time);
            raise exception using errcode = 'PQZZZ', message = 'it is not done';
        exception when sqlstate 'PQZZZ' then
            null;
        end;
    end if;
    return false;
end;
$$;

create or replace function pgq_ext.end_event(
    a_consumer text, a_subconsumer text, a_batch_id bigint,
    a_prev_tick_id bigint, a_prev_tick_time timestamptz, a_tick_id bigint, a_tick_time timestamptz,
    a_event_id bigint, a_retry int4, a_event_time timestamptz)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers an event as done. The first event of a later batch makes it forget the events remembered before.
-- Parameters:
--      as for pgq_ext.begin_event()
-- Returns: false if it was done already
-- Errors: PQ041 as for pgq_ext.begin_event()
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext._get_progress(id);
    if pgq_ext._follows_events(p, a_consumer, a_subconsumer, a_batch_id, a_prev_tick_id, a_prev_tick_time) then
        p.prg_tracker := id;
        p.prg_event_batch := a_batch_id;
        p.prg_event_nr := coalesce(p.prg_nr, 0) + 1;
        p.prg_event_prev_tick := a_prev_tick_id;
        p.prg_event_prev_tick_time := a_prev_tick_time;
        p.prg_event_tick := a_tick_id;
        p.prg_event_tick_time := a_tick_time;
        perform pgq_ext._append_progress(p);
    elsif pgq_ext._has_event(p, a_event_id, a_retry, a_event_time) then
        return false;
    elsif p.prg_event_batch <> a_batch_id or p.prg_event_tick < a_tick_id then
        -- Keep the earlier events: the consumer was moved to a position among them.
        p.prg_event_batch := a_batch_id;
        if p.prg_event_tick < a_tick_id then
            p.prg_event_tick := a_tick_id;
            p.prg_event_tick_time := a_tick_time;
        end if;
        perform pgq_ext._append_progress(p);
    end if;
    perform pgq_ext._append_event(p, a_event_id, a_retry, a_event_time);
    return true;
end;
$$;

-- Whole batches, each in one transaction of this database: the functions that pgqpy's RemoteConsumer calls. A batch is
-- remembered together with its ticks, so no batch is applied twice, and a gap between two batches is noticed.

create or replace function pgq_ext.start_batches(
    a_consumer text, a_subconsumer text, a_tick_id bigint, a_tick_time timestamptz, a_fresh boolean,
    out batch_id bigint, out prev_tick_id bigint, out prev_tick_time timestamptz, out tick_id bigint, out tick_time timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Starts a consumer; call it before the consumer's first batch. If nothing is remembered, the first batch is expected
-- to begin at the consumer's position.
-- Parameters:
--      a_subconsumer   - its queue
--      a_tick_id       - the consumer's position in the queue
--      a_tick_time     - that tick's time
--      a_fresh         - true if the consumer has done no batch yet
-- Returns: the last batch that the consumer has done, if it had retries or dead letters: these may not have reached the
--      queue, see pgq.reopen_batch(). Null if it had none, or if the consumer was registered again.
-- Errors: PQ040 nothing is remembered about a consumer that has done batches
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext._get_progress(id);
    if p.prg_tick is not null then
        if p.prg_retries is not null and not a_fresh then
            batch_id := p.prg_batch;
            prev_tick_id := p.prg_prev_tick;
            prev_tick_time := p.prg_prev_tick_time;
            tick_id := p.prg_tick;
            tick_time := p.prg_tick_time;
        end if;
        return;
    end if;
    if not a_fresh then
        raise exception using errcode = 'PQ040',
            message = format('database %I remembers nothing of consumer %L of queue %L, which has done batches up to tick %s',
                             current_database(), a_consumer, a_subconsumer, a_tick_id),
            hint = format('Is it the right database? If it was restored from an older backup: move the consumer back, in the queue''s '
                          'database, as long as that has the events: select pgq.register_consumer_at(%1$L, %2$L, TICK). Then, or if all '
                          'is well with what is here, tell this database where the consumer stands: '
                          'select pgq_ext.set_last_tick(%2$L, %1$L, TICK), now %3$s.', a_subconsumer, a_consumer, a_tick_id);
    end if;
    p.prg_tracker := id;
    p.prg_tick := a_tick_id;
    p.prg_tick_time := a_tick_time;
    perform pgq_ext._append_progress(p);
end;
$$;

create or replace function pgq_ext.begin_batch(
    a_consumer text, a_subconsumer text, a_batch_id bigint,
    a_prev_tick_id bigint, a_prev_tick_time timestamptz, a_tick_id bigint, a_tick_time timestamptz,
    out done boolean, out retries jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Begins a batch, and tells whether it was applied already. Until the transaction ends, no other session can begin a
-- batch as this consumer.
-- Parameters:
--      a_subconsumer                       - its queue
--      a_batch_id                          - the batch
--      a_prev_tick_id, a_prev_tick_time    - the tick after which it begins
--      a_tick_id, a_tick_time              - the tick at which it ends
-- Returns:
--      done        - true if the batch was applied already: skip it, and finish it in the queue's database
--      retries     - if done, the value that pgq_ext.end_batch() was given
-- Errors: PQ040 this database is behind the batch: events would be skipped, PQ041 this database is ahead of the batch,
--      or remembers ticks of another history: events would be applied twice
declare
    id      constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
    p       constant pgq_ext.progress_0 := pgq_ext._get_progress(id);
begin
    -- Compare batch, begin and end: a batch that ends at the same tick may begin earlier, or be another batch with the
    -- same events. If the consumer was moved back, the events are to be applied again.
    if p.prg_batch = a_batch_id
       and p.prg_prev_tick = a_prev_tick_id and coalesce(p.prg_prev_tick_time = a_prev_tick_time, true)
       and p.prg_tick = a_tick_id and coalesce(p.prg_tick_time = a_tick_time, true)
    then
        done := true;
        retries := p.prg_retries;
        return;
    end if;
    if p.prg_tick = a_prev_tick_id and coalesce(p.prg_tick_time = a_prev_tick_time, true) then
        done := false;
        return;
    end if;

    if p.prg_tick is null or p.prg_tick < a_prev_tick_id then
        raise exception using errcode = 'PQ040',
            message = format('the next batch of consumer %L of queue %L begins behind tick %s, but database %I has got only as far as %s',
                             a_consumer, a_subconsumer, a_prev_tick_id, current_database(),
                             coalesce('tick ' || p.prg_tick, 'remembering nothing of it')),
            detail = format('The events behind tick %s up to tick %s would be left out.', coalesce(p.prg_tick::text, '?'), a_prev_tick_id),
            hint = format('Does another database''s queue of this name have a consumer of this name? Then give one of them another name. '
                          'Was this database restored from an older backup, or the consumer moved ahead? To have the events, move it back, '
                          'as long as the queue has them: pgqpy consumer rewind %1$I %2$I --target-dsn DSN, or in the queue''s database '
                          'select pgq.register_consumer_at(%1$L, %2$L, %3$s). '
                          'To go on without them, in this one: select pgq_ext.set_last_tick(%2$L, %1$L, %4$s).',
                          a_subconsumer, a_consumer, coalesce(p.prg_tick::text, 'TICK'), a_prev_tick_id);
    end if;
    raise exception using errcode = 'PQ041',
        message = format('the next batch of consumer %L of queue %L begins behind tick %s of %s, but database %I has got as far as '
                         'tick %s%s',
                         a_consumer, a_subconsumer, a_prev_tick_id, a_prev_tick_time, current_database(), p.prg_tick,
                         coalesce(' of ' || p.prg_tick_time::text, '')),
        detail = format('Some of what the batch holds (up to tick %s, of %s) may be there already.', a_tick_id, a_tick_time),
        hint = format('Does another database''s queue of this name have a consumer of this name? Then give one of them another name. '
                      'Was the queue''s database restored from an older backup, or the consumer moved back? To go on '
                      'where this database stands: pgqpy consumer rewind %1$I %2$I '
                      '--target-dsn DSN, or in the queue''s select pgq.register_consumer_at(%1$L, %2$L, %3$s). To apply the batch, in this one: '
                      'select pgq_ext.set_last_tick(%2$L, %1$L, %4$s).',
                      a_subconsumer, a_consumer, p.prg_tick, a_prev_tick_id);
end;
$$;

create or replace function pgq_ext.end_batch(
    a_consumer text, a_subconsumer text, a_batch_id bigint, a_tick_id bigint, a_tick_time timestamptz, a_retries jsonb,
    a_tick_snapshot txid_snapshot default null, a_tick_event_seq bigint default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Remembers a batch as done, in the transaction that called pgq_ext.begin_batch().
-- Parameters:
--      a_subconsumer           - its queue
--      a_batch_id              - the batch
--      a_tick_id, a_tick_time  - the tick at which it ends
--      a_retries               - the data that the consumer needs to finish the batch in the queue's database after a
--                                crash
--      a_tick_snapshot, a_tick_event_seq   - the tick's snapshot and event sequence; with them pgq.rewind_consumer()
--                                            finds the tick after the queue has forgotten it
declare
    p   pgq_ext.progress_0;
    id  constant int4 := pgq_ext._lock_tracker(a_consumer, a_subconsumer);
begin
    p := pgq_ext._get_progress(id);
    p.prg_tracker := id;
    p.prg_batch := a_batch_id;
    p.prg_prev_tick := p.prg_tick;
    p.prg_prev_tick_time := p.prg_tick_time;
    p.prg_prev_tick_snapshot := case when a_retries is not null then p.prg_tick_snapshot end;
    p.prg_prev_tick_event_seq := case when a_retries is not null then p.prg_tick_event_seq end;
    p.prg_tick := a_tick_id;
    p.prg_tick_time := a_tick_time;
    p.prg_tick_snapshot := a_tick_snapshot;
    p.prg_tick_event_seq := a_tick_event_seq;
    p.prg_retries := a_retries;
    perform pgq_ext._append_progress(p);
end;
$$;

create or replace function pgq_ext.forget_retries(a_consumer text, a_subconsumer text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Forgets the retries and dead letters of a consumer's last batch: the queue has them now.
-- Parameters:
--      a_subconsumer   - its queue
-- Returns: true if there was something to forget.
declare
    p   pgq_ext.progress_0;
begin
    if pgq_ext._find_tracker(a_consumer, a_subconsumer) is null then
        return false;
    end if;
    p := pgq_ext._get_progress(pgq_ext._lock_tracker(a_consumer, a_subconsumer));
    if p.prg_retries is null then
        return false;
    end if;
    p.prg_retries := null;
    perform pgq_ext._append_progress(p);
    return true;
end;
$$;

create or replace function pgq_ext.forget_consumer(a_consumer text, a_subconsumer text default '')
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Forgets everything that is remembered about a consumer.
-- Parameters:
--      a_subconsumer   - distinguishes consumers of one name; pgqpy's consumers pass their queue
-- Returns: true if there was something to forget.
declare
    id  constant int4 := pgq_ext._find_tracker(a_consumer, a_subconsumer);
begin
    if id is null then
        return false;
    end if;
    perform pg_advisory_xact_lock(pgq._lock_key('pgq_ext progress'), id);
    delete from pgq_ext.tracker where trk_id = id;
    return found;
end;
$$;
