-- A cheap count(*): a consumer adds up the captured inserts and deletes of a table.
--
-- It begins with a count(*) and the snapshot of that query. The changes of a transaction that the snapshot sees are in
-- this number, and their events are skipped, whenever they come; all other events are added. So the number is that of
-- the rows at the batch's tick, whichever transactions were open meanwhile.

create or replace function pgq.row_count(i_table regclass)
returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
-- Returns the number of rows of a table, as of the newest batch of the consumer that counts them. The view
-- pgq.row_counts has all numbers, with their times. Both show only tables that the caller may select from.
-- Parameters:
--      i_table     - a table that a row counter counts
-- Errors: PQ061 no consumer counts this table
declare
    n   pgq.row_counts;
begin
    select * into n from pgq.row_counts where table_name = i_table order by as_of desc nulls last limit 1;
    if not found then
        raise exception using errcode = 'PQ061',
            message = pg_catalog.format('the rows of table %s are not counted, or you may not select from it', i_table),
            hint = 'Run a counter for it: pgqpy run row_counter config.toml';
    end if;
    if n.row_count is null then
        raise exception using errcode = 'serialization_failure',
            message = 'the counts have been rewritten since this transaction took its snapshot',
            hint = 'Roll back and run the transaction again; in READ COMMITTED this does not happen.';
    end if;
    return n.row_count;
end;
$$;

create or replace function pgq._row_count_identity(i_queue text, i_table regclass)
returns oid[]
language plpgsql stable
as $$
-- Returns the triggers that capture all inserts, deletes and truncates of a table into a queue, and the table's
-- partitions. Raises PQ060 if they are not captured.
declare
    c       pgq.capture;
    missing text;
    wrong   text;
begin
    select * into c from pgq.capture where capture_table = i_table and capture_queue = i_queue;
    select pg_catalog.string_agg(o, ',') into missing
      from pg_catalog.unnest(array['insert', 'delete', 'truncate']) o
     where not c.capture_options -> 'operations' ? o;
    wrong := case
        when c.capture_table is null then pg_catalog.format('is not captured into queue %L', i_queue)
        when not c.capture_enabled then 'has its capture disabled'
        when missing is not null then pg_catalog.format('is captured without %s', missing)
        when c.capture_options ->> 'condition' is not null then 'is captured on a condition'
        when exists (select from pg_catalog.pg_class t, pg_catalog.pg_inherits i
                      where t.oid = i_table and t.relkind <> 'p' and i.inhparent = t.oid)
            then 'has tables that inherit from it, whose changes are not captured'
    end;
    if wrong is not null then
        raise exception using errcode = 'PQ060',
            message = pg_catalog.format('table %s %s: its rows cannot be counted', i_table, wrong),
            hint = case when wrong like 'has tables%' then 'Count the tables that inherit one by one.'
                   else pg_catalog.format('As its owner: select pgq.capture_table(%L, %L%s)', i_table, i_queue,
                                          case when c.capture_table is null then '' else ', replace => true' end)
                   end;
    end if;
    return array(
        select oid from pg_catalog.pg_trigger where tgfoid = c.capture_function
        union all
        select relid from pg_catalog.pg_partition_tree(i_table) where relid <> i_table
        order by 1);
end;
$$;

create or replace function pgq._event_table_name(i_table regclass)
returns text
language sql stable
as $$
-- Returns a table's name in the form of ev_extra1 of captured changes, without quotes.
    select n.nspname || '.' || c.relname
      from pg_catalog.pg_class c
      join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where c.oid = i_table;
$$;

create or replace function pgq._stale_row_counts(
    i_registration int4, i_queue text, i_tables regclass[], i_prev_tick bigint, i_prev_seq bigint)
returns setof regclass
language sql stable
as $$
-- Returns the tables whose rows have to be counted before changes after a tick can be added: tables that were never
-- counted; tables that had other triggers, partitions or another name then; and, if the consumer was moved, tables
-- whose number is of a later tick, or of an earlier one with events in between.
    select t.relid
      from pg_catalog.unnest(i_tables) t (relid)
      left join pgq.counted_table ct on ct.ct_registration = i_registration and ct.ct_table = t.relid
      left join lateral (
           select * from pgq.row_count_log where rc_counted = ct.ct_id order by rc_nr desc limit 1) n on true
     where (ct.ct_identity = pgq._row_count_identity(i_queue, t.relid)
            and ct.ct_name = pgq._event_table_name(t.relid)
            and n.rc_tick <= i_prev_tick
            and n.rc_seq >= i_prev_seq) is not true;
$$;

create or replace function pgq.find_counted_tables(i_tables text[])
returns regclass[]
language plpgsql stable
as $$
-- Returns the tables with these names, looked up as the caller: for the other functions here.
-- Parameters:
--      i_tables    - names as in SQL
-- Errors: PQ060 a table is missing
declare
    missing pg_catalog.text;
begin
    select name into missing from pg_catalog.unnest(i_tables) name where pg_catalog.to_regclass(name) is null;
    if found then
        raise exception using errcode = 'PQ060',
            message = pg_catalog.format('there is no table %s: its rows cannot be counted', missing),
            hint = 'Write its schema and name as in SQL: shop.flight, or shop."Flight".';
    end if;
    return array(select distinct pg_catalog.to_regclass(name) from pg_catalog.unnest(i_tables) name);
end;
$$;

create or replace function pgq.row_counts_to_start(
    i_queue_name text, i_consumer_name text, i_tables regclass[], out schema_name text, out table_name text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Returns the tables whose rows the consumer has to count before it can add changes; see pgq.start_row_count(6).
-- Parameters:
--      i_tables        - the result of pgq.find_counted_tables(1)
-- Errors: PQ001, PQ002 no such queue or consumer, PQ060 a table is missing, or not captured into the queue as it has to
--      be
declare
    r   constant pgq.registration := pgq._find_registration(i_queue_name, i_consumer_name);
    p   constant pgq.position_0 := pgq._get_position(r.reg_id);
begin
    return query
    select n.nspname::text, c.relname::text
      from pgq._stale_row_counts(r.reg_id, i_queue_name, i_tables, p.pos_last_tick,
                                 (pgq._get_tick(r.sub_queue, p.pos_last_tick)).tick_event_seq) stale
      join pg_class c on c.oid = stale
      join pg_namespace n on n.oid = c.relnamespace;
end;
$$;

create or replace function pgq.start_row_count(
    i_queue_name text, i_consumer_name text, i_table regclass, i_rows bigint, i_snapshot txid_snapshot,
    i_batch_id bigint default null)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Starts counting a table again, from this number of rows in this snapshot. One statement gives both:
--
--     select count(*), txid_current_snapshot() from flight
-- Parameters:
--      i_batch_id      - the open batch in whose transaction this is called; null if there is none
-- Errors: PQ001, PQ002 no such queue or consumer, PQ004 the batch is not open, or another consumer's, PQ060 the table
--      is not captured into the queue as it has to be
declare
    r   constant pgq.registration := pgq._find_registration(i_queue_name, i_consumer_name);
    -- The counted table refers to the registration; unregistering locks the registration.
    p   constant pgq.position_0 := pgq._lock_position(r.reg_id);
    t   pgq.tick_0;
    id  int4;
begin
    if p.pos_nr is null then
        perform pgq._find_registration(i_queue_name, i_consumer_name);  -- raises the error: just unregistered
    end if;
    if i_batch_id is not null and i_batch_id is distinct from p.pos_batch then
        raise exception using errcode = 'PQ004',
            message = format('batch %s of consumer %s on queue %s is not open', i_batch_id, i_consumer_name, i_queue_name),
            hint = 'Does the consumer run twice? Each consumer name is for one process.';
    end if;
    t := pgq._get_tick(r.sub_queue, case when i_batch_id is null then p.pos_last_tick else p.pos_next_tick end);
    delete from pgq.counted_table where ct_registration = r.reg_id and ct_table = i_table;
    insert into pgq.counted_table (ct_registration, ct_table, ct_name, ct_identity, ct_snapshot)
    values (r.reg_id, i_table, pgq._event_table_name(i_table), pgq._row_count_identity(i_queue_name, i_table), i_snapshot)
    returning ct_id into id;
    insert into pgq.row_count_log (rc_counted, rc_nr, rc_rows, rc_tick, rc_seq, rc_time)
    values (id, 0, i_rows, t.tick_id, t.tick_event_seq, now());
end;
$$;

create or replace function pgq.count_batch_rows(
    i_batch_id bigint, i_tables regclass[], out schema_name text, out table_name text)
returns setof record
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Adds a batch's inserts and deletes to the row counts. Call it once, in the transaction that finishes the batch.
-- Parameters:
--      i_tables        - the result of pgq.find_counted_tables(1)
-- Returns: tables whose changes could not be added: count them in the same transaction, and call pgq.start_row_count(6)
--      with the batch.
-- Errors: PQ004 the batch is not open, PQ060 a table is missing, or not captured into the queue as it has to be
declare
    r           constant int4 := pgq._find_batch(i_batch_id);
    b           record;
    stale       oid[];
begin
    -- In one function: most of it is one statement.
    select * into b from pgq._open_batch(i_batch_id);
    stale := array(select pgq._stale_row_counts(r, (b.queue).queue_name, i_tables,
                                                (b.last_tick).tick_id, (b.last_tick).tick_event_seq));

    -- TRUNCATE locks the table: all events of the table with lower ids were committed before it.
    execute format($sql$
        with counted as (
            select ct.*
              from pgq.counted_table ct
             where ct.ct_registration = $1
               and ct.ct_table = any ($2)
               and ct.ct_table::oid <> all ($3)
        ), named as (
            select ct_id, ct_snapshot, ct_name as name, false as part from counted
            union all
            select c.ct_id, c.ct_snapshot, pgq._event_table_name(t.relid), true
              from counted c, pg_partition_tree(c.ct_table) t
             where t.relid <> c.ct_table
        ), change as materialized (
            select n.ct_id, n.part, e.ev_id,
                   case when e.ev_type like '{"op":"%%' then substr(e.ev_type, 8, 1) else left(e.ev_type, 1) end as op
              from (%s) e
              join named n on n.name = e.ev_extra1
             where not txid_visible_in_snapshot(e.ev_txid, n.ct_snapshot)
        ), emptied as (
            select ct_id, max(ev_id) filter (where not part) as ev_id, bool_or(part) as part
              from change
             where op in ('T', 'R')
             group by ct_id
        ), delta as (
            select c.ct_id, count(*) filter (where c.op = 'I') - count(*) filter (where c.op = 'D') as rows
              from change c
              left join emptied e on e.ct_id = c.ct_id
             where not c.part
               and c.ev_id > coalesce(e.ev_id, 0)
             group by c.ct_id
        ), number as (
            select c.ct_id, c.ct_table, l.rc_nr,
                   case when e.ev_id is null then l.rc_rows else 0 end + coalesce(d.rows, 0) as rows,
                   coalesce(e.part, false) as part
              from counted c
             cross join lateral (
                   select * from pgq.row_count_log where rc_counted = c.ct_id order by rc_nr desc limit 1) l
              left join emptied e on e.ct_id = c.ct_id
              left join delta d on d.ct_id = c.ct_id
        ), added as (
            insert into pgq.row_count_log (rc_counted, rc_nr, rc_rows, rc_tick, rc_seq, rc_time)
            select ct_id, rc_nr + 1, rows, $4, $5, $6
              from number
             where not part and rows >= 0
        )
        select $3 || array(select ct_table::oid from number where part or rows < 0)$sql$,
        pgq.batch_event_sql(i_batch_id))
    into stale
    using r, i_tables, stale, (b.next_tick).tick_id, (b.next_tick).tick_event_seq, (b.next_tick).tick_time;

    return query
    select n.nspname::text, c.relname::text
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.oid = any (stale);
end;
$$;

create or replace function pgq.maint_row_counts()
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
-- Truncates the log of row counts when it has grown, and starts it again with the newest number of each table. It never
-- waits for a lock; the next call tries again what is not possible now. Consumers do not: all of them, and all readers,
-- would wait for the end of the transaction.
-- Returns: 0, for maintenance does not call it again.
-- Errors: PQ012 not in READ COMMITTED
declare
    newest  pgq.row_count_log[];
begin
    -- Under an old snapshot the newest numbers may be invisible.
    perform pgq._require_read_committed('rotation');
    if not pgq._row_counts_have_grown() or not pgq._try_lock_table('pgq.row_count_log') then
        return 0;
    end if;
    newest := array(
        select l
          from pgq.counted_table ct
         cross join lateral (
               select * from pgq.row_count_log where rc_counted = ct.ct_id order by rc_nr desc limit 1) l);
    truncate pgq.row_count_log;
    insert into pgq.row_count_log select * from unnest(newest);
    return 0;
end;
$$;

create or replace function pgq._row_counts_have_grown()
returns boolean
language sql stable
as $$
-- Returns whether the log of row counts is to be truncated.
    select pg_catalog.pg_relation_size('pgq.row_count_log') >= 1048576;
$$;
