create or replace function pgq.write_stream_batch(i_queue_name text, i_writer_name text, i_stream text, i_batch bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes sure that a stream's numbered batch is written once. Call it in the transaction that writes the batch's events,
-- and write them only if it returns true. Of two calls at once the second waits for the first.
-- Parameters:
--      i_writer_name   - name under which the stream writes into this queue
--      i_stream        - unique id of the stream; a stream that was restarted from scratch has a new one
--      i_batch         - number of the batch, ascending
-- Returns: true if the batch is to be written; false if it was written already.
-- Errors: PQ011 stream or batch is null, PQ017 another stream has this name, or the stream was set back
declare
    q   constant pgq.queue := pgq._find_queue_for(i_queue_name, 'insert');
    w   pgq.stream_writer;
begin
    perform pgq._check_name('writer', i_writer_name);
    if i_stream is null or i_batch is null then
        raise exception using errcode = 'PQ011',
            message = 'write_stream_batch: stream and batch must not be NULL',
            hint = 'Give what is in the stream''s checkpoint.';
    end if;

    insert into pgq.stream_writer as old (sw_queue, sw_name, sw_stream, sw_batch)
    values (q.queue_id, i_writer_name, i_stream, i_batch)
    on conflict (sw_queue, sw_name) do update
       set sw_batch = excluded.sw_batch, sw_time = now()
     where old.sw_stream = excluded.sw_stream
       and old.sw_batch < excluded.sw_batch;
    if found then
        return true;
    end if;

    select * into w from pgq.stream_writer where sw_queue = q.queue_id and sw_name = i_writer_name;
    if w.sw_stream <> i_stream then
        raise exception using errcode = 'PQ017',
            message = format('writer %L of queue %L is another stream, which wrote its batch %s at %s',
                             i_writer_name, i_queue_name, w.sw_batch, w.sw_time),
            detail = format('That is stream %s, this is %s.', w.sw_stream, i_stream),
            hint = format('Give each stream a writer name of its own. If this is the same one and its checkpoint was deleted: '
                          'it may send again what it had sent; if that is right, '
                          'select pgq.forget_stream_writer(%L, %L).', i_queue_name, i_writer_name);
    end if;
    if w.sw_batch > i_batch then
        raise exception using errcode = 'PQ017',
            message = format('writer %L of queue %L comes with batch %s after batch %s was written',
                             i_writer_name, i_queue_name, i_batch, w.sw_batch),
            hint = format('Its checkpoint was set back, so its batches may hold other events than those that were written. '
                          'Restore the newest checkpoint; or, if it may send again what it had sent, '
                          'select pgq.forget_stream_writer(%L, %L).', i_queue_name, i_writer_name);
    end if;
    return false;
end;
$$;

create or replace function pgq.forget_stream_writer(i_queue_name text, i_writer_name text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Frees a writer's name: the next batch under this name is written, from whichever stream it comes.
-- Parameters:
--      i_writer_name   - the name
-- Returns: 1, or 0 if nothing was written under that name.
declare
    q   constant pgq.queue := pgq._find_queue_for(i_queue_name, 'insert');
    n   int4;
begin
    delete from pgq.stream_writer where sw_queue = q.queue_id and sw_name = i_writer_name;
    get diagnostics n = row_count;
    return n;
end;
$$;
