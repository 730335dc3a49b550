"""The transactions of a concurrency slot for rows.

One round trip ends a transaction, begins the next, and locks its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncCursor
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
from pgqpy._runtime.io import AsyncIo, CursorCall
from pgqpy.errors import InvalidTaskTable, is_transient, translate_errors
from pgqpy.log import logger
from pgqpy.tasks._rows.table import (
    CURRENT,
    DESCRIBE,
    PLAN,
    PLANNED,
    WANT_QUIET,
    RowOutcome,
    TableMarks,
    TableRow,
    TaskTable,
    read_infinity,
)
from pgqpy.tasks._settings import RowSettings

BEGIN = b"begin isolation level read committed"
SAVEPOINT = b"savepoint pgqpy_row"
RELEASE = b"release savepoint pgqpy_row"
_CHAIN = b"commit and chain"
_COMMIT = b"commit"
_ROLLBACK = b"rollback"

#: The seconds for which the triggers are silent after a want of quiet; see pgq_task.want_quiet().
QUIET = 0.05

Statement = tuple[bytes, Any]


class AsyncRowConnection(AsyncBatchConnection):
    """A connection whose transactions only the worker may end, by statements."""

    _in_batch = True


class RowConnection(BatchConnection):
    """Its sync twin."""

    _in_batch = True


_ROW = AsyncRowConnection, RowConnection


class NotCommittedError(Exception):
    """A transaction could not be committed, or was ended. A row is the cause."""

    def __init__(self, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RowTransactions:
    """A connection, and one transaction at a time."""

    def __init__(self, settings: RowSettings, marks: TableMarks, io: AsyncIo) -> None:
        self._settings = settings
        self._io = io
        self._marks = marks
        self._conn: AsyncRowConnection | None = None
        self._table: TaskTable | None = None
        self._quiet_at = 0.0
        #: The number of further looks that take one row each, since some were left.
        self.careful = 0
        #: The number of rows written by the last statement that ended a transaction.
        self.written = 0
        #: Whether the last transaction was committed without the connection reporting it.
        self.ended = False

    async def open(self) -> tuple[AsyncRowConnection, TaskTable]:
        """Return the connection, and the table's statements; connects if needed."""
        if self._conn is None or self._conn.closed:
            self._table = None
            self._conn = await self._connect()
        if self._table is None:
            self._table = await self._describe(self._conn)
        return self._conn, self._table

    @property
    def connected(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return self._conn is not None and not self._conn.closed

    @property
    def current(self) -> tuple[AsyncRowConnection, TaskTable]:
        """The connection and the table of the open transaction."""
        assert self._conn is not None
        assert self._table is not None
        return self._conn, self._table

    async def close(self) -> None:
        """Close the connection; the next use opens another."""
        conn, self._conn, self._table = self._conn, None, None
        if conn is not None:
            await self._io.call(conn.close)

    async def roll_back(self) -> None:
        """Give up the transaction: its rows are found again."""
        conn, _ = self.current
        await self._io.call(conn.execute, _ROLLBACK)

    async def commit_if_begun(self) -> None:
        if self._conn is not None and self._conn.info.transaction_status != TransactionStatus.IDLE:
            await self._io.call(self._conn.execute, _COMMIT)

    async def begin_restored(self, row: TableRow, lost: RowOutcome) -> bool:
        """Begin a transaction that restores a row. False if another session has changed it."""
        conn, table = self.current
        cursor = conn.cursor(row_factory=tuple_row)
        restored = cursor, *table.restored(row, lost)
        await self._io.execute(conn, [_of(conn, BEGIN), restored, _of(conn, SAVEPOINT)])
        return bool(await self._io.call(cursor.fetchall))

    async def restore(self, row: TableRow, lost: RowOutcome) -> None:
        """Restore a row that will not be worked on."""
        conn, table = await self.open()
        await self._io.call(conn.execute, *table.restored(row, lost))

    async def look(self, *, quiet: bool) -> list[TableRow]:
        """Lock due rows, the longest due first."""
        for where in self._marks.looks():
            if rows := await self.turn(None, where, quiet=quiet):
                return rows
        await self.commit_if_begun()
        return []

    async def complete(self, outcomes: list[RowOutcome]) -> list[Statement]:
        """Execute all statements for outcomes but those returned. Raises NotCommittedError."""
        conn, table = self.current
        left = outcomes
        statements: list[Statement] = [(RELEASE, None)]
        done = [each for each in outcomes if each.status == "succeeded"]
        if done and self._settings.delete_done:
            try:
                deleted = conn.cursor()
                await self._io.execute(conn, [_of(conn, RELEASE), (deleted, *table.deleted(done))])
            except psycopg.Error as error:
                if conn.closed or is_transient(error):
                    raise
                raise NotCommittedError(error) from error
            statements = []
            # A trigger, or a policy, may have kept some.
            if deleted.rowcount == len(done):
                left = [each for each in left if each.status != "succeeded"]
        return [*statements, table.completed(left)] if left else statements

    async def turn(
        self, ended: list[Statement] | None, where: tuple[str, float] | None, *, quiet: bool = False
    ) -> list[TableRow]:
        """End the transaction with these statements; to look for rows ``where``, begin the next.

        ``quiet`` silences the triggers for a while. Raises NotCommittedError if it failed, unless
        the error is transient.
        """
        conn, table = self.current
        began = monotonic()
        idle = conn.info.transaction_status == TransactionStatus.IDLE
        calls = [_of(conn, *each) for each in ended or ()]
        written = calls[-1][0] if calls else None
        ending, found = conn.cursor(), conn.cursor(row_factory=tuple_row)
        if where is None:
            calls.append((ending, _COMMIT, None))
        else:
            calls.append((ending, BEGIN if idle else _CHAIN, None))
            if quiet and table.signal is not None and began >= self._quiet_at:
                calls.append(_of(conn, WANT_QUIET, (table.name, table.names.next_attempt)))
                self._quiet_at = began + QUIET
            most = 1 if self.careful else self._settings.batch_size
            claim = found, table.claim, (*where, most)
            calls += [_of(conn, PLAN), claim, _of(conn, SAVEPOINT)]
        try:
            await self._io.execute(conn, calls)
        except psycopg.Error as error:
            self.ended = bool(ending.statusmessage)
            if ended is None or ending.statusmessage or conn.closed or is_transient(error):
                raise
            raise NotCommittedError(error) from error
        if written is not None:
            self.written = written.rowcount
        if where is None:
            return []
        rows = await self._read(found, len(table.keys))
        self.careful = max(self.careful - 1, 0)
        first = rows[0].next_attempt if rows else None
        self._marks.looked(where[0], first, monotonic() - began)
        return rows

    async def seconds_until_due(self, looked: float) -> float | None:
        """Return the seconds until a row is due, after a look at ``looked``; None if none will be.

        A row may have become due since then, or be locked by another session.
        """
        conn, table = self.current
        cursor = conn.cursor(row_factory=tuple_row)
        found = await self._io.fetch_by(cursor, table.due, (monotonic() - looked + QUIET,))
        return found[0][0] if found else None

    async def _connect(self) -> AsyncRowConnection:
        settings = self._settings
        database = settings.database
        conn = await self._io.connect(_ROW, database.dsn, **database.options)
        read_infinity(conn.adapters)
        if settings.time_limit is not None:
            # The server frees the rows of a session that is idle for longer.
            await self._io.call(
                conn.execute,
                "select set_config('idle_in_transaction_session_timeout', %s, false)",
                (f"{settings.time_limit * 1000 + 1000:.0f}",),
            )
        return conn

    async def _describe(self, conn: AsyncRowConnection) -> TaskTable:
        settings = self._settings
        with translate_errors():
            cursor = conn.cursor(row_factory=tuple_row)
            regclass = b"select to_regclass(%s) is null"
            if (await self._io.fetch_by(cursor, regclass, (settings.table,)))[0][0]:
                raise InvalidTaskTable(
                    f"table {settings.table} does not exist",
                    hint="Give its name as SQL does: with its schema if that is not on the"
                    " search_path, quoted if it is not all lower case.",
                )
            described = settings.table, settings.columns.json()
            rows = await self._io.fetch_by(cursor, DESCRIBE, described)
            ((name, keys, types, has_index, signal),) = rows
            current = await self._io.fetch_by(cursor, CURRENT, (PLANNED,))
            planned = [setting for (setting,) in current]
        if not has_index:
            logger.warning(
                "table %s has no index on %s, so each look reads all of it;"
                " pgq_task.table_index_sql() gives the statement that creates it",
                name,
                settings.columns.next_attempt,
                extra=settings.fields,
            )
        return TaskTable(settings.columns, name, keys, types, signal, planned)

    async def _read(self, cursor: AsyncCursor[tuple[Any, ...]], width: int) -> list[TableRow]:
        """Return the rows of a claim; of a row with a value that Python cannot represent, why."""
        names = [column.name for column in cursor.description or ()][width + 4 :]
        try:
            records = await self._io.call(cursor.fetchall)
            return [TableRow.of(each, width, names) for each in records]
        except Exception:
            return [*_read_each(cursor, width, names)]


def _of(conn: AsyncRowConnection, statement: bytes, values: Any = None) -> CursorCall:
    return conn.cursor(), statement, values


def _read_each(
    cursor: AsyncCursor[tuple[Any, ...]], width: int, names: list[str]
) -> Iterator[TableRow]:
    result = cursor.pgresult
    assert result is not None
    loading = Transformer(cursor)
    loading.set_pgresult(result)
    for number in range(result.ntuples):
        try:
            (record,) = loading.load_rows(number, number + 1, tuple)
            yield TableRow.of(record, width, names)
        except Exception as error:
            texts = [
                (result.get_value(number, column) or b"").decode() for column in range(width + 2)
            ]
            key = tuple(texts[:width])
            yield TableRow(key, texts[width], int(texts[width + 1]), False, {}, error)
