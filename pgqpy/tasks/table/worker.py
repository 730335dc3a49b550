# WARNING: generated from pgqpy/tasks/table/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers for the rows of a table that the application has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from time import monotonic
from typing import Any

from pgqpy import dsn as dsns
from pgqpy.acompat import Crew, Waker, on_stop_signals
from pgqpy.connection import Connection
from pgqpy.log import logger
from pgqpy.retry_policy import ExponentialBackoff, RetryPolicy
from pgqpy.tasks.outcome import TaskStats
from pgqpy.tasks.table.check import check_table_worker, whole_batches
from pgqpy.tasks.table.columns import TaskColumnNames
from pgqpy.tasks.table.lane import TableLane
from pgqpy.tasks.table.marks import TableMarks
from pgqpy.tasks.table.signal import TableSignal


class TableWorker:
    """Works on the rows of a table that are due; any number may do so at once.

    The table has the columns of `pgq_task.add_columns`. Give a handler, or override `process_row`::

        def send(conn, row):
            mail(row["to"])

        TableWorker(dsn, "mail", send).run()

    A row is locked while it is worked on, others step over it; the lock goes with the connection.
    What is written on ``conn`` commits in the transaction in which the row's columns say what
    became of it: effects in this database happen *exactly once*. Other effects happen at least
    once, and again for all rows of a transaction that does not commit; there is one for each row,
    or with ``batch_size`` for so many.

    Rows come in the order of their next_attempt. When one is done its status is ``succeeded`` and
    next_attempt null, or it is deleted. One for which an error is raised has written nothing; its
    status is ``failed``, last_error tells why, and ``retry_policy`` when it comes again. A `Retry`
    or a `DeadLetter` may be raised, or returned; then what was written stays. A row whose
    transaction came to no end, since its process was killed, is next worked on alone, and its
    attempt is counted before.
    """

    table: str = ""
    """The table, with its schema if that is not on the search_path, quoted if need be."""
    columns: TaskColumnNames = TaskColumnNames()
    """What its columns are called."""

    batch_size: int = 1
    """Work on at most so many rows in one transaction."""
    concurrency: int = 1
    """So many transactions at once: in threads, or in tasks of asyncio."""
    delete_done: bool = False
    """Delete rows that are done."""
    time_limit: float | None = None
    """With asyncio: a row, or batch, that takes so many seconds has failed. Without, the server
    frees rows for others while nothing was asked of it for a second longer."""

    retry_policy: RetryPolicy = ExponentialBackoff()
    """When a row for which an error is raised comes again: a `FixedDelay`, an
    `ExponentialBackoff`, or any function of the attempt (1 for the first) and the error that gives
    the seconds, or None for never; in a class that is a method, or a staticmethod."""
    outages: tuple[type[Exception], ...] = ()
    """Errors that say nothing against the row: its transaction is rolled back and comes again, the
    attempt does not count. Lost connections, deadlocks, serialization failures, locks that could
    not be had and full disks of PostgreSQL are always taken so."""

    listen: bool = True
    """Hear of rows by LISTEN, if the table has the triggers of `pgq_task.notify_workers`."""
    poll_interval: float = 1.0
    """The most seconds between looks for rows: not all of them can be heard of."""
    backoff_first: float = 0.1
    """Seconds of the first pause after an outage."""
    backoff_cap: float = 10.0
    """The most seconds of such a pause."""

    def __init__(
        self,
        dsn: str | None = None,
        table: str | None = None,
        handler: Callable[[Connection, dict[str, Any]], Any] | None = None,
        *,
        columns: TaskColumnNames | None = None,
        batch_size: int | None = None,
        concurrency: int | None = None,
        delete_done: bool | None = None,
        time_limit: float | None = None,
        retry_policy: RetryPolicy | None = None,
        outages: tuple[type[Exception], ...] | None = None,
        listen: bool | None = None,
        poll_interval: float | None = None,
        backoff_first: float | None = None,
        backoff_cap: float | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` as for `pgqpy.dsn.resolve`; what is given here wins over the class's.

        Behind a PgBouncer in transaction mode, ``listen_dsn`` goes around it, and
        ``prepare_threshold=None`` if it does not know prepared statements.
        """
        self.dsn = dsns.resolve(dsn)
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self.prepare_threshold = prepare_threshold
        self.handler: Callable[..., Any] | None = handler
        given = {
            "table": table,
            "columns": columns,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "delete_done": delete_done,
            "time_limit": time_limit,
            "retry_policy": retry_policy,
            "outages": outages,
            "listen": listen,
            "poll_interval": poll_interval,
            "backoff_first": backoff_first,
            "backoff_cap": backoff_cap,
        }
        for setting, value in given.items():
            if value is not None:
                setattr(self, setting, value)
        self.stopping = False
        #: Whether an outage ends `run`.
        self.strict = False
        self._waker: Waker | None = None
        self._signal: TableSignal | None = None

    # --- to be overridden

    def process_row(self, conn: Connection, row: dict[str, Any]) -> Any:
        """Work on a row, by column; the default calls the handler.

        The transaction must be left open; ``conn.transaction()`` gives savepoints.
        """
        if self.handler is None:
            raise NotImplementedError
        return self.handler(conn, row)

    def process_batch(self, conn: Connection, rows: list[dict[str, Any]]) -> Sequence[Any] | None:
        """Work on all rows of a transaction at once.

        Returns None if all are done, else for each row what `process_row` would. If it raises, what
        it wrote is rolled back, and it is called again for each row alone.
        """
        raise NotImplementedError

    def on_row_failed(self, row: dict[str, Any], error: Exception, after: timedelta | None) -> None:
        """A row failed, and is to come again after so long; None: it is given up.

        The log knows already.
        """

    def on_settled(self, stats: TaskStats) -> None:
        """What became of rows is committed: the place for metrics. ``released`` are those that
        were put back on purpose."""

    def on_error(self, error: Exception) -> None:
        """The database is away, or something else that is no row's fault. Raise here to leave
        `run`, which else tries again. The log knows already."""

    # --- the life of a worker

    def run_once(self) -> bool:
        """One transaction; False if nothing was due. Raises whatever is no row's fault."""
        check_table_worker(self)
        lane = TableLane(self, TableMarks())
        try:
            worked = lane.step()
            while lane.unfinished:
                lane.step()
            return worked
        finally:
            lane.close()

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Work until `stop`, or with ``until_empty`` until nothing is due.

        Survives errors of rows and the loss of the database. Raises InvalidTaskTable if the table
        has no primary key or not the columns, ConnectionFailed if it cannot connect to begin with,
        and later only what waiting does not mend; with ``until_empty`` any outage.

        In the main thread SIGTERM and SIGINT stop it after the rows it is at (a second one, at
        once), unless ``handle_signals`` is false; handlers are as before when it returns.
        """
        check_table_worker(self)
        self.strict = until_empty
        marks = TableMarks()
        lanes = [TableLane(self, marks) for _ in range(self.concurrency)]
        self._waker = Waker()
        crew = Crew(self.concurrency, self._waker.wake)
        signals = on_stop_signals(self.stop) if handle_signals else nullcontext()
        try:
            with signals:
                table = lanes[0].table()
                if self.listen and table.signal is not None and not until_empty:
                    self._signal = TableSignal(self.listen_dsn, table.name, table.signal)
                logger.info("worker for table %s started", table.name, extra=self.fields)
                self._work(lanes, crew, until_empty=until_empty)
                for lane in lanes:
                    lane.leave()
                logger.info("worker for table %s stopped", table.name, extra=self.fields)
        finally:
            self.stopping = True
            crew.close()
            for lane in lanes:
                lane.close()
            self.stopping = self.strict = False
            signal, self._signal = self._signal, None
            if signal is not None:
                signal.close()
            waker, self._waker = self._waker, None
            waker.close()

    def stop(self) -> None:
        """Make `run` return after the rows it is at, or now if it waits.

        From any thread (asyncio: in the event loop's), also before `run`.
        """
        self.stopping = True
        if self._waker is not None:
            self._waker.wake()

    def work_on_row(self, conn: Connection, row: dict[str, Any]) -> Any:
        """Called for each row, in a savepoint."""
        return self.process_row(conn, row)

    def work_on_batch(self, conn: Connection, rows: list[dict[str, Any]]) -> Sequence[Any] | None:
        """Called for the rows of a transaction, in a savepoint, if `whole_batches`."""
        return self.process_batch(conn, rows)

    @property
    def whole_batches(self) -> bool:
        """Whether the rows of a transaction are worked on together."""
        return whole_batches(self)

    @property
    def fields(self) -> dict[str, Any]:
        """What every log line carries."""
        return {"table": self.table}

    # --- how

    def _work(self, lanes: list[TableLane], crew: Crew, *, until_empty: bool) -> None:
        while not self.stopping:
            crew.check()
            heard = self._signal is not None and self._signal.heard
            if self._signal is not None:
                self._signal.heard = False
            for lane in lanes:
                if lane.free and (heard or until_empty or monotonic() >= lane.look_at):
                    lane.free = False
                    if self.concurrency == 1:
                        lane.work()
                    else:
                        crew.start(lane.work)
            if not until_empty:
                looks = (lane.look_at for lane in lanes if lane.free)
                self._wait(min(looks, default=monotonic() + 60) - monotonic())
                continue
            self._all_done(crew)
            if not any(lane.worked for lane in lanes):
                break
        self._all_done(crew)

    def _wait(self, seconds: float) -> None:
        assert self._waker is not None
        if self._signal is None:
            self._waker.wait(max(seconds, 0))
        # What came before the first LISTEN was not heard: look once more.
        elif self._signal.open():
            self._signal.heard = True
        else:
            self._signal.wait(self._waker, max(seconds, 0))

    def _all_done(self, crew: Crew) -> None:
        assert self._waker is not None
        while crew:
            self._waker.wait(1)
        crew.check()
