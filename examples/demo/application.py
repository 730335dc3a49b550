"""The application whose changes are captured. It has no code for queues.

Several writers, each with a connection of its own, carry out a plan together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from examples.demo.flights import BulkCorrection, Step
from examples.demo.results import Commit

WRITERS = 4

# The seconds that a lingering transaction stays open.
LINGER = 1.0

COPY_FLIGHTS = """
copy pgqpy_demo.flight (id, carrier, number, tail, origin, dest, scheduled, arr_delay)
from stdin
"""

ADD_DELAYS = """
update pgqpy_demo.flight f
   set arr_delay = f.arr_delay + late.minutes
  from unnest(%s::int4[], %s::int4[]) as late (id, minutes)
 where f.id = late.id
"""

CORRECT_CARRIER = """
update pgqpy_demo.flight
   set arr_delay = arr_delay + %s
 where carrier = %s
   and scheduled < %s
   and arr_delay is not null
"""

DELETE_FLIGHTS = "delete from pgqpy_demo.flight where id = any(%s)"


class Application:
    """Carries out a plan within about ``seconds``, or as fast as it can if that is slower."""

    def __init__(self, dsn: str, plan: Sequence[Step | BulkCorrection], *, seconds: float) -> None:
        self.commits: list[Commit] = []
        self.rollbacks = 0
        self.error: BaseException | None = None
        """The error of a writer, if one failed."""
        self._dsn = dsn
        self._steps = iter(plan)
        self._seconds = seconds
        self._start = 0.0
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write, name=f"writer-{number}", daemon=True)
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        """Start the writers; returns at once."""
        self._start = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        """Whether a writer is still at work."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Let every writer end its transaction, and wait for them."""
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _write(self) -> None:
        try:
            with psycopg.connect(self._dsn, application_name="pgqpy demo: application") as conn:
                while (step := self._next()) and not self._wait(step.due):
                    self._carry_out(conn, step)
        except BaseException as error:
            # The main thread reports it; the other writers need not go on.
            self.error = error
            self._stopped.set()

    def _next(self) -> Step | BulkCorrection | None:
        with self._lock:
            return next(self._steps, None)

    def _wait(self, due: float) -> bool:
        ahead = self._start + due * self._seconds - time.monotonic()
        return self._stopped.wait(ahead) if ahead > 0 else self._stopped.is_set()

    def _carry_out(self, conn: psycopg.Connection[Any], step: Step | BulkCorrection) -> None:
        if isinstance(step, BulkCorrection):
            parameters = (step.minutes, step.carrier, step.before)
            self._commit(conn, conn.execute(CORRECT_CARRIER, parameters).rowcount)
            return
        self._insert(conn, step)
        if step.delays:
            ids, minutes = zip(*step.delays, strict=True)
            rows = conn.execute(ADD_DELAYS, (list(ids), list(minutes))).rowcount
            self._commit(conn, rows)
        if step.cancelled:
            self._commit(conn, conn.execute(DELETE_FLIGHTS, (list(step.cancelled),)).rowcount)

    def _insert(self, conn: psycopg.Connection[Any], step: Step) -> None:
        if step.first_rolls_back:
            self._copy(conn, step)
            conn.rollback()
            with self._lock:
                self.rollbacks += 1
        if step.savepoint_rolls_back:
            conn.execute("savepoint before_flights")
            self._copy(conn, step)
            conn.execute("rollback to savepoint before_flights")
        self._copy(conn, step)
        if step.lingers:
            self._stopped.wait(LINGER)
        self._commit(conn, len(step.flights))

    def _copy(self, conn: psycopg.Connection[Any], step: Step) -> None:
        with conn.cursor() as cursor, cursor.copy(COPY_FLIGHTS) as copy:
            for f in step.flights:
                copy.write_row(
                    (f.id, f.carrier, f.number, f.tail, f.origin, f.dest, f.scheduled, f.arr_delay)
                )

    def _commit(self, conn: psycopg.Connection[Any], rows: int) -> None:
        row = conn.execute("select txid_current()").fetchone()
        assert row is not None
        at = time.time()
        conn.commit()
        with self._lock:
            self.commits.append(Commit(row[0], at, rows))
