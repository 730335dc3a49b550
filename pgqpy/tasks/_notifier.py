"""Notifications of tasks and rows."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from psycopg import AsyncCursor, Cursor

from pgqpy._runtime.listener import Subscriber
from pgqpy._runtime.listener_async import AsyncSubscriber
from pgqpy._runtime.notifications import Receiver


class _TaskReceiver(Receiver):
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
        # The next class is one of the subscribers.
        super().__init__(dsn, ", ".join(payloads))  # type: ignore[call-arg]

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


class AsyncNotifier(_TaskReceiver, AsyncSubscriber):
    """The notifier of a worker of asyncio."""

    async def channel(self, cursor: AsyncCursor[Any]) -> str:
        return self._channel


class Notifier(_TaskReceiver, Subscriber):
    """The notifier of a sync worker."""

    def channel(self, cursor: Cursor[Any]) -> str:
        return self._channel
