create table pgq_task.queue (
    queue_id            int4            not null generated always as identity,
    queue_name          text            not null,
    queue_created       timestamptz     not null default now(),
    -- start of the pause, during which its tasks cannot be claimed; null if not paused
    queue_paused        timestamptz,
    -- default duration of a lease
    queue_lease         interval        not null default '30 seconds',
    -- Maximum duration of an attempt: leases end with it. Null: as long as they are renewed.
    queue_time_limit    interval,
    -- Number of attempts after which a task goes to the error queue; null: never.
    queue_max_attempts  int4,
    queue_error_queue   text,
    -- Time for which finished tasks are kept in pgq_task.finished.
    queue_keep          interval        not null default '0',
    -- Claims from several queues are shared in proportion to their weights.
    queue_weight        int4            not null default 1,
    -- Time for which an empty tenant is kept; null: the queue has no tenants, see pgq_task._add_tenant(1).
    queue_keep_tenants  interval,
    -- The queue whose tenant this is.
    queue_parent        int4,
    -- Only roles with grants may act on its tasks: see pgq_task.queue_grant.
    queue_restricted    boolean         not null default false,
    -- Claims are limited: see pgq_task.queue_limit.
    queue_limited       boolean         not null default false,
    -- Its sequences: see pgq_task._wake_workers(3). Null only while the queue is being created.
    queue_waiting       regclass,
    -- Its lower 40 bits count. It is named pgq_task_queues.<queue>, and its upper bits are queue_id, so that
    -- pgq_task.push(8) reads no row. If the name or the id is too long, it is pgq_task.pushed_<id> instead, and the
    -- upper bits are 0.
    queue_pushed        regclass,
    constraint queue_pkey primary key (queue_id),
    constraint queue_name_key unique (queue_name)
);
create index queue_parent_idx on pgq_task.queue (queue_parent) where queue_parent is not null;

-- Queues by the names under which they are served: their own, and those of their parents.
create view pgq_task.served_queue as
select p.queue_name as served_as, p.queue_id as served_id, q.*
  from pgq_task.queue p
 cross join lateral (
       select p.*
       union all
       select t.* from pgq_task.queue t where t.queue_parent = p.queue_id and p.queue_keep_tenants is not null) q;

-- A lane holds the tasks of one queue and priority, in the order of their positions. The lane of priority 0 is always
-- there. Others are added by the first push, without waiting for other sessions, so one may be there more than once; and
-- removed when they are empty: see pgq_task._close_lanes(0).
create table pgq_task.lane (
    queue_id            int4            not null,
    priority            int2            not null,
    lane_id             bigint          not null generated always as identity,
    -- Null: open. Otherwise it was empty, and sessions that push add it again. It is removed when it still is, and all
    -- transactions before this one have ended; 0: this one is not known yet.
    closed              xid8,
    constraint lane_pkey primary key (queue_id, priority, lane_id)
);

create sequence pgq_task.mark_id_seq;

-- Marks of lanes; the newest row holds. Rows of tasks before low are dead or were claimed long ago, and need not be read:
-- see pgq_task.sweep(). Claims begin at ahead, which is a guess; tasks that it skips are found from low on. Marks are
-- only inserted, and read from the newest end, so that dead ones are not read, whichever transactions are open.
create table pgq_task.mark (
    queue_id            int4            not null,
    priority            int2            not null,
    -- The mark_id of the row that a sweep has written. Claims write their guesses into the generation that they have
    -- read, so that none hides the low of a later one.
    generation          bigint          not null,
    mark_id             bigint          not null default nextval('pgq_task.mark_id_seq'),
    low                 bigint          not null,
    ahead               bigint          not null,
    constraint mark_pkey primary key (queue_id, priority, generation, mark_id)
);

create view pgq_task.marked_lane as
select n.queue_id, n.priority, coalesce(m.generation, 0) as generation, coalesce(m.mark_id, 0) as mark_id,
       coalesce(m.low, 0) as low, coalesce(m.ahead, 0) as ahead
  from pgq_task.lane n
  left join lateral (
       select * from pgq_task.mark k
        where k.queue_id = n.queue_id and k.priority = n.priority
        order by k.generation desc, k.mark_id desc
        limit 1) m on true;

-- The offset keeps the planner from joining all lanes there are.
create view pgq_task.served_lane as
select q.*, n.priority, n.generation, n.low, n.ahead
  from pgq_task.served_queue q
 cross join lateral (select * from pgq_task.marked_lane l where l.queue_id = q.queue_id offset 0) n;

-- A claim changes no indexed column, so that it is a heap-only update: a task costs one row with its index entries, one
-- row without index entries for the claim, and a delete.

create sequence pgq_task.task_id_seq;

-- While an old transaction keeps dead rows, autovacuum says that this table is empty. Then each index looks like one
-- page, and reading it as a whole costs as much as looking for a row: it is done if its order, or any condition, is of
-- use. So joins are written such that only a nested loop with look-ups is possible: by id = any (array[other.id]), and
-- from a task to its queue by queue_id + 0. Statements that are given ids order by the list's, and have no other
-- condition that an index could use.
create table pgq_task.task (
    id                  bigint          not null default nextval('pgq_task.task_id_seq'),
    -- The position in the lane: the time when the task is available, see pgq_task._position_of(); by default now. During
    -- a claim it becomes the end of the lease. Null: held back by an earlier task with the same order_key. The largest
    -- number: stopped. The default is pgq_task._position_now().
    pos                 bigint          default case when pg_current_xact_id() is not null
                                                then int8(date_part('epoch', clock_timestamp()) * 1000000) * 256 end,
    created             timestamptz     not null default now(),
    queue_id            int4            not null,
    priority            int2            not null default 0,
    -- number of the latest attempts in a row that ended without a report: the lease ended, as when the worker dies
    lost                int4            not null default 0,
    -- Counts the changes, including claims and renewals. A change must name the version that it applies to. A claim
    -- changes the columns from here to the claimant: as they are neighbours, it writes little of the row to the WAL.
    version             int4            not null default 1,
    -- claims since it was inserted, moved or replayed
    attempts            int4            not null default 0,
    -- end of the claimant's lease
    lease               timestamptz,
    last_attempt        timestamptz,
    claimant            text,
    payload             jsonb,
    headers             jsonb,
    -- of the last attempt that failed
    error               text,
    -- the last 20 attempts that failed: see pgq_task._with_failure(4)
    failures            jsonb,
    -- Unique among the tasks of a queue. A task that a worker has gives it up for a new one: see
    -- pgq_task.push_unique(11).
    unique_key          text,
    -- tasks of a queue with the same key are processed in the order of their ids
    order_key           text,
    -- whether it came to its queue and key with an id that was drawn earlier: pgq_task.key_low says nothing about it
    is_late             boolean,
    constraint task_pkey primary key (id)
) with (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

create index task_lane_idx on pgq_task.task (queue_id, priority, pos);
create unique index task_unique_idx on pgq_task.task (queue_id, unique_key) where unique_key is not null;
-- An expression, which the primary key does not have: it seems to be as good, if most tasks have one key, and would be
-- read as a whole for another key.
create index task_order_idx on pgq_task.task (queue_id, order_key, (id + 0)) where order_key is not null;
-- Expressions that do not say that the key is not null, so that no other index is of use: task_order_idx has, as a rule,
-- more tasks of the key than plans expect that were made when there were none.
create index task_late_idx on pgq_task.task ((queue_id + 0), coalesce(order_key, '')) where is_late;

-- Ids that pgq_task.reserve_ids(1) has returned, and that no task has got yet.
create table pgq_task.reserved_id (
    id                  bigint          not null,
    role                name            not null,
    until               timestamptz     not null,
    constraint reserved_id_pkey primary key (id)
);
create index reserved_id_until_idx on pgq_task.reserved_id (until);

-- The end of the period in which no other task with a key is pushed, whatever the state of the first one.
create table pgq_task.unique_period (
    queue_id            int4            not null references pgq_task.queue on delete cascade,
    unique_key          text            not null,
    -- the task
    id                  bigint          not null,
    until               timestamptz     not null,
    constraint unique_period_pkey primary key (queue_id, unique_key)
);
create index unique_period_until_idx on pgq_task.unique_period (until);

-- The view into which pgq_task.push(8) inserts with its caller's rights, as long as no queue is restricted, see
-- pgq_task._guard_inbox(0). The condition is for sessions that insert here directly: it checks a queue's number, and
-- the lock on its sequence makes pgq_task.drop_queue(2) wait.
create view pgq_task.inbox as
select queue_id, payload
  from pgq_task.task
 where pg_sequence_last_value(to_regclass('pgq_task.waiting_' || queue_id)) is not null
    -- null after a crash of the server
    or to_regclass('pgq_task.waiting_' || queue_id) is not null
  with check option;

-- One row per sweep, read from the newest end, so the dead rows at the other end, where old ones are deleted, are not
-- read.
create table pgq_task.sweep (
    sweep_id            bigint          not null,
    sweep_time          timestamptz     not null,
    sweep_took          interval        not null,
    -- The round of which this is a part: its start, the position that no mark low may pass, and the position from which
    -- the lanes are walked if that is before their marks.
    sweep_began         timestamptz     not null,
    sweep_bound         bigint          not null,
    sweep_from          bigint,
    -- the last lane that was processed, if more are to come
    sweep_queue         int4,
    sweep_priority      int2,
    -- Open transactions whose tasks may become visible before low, each with the position from which on.
    sweep_open          xid8[]          not null,
    sweep_open_pos      bigint[]        not null,
    -- An id and a transaction: those that drew the ids up to this one began before it; and an id whose transactions, and
    -- those of lower ones, have ended.
    sweep_drawn         bigint,
    sweep_drawn_before  xid8,
    sweep_settled       bigint,
    -- last value of the tasks' sequence, and when it last differed, as a position
    sweep_pushed        bigint,
    sweep_busy          bigint          not null,
    -- time when the lanes were last walked from their beginning, independently of the marks
    sweep_anew          timestamptz     not null,
    -- number of the last mark when the round began, and when the one before it began
    sweep_mark          bigint,
    sweep_old_mark      bigint,
    constraint sweep_pkey primary key (sweep_id)
);

-- 1 while a client waits until queues are empty, and was not notified yet: see pgq_task.queue_is_empty(2).
create sequence pgq_task.idle_watch minvalue 0 start 0;

create type pgq_task.claimed as (
    id                  bigint,
    version             int4,
    queue               text,
    priority            int2,
    attempts            int4,
    lease               timestamptz,
    created             timestamptz,
    payload             jsonb,
    headers             jsonb,
    error               text,
    unique_key          text,
    order_key           text
);

-- Numbers of operations on the tasks of queues: sums, and those that sweeps have not added yet. The clock determines
-- which log is written, see pgq_task._count(3); the other one is added and truncated. A crash of the server empties
-- both.
create table pgq_task.counted (
    queue_id            int4            not null,
    -- a column of pgq_task.get_statistics(1), or finished and claimed: one of each
    what                text            not null,
    tasks               bigint          not null,
    changed             timestamptz     not null default now(),
    constraint counted_pkey primary key (queue_id, what)
);
create unlogged table pgq_task.count_log_even (queue_id int4 not null, what text not null, tasks bigint not null)
  with (autovacuum_vacuum_insert_threshold = -1);
create unlogged table pgq_task.count_log_odd (like pgq_task.count_log_even)
  with (autovacuum_vacuum_insert_threshold = -1);
