"""An application under load that survives its database: producers, a ticker and a consumer, each a
thread with a connection of its own, which it opens again for as long as it takes.

The producers write each event twice in one transaction, into the queue and into the table
``app``. The consumer keeps the table ``effect`` in the transaction in which it finishes the
batch. Whatever a crash takes or leaves: both tables must come out the same.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import psycopg

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

QUEUE, CONSUMER = "load", "effects"
PATIENCE = 180.0

TABLES = """
create table app (data text primary key, xid bigint not null default txid_current());
create table effect (data text not null, retry int not null, primary key (data, retry));
"""


def is_death(error: Exception) -> bool:
    """Whether the database went away; anything else, a deadlock for example, is a failure."""
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(("57", "08"))
    )


class Load:
    """Start it, watch `progress`, stop it; then read what came out."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stopping = threading.Event()
        self._errors: list[Exception] = []
        self._heard = threading.Condition()
        self._effects = 0
        self.durable: list[str] = []
        """The events whose commit producers with synchronous_commit = on were told of."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(TABLES)
            conn.execute("select pgq.create_queue(%s)", [QUEUE])
            ops.rotate_whenever_asked(conn, QUEUE)
            ops.register(conn, QUEUE, CONSUMER)
        jobs: list[Callable[[Connection], None]] = [self._tick, self._consume]
        for number, durable in enumerate([True, True, False, False]):
            jobs.append(self._producer(number, durable))
        self._threads = [threading.Thread(target=self._run, args=[job]) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """The database must be up, and what the threads are doing is done."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        if self._errors:
            raise ExceptionGroup("load", self._errors)

    def progress(self, effects: int) -> None:
        """Wait until the consumer has committed this many more effects."""
        with self._heard:
            target = self._effects + effects
            assert self._heard.wait_for(
                lambda: self._effects >= target or self._errors, PATIENCE
            ), "the consumer does not get on"

    def _run(self, job: Callable[[Connection], None]) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as conn:
                    while not self._stopping.is_set():
                        job(conn)
            except Exception as error:
                if not is_death(error):
                    with self._heard:
                        self._errors.append(error)
                        self._heard.notify_all()
                    return
            # A database that comes back takes longer than this loop.
            self._stopping.wait(0.02)

    def _producer(self, number: int, durable: bool) -> Callable[[Connection], None]:
        serial = itertools.count(1)

        def produce(conn: Connection) -> None:
            conn.execute(f"set synchronous_commit = {'on' if durable else 'off'}".encode())
            payloads = [f"{number} {next(serial)}" for _ in range(3)]
            turn = next(serial) % 4
            with conn.transaction():
                conn.execute("insert into app (data) select unnest(%s::text[])", [payloads])
                if turn == 0:
                    for data in payloads:
                        ops.insert(conn, QUEUE, data)
                elif turn == 1:
                    conn.execute(
                        "select pgq.insert_events(%s, array['t', 't', 't'], %s)", [QUEUE, payloads]
                    )
                else:
                    table = ops.value(conn, "select pgq.current_event_table(%s)", QUEUE)
                    ops.copy(conn, table, payloads)
                if turn == 3:
                    raise psycopg.Rollback
            if durable and turn != 3:
                self.durable += payloads
            # At full rate the consumer would take longer afterwards than all did before.
            self._stopping.wait(0.005)

        return produce

    def _tick(self, conn: Connection) -> None:
        conn.execute("select pgq.ticker_round()")
        conn.execute("select pgq.maint_retry_events()")
        ops.rotate(conn, QUEUE)
        ops.rotate_logs(conn)

    def _consume(self, conn: Connection) -> None:
        batch = ops.value(conn, "select pgq.next_batch(%s, %s)", QUEUE, CONSUMER)
        if batch is None:
            self._stopping.wait(0.001)
            return
        with conn.transaction():
            conn.execute("set local synchronous_commit = off")
            taken = take(conn, batch)
        with self._heard:
            self._effects += taken
            self._heard.notify_all()


def take(conn: Connection, batch: int) -> int:
    """Effects and finish of a batch; every tenth event is asked for once more."""
    rows = ops.events(conn, batch)
    with conn.cursor() as cursor:
        cursor.executemany(
            "insert into effect (data, retry) values (%s, %s)",
            [(row[5], row[3] or 0) for row in rows],
        )
    for row in rows:
        if row[0] % 10 == 0 and row[3] is None:
            conn.execute("select pgq.event_retry(%s, %s, -1)", [batch, row[0]])
    ops.finish(conn, batch)
    return len(rows)


def drain(conn: Connection) -> None:
    """All that is in the queue, and all that comes again."""
    for _ in range(2):
        ops.tick(conn, QUEUE)
        while (
            batch := ops.value(conn, "select pgq.next_batch(%s, %s)", QUEUE, CONSUMER)
        ) is not None:
            with conn.transaction():
                take(conn, batch)
        while ops.value(conn, "select pgq.maint_retry_events()"):
            pass
