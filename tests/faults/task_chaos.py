"""Workers of tasks are killed at random, and so are their sessions and the server."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from examples.map_reduce.workers import Workers
from pgqpy.embedded import Server
from pgqpy.errors import ConnectionFailed
from tests.faults.load import is_death
from tests.fixtures.fix_db import Connection

T = TypeVar("T")

# Seconds within which whatever is awaited must happen, on any machine.
PATIENCE = 300.0


class Chaos(threading.Thread):
    """Kills workers, sessions and the server now and then, until it is stopped."""

    def __init__(self, server: Server, workers: list[Workers]) -> None:
        super().__init__()
        self._server = server
        self._workers = workers
        self._stopping = threading.Event()
        self.error: Exception | None = None
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        kinds = {
            self.kill_worker: 12,
            self.terminate_connections: 6,
            self.crash_a_backend: 2,
            self.crash_the_server: 1,
            self.stop_immediately: 1,
        }
        try:
            while not self._stopping.wait(random.uniform(0.1, 1.2)):
                (kind,) = random.choices(list(kinds), list(kinds.values()))
                kind()
                self.done[kind.__name__] += 1
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.error:
            raise self.error

    def kill_worker(self) -> None:
        random.choice(self._workers).kill_one()

    def terminate_connections(self) -> None:
        """Some of all: workers', listeners', renewing ones."""
        with suppress(psycopg.OperationalError), psycopg.connect(self._server.dsn) as conn:
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid()"
                "   and random() < 0.5"
            )

    def crash_a_backend(self) -> None:
        """PostgreSQL ends all sessions, and recovers by itself."""
        with suppress(psycopg.OperationalError), psycopg.connect(self._server.dsn) as conn:
            row = conn.execute(
                "select pid from pg_stat_activity"
                " where backend_type = 'client backend' and pid <> pg_backend_pid()"
                " order by random() limit 1"
            ).fetchone()
            if row:
                with suppress(ProcessLookupError):
                    os.kill(row[0], signal.SIGKILL)

    def crash_the_server(self) -> None:
        self._server.kill()
        self._server.restart()

    def stop_immediately(self) -> None:
        """pg_ctl stop -m immediate: no checkpoint, recovery at the start."""
        os.kill(self._server.pid, signal.SIGQUIT)
        self._server.restart()


class Overdue(threading.Thread):
    """The times that tasks with an expired lease waited for a claim, while the server ran."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._stopping = threading.Event()
        self.error: Exception | None = None
        self.most = 0.0
        self.leases_over: set[tuple[int, Any]] = set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as conn:
                    self._look(conn)
            except Exception as error:
                if not is_death(error):
                    self.error = error
                    return
                self._stopping.wait(0.05)

    def _look(self, conn: Connection) -> None:
        began = time.monotonic()
        while not self._stopping.wait(0.05):
            rows = conn.execute(
                "select id, lease, extract(epoch from clock_timestamp() - lease)::float8"
                "  from pgq_task.task where lease < clock_timestamp()"
            ).fetchall()
            up = time.monotonic() - began
            for task, lease, over in rows:
                self.leases_over.add((task, lease))
                self.most = max(self.most, min(over, up))

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.error:
            raise self.error


def insist(dsn: str, job: Callable[[Connection], T]) -> T:
    """Do something that may be done again, in a transaction, until the server has taken it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with psycopg.connect(dsn) as conn:
                return job(conn)
        except (psycopg.Error, ConnectionFailed) as error:
            dead = isinstance(error, ConnectionFailed) or is_death(error)
            if not dead or time.monotonic() > end:
                raise
            time.sleep(0.05)
