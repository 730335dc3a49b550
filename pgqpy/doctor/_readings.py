"""What is read of queues and consumers, for `pgqpy.doctor` and ``pgqpy status``: plain values.

Rates, lags and backlogs are PgQ's own (get_queue_info, get_consumer_info). The rest is read
here and nowhere else: when each queue rotates and what blocks that, how many events wait for a
retry or were given up, the progress of batches that consumers report, and why they fail, which
transactions are old, and which of the ticker's jobs fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from psycopg.rows import class_row

from pgqpy.admin import Admin
from pgqpy.connection import Connection
from pgqpy.consumer.progress import BatchProgress
from pgqpy.models import ConsumerInfo, ConsumerPause, QueueInfo

Row = TypeVar("Row")

# The ticker's lock has this key: see pgq._lock_keys().
SERVER = """
select current_database() as database,
       current_setting('server_version') as server_version,
       now() as time,
       (select pid
          from pg_catalog.pg_locks
         where locktype = 'advisory'
           and classid = 1885827440
           and objid = 1
           and objsubid = 2
           and granted
           and database = (select oid from pg_catalog.pg_database
                            where datname = current_database())) as ticker_pid,
       case when not pg_is_in_recovery() then null
            when pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() then interval '0'
            else coalesce(clock_timestamp() - pg_last_xact_replay_timestamp(), interval '0')
        end as standby_lag
"""

# Not every role may read all of it; every role may ask whether it may.
MAY_READ = """
select coalesce(case when name like '%%(%%'
                     then has_function_privilege(to_regprocedure(name), 'execute')
                     else has_table_privilege(to_regclass(name), 'select') end, false)
  from unnest(%s::text[]) with ordinality as each (name, nr)
 order by nr
"""

# A rotation empties the oldest table, so it waits for every consumer whose position is not past the
# last switch. Positions are snapshots: one is past the switch if no transaction that was open at
# the switch was open at it. If that fails for the newest tick as well, then a transaction is still
# open, and the consumers are not late. A switch in the future was made before the clock was set
# back; the next is due.
ROTATION = """
select q.queue_name as queue,
       least(q.queue_switch_time, now()) as rotated_at,
       due.at as rotation_due_at,
       coalesce(
           (select split_part(t.tick_snapshot::text, ':', 1)::bigint <= q.queue_switch_step2
              from pgq.tick t
             where t.tick_queue = q.queue_id
             order by t.tick_id desc
             limit 1),
           false) as held_by_transaction,
       case when due.at <= now() then array(
           select c.co_name
             from pgq.subscription s
             join pgq.consumer c on c.co_id = s.sub_consumer
             join pgq.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
            where s.sub_queue = q.queue_id
              and split_part(t.tick_snapshot::text, ':', 1)::bigint <= q.queue_switch_step2
            order by t.tick_id, c.co_name) else '{}' end as consumers_before_switch
  from pgq.queue q
 cross join lateral (
       select case when q.queue_switch_time <= now()
                   then q.queue_switch_time + greatest(q.queue_rotation_period, q.queue_keep)
                   when q.queue_rotation_period is not null then now()
              end as at) due
"""

DELAYED = """
select queue_name as queue, delayed_events, next_due, retry_events
  from pgq.get_delayed_info(%s)
"""

DEAD_LETTERS = """
select queue_name, consumer_name, dead_letters from pgq.get_dead_letter_info(%s)
"""

GROUPS = """
select queue_name as queue, group_name as name, partitions,
       case when parked_keys > 0
            then (select count(*)
                    from pgq.get_parked_keys(queue_name, group_name)
                   where next_attempt is null)
            else 0
        end as keys_given_up
  from pgq.get_group_info(%s)
"""

PAUSED = """
select * from pgq.get_paused_consumers(%s)
"""

# A consumer with a long batch publishes its progress in the name of its session.
BATCHES = """
select application_name
  from pg_catalog.pg_stat_activity
 where datname = current_database()
   and application_name like 'pgqpy batch %'
"""

FAILURES = """
select tf_operation as operation, nullif(tf_argument, '') as argument, tf_error as error,
       greatest(now() - tf_since, interval '0') as age
  from pgq.ticker_failure
 order by tf_since, tf_operation, tf_argument
"""

FAILING = """
select queue_name as queue, consumer_name as consumer, batch_id, event_id, error, traceback,
       attempts, greatest(now() - failing_since, interval '0') as age,
       greatest(now() - last_attempt, interval '0') as last_attempt
  from pgq.failing_consumer
"""

FOREIGN_LOCKS = """
select pid, holder, role_name as username, lock_name as lock from pgq.get_foreign_locks()
"""

#: What a role needs for statements that not every role may execute.
NEEDS = {
    DELAYED: "pgq.get_delayed_info(text)",
    DEAD_LETTERS: "pgq.get_dead_letter_info(text)",
    GROUPS: "pgq.get_parked_keys(text,text)",
    PAUSED: "pgq.get_paused_consumers(text)",
    FAILURES: "pgq.ticker_failure",
    FAILING: "pgq.failing_consumer",
    FOREIGN_LOCKS: "pgq.get_foreign_locks()",
}

# Only transactions that have written, or are prepared: events and rotation wait for these, in
# whichever database of the cluster they are. Other users' sessions show their age only to members
# of pg_monitor.
TRANSACTIONS = """
select 'session' as kind, pid::text as name, usename::text as username, state,
       application_name as application, now() - xact_start as age, datname::text as database,
       left(query, 200) as query
  from pg_catalog.pg_stat_activity
 where backend_xid is not null
   and pid <> pg_backend_pid()
   and now() - xact_start > %(older_than)s
union all
select 'prepared', gid, owner::text, null, null, now() - prepared, database::text, null
  from pg_catalog.pg_prepared_xacts
 where now() - prepared > %(older_than)s
 order by age desc
"""


@dataclass(frozen=True, slots=True)
class Server:
    """The database that was read, and the time."""

    database: str
    server_version: str
    time: datetime
    ticker_pid: int | None
    #: The age of what a standby has replayed; None: it is no standby.
    standby_lag: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a queue's tables were switched, and what blocks the next switch, if that is due."""

    queue: str
    rotated_at: datetime
    rotation_due_at: datetime | None
    held_by_transaction: bool
    consumers_before_switch: list[str]


@dataclass(frozen=True, slots=True)
class Delayed:
    """The number of a queue's delayed events, the time of the next, and the number of retries."""

    queue: str
    delayed_events: int
    next_due: datetime | None
    retry_events: int


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group, and how many of its parked keys are not retried automatically."""

    queue: str
    name: str
    partitions: int
    keys_given_up: int

    @property
    def consumers(self) -> list[str]:
        """The names of its partitions, each of which is a consumer."""
        return [f"{self.name}#{number}" for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is open, or prepared, for long."""

    kind: str
    name: str
    username: str | None
    state: str | None
    application: str | None
    age: timedelta
    database: str | None
    query: str | None


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """A pgq lock held by a role that is none of pgq's; without a ``pid``, by the prepared
    transaction ``holder``."""

    pid: int | None
    holder: str
    username: str
    lock: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A job of the ticker, or an operation of maintenance, whose last run failed."""

    operation: str
    argument: str | None
    error: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Failing:
    """A consumer whose open batch failed: at which event, if known, since when, how often."""

    queue: str
    consumer: str
    batch_id: int
    event_id: int | None
    error: str
    traceback: str | None
    attempts: int
    age: timedelta
    last_attempt: timedelta


@dataclass(frozen=True, slots=True)
class TaskWorker:
    """A worker: the number of its tasks, their queues, the start of the oldest attempt, and the end
    of the first lease."""

    claimant: str
    tasks: int
    queues: list[str]
    since: datetime | None
    lease: datetime | None


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything that was read, before it is judged."""

    server: Server
    queues: list[QueueInfo]
    consumers: list[ConsumerInfo]
    rotations: dict[str, Rotation]
    delayed: dict[str, Delayed]
    dead_letters: dict[tuple[str, str], int] | None
    batches: dict[int, BatchProgress]
    #: None: the role may not see them.
    groups: list[Group] | None
    transactions: list[Transaction]
    foreign_locks: list[ForeignLock]
    failures: list[Failure]
    failing: dict[tuple[str, str], Failing]
    paused: dict[tuple[str, str], datetime]


def read(conn: Connection, queue: str | None, older_than: timedelta) -> Readings:
    """Read the state of all queues, or of one, and the transactions older than an age.

    Raises pgqpy.errors.QueueNotFound if that queue does not exist.
    """
    admin = Admin(conn)
    queues = admin.get_queue_info(queue)
    may = dict(zip(NEEDS, _may_read_each(conn, NEEDS.values()), strict=True))

    def rows(kind: type[Row], statement: str, arguments: Any = None) -> list[Row]:
        return _rows(conn, kind, statement, arguments) if may.get(statement, True) else []

    [server] = rows(Server, SERVER)
    dead_letters = None
    if may[DEAD_LETTERS]:
        counts = conn.execute(DEAD_LETTERS, [queue])
        dead_letters = {(name, by): number for name, by, number in counts}
    batches = [BatchProgress.from_session_name(name) for (name,) in conn.execute(BATCHES)]
    return Readings(
        server,
        queues,
        admin.get_consumer_info(queue),
        {row.queue: row for row in rows(Rotation, ROTATION)},
        {row.queue: row for row in rows(Delayed, DELAYED, [queue])},
        dead_letters,
        {each.batch_id: each for each in batches if each},
        rows(Group, GROUPS, [queue]) if may[GROUPS] else None,
        rows(Transaction, TRANSACTIONS, {"older_than": older_than}),
        rows(ForeignLock, FOREIGN_LOCKS),
        rows(Failure, FAILURES),
        {(each.queue, each.consumer): each for each in rows(Failing, FAILING)},
        {
            (each.queue_name, each.consumer_name): each.paused
            for each in rows(ConsumerPause, PAUSED, [queue])
        },
    )


def read_delayed(conn: Connection, queue: str) -> Delayed | None:
    """Return the delayed events of a queue; nothing without the right."""
    if not may_read(conn, NEEDS[DELAYED]):
        return None
    return next(iter(_rows(conn, Delayed, DELAYED, [queue])), None)


def task_workers(conn: Connection, most: int) -> list[TaskWorker]:
    """Return the workers that have tasks now; an idle one is not known."""
    return _rows(conn, TaskWorker, "select * from pgq_task.get_workers() limit %s", [most])


def _rows(conn: Connection, kind: type[Row], statement: str, arguments: Any = None) -> list[Row]:
    with conn.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement, arguments).fetchall()


def group_in(consumer: str) -> str | None:
    """Return the group of which a consumer of this name is a partition, if it is one."""
    name, _, number = consumer.rpartition("#")
    return name if name and number.isdigit() else None


def may_read(conn: Connection, *names: str) -> bool:
    """Whether the role may select from, or call, all of these."""
    return all(_may_read_each(conn, names))


def _may_read_each(conn: Connection, names: Iterable[str]) -> list[bool]:
    return [may for (may,) in conn.execute(MAY_READ, [list(names)])]
