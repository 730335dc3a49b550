-- Shards. A key moves from shard a to shard b like this; pgqpy shards apply does it:
--   1. pgq.set_shard() gives a's queue a new version. From now on pgq.enter_shard() tells producers with an older map so,
--      and pgq.shard_writers() the transactions that entered before. When these have ended, a tick is made: all events
--      of the key in a are before it.
--   2. The new map says that b is read after this tick of a.
--   3. pgq.set_shard() gives b's queue a new version, as one that gained keys. Until now producers with the new map were
--      refused in b; and from now on readers with an older map see that they need the new one, before they process any
--      event of the key.

create or replace function pgq.get_shard_info(
    i_queue_name text default null,
    out queue_name text, out shard_name text, out shard_version bigint, out shard_gained bigint)
returns setof record
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the shards of logical queues that are in this database.
-- Parameters:
--      i_queue_name    - the queue; null for all
-- Returns:
--      shard_name      - name in the shard map
--      shard_version   - version in the only map with which producers may write
--      shard_gained    - the version with which it last got keys: readers need a map of this version, or a newer one
    select q.queue_name, s.shard_name, s.shard_version, s.shard_gained
      from pgq.shard s
      join pgq.queue q on q.queue_id = s.shard_queue
     where i_queue_name is null or q.queue_name = i_queue_name
     order by q.queue_name;
$$;

create or replace function pgq.enter_shard(i_queue_name text, out shard_name text, out shard_version bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Lets a transaction write into a shard: the shard stays in this version until the transaction ends, or rolls back to a
-- savepoint from before. Call it before the inserts, and write only if the map has the same version of this shard.
-- Returns:
--      shard_name      - name of the shard; null if the queue is no shard
--      shard_version   - its version
-- Errors: PQ001 no such queue, 40001 changed since the transaction's snapshot
declare
    v_queue constant int4 := (pgq._find_queue(i_queue_name)).queue_id;
begin
    perform pg_advisory_xact_lock_shared(pgq._lock_key('shards'), v_queue);
    -- a statement of its own, so that it sees what was committed before this session got the lock
    if pgq._is_read_committed() then
        select s.shard_name, s.shard_version into enter_shard.shard_name, enter_shard.shard_version
          from pgq.shard s
         where s.shard_queue = v_queue;
    else
        -- This fails if the row has changed since the snapshot.
        select s.shard_name, s.shard_version into enter_shard.shard_name, enter_shard.shard_version
          from pgq.shard s
         where s.shard_queue = v_queue
           for share;
    end if;
end;
$$;

create or replace function pgq.shard_writers(i_queue_name text)
returns setof text
language sql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the running transactions that have called pgq.enter_shard(1), as virtualtransaction in pg_locks has them.
    select l.virtualtransaction
      from pg_locks l
      join pg_database d on d.oid = l.database and d.datname = current_database()
      join pgq.queue q on q.queue_id = l.objid::bigint and q.queue_name = i_queue_name
     where l.locktype = 'advisory'
       and l.objsubid = 2
       and l.classid::bigint = pgq._lock_key('shards');
$$;

create or replace function pgq.set_shard(i_queue_name text, i_shard_name text, i_version bigint, i_gains boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a queue a shard, or gives it a new version.
-- Parameters:
--      i_shard_name    - name in the shard map
--      i_version       - new version of the shard, which producers must have in their map
--      i_gains         - true if the shard gets keys from others with this version
-- Errors: PQ001 no such queue, PQ011 it is another shard, or in a later version
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
begin
    perform pgq._require_right(q.queue_id, '{admin}');
    insert into pgq.shard as s (shard_queue, shard_name, shard_version, shard_gained)
    values (q.queue_id, i_shard_name, i_version, case when i_gains then i_version else 0 end)
    on conflict (shard_queue) do update
       set shard_version = excluded.shard_version,
           shard_gained = greatest(s.shard_gained, excluded.shard_gained)
     where s.shard_name = excluded.shard_name
       and s.shard_version <= excluded.shard_version;
    if not found then
        raise exception using errcode = 'PQ011',
            message = format('queue %L cannot be version %s of shard %L: it is version %s of shard %L', i_queue_name, i_version,
                             i_shard_name, (select shard_version from pgq.shard where shard_queue = q.queue_id),
                             (select shard_name from pgq.shard where shard_queue = q.queue_id)),
            hint = 'A shard keeps its name, and its versions ascend; see pgq.get_shard_info(queue).';
    end if;
end;
$$;

create or replace function pgq.drop_shard(i_queue_name text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Makes a queue a plain one: a shard that was removed from the map.
-- Errors: PQ001 no such queue
declare
    q   constant pgq.queue := pgq._find_queue(i_queue_name);
begin
    perform pgq._require_right(q.queue_id, '{admin}');
    delete from pgq.shard where shard_queue = q.queue_id;
end;
$$;

create or replace function pgq.has_finished(i_queue_name text, i_consumer_name text, i_tick_id bigint)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns whether a consumer, or each partition of a group, has finished a tick, and no event from before it is parked.
-- If not, or if there is no such consumer, false.
    with names as (
        select i_consumer_name as name
        union all
        select format('%s#%s', g.group_name, p.part_nr)
          from pgq.consumer_group g
          join pgq.queue q on q.queue_id = g.group_queue
          join pgq.group_partition p on p.part_group = g.group_id
         where q.queue_name = i_queue_name
           and g.group_name = i_consumer_name)
    select coalesce((select min(c.last_tick) >= i_tick_id
                       from pgq.get_consumer_info(i_queue_name, null) c
                      where c.consumer_name in (select name from names)), false)
       and not exists (
           select from pgq.consumer_group g
             join pgq.queue q on q.queue_id = g.group_queue
             join pgq._parked_key k on k.parked_group = g.group_id
             join pgq._parked_event e on e.pe_key = k.parked_id
             left join pgq.tick_log t on t.tick_queue = q.queue_id and t.tick_id = i_tick_id
            where q.queue_name = i_queue_name
              and g.group_name = i_consumer_name
              -- without the tick any may be from before it
              and coalesce(txid_visible_in_snapshot(e.ev_txid, t.tick_snapshot), true));
$$;
