# WARNING: generated from pgqpy/cascade/_provider_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""The provider of a node: the ticks that the node is to copy, and what it is told."""

from __future__ import annotations

from time import monotonic

from psycopg.rows import dict_row

from pgqpy._runtime.fetch import fetch
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._databases import Database
from pgqpy.cascade._statements import NodeState, Tick
from pgqpy.connection import Connection
from pgqpy.errors import ConsumerInUse, ForeignTick, PgqError, TargetAhead
from pgqpy.log import logger

#: The most ticks of a transaction: PostgreSQL remembers 64 subtransactions of a session cheaply.
_MOST_TICKS = 60


class Provider:
    """A queue in the database of a provider, for the node that copies it."""

    def __init__(self, database: Database, queue: str) -> None:
        self.database = database
        self._queue = queue
        self.checked = False
        self._untold: int | None = None
        self._tell_at = 0.0

    def next(
        self, conn: Connection, state: NodeState, position: int, most_events: int
    ) -> list[Tick]:
        """Return the ticks to copy now, after the one at ``position``.

        Raises TickNotFound if the provider does not have what follows any more.
        """
        if not (self.database.kind(conn))["is_ours"]:
            return self._next_of_pgq(conn, state.consumer, position)
        wanted = self._queue, position, _MOST_TICKS, most_events
        rows = fetch(conn, statements.NEXT_TICKS, wanted)
        return [Tick(*row) for row in rows]

    def finish(self, conn: Connection, consumer: str, tick: Tick, *, more: bool = False) -> None:
        """Tell it that the node has everything up to the tick.

        If there is more to copy, it is told four times a second, and the rest by `settle`.
        """
        if tick.batch is not None:
            fetch(conn, statements.FINISH_BATCH, (tick.batch,))
            return
        self._untold = tick.id
        if not more or monotonic() >= self._tell_at:
            self.settle(conn, consumer)

    def settle(self, conn: Connection, consumer: str) -> None:
        """Tell it what it was not told yet."""
        if self._untold is not None:
            self.stand(conn, consumer, self._untold)

    def stand(self, conn: Connection, consumer: str, tick: int) -> None:
        """Move the node's position in the provider's queue."""
        self._untold = None
        self._tell_at = monotonic() + 0.25
        if not (self.database.kind(conn))["is_ours"]:
            self._register(conn, consumer, tick)
            return
        try:
            advanced = self._queue, consumer, tick
            ((self.checked,),) = fetch(conn, statements.ADVANCE, advanced)
        except ConsumerInUse:
            # PgQ's worker left a batch open. What counts is what the node has.
            self._register(conn, consumer, tick)

    def report(self, conn: Connection, node: str, watermark: int) -> None:
        """Tell it which ticks the node and those below it do not need any more."""
        known = self._queue, watermark, self._queue, node
        for code, note in fetch(conn, statements.REPORT, known):
            if code == 404:
                logger.warning(
                    "node %s is no subscriber of its provider: %s",
                    node,
                    note,
                    extra={"queue": self._queue, "node": node},
                )

    def tick(self, conn: Connection, tick: int) -> tuple[object, int] | None:
        """Return time and event sequence of a tick."""
        rows = fetch(conn, statements.TICK, (self._queue, tick))
        return rows[0] if rows else None

    def before(self, conn: Connection, tick: int) -> int | None:
        """Return the last tick up to this one that it has not forgotten."""
        known = self._queue, tick
        ((before,),) = fetch(conn, statements.KNOWN_BEFORE, known)
        return None if before is None else int(before)

    def check(self, conn: Connection, state: NodeState, position: int, epoch: int | None) -> None:
        """Raise an error unless it is a node of the same history that is not behind.

        ``epoch`` is that of the newest root of which the node has heard.
        """
        if self.checked:
            return
        name = state.provider_node
        kind = self.database.kind(conn)
        rows = []
        if kind["is_node"]:
            asked = state.node_name, position, self._queue
            rows = fetch(conn, statements.AT_PROVIDER, asked, dict_row)
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
            ((known,),) = fetch(conn, statements.EPOCH, (self._queue,))
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

    def _next_of_pgq(self, conn: Connection, consumer: str, position: int) -> list[Tick]:
        """Return the tick of the next batch, by PgQ's own functions."""
        names = self._queue, consumer
        for _ in range(2):
            (row,) = fetch(conn, statements.NEXT_BATCH, names, dict_row)
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
                fetch(conn, statements.FINISH_BATCH, (row["batch_id"],))
            else:
                self._register(conn, consumer, position)
        return []

    def _register(self, conn: Connection, consumer: str, tick: int) -> None:
        fetch(conn, statements.REGISTER_AT, (self._queue, consumer, tick))
        fetch(conn, statements.LEAVE, (self._queue, consumer))
