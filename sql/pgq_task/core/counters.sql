create or replace function pgq_task._add_counters(i_queue_id int4)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Creates the sequences that count the operations on a queue's tasks, except queue_pushed. A sequence adds one at a
-- time, so operations that often come in hundreds have a second sequence, for sixteens.
declare
    v_name  text;
begin
    foreach v_name in array '{pushed16,claimed,claimed16,finished,finished16,popped,failed_attempts,failed,released,moved,deleted}'::text[]
    loop
        execute format('create sequence pgq_task.%s_%s minvalue 0 start 0', v_name, i_queue_id);
        perform setval(format('pgq_task.%s_%s', v_name, i_queue_id)::regclass, 0);
    end loop;
end;
$$;

create or replace function pgq_task._sequence_of(i_name text)
returns regclass
language plpgsql
as $$
-- Returns a queue's sequence, by its name in pgq_task; see pgq_task._living(1).
begin
    return pgq_task._living(pg_catalog.to_regclass('pgq_task.' || i_name));
end;
$$;

create or replace function pgq_task._living(i_seq regclass)
returns regclass
language plpgsql
as $$
-- Returns a queue's sequence; null if the queue is gone. It waits for a session that is dropping the queue: a session
-- that used the sequence would wait too, and then fail with an internal error.
begin
    if pg_catalog.pg_relation_is_updatable(i_seq, false) is not null and pg_catalog.pg_relation_filenode(i_seq) is not null then
        return i_seq;
    end if;
    return null;
end;
$$;

create or replace function pgq_task._count_up(i_what text, i_queue_id int4, i_tasks bigint default 1)
returns void
language plpgsql
as $$
-- Counts an operation on a number of tasks.
declare
    v_left      bigint := i_tasks;
    v_ones      constant regclass := case i_what
        when 'pushed' then pgq_task._living((select q.queue_pushed from pgq_task.queue q where q.queue_id = i_queue_id))
        else pgq_task._sequence_of(i_what || '_' || i_queue_id) end;
    v_sixteens  constant regclass := pg_catalog.to_regclass('pgq_task.' || i_what || '16_' || i_queue_id);
begin
    if v_left >= 16 and v_sixteens is not null then
        perform pg_catalog.nextval(v_sixteens) from pg_catalog.generate_series(1, v_left / 16);
        v_left := v_left % 16;
    end if;
    perform pg_catalog.nextval(v_ones) from pg_catalog.generate_series(1, v_left);
end;
$$;

create or replace function pgq_task._count_each(i_what text, i_queue_ids int4[])
returns void
language plpgsql
as $$
-- Counts operations on tasks of these queues; each queue is named once per operation.
begin
    perform pgq_task._count_up(i_what, q.id, q.tasks)
       from (select u.id, count(*) as tasks from unnest(i_queue_ids) u (id) where u.id is not null group by u.id) q;
end;
$$;

create or replace function pgq_task._counters_of(i_queue_id int4)
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the counts of a queue, in the order of pgq_task.get_statistics(1). Each sequence that is read is locked, and
-- locks are limited: a rollback to a savepoint releases them.
declare
    v_counted   bigint[];
begin
    execute (select 'select array[' || string_agg(format(
                        case when c.what = 'pushed'
                             then '(select last_value & 1099511627775 from %3$s) + 16 * (select last_value from pgq_task.%1$s16_%2$s)'
                             when c.what in ('claimed', 'finished')
                             then '(select last_value from pgq_task.%1$s_%2$s) + 16 * (select last_value from pgq_task.%1$s16_%2$s)'
                             else '(select last_value from pgq_task.%1$s_%2$s)' end,
                        c.what, q.queue_id, q.queue_pushed), ', ' order by c.nr) || ']'
               from pgq_task.queue q,
                    unnest('{pushed,claimed,finished,popped,failed_attempts,failed,released,moved,deleted}'::text[])
                    with ordinality c (what, nr)
              where q.queue_id = i_queue_id
                -- The queue is gone, and visible to an old snapshot only: there is no such relation.
                and q.queue_pushed::text !~ '^\d+$')
       into v_counted;
    raise no_data_found;
exception
    when no_data_found then
        return v_counted;
    when undefined_table or null_value_not_allowed then
        return null;
end;
$$;

create or replace function pgq_task.get_statistics(queue text default null)
returns table (
    queue_name text, pushed bigint, claimed bigint, finished bigint, popped bigint, failed_attempts bigint, failed bigint,
    released bigint, moved bigint, deleted bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of operations of each kind on tasks of a queue since the queue was created.
-- Parameters:
--      queue       - its name; null for all queues that the caller may read
-- Returns:
--      queue_name
--      pushed      - tasks put into it: by push(), push_many(), modify() and replay()
--      claimed     - attempts: claims, and pops
--      finished    - by finish()
--      popped      - by pop()
--      failed_attempts - including the last ones
--      failed      - tasks that went to the error queue: their attempts were used up, or were not to be repeated
--      released    - tasks that were released: the attempt did not count
--      moved       - tasks moved to another queue by modify() and the functions that use it
--      deleted     - by modify() and remove_tasks()
--      The counters are sequences: sessions do not wait for each other to count, and there is nothing to vacuum. So
--      they also count operations that were rolled back, and a crash of the server makes them jump ahead, by up to 32
--      (pushed, claimed and finished: 544).
-- Errors: 42501 no right to read it
begin
    if queue is not null then
        perform pgq_task._require_queues(array[queue]);
    end if;
    return query
        select q.queue_name, n.c[1], n.c[2], n.c[3], n.c[4], n.c[5], n.c[6], n.c[7], n.c[8], n.c[9]
          from pgq_task.queue q
         cross join lateral (select pgq_task._counters_of(q.queue_id) as c) n
         where q.queue_name = get_statistics.queue and (not q.queue_restricted or pgq_task._require_right(q.queue_id, 'read'))
            or get_statistics.queue is null and (not q.queue_restricted or pgq_task._has_right(q.queue_id, 'read'))
         order by q.queue_name;
end;
$$;
