"""Notifications of tasks and rows."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from psycopg import AsyncCursor

from pgqpy._runtime.listener_async import AsyncSubscriber


class AsyncNotifier(AsyncSubscriber):
    """Receiver of notifications of a worker's queues, or of its table."""

    probe = ""

    def __init__(self, dsn: str, channel: str, payloads: Collection[str], subject: str) -> None:
        #: Whether there may be tasks that were not looked for yet.
        self.heard = False
        #: The queues that were named since then.
        self.named: set[str] = set()
        self.subject = subject
        self._channel = channel
        self._payloads = frozenset(payloads)
        patterns = [".*".join(map(re.escape, each.split("*"))) for each in payloads if "*" in each]
        self._pattern = re.compile("|".join(patterns) or r"(?!)", re.DOTALL)
        super().__init__(dsn, ", ".join(payloads))

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        return self._channel

    def hear(self, payload: str) -> None:
        # Workers of a queue also serve its tenants.
        names = {payload, payload.rpartition("/")[0]}
        if not names.isdisjoint(self._payloads) or self._pattern.fullmatch(payload):
            self.heard = True
            self.named |= names
            self._wake()

    def take(self) -> set[str]:
        """Return the queues that were named, and begin again: they are about to be looked at."""
        self.heard = False
        named, self.named = self.named, set()
        return named

    def _news(self) -> bool:
        return self.heard
