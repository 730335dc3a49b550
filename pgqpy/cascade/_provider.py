"""The provider of a node: the ticks that the node is to copy, and what it is told."""

from __future__ import annotations

from time import monotonic

from psycopg.rows import dict_row

from pgqpy._runtime.io import AsyncIo
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Database
from pgqpy.cascade._statements import NodeState, Tick
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import ConsumerInUse, ForeignTick, PgqError, TargetAhead
from pgqpy.log import logger

#: The most ticks of a transaction: PostgreSQL remembers 64 subtransactions of a session cheaply.
_MOST_TICKS = 60


class Provider:
    """A queue in the database of a provider, for the node that copies it."""

    def __init__(self, io: AsyncIo, database: Database, queue: str) -> None:
        self._io = io
        self.database = database
        self._queue = queue
        self.checked = False
        self._untold: int | None = None
        self._tell_at = 0.0

    async def next(
        self, conn: AsyncConnection, state: NodeState, position: int, most_events: int
    ) -> list[Tick]:
        """Return the ticks to copy now, after the one at ``position``.

        Raises TickNotFound if the provider does not have what follows any more.
        """
        if not (await self.database.kind(conn))["is_ours"]:
            return await self._next_of_pgq(conn, state.consumer, position)
        wanted = self._queue, position, _MOST_TICKS, most_events
        rows = await self._io.fetch(conn, statements.NEXT_TICKS, wanted)
        return [Tick(*row) for row in rows]

    async def finish(
        self, conn: AsyncConnection, consumer: str, tick: Tick, *, more: bool = False
    ) -> None:
        """Tell it that the node has everything up to the tick.

        If there is more to copy, it is told four times a second, and the rest by `settle`.
        """
        if tick.batch is not None:
            await self._io.fetch(conn, statements.FINISH_BATCH, (tick.batch,))
            return
        self._untold = tick.id
        if not more or monotonic() >= self._tell_at:
            await self.settle(conn, consumer)

    async def settle(self, conn: AsyncConnection, consumer: str) -> None:
        """Tell it what it was not told yet."""
        if self._untold is not None:
            await self.stand(conn, consumer, self._untold)

    async def stand(self, conn: AsyncConnection, consumer: str, tick: int) -> None:
        """Move the node's position in the provider's queue."""
        self._untold = None
        self._tell_at = monotonic() + 0.25
        if not (await self.database.kind(conn))["is_ours"]:
            await self._register(conn, consumer, tick)
            return
        try:
            advanced = self._queue, consumer, tick
            ((self.checked,),) = await self._io.fetch(conn, statements.ADVANCE, advanced)
        except ConsumerInUse:
            # PgQ's worker left a batch open. What counts is what the node has.
            await self._register(conn, consumer, tick)

    async def report(self, conn: AsyncConnection, node: str, watermark: int) -> None:
        """Tell it which ticks the node and those below it do not need any more."""
        known = self._queue, watermark, self._queue, node
        for code, note in await self._io.fetch(conn, statements.REPORT, known):
            if code == 404:
                logger.warning(
                    "node %s is no subscriber of its provider: %s",
                    node,
                    note,
                    extra={"queue": self._queue, "node": node},
                )

    async def tick(self, conn: AsyncConnection, tick: int) -> tuple[object, int] | None:
        """Return time and event sequence of a tick."""
        rows = await self._io.fetch(conn, statements.TICK, (self._queue, tick))
        return rows[0] if rows else None

    async def before(self, conn: AsyncConnection, tick: int) -> int | None:
        """Return the last tick up to this one that it has not forgotten."""
        known = self._queue, tick
        ((before,),) = await self._io.fetch(conn, statements.KNOWN_BEFORE, known)
        return None if before is None else int(before)

    async def check(
        self, conn: AsyncConnection, state: NodeState, position: int, epoch: int | None
    ) -> None:
        """Raise an error unless it is a node of the same history that is not behind.

        ``epoch`` is that of the newest root of which the node has heard.
        """
        if self.checked:
            return
        name = state.provider_node
        kind = await self.database.kind(conn)
        rows = []
        if kind["is_node"]:
            asked = state.node_name, position, self._queue
            rows = await self._io.fetch(conn, statements.AT_PROVIDER, asked, dict_row)
        if not rows or rows[0]["node_type"] == "leaf":
            raise PgqError(
                f"provider {name} has no copy of queue {self._queue}",
                hint="Choose a root or a branch: pgq_node.change_consumer_provider().",
            )
        newest, time = rows[0]["newest"], rows[0]["time"]
        if newest is None or newest < position:
            raise TargetAhead(
                f"node {state.node_name} has queue {self._queue} up to tick {position}, its"
                f" provider {name} up to {newest}",
                hint="It goes on when the provider has come that far, or with another provider.",
            )
        times = {time, state.newest_time} - {None}
        if position == state.newest and len(times) > 1:
            raise ForeignTick(
                f"tick {position} of queue {self._queue} is of {state.newest_time} on node"
                f" {state.node_name}, and of {time} on its provider {name}",
                hint="One of them was restored, or was a root of its own: drop and create it.",
            )
        if epoch is not None and kind["is_ours"] and rows[0]["node_type"] == "root":
            ((known,),) = await self._io.fetch(conn, statements.EPOCH, (self._queue,))
            if known < epoch:
                raise PgqError(
                    f"provider {name} is an old root of queue {self._queue}; another took over",
                    hint="Choose another provider; pgq_node.fence_root() stops the old root.",
                )
        if not rows[0]["is_subscribed"]:
            node = f"{self._queue} {state.node_name}"
            raise PgqError(
                f"node {state.node_name} is not registered at its provider {name}",
                hint=f"If it was dropped, `pgqpy node drop {node}` with its own DSN, and create it"
                f" again; or `pgqpy node change-provider {node} {name}`.",
            )
        self.checked = True

    async def _next_of_pgq(self, conn: AsyncConnection, consumer: str, position: int) -> list[Tick]:
        """Return the tick of the next batch, by PgQ's own functions."""
        names = self._queue, consumer
        for _ in range(2):
            (row,) = await self._io.fetch(conn, statements.NEXT_BATCH, names, dict_row)
            if row["batch_id"] is None:
                return []
            if row["prev_tick_id"] == position:
                return [
                    Tick(
                        row["cur_tick_id"],
                        row["cur_tick_time"],
                        row["cur_tick_event_seq"],
                        early=False,
                        sql=row["batch_sql"],
                        batch=row["batch_id"],
                    )
                ]
            if row["cur_tick_id"] == position:
                await self._io.fetch(conn, statements.FINISH_BATCH, (row["batch_id"],))
            else:
                await self._register(conn, consumer, position)
        return []

    async def _register(self, conn: AsyncConnection, consumer: str, tick: int) -> None:
        await self._io.fetch(conn, statements.REGISTER_AT, (self._queue, consumer, tick))
        await self._io.fetch(conn, statements.LEAVE, (self._queue, consumer))
