"""Events that a consumer wants to see again go back into their queue when it is time."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

from pgqpy_ticker.config import Database
from pgqpy_ticker.link import Link
from pgqpy_ticker.metrics import Metrics

_RETRY: LiteralString = "select pgq.maint_retry_events()"


class Retry:
    """Moves due events, a portion in each transaction, until none is left."""

    name = "retry"

    def __init__(self, link: Link, database: Callable[[], Database], metrics: Metrics) -> None:
        self._link = link
        self._database = database
        self._metrics = metrics

    async def run(self) -> float:
        connection = await self._link.connection()
        moved = 1
        while moved:
            row = await (await connection.execute(_RETRY)).fetchone()
            moved = int(row[0]) if row else 0
            self._metrics.retried(self._database().name, moved)
        return self._database().retry_period

    async def close(self) -> None:
        await self._link.close()
