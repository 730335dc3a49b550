"""Notifications of tasks and rows."""

from __future__ import annotations

import re
from collections.abc import Collection

from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.listener import Subscriber
from pgqpy.connection_async import AsyncConnection


class Notifier(Subscriber):
    """Receiver of notifications of a worker's queues, or of its table."""

    probe = ""

    def __init__(
        self, io: AsyncIo, dsn: str, channel: str, payloads: Collection[str], subject: str
    ) -> None:
        #: Whether there may be tasks that were not looked for yet.
        self.heard = False
        #: The queues that were named since then.
        self.named: set[str] = set()
        self.subject = subject
        self._channel = channel
        self._payloads = frozenset(payloads)
        patterns = [".*".join(map(re.escape, each.split("*"))) for each in payloads if "*" in each]
        self._pattern = re.compile("|".join(patterns) or r"(?!)", re.DOTALL)
        super().__init__(io, dsn, ", ".join(payloads))

    async def channel(self, conn: AsyncConnection) -> str:
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
