# WARNING: generated from pgqpy/tasks/_rows/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers for the rows of an application's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Unpack

from pgqpy import dsn as dsns
from pgqpy._runtime.io import Io
from pgqpy._runtime.stoppable import Stoppable
from pgqpy.connection import Connection
from pgqpy.tasks._outcome import TaskStats
from pgqpy.tasks._rows.loop import RowLoop, run_once
from pgqpy.tasks._settings import (
    TableWorkerAttributes,
    TableWorkerSettings,
    row_settings_of,
    set_given,
)


class TableWorker(TableWorkerAttributes, Stoppable):
    """Works on the rows of a table that are due; any number may do so at once.

    The table has the columns of `pgq_task.add_columns`. Give a handler, or override `process_row`::

        def send(conn, row):
            mail(row["to"])

        TableWorker(dsn, "mail", send).run()

    A row is locked while it is worked on, others skip it; the lock ends with the connection. Writes
    on ``conn`` commit in the transaction that writes the row's outcome into its columns: effects in
    this database happen *exactly once*. Other effects happen at least once, and again for all rows
    of a transaction that does not commit; a transaction has one row, or up to ``batch_size``.

    Rows are processed in the order of their next_attempt. When one is done its status is
    ``succeeded`` and next_attempt null, or it is deleted. If an error is raised, the row's writes
    are rolled back; its status is ``failed``, last_error is the error, and ``retry_policy`` gives
    the next attempt. A `Retry` or a `DeadLetter` may be raised, or returned; if returned, writes
    stay. A row whose transaction did not end, because its process was killed, is next worked on
    alone, and its attempt is counted before.
    """

    table: str = ""
    """The table, with its schema if that is not on the search_path, quoted if needed."""

    _io = Io()
    #: The method that works on a row.
    _way = "process_row"

    def __init__(
        self,
        dsn: str | None = None,
        table: str | None = None,
        handler: Callable[[Connection, dict[str, Any]], Any] | None = None,
        *,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
        **settings: Unpack[TableWorkerSettings],
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; ``settings``, from ``columns`` to
        ``backoff_cap``, win over the class's.

        Behind a PgBouncer in transaction mode, ``listen_dsn`` goes around it, and
        ``prepare_threshold=None`` if it does not support prepared statements.
        """
        set_given(self, TableWorkerSettings, settings)
        self.table = self.table if table is None else table
        self.dsn = dsns.resolve(dsn)
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self.prepare_threshold = prepare_threshold
        self.handler: Callable[..., Any] | None = handler

    # --- to be overridden

    def process_row(self, conn: Connection, row: dict[str, Any]) -> Any:
        """Work on a row, by column; the default calls the handler.

        Leave the transaction open; ``conn.transaction()`` gives savepoints.
        """
        if self.handler is None:
            raise NotImplementedError
        return self.handler(conn, row)

    def process_batch(self, conn: Connection, rows: list[dict[str, Any]]) -> Sequence[Any] | None:
        """Work on all rows of a transaction at once.

        Returns None if all are done, else for each row a result like `process_row`'s. If it raises,
        its writes are rolled back, and it is called again for each row alone.
        """
        raise NotImplementedError

    def on_row_failed(self, row: dict[str, Any], error: Exception, delay: timedelta | None) -> None:
        """Called when a row failed; it is retried after ``delay``, None: it is given up.

        The error is logged already.
        """

    def on_completed(self, stats: TaskStats) -> None:
        """Called when outcomes of rows are committed: the place for metrics. ``released`` are those
        that were retried on purpose."""

    def on_error(self, error: Exception) -> None:
        """Called when the database is away, or for another error that is no row's fault. Raise here
        to leave `run`, which otherwise retries. The error is logged already."""

    # --- the life of a worker

    def run_once(self) -> bool:
        """Run one transaction; False if nothing was due. Raises errors that are no row's fault."""
        return self._io.run(run_once(row_settings_of(self, until_empty=False), self))

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Work until `stop`, or with ``until_empty`` until nothing is due.

        Survives errors of rows and the loss of the database. Raises InvalidTaskTable if the table
        has no primary key or lacks the columns, ConnectionFailed if it cannot connect at the start,
        and later only errors that waiting does not cure; with ``until_empty`` any outage.

        In the main thread SIGTERM and SIGINT stop it after the current rows (a second one, at
        once), unless ``handle_signals`` is false; handlers are as before when it returns.
        """
        settings = row_settings_of(self, until_empty=until_empty)
        with self._running(handle_signals=handle_signals) as waker:
            self._io.run(RowLoop(settings, self, waker).run())
