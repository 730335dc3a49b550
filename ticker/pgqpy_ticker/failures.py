"""What the leader tries to do beside the ticks and cannot: known here, shown by /healthz and the
metrics, and noted in the database for `pgqpy status`.

Beside it stands what roles without any right of ours have put in the way: maintenance that is not
run, since it is not theirs to name, and locks. It is shown in the same places, but makes nothing
unhealthy by itself, or every such role could. What fails because of it does.
"""

from __future__ import annotations

import asyncio
from typing import LiteralString, TypeAlias

from pgqpy_ticker.link import Link
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.trouble import gist

Operation: TypeAlias = tuple[str, str | None]
"""A chore, or a maintenance operation with its argument."""

REFUSED = "pgq.maint_refused"
"""Stands in pgq.maint_operations() for what is not run; its argument says what, and why."""

_NOTE: LiteralString = "select pgq.note_failures(%s::text[], %s::text[], %s::text[])"


class Failures:
    """The operations that failed when they were last tried, with their errors."""

    def __init__(self, database: str, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        #: Replaced as a whole: other threads read it.
        self.now: dict[Operation, str] = {}
        self.refused: list[str] = []
        self.foreign_locks: list[str] = []
        self.changed = asyncio.Event()

    def fail(self, operation: Operation, error: str) -> None:
        """It failed, once more or for the first time."""
        self._metrics.failed(self._database, operation[0])
        if gist(self.now.get(operation, "")) != gist(error):
            self._replace(self.now | {operation: error})

    def mend(self, *operations: Operation) -> None:
        """They succeeded, or need not be done any more."""
        if not self.now.keys().isdisjoint(operations):
            self._replace({key: self.now[key] for key in self.now if key not in operations})

    def refuse(self, reasons: list[str]) -> None:
        """All that maintenance does not run."""
        if reasons != self.refused:
            self.refused = reasons
            self.changed.set()
            self._metrics.refused(self._database, len(reasons))

    def see_foreign(self, locks: list[str]) -> None:
        """All locks of ours that others hold."""
        self.foreign_locks = locks
        self._metrics.foreign_locks(self._database, len(locks))

    def clear(self) -> None:
        """Another ticker knows now, or will."""
        self._replace({})
        self.refuse([])
        self.see_foreign([])

    def noted(self) -> dict[Operation, str]:
        """What is noted in the database."""
        return self.now | {
            (REFUSED, reason): f"maintenance does not run {reason}" for reason in self.refused
        }

    def report(self) -> dict[str, list[dict[str, str]] | list[str]]:
        """What /healthz says, as far as there is anything to say."""
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
    """Notes in the database what fails, at the beginning of a lead and whenever that changes."""

    name = "note failures"

    def __init__(self, link: Link, failures: Failures) -> None:
        self._link = link
        self._failures = failures
        self._noted: dict[Operation, str] | None = None

    async def run(self) -> float:
        while self._noted == self._failures.noted():
            self._failures.changed.clear()
            await self._failures.changed.wait()
        connection = await self._link.connection()
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
        await self._link.close()
        return 1.0

    async def close(self) -> None:
        await self._link.close()
