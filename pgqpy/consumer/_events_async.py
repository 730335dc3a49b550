"""Processing of a batch event by event, so that a bad event does not affect others.

Usually that is a plain loop. If an event fails after the transaction has begun, its writes cannot
be told from those of the others: all is rolled back, and the batch is run again *in pieces*, each
in a savepoint. A piece that fails is undone and cut before the event that raised. The events before
it are run again, and then those from it on: it is now the first of its piece, and alone in its
savepoint if it fails again. So no event is run more than a few times, however many are bad.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import async_own_error
from pgqpy._runtime.batch_connection_async import async_savepoint, swallowed_error
from pgqpy._runtime.failure import blame
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._batch import RunInPieces
from pgqpy.consumer._concurrency import AsyncConcurrentEvents
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.event import Event, UnreadableEvent

#: The maximum events of a piece; its payload is limited, too: a piece is held in memory.
MOST_EVENTS = 256
MOST_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class AsyncEventByEvent:
    """One run over a batch.

    ``process`` is called for each event. ``handles`` tells whether an error is an event's failure;
    others end the run. ``failed`` is then called with the event and its error.
    """

    conn: AsyncConnection
    batch: AsyncBatch
    process: Callable[[Event], Awaitable[None]]
    handles: Callable[[Exception], bool]
    failed: Callable[[Event, Exception], Awaitable[None]]

    async def run(self, at_once: int) -> None:
        """Process all events, ``at_once`` concurrently. Raises RunInPieces, and unhandled
        errors."""
        if at_once > 1:
            concurrent = AsyncConcurrentEvents(self.conn, at_once, savepoints=self.batch.in_pieces)
            await concurrent.run(self.batch, self.process, self._failed_there)
        elif self.batch.in_pieces:
            await self._run_in_pieces()
        else:
            await self._run_straight()
        ignored = self._status == TransactionStatus.INERROR and not self.batch.in_pieces
        if ignored and self.handles(swallowed_error()):
            # An event ignored the error of one of its statements; nothing would commit.
            raise RunInPieces

    async def _run_straight(self) -> None:
        process = self.process
        async for event in self.batch:
            try:
                await process(event)
            except (Exception, asyncio.CancelledError) as raised:
                error = async_own_error(raised)
                begun = self._status != TransactionStatus.IDLE
                await self._failed_there(event, error, spoiled=begun)

    async def _failed_there(self, event: Event, error: Exception, *, spoiled: bool) -> None:
        """Handle an event's failure; ``spoiled`` tells whether its writes may be in the
        transaction."""
        if self.conn.closed or not self.handles(error):
            blame(event.id, error)
            raise error
        if spoiled:
            raise RunInPieces from error
        await self._fail(event, error)

    async def _fail(self, event: Event, error: Exception) -> None:
        try:
            await self.failed(event, error)
        except Exception as raised:
            blame(event.id, raised)
            raise

    async def _run_in_pieces(self) -> None:
        events: list[Event] = []
        characters = 0
        async for event in self.batch:
            events.append(event)
            if not isinstance(event, UnreadableEvent):
                characters += len(event.data or "")
            if len(events) == MOST_EVENTS or characters > MOST_CHARACTERS:
                await self._run_all(events)
                events.clear()
                characters = 0
        await self._run_all(events)

    async def _run_all(self, events: list[Event]) -> None:
        pieces = [events]
        while pieces:
            piece = pieces.pop()
            if not piece:
                continue
            done, error = await self._run_piece(piece)
            if error is None:
                continue
            if done == 0 or len(piece) == 1:
                # No other event was in the savepoint.
                await self._fail(piece[0], error)
                pieces.append(piece[1:])
            else:
                cut = done if done < len(piece) else done // 2
                pieces += [piece[cut:], piece[:cut]]

    async def _run_piece(self, events: list[Event]) -> tuple[int, Exception | None]:
        """Return the number of events processed, and the error that undid them."""
        done = 0
        try:
            async with async_savepoint(self.conn):
                for event in events:
                    await self.process(event)
                    done += 1
        except (Exception, asyncio.CancelledError) as raised:
            error = async_own_error(raised)
            if self.conn.closed or not self.handles(error):
                if done < len(events):
                    blame(events[done].id, error)
                raise error  # noqa: B904
            self.batch.retries.forget(event.id for event in events)
            return done, error
        return done, None

    @property
    def _status(self) -> TransactionStatus:
        return self.conn.info.transaction_status
