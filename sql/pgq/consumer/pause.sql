create or replace function pgq._set_paused(i_queue_name text, i_consumer_name text, i_paused timestamptz)
returns boolean
language plpgsql
as $$
-- Pauses a consumer or a group, or ends its pause; see pgq.pause_consumer(2).
-- Parameters:
--      i_paused    - start of the pause; null to end it
declare
    q       constant pgq.queue := pgq._find_queue(i_queue_name);
    r       pgq.registration;
    done    boolean;
begin
    if q.queue_restricted then
        perform pgq._require_right(q.queue_id, '{consume}', i_consumer_name);
    end if;
    update pgq.consumer_group
       set group_paused = i_paused
     where group_queue = q.queue_id and group_name = i_consumer_name and (group_paused is null) <> (i_paused is null);
    done := found;
    if not done and not exists (select from pgq.consumer_group where group_queue = q.queue_id and group_name = i_consumer_name) then
        r := pgq._find_registration(i_queue_name, i_consumer_name);
        if r.reg_is_partition then
            perform pgq._raise_is_partition(r.reg_id);
        end if;
        -- The main consumer exists before its members.
        if exists (select from pgq.registration where sub_id = r.sub_id and reg_id < r.reg_id) then
            raise exception using errcode = 'PQ016',
                message = format('%L is a worker of a consumer on queue %L, and has its pause', i_consumer_name, i_queue_name),
                hint = 'Give the consumer whose events it shares.';
        end if;
        update pgq.registration
           set reg_paused = i_paused
         where reg_id = r.reg_id and (reg_paused is null) <> (i_paused is null);
        done := found;
    end if;
    if done and i_paused is null then
        perform pgq._notify_consumers(q.queue_id);
    end if;
    return done;
end;
$$;

create or replace function pgq.pause_consumer(i_queue_name text, i_consumer_name text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Pauses a consumer or a group, until pgq.resume_consumer(2): no batch is opened for it. A batch that is open is
-- returned again and can be finished. What it has not read waits for it, and rotation with that.
-- Returns: true; false if it was paused already.
-- Errors: PQ002 consumer not registered, PQ016 a worker that shares another consumer's events, PQ038 a partition of a
--      consumer group: pause the group
begin
    return pgq._set_paused(i_queue_name, i_consumer_name, now());
end;
$$;

create or replace function pgq.resume_consumer(i_queue_name text, i_consumer_name text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Ends the pause of a consumer or a group, and wakes it.
-- Returns: true; false if it was not paused.
-- Errors: as pgq.pause_consumer(2)
begin
    return pgq._set_paused(i_queue_name, i_consumer_name, null);
end;
$$;

create or replace function pgq.get_paused_consumers(
    i_queue_name text default null, out queue_name text, out consumer_name text, out paused timestamptz)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the consumers that are paused, with their workers, and the partitions of groups that are.
-- Parameters:
--      i_queue_name    - their queue; null for all
-- Returns:
--      queue_name, consumer_name
--      paused          - start of the pause
    select q.queue_name, c.co_name, p.since
      from (select sub_id, reg_paused from pgq.registration where reg_paused is not null
            union all
            select group_sub_id, group_paused from pgq.consumer_group where group_paused is not null) p (sub_id, since)
      join pgq.registration r on r.sub_id = p.sub_id
      join pgq.queue q on q.queue_id = r.sub_queue
      join pgq.consumer c on c.co_id = r.sub_consumer
     where i_queue_name is null or q.queue_name = i_queue_name
     order by 1, 2;
$$;
