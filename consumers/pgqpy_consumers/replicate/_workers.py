"""Threads beside the stream: copying, catching up, sequences."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from time import monotonic

import psycopg

import pgqpy
from pgqpy.errors import PgqError
from pgqpy.retry import Backoff
from pgqpy_consumers.apply._merge import is_about_tables
from pgqpy_consumers.replicate._copy import Copier, Stopped, mark_in_step
from pgqpy_consumers.replicate._sequences import carry_over
from pgqpy_consumers.replicate._state import ADDED, COPYING, FAILED, Replica, ReplicaError, State

logger = logging.getLogger("pgqpy")

#: Seconds between checks for work.
_POLL = 0.5
#: Seconds before a failed table is retried: first and longest pause; it doubles in between.
_RETRY = (5.0, 300.0)
#: Seconds to wait for a server to cancel a query.
_CANCEL = 5.0


class Workers:
    """One thread that looks for work, and as many copying threads as there may be ``copies``."""

    def __init__(
        self,
        dsns: tuple[str, str],
        names: tuple[str, str],
        *,
        copies: int,
        sequences_ahead: int,
        sequences_period: float,
    ) -> None:
        """``dsns`` are the source's and the target's, ``names`` the queue's and the consumer's."""
        self._dsns = dsns
        self._names = names
        self._ahead = sequences_ahead
        self._period = sequences_period
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(copies, thread_name_prefix="replicate")
        self._keeper = threading.Thread(target=self._keep, name="replicate", daemon=True)
        self._busy: dict[int, Future[bool]] = {}
        self._pauses: dict[int, Backoff] = {}
        self._due: dict[int, float] = {}
        self._open: set[pgqpy.Connection] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the threads; they run until `stop`."""
        self._keeper.start()

    def finish(self) -> None:
        """Do the work there is now. Raises ReplicaError if a table fails."""
        with suppress(Stopped):
            self._finish()

    def _finish(self) -> None:
        tried: set[int] = set()
        with self._connections() as (source, target):
            state = State(target, *self._names)
            while not self._stop.is_set():
                work = [each for each in state.tables() if _needs_work(each)]
                work = [each for each in work if each.id not in tried]
                if not work:
                    break
                tried.update(each.id for each in work)
                self._wait({self._pool.submit(self._work, each) for each in work})
            mark_in_step(source, state)
            carry_over(source, state, self._ahead)
            failed = [each for each in state.tables() if each.state == FAILED]
        if failed:
            raise ReplicaError(
                f"table {failed[0]} failed: {failed[0].error}",
                hint="`pgqpy replicate list` shows all that did; mend it and run again.",
            )

    def _wait(self, work: set[Future[bool]]) -> None:
        while work:
            done, work = wait(work, timeout=_POLL)
            for each in done:
                each.result()
            self._check_stop()

    def interrupt(self) -> None:
        """Begin no more work. For signal handlers: takes no lock."""
        self._stop.set()

    def stop(self) -> None:
        """End all work; unfinished work is repeated later."""
        self.interrupt()
        if self._keeper.is_alive():
            # It updates the sequences once more, if nothing blocks it.
            self._keeper.join(_CANCEL)
        with self._lock:
            opened = list(self._open)
        for conn in opened:
            try:
                conn.cancel_safe(timeout=_CANCEL)
            except psycopg.Error:
                continue
        self._pool.shutdown()
        if self._keeper.is_alive():
            self._keeper.join()

    # --- the thread that looks for work

    def _keep(self) -> None:
        lost = Backoff(0.2, 5.0)
        while not self._stop.is_set():
            try:
                with self._connections() as (source, target):
                    self._keep_on(source, target, lost)
            except Stopped:
                return
            except (psycopg.Error, PgqError) as error:
                if not self._stop.is_set():
                    pause = lost.pause(error)
                    logger.warning("replicate: %s; again in %.1f s", _line(error), pause)
                    self._stop.wait(pause)

    def _keep_on(self, source: pgqpy.Connection, target: pgqpy.Connection, lost: Backoff) -> None:
        state = State(target, *self._names)
        sequences_due = 0.0
        while not self._stop.is_set():
            for replica in state.tables():
                self._dispatch(replica)
            mark_in_step(source, state)
            if monotonic() >= sequences_due:
                carry_over(source, state, self._ahead)
                sequences_due = monotonic() + self._period
            lost.reset()
            self._stop.wait(_POLL)
        carry_over(source, state, self._ahead)

    def _dispatch(self, replica: Replica) -> None:
        running = self._busy.get(replica.id)
        if running is not None:
            if not running.done():
                return
            del self._busy[replica.id]
            if running.result():
                self._pauses.pop(replica.id, None)
            else:
                pauses = self._pauses.setdefault(replica.id, Backoff(*_RETRY))
                self._due[replica.id] = monotonic() + pauses.pause()
        if _needs_work(replica) and monotonic() >= self._due.get(replica.id, 0.0):
            self._busy[replica.id] = self._pool.submit(self._work, replica)

    # --- threads that copy

    def _work(self, replica: Replica) -> bool:
        """Copy a table if needed, and let it catch up. False if it must wait."""
        try:
            with self._connections() as (source, target):
                return self._work_on(source, target, replica)
        except Stopped:
            return False
        except (psycopg.Error, PgqError) as error:
            if not self._stop.is_set():
                logger.warning("table %s: %s; it is tried again", replica, _line(error))
            return False

    def _work_on(
        self, source: pgqpy.Connection, target: pgqpy.Connection, replica: Replica
    ) -> bool:
        state = State(target, *self._names)
        copier = Copier(source, state, replica, self._check_stop)
        # For the session: if the process is killed, no lock is left.
        if not state.claim(replica):
            return False
        try:
            if not replica.copied:
                logger.info("table %s: copying", replica)
                if not copier.copy():
                    return True
            copier.catch_up()
        except (psycopg.Error, PgqError) as error:
            cause = error if isinstance(error, psycopg.Error) else error.__cause__
            if isinstance(cause, psycopg.Error) and not is_about_tables(cause):
                raise
            if self._stop.is_set():
                raise Stopped from error
            now = state.now(replica)
            if now is not None:
                message = _line(error)
                if now.error is None or not now.error.startswith(message):
                    logger.error("table %s failed: %s", replica, message)
                state.failed(replica, error)
            return False
        logger.info("table %s has caught up", replica)
        return True

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped

    @contextmanager
    def _connections(self) -> Iterator[tuple[pgqpy.Connection, pgqpy.Connection]]:
        name = f"pgqpy {self._names[1]}"[:63]
        with (
            pgqpy.connect(self._dsns[0], autocommit=True, application_name=name) as source,
            pgqpy.connect(self._dsns[1], autocommit=True, application_name=name) as target,
        ):
            with self._lock:
                self._open |= {source, target}
            try:
                self._check_stop()
                yield source, target
            finally:
                with self._lock:
                    self._open -= {source, target}


def _needs_work(replica: Replica) -> bool:
    return replica.waiting or replica.state in (ADDED, COPYING)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
