"""Delayed events under load from all sides while PostgreSQL is killed: whatever was committed is
delivered once, and whatever was cancelled never.

Producers, of every isolation level, note what they insert in a table, in the same transaction;
so do sessions that cancel. Many transactions end after their events were due. Everything that can
be rotated is, all the time.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from pgqpy.embedded import Server
from tests.faults.load import PATIENCE, is_death
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually

pytestmark = pytest.mark.smoke

KILLS = 4
QUEUE = "load"
TABLES = """
create table inserted (data text primary key, id bigint not null);
create table cancelled (id bigint primary key);
create table keyed (key text not null, id bigint not null);
create sequence attempts;
"""

Job = Callable[[Connection, random.Random], None]


class Load:
    """Start it, wait for `progress`, stop it; then read what came out."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stopping = threading.Event()
        self._going_on = threading.Event()
        self._going_on.set()
        self._serial = itertools.count(1)
        self.errors: list[Exception] = []
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(TABLES)
            conn.execute("select pgq.create_queue(%s)", [QUEUE])
            conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [QUEUE])
            ops.register(conn, QUEUE, "c")
        jobs: list[Job] = [
            *(self._insert, self._insert, self._insert, self._cancel, self._cancel),
            *(self._once, self._once, self._move, self._move, self._rotate),
        ]
        self._threads = [
            threading.Thread(target=self._run, args=[job, random.Random(number)])
            for number, job in enumerate(jobs)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Transactions end within the block, and none begins."""
        self._going_on.clear()
        try:
            yield
        finally:
            self._going_on.set()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, job: Job, rng: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn) as conn:
                    while not self._stopping.is_set():
                        self._going_on.wait()
                        try:
                            job(conn, rng)
                        except (errors.SerializationFailure, errors.DeadlockDetected):
                            conn.rollback()
            except Exception as error:
                if not is_death(error):
                    self.errors.append(error)
                    return
            self._stopping.wait(0.02)

    def _end(self, conn: Connection, rng: random.Random) -> None:
        """Soon or late, and well or not."""
        if rng.random() < 0.3:
            self._stopping.wait(rng.random() / 5)
        conn.rollback() if rng.random() < 0.2 else conn.commit()

    def _begin(self, conn: Connection, rng: random.Random) -> None:
        conn.isolation_level = rng.choice([*IsolationLevel])
        conn.execute(f"set synchronous_commit = {rng.choice(['on', 'off'])}".encode())
        if rng.random() < 0.3:
            self._stopping.wait(rng.random() / 20)

    def _insert(self, conn: Connection, rng: random.Random) -> None:
        self._begin(conn, rng)
        for _ in range(rng.randint(1, 10)):
            data = f"{next(self._serial)}"
            conn.execute(
                "insert into inserted select %s, pgq.insert_event_at("
                "%s, clock_timestamp() + %s * interval '1 millisecond', 't', %s)",
                [data, QUEUE, rng.choice([-1, 0, 1, 20, 100, 200]), data],
            )
        self._end(conn, rng)

    def _cancel(self, conn: Connection, rng: random.Random) -> None:
        self._begin(conn, rng)
        rows = conn.execute(
            "select id from inserted order by id desc limit 5 offset %s", [rng.randint(0, 20)]
        ).fetchall()
        for (event,) in rows:
            if ops.value(conn, "select pgq.cancel_event(%s, %s)", QUEUE, event):
                # The key of this table keeps an event from being cancelled twice.
                conn.execute("insert into cancelled values (%s)", [event])
        self._end(conn, rng)

    def _once(self, conn: Connection, rng: random.Random) -> None:
        self._begin(conn, rng)
        newest = ops.value(conn, "select nextval('attempts')") // 10
        for number in range(3):
            key = f"key {newest + number}"
            conn.execute(
                "insert into keyed select %s, pgq.insert_event_once(%s, %s, 't', %s)",
                [key, QUEUE, key, key],
            )
        self._end(conn, rng)

    def _move(self, conn: Connection, rng: random.Random) -> None:
        conn.execute("select pgq.maint_retry_events()")
        self._end(conn, rng)

    def _rotate(self, conn: Connection, rng: random.Random) -> None:
        conn.execute(
            "update pgq.log set log_rotate_bytes = 1, log_carried_bytes = 0"
            " where (log_rotate_bytes, log_carried_bytes) <> (1, 0)"
        )
        conn.commit()
        for function in (b"pgq.maint_rotate_delayed()", b"pgq.maint_rotate_logs()"):
            conn.execute(b"select " + function)
            self._end(conn, rng)


def empty_tables(conn: Connection) -> None:
    """Rotation finds no moment without a reader under load; once that pauses, it must."""
    end = time.monotonic() + PATIENCE
    while not ops.value(conn, "select pgq.maint_rotate_delayed()"):
        assert time.monotonic() < end, "nothing is rotated"
        conn.execute("select pgq.maint_retry_events()")


@pytest.mark.slow
def test_delayed_events_survive_kills_and_races_once_each(mortal: Server) -> None:
    load = Load(mortal.dsn)
    load.start()
    try:
        for number in range(KILLS + 1):
            with psycopg.connect(mortal.dsn, autocommit=True) as conn:
                for table in ("inserted", "cancelled", "keyed"):
                    before = ops.value(conn, f"select count(*) from {table}")
                    eventually(
                        conn, f"select count(*) > {before + 10} from {table}", patience=PATIENCE
                    )
                with load.pause():
                    empty_tables(conn)
            if number < KILLS:
                mortal.kill()
                mortal.restart()
    finally:
        load.stop()
    assert load.errors == []

    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        eventually(
            conn,
            "select pgq.maint_retry_events() = 0 and not exists (select from pgq.waiting_event)",
        )
        delivered = Counter(ops.deliver(conn, QUEUE, "c"))
        assert max(delivered.values()) == 1, "nothing comes twice"
        expected = conn.execute(
            "select data from inserted where id not in (select id from cancelled)"
            " union select distinct key from keyed"
        ).fetchall()
        assert set(delivered) == {data for (data,) in expected}
        assert ops.value(
            conn, "select count(*) from (select key from keyed group by key, id) one"
        ) == ops.value(conn, "select count(distinct key) from keyed")
        assert ops.value(conn, "select count(*) > 0 from cancelled")
        for _ in range(2):
            conn.execute("select pgq.maint_rotate_delayed()")
        assert ops.value(conn, "select count(*) from pgq.delayed") == 0
