"""Rotation, vacuum and the functions of queue_extra_maint: the operations of
pgq.maint_operations().

Each operation is a transaction of its own, because the second step of a rotation must be later
than the first, and because one that fails must not affect the others, not even if its session
ends: the next one gets a new session.
"""

from __future__ import annotations

import time
from typing import LiteralString

import psycopg
from psycopg import sql

from pgqpy_ticker.connect import Connection, fetch
from pgqpy_ticker.jobs import Job
from pgqpy_ticker.logs import one_line
from pgqpy_ticker.served import REFUSED, Operation, Served

_OPERATIONS: LiteralString = "select func_name, func_arg from pgq.maint_operations()"
_PARTS: LiteralString = "select pg_catalog.parse_ident(%s)"
_NOTE: LiteralString = "select pgq.note_failures(%s::text[], %s::text[], %s::text[])"


class Maintenance(Job):
    """A pass over all operations, on a connection that is closed after the pass."""

    name = "maintenance"

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._log = served.log(job=self.name)
        self._failing: set[Operation] = set()
        self._heard: Connection | None = None

    async def run(self) -> float:
        served = self.served
        listed = await fetch(await self._session(), _OPERATIONS)
        self._refuse([str(argument) for operation, argument in listed if operation == REFUSED])
        failed: set[Operation] = set()
        for operation, argument in listed:
            if operation != REFUSED and not await self._tried(operation, argument):
                failed.add((operation, argument))
        mended = self._failing - failed
        for operation, argument in mended:
            self._log.info(
                "maintenance works again", extra={"operation": operation, "argument": argument}
            )
        served.mend(*mended)
        self._failing = failed
        if not failed:
            served.maintained = time.monotonic()
        await self.close()
        return served.database.maintenance_period

    def _refuse(self, reasons: list[str]) -> None:
        before = self.served.refused
        self.served.refuse(reasons)
        for reason in reasons:
            if reason not in before:
                self._log.warning("maintenance does not run %s", reason)
        for reason in before:
            if reason not in reasons:
                self._log.info("maintenance refuses no more: %s", reason)

    async def _session(self) -> Connection:
        connection = await self.connection()
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
            self.served.fail(key, one_line(error))
            if key not in self._failing:
                self._failing.add(key)
                self._log.warning(
                    "maintenance failed: %s",
                    one_line(error),
                    extra={"operation": operation, "argument": argument},
                )
            return False
        self.served.ran(operation, time.monotonic() - started)
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
        [(parts,)] = await fetch(connection, _PARTS, name or "")
        # Not by a search_path, which may contain schemas of other roles.
        return sql.Identifier(*(parts if len(parts) > 1 else ("public", *parts)))

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # Without the right VACUUM warns instead of failing; autovacuum does the same work then.
        self._log.debug("%s", diagnostic.message_primary)


class NoteFailures(Job):
    """Records failures in the database, for `pgqpy status`: when a lead begins, and if they change.

    What is refused is recorded, too.
    """

    name = "note failures"

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self._noted: dict[Operation, str] | None = None

    async def run(self) -> float:
        while self._noted == self._failures():
            self.served.changed.clear()
            await self.served.changed.wait()
        connection = await self.connection()
        failures = self._failures()
        names, arguments = zip(*failures, strict=True) if failures else ((), ())
        await connection.execute(_NOTE, ([*names], [*arguments], [*failures.values()]))
        self._noted = failures
        await self.close()
        return 1.0

    def _failures(self) -> dict[Operation, str]:
        return self.served.failing | {
            (REFUSED, reason): f"maintenance does not run {reason}"
            for reason in self.served.refused
        }
