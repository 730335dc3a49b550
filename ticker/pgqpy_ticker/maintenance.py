"""Rotation, vacuum and the functions of queue_extra_maint: the operations of
pgq.maint_operations().

Each operation is a transaction of its own, because the second step of a rotation must be later
than the first, and because one that fails must not affect the others, not even if its session
ends: the next one gets a new session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import LiteralString

import psycopg
from psycopg import sql

from pgqpy_ticker.config import Database
from pgqpy_ticker.connect import Connection, JobConnection
from pgqpy_ticker.failures import REFUSED, Failures, Operation
from pgqpy_ticker.logs import Log
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.problem import one_line

_OPERATIONS: LiteralString = "select func_name, func_arg from pgq.maint_operations()"
_PARTS: LiteralString = "select pg_catalog.parse_ident(%s)"


class Maintenance:
    """A pass over all operations, on a connection that is closed after the pass."""

    name = "maintenance"

    def __init__(
        self,
        connection: JobConnection,
        database: Callable[[], Database],
        metrics: Metrics,
        log: Log,
        failures: Failures,
    ) -> None:
        self._connection = connection
        self._database = database
        self._metrics = metrics
        self._log = log
        self._failures = failures
        self._failing: set[Operation] = set()
        self._heard: Connection | None = None

    async def run(self) -> float:
        connection = await self._session()
        listed = await (await connection.execute(_OPERATIONS)).fetchall()
        self._refuse([str(argument) for operation, argument in listed if operation == REFUSED])
        failed: set[Operation] = set()
        for operation, argument in listed:
            if operation != REFUSED and not await self._tried(operation, argument):
                failed.add((operation, argument))
        for operation, argument in self._failing - failed:
            self._log.info(
                "maintenance works again", extra={"operation": operation, "argument": argument}
            )
        self._failures.mend(*(self._failing - failed))
        self._failing = failed
        if not failed:
            self._metrics.maintenance_began(self._database().name)
        await self._connection.close()
        return self._database().maintenance_period

    def _refuse(self, reasons: list[str]) -> None:
        before = self._failures.refused
        self._failures.refuse(reasons)
        for reason in reasons:
            if reason not in before:
                self._log.warning("maintenance does not run %s", reason)
        for reason in before:
            if reason not in reasons:
                self._log.info("maintenance refuses no more: %s", reason)

    async def close(self) -> None:
        await self._connection.close()

    async def _session(self) -> Connection:
        connection = await self._connection.get()
        if connection is not self._heard:
            connection.add_notice_handler(self._notice)
            # Functions of users get that of the role or the database.
            await connection.execute("reset search_path")
            self._heard = connection
        return connection

    async def _tried(self, operation: str, argument: str | None) -> bool:
        """Run an operation; return whether it succeeded."""
        # An operation that ends its session fails; the next one needs another session.
        connection = await self._session()
        started = time.monotonic()
        try:
            await connection.execute(await self._statement(connection, operation, argument))
        except psycopg.Error as error:
            key = (operation, argument)
            self._failures.fail(key, one_line(error))
            if key not in self._failing:
                self._failing.add(key)
                self._log.warning(
                    "maintenance failed: %s",
                    one_line(error),
                    extra={"operation": operation, "argument": argument},
                )
            return False
        self._metrics.maintained(self._database().name, operation, time.monotonic() - started)
        return True

    async def _statement(
        self, connection: Connection, operation: str, argument: str | None
    ) -> sql.Composed:
        """Return the operation as SQL. The server parses names by its own rules, and they are
        quoted again. pgq.maint_operations() lists the functions that a ticker may trust."""
        if operation == "vacuum":
            return sql.SQL("vacuum {}").format(await self._identifier(connection, argument))
        function = await self._identifier(connection, operation)
        given = sql.SQL("") if argument is None else sql.Literal(argument)
        return sql.SQL("select {}({})").format(function, given)

    async def _identifier(self, connection: Connection, name: str | None) -> sql.Identifier:
        row = await (await connection.execute(_PARTS, (name or "",))).fetchone()
        assert row is not None
        # Not by a search_path, which may contain schemas of other roles.
        return sql.Identifier(*(row[0] if len(row[0]) > 1 else ("public", *row[0])))

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # Without the right VACUUM warns instead of failing; autovacuum does the same work then.
        self._log.debug("%s", diagnostic.message_primary)
