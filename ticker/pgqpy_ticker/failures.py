"""Failed jobs of the leader other than ticks: kept here, shown by /healthz and the metrics, and
recorded in the database for `pgqpy status`.

Obstacles by roles without rights of ours are kept, too: maintenance that is not run, because such
roles named it, and locks. They are shown in the same places, but make nothing unhealthy by
themselves, or every such role could. A job that fails because of them does.
"""

from __future__ import annotations

import asyncio
from typing import LiteralString, TypeAlias

from pgqpy_ticker.connect import JobConnection
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.problem import gist

Operation: TypeAlias = tuple[str, str | None]
"""A job, or a maintenance operation with its argument."""

REFUSED = "pgq.maint_refused"
"""Stands in pgq.maint_operations() for what is not run; its argument says what, and why."""

_NOTE: LiteralString = "select pgq.note_failures(%s::text[], %s::text[], %s::text[])"


class Failures:
    """The operations whose last run failed, with their errors."""

    def __init__(self, database: str, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        #: Replaced as a whole: other threads read it.
        self.now: dict[Operation, str] = {}
        self.refused: list[str] = []
        self.foreign_locks: list[str] = []
        self.changed = asyncio.Event()

    def fail(self, operation: Operation, error: str) -> None:
        """Record a failure of an operation, repeated or new."""
        self._metrics.failed(self._database, operation[0])
        if gist(self.now.get(operation, "")) != gist(error):
            self._replace(self.now | {operation: error})

    def mend(self, *operations: Operation) -> None:
        """Record operations that succeeded, or are not needed any more."""
        if not self.now.keys().isdisjoint(operations):
            self._replace({key: self.now[key] for key in self.now if key not in operations})

    def refuse(self, reasons: list[str]) -> None:
        """Set the operations that maintenance does not run."""
        if reasons != self.refused:
            self.refused = reasons
            self.changed.set()
            self._metrics.refused(self._database, len(reasons))

    def see_foreign(self, locks: list[str]) -> None:
        """Set the locks of ours that others hold."""
        self.foreign_locks = locks
        self._metrics.foreign_locks(self._database, len(locks))

    def clear(self) -> None:
        """Forget all: another ticker knows now, or will."""
        self._replace({})
        self.refuse([])
        self.see_foreign([])

    def noted(self) -> dict[Operation, str]:
        """The failures to record in the database."""
        return self.now | {
            (REFUSED, reason): f"maintenance does not run {reason}" for reason in self.refused
        }

    def report(self) -> dict[str, list[dict[str, str]] | list[str]]:
        """Return the failures for /healthz, without empty lists."""
        report: dict[str, list[dict[str, str]] | list[str]] = {
            "failing": self._failing(),
            "refused": self.refused,
            "foreign_locks": self.foreign_locks,
        }
        return {key: told for key, told in report.items() if told}

    def _failing(self) -> list[dict[str, str]]:
        return [
            {
                "operation": name,
                **({} if argument is None else {"argument": argument}),
                "error": why,
            }
            for (name, argument), why in self.now.items()
        ]

    def _replace(self, failing: dict[Operation, str]) -> None:
        names = {name for name, _ in self.now | failing}
        self.now = failing
        self.changed.set()
        for name in names:
            self._metrics.failing(self._database, name, sum(key[0] == name for key in failing))


class Note:
    """Records the failures in the database, at the beginning of a lead and on each change."""

    name = "note failures"

    def __init__(self, connection: JobConnection, failures: Failures) -> None:
        self._connection = connection
        self._failures = failures
        self._noted: dict[Operation, str] | None = None

    async def run(self) -> float:
        while self._noted == self._failures.noted():
            self._failures.changed.clear()
            await self._failures.changed.wait()
        connection = await self._connection.get()
        failing = self._failures.noted()
        await connection.execute(
            _NOTE,
            (
                [name for name, _ in failing],
                [argument for _, argument in failing],
                list(failing.values()),
            ),
        )
        self._noted = failing
        await self._connection.close()
        return 1.0

    async def close(self) -> None:
        await self._connection.close()
