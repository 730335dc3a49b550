"""A test's database: its work, and how it is copied from a template, and always dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from pgqpy.admin import Admin
from pgqpy.connection import connect
from pgqpy.consumer.base import Consumer
from pgqpy.consumer.base_async import AsyncConsumer
from pgqpy.errors import PgqError, translate_errors
from pgqpy.event import Event
from pgqpy.producer import EventData, EventFields, Producer
from pgqpy.tasks import (
    AsyncTableWorker,
    AsyncTaskWorker,
    TableWorker,
    TaskInfo,
    Tasks,
    TaskWorker,
)

#: The maximum immediate retries of a consumer's events before `drain` gives up.
ROUNDS = 100

Worker: TypeAlias = TaskWorker | AsyncTaskWorker | TableWorker | AsyncTableWorker
_ID = attrgetter("id")


class ScratchDatabase:
    """A database with PgQ, for one test. No ticker runs there: `tick` and `drain` tick."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        """The connection string for consumers and other clients."""

    @cached_property
    def conn(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection for the test itself, in autocommit."""
        return connect(self.dsn, autocommit=True)

    def close(self) -> None:
        """Close `conn`."""
        if "conn" in self.__dict__:
            self.conn.close()

    def create_queue(self, queue: str, **settings: object) -> str:
        """Create a queue, if it does not exist, and return its name.

        ``settings`` are those of `Admin.set_queue_config`.
        """
        admin = Admin(self.conn)
        admin.create_queue(queue)
        for parameter, value in settings.items():
            admin.set_queue_config(queue, parameter, value)
        return queue

    def insert_event(
        self,
        queue: str,
        type: str | None,  # noqa: A002
        data: EventData | None = None,
        **options: Any,
    ) -> int:
        """Write an event and commit; return its id. ``options`` are `Producer.insert_event`'s."""
        return Producer(queue).insert_event(self.conn, type, data, **options)

    def insert_events(self, queue: str, events: Iterable[EventFields]) -> int:
        """Write many events and commit; return their number."""
        return Producer(queue).insert_events(self.conn, events)

    def events(self, queue: str) -> list[Event]:
        """Return all events ever committed to a queue (none is removed here), by id."""
        Admin(self.conn).get_queue_info(queue)
        ((view,),) = self.conn.execute(_VIEW, [queue]).fetchall()
        with self.conn.cursor(row_factory=class_row(Event)) as cursor:
            return cursor.execute(_EVENTS.format(view).encode()).fetchall()

    def tick(self, queue: str) -> None:
        """Make the events committed so far in a queue a batch of its consumers."""
        admin = Admin(self.conn)
        admin.force_tick(queue)
        admin.ticker(queue)

    def drain(self, consumer: Consumer | AsyncConsumer | Worker) -> None:
        """Tick, and run a consumer until it has read all events of its queue; or run a worker until
        no task of its queues is available.

        What is retried or delayed is delivered if it is due by then. A consumer that is not
        registered gets all events from the first on. Raises the consumer's errors, and PgqError if
        it would never end; a worker's errors become those of its tasks: see `tasks`.
        """
        if isinstance(consumer, AsyncConsumer | AsyncTaskWorker | AsyncTableWorker):
            # Whatever event loop this thread has.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, self.adrain(consumer)).result()
            return
        self._require_own(consumer)
        if not isinstance(consumer, Consumer):
            consumer.run(until_empty=True, handle_signals=False)
            return
        if (tick := self._first_tick(consumer)) is not None:
            consumer.register(at_tick=tick)
        for _ in self._rounds(consumer):
            consumer.run(until_empty=True, handle_signals=False)

    async def adrain(self, consumer: AsyncConsumer | AsyncTaskWorker | AsyncTableWorker) -> None:
        """Drain a consumer or a worker in the running event loop."""
        self._require_own(consumer)
        if not isinstance(consumer, AsyncConsumer):
            await consumer.run(until_empty=True, handle_signals=False)
            return
        if (tick := self._first_tick(consumer)) is not None:
            await consumer.register(at_tick=tick)
        for _ in self._rounds(consumer):
            await consumer.run(until_empty=True, handle_signals=False)

    def create_task_queue(self, queue: str, **settings: object) -> str:
        """Create a task queue, if it does not exist, and return its name.

        ``settings`` are those of `pgqpy.tasks.Tasks.set_config`.
        """
        tasks = Tasks(self.conn)
        tasks.create_queue(queue)
        for parameter, value in settings.items():
            tasks.set_config(queue, parameter, value)
        return queue

    def tasks(self, queue: str, **filters: Any) -> list[TaskInfo]:
        """Return the tasks of a queue in the order in which they were pushed; finished ones are
        gone, those that were given up are in the queue ``<queue>.failed``.

        ``filters`` are the conditions of `pgqpy.tasks.Tasks.list`.
        """
        return sorted(Tasks(self.conn).list(queue, filters, max_tasks=None), key=_ID)

    def bring_forward(self, queue: str) -> int:
        """Make the tasks of a queue that are scheduled, or wait for a retry, due now; return their
        number."""
        return Tasks(self.conn).change(queue, {"status": "scheduled"}, {"delay": 0})

    def _require_own(self, consumer: Any) -> None:
        if isinstance(consumer, type):
            raise TypeError(f"an object is drained, such as {consumer.__name__}(pgq.dsn)")
        if consumer.dsn != self.dsn:
            raise PgqError(
                f"{type(consumer).__name__} is for another database than the test's",
                hint="Make it inside of the test, with the dsn of the test's database.",
            )

    def _rounds(self, consumer: Consumer | AsyncConsumer) -> Iterator[None]:
        """Tick before each run of the consumer, until no event comes back."""
        for _ in range(ROUNDS):
            self.tick(consumer.queue)
            yield
            if not self._bring_back():
                return
        raise PgqError(
            f"{type(consumer).__name__} has put events back {ROUNDS} times, and they are due again",
            hint="Retry after some time; then drain does not wait for them.",
        )

    def _first_tick(self, consumer: Consumer | AsyncConsumer) -> int | None:
        """Return the tick at which a consumer is to begin; None if it has begun."""
        queue, name = consumer.queue, consumer.consumer
        admin = Admin(self.conn)
        admin.get_queue_info(queue)
        if admin.get_consumer_info(queue, name):
            return None
        return int(self.conn.execute(_FIRST_TICK, [queue]).fetchall()[0][0])

    def _bring_back(self) -> int:
        """Put due retries and delayed events into their queues; return their number."""
        admin = Admin(self.conn)
        total = 0
        while moved := admin.maint_retry_events():
            total += moved
        return total


_VIEW = "select queue_data_pfx from pgq.queue where queue_name = %s"

_EVENTS = """
select ev_id as id, ev_time as time, ev_txid as txid, coalesce(ev_retry, 0) as retry_count,
       ev_type as type, ev_data as data,
       ev_extra1 as extra1, ev_extra2 as extra2, ev_extra3 as extra3, ev_extra4 as extra4
  from {}
 where ev_owner is null
 order by ev_id
"""

_FIRST_TICK = """
select min(t.tick_id) from pgq.tick t join pgq.queue q on q.queue_id = t.tick_queue
 where q.queue_name = %s
"""


def dsn_of(server: str, database: str) -> str:
    """Return the connection string of another database on the same server."""
    return make_conninfo(server, dbname=database)


def create_database(server: str, name: str, *, template: str | None = None) -> None:
    """Create a database, as a copy of ``template`` if given; the template's sessions are ended.

    Raises ConnectionFailed, PermissionDenied.
    """
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    with translate_errors(), connect(server, autocommit=True) as conn:
        if template is not None:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
            conn.execute(_DISCONNECT, [template])
            if conn.execute(_BY_FILES).fetchone() == (True,):
                statement += sql.SQL(" strategy file_copy")
        conn.execute(statement)


def drop_database(server: str, name: str) -> None:
    """Drop a database with all its sessions and prepared transactions, if it is there.

    Raises ConnectionFailed, PermissionDenied.
    """
    with translate_errors(), connect(server, autocommit=True) as conn:
        prepared = conn.execute(_PREPARED, [name]).fetchall()
        if prepared:
            # Prepared transactions can only be ended in their own database.
            with connect(dsn_of(server, name), autocommit=True) as inside:
                for (gid,) in prepared:
                    inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        conn.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


#: Without fsync several times faster than through the WAL; PostgreSQL 14 has no other way.
_BY_FILES = """
select current_setting('fsync') = 'off' and current_setting('server_version_num')::int4 >= 150000
"""

_DISCONNECT = """
select pg_catalog.pg_terminate_backend(pid, 10000)
  from pg_catalog.pg_stat_activity
 where datname = %s
   and backend_type = 'client backend'
"""

_PREPARED = "select gid from pg_catalog.pg_prepared_xacts where database = %s"
