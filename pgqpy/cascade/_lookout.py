"""A root that was away looks whether another node has taken over."""

from __future__ import annotations

from time import monotonic

import psycopg

from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.words import plural
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Databases
from pgqpy.cascade._location import usable
from pgqpy.cascade._nodes import NodeInfo, Nodes
from pgqpy.cascade._status import fence_if_replaced
from pgqpy.errors import PgqError
from pgqpy.log import logger

#: The seconds between looks at another node.
PAUSE = 5.0


class Lookout:
    """Fences the root in a database if another node has taken over.

    While all is well it asks one other node, by chance, for the epoch of which that has heard. A
    higher one is only a hint, since events may bring it: the node that is the root must say so.
    """

    def __init__(self, io: AsyncIo, databases: Databases, dsn: str, queue: str) -> None:
        self._io = io
        self._databases = databases
        self._dsn = dsn
        self._queue = queue
        self._look_at = 0.0
        self._warned = False

    async def look(self) -> None:
        """Look at another node, unless that was a short while ago, or this is no root."""
        if monotonic() < self._look_at:
            return
        database = self._databases.at(self._dsn)
        async with database.connection() as node:
            is_ours = (await database.kind(node))["is_ours"]
            asked = (self._queue,)
            others = await self._io.fetch(node, statements.OTHERS, asked) if is_ours else []
        for location, epoch in others:
            heard = await self._ask(location)
            if heard is not None:
                if heard > epoch:
                    await self._fence()
                break
        self._look_at = monotonic() + PAUSE

    async def _ask(self, location: str) -> int | None:
        """Return the epoch of which a node has heard; None if it cannot tell."""
        try:
            database = self._databases.at(usable(location))
            async with database.connection() as conn:
                if not (await database.kind(conn))["is_ours"]:
                    return None
                ((epoch,),) = await self._io.fetch(conn, statements.EPOCH, (self._queue,))
                return int(epoch)
        except (PgqError, psycopg.Error):
            return None

    async def _fence(self) -> None:
        fields = {"queue": self._queue}
        local, rest = await self._io.blocking(self._fence_if_replaced)
        if local.fenced_by is not None:
            logger.error(
                "node %s is an old root of queue %s: %s has taken over. It refuses events now,"
                " and has %s that no other node has: `pgqpy node rest %s %s` lists them",
                *(local.name, self._queue, local.fenced_by),
                *("events" if rest is None else plural(rest, "event"), self._queue, local.name),
                extra=fields,
            )
        elif not self._warned:
            self._warned = True
            logger.warning(
                "another node has heard of a newer root of queue %s than %s, which does not know"
                " it, or cannot ask it: `pgqpy node status %s` looks at all nodes",
                *(self._queue, local.name, self._queue),
                extra=fields,
            )

    def _fence_if_replaced(self) -> tuple[NodeInfo, int | None]:
        with Nodes(self._queue, self._dsn) as nodes:
            return fence_if_replaced(nodes)
