"""The order of events with one key, where several events are processed at once."""

from __future__ import annotations

import asyncio

#: So many events wait in memory for each that is processed: most may be of one key, in line.
WAITING = 32


class AsyncKeyOrder:
    """Lets each event wait for the one before it with the same key, until that is done or parked.

    Of those that need not wait so many are processed at once. Events begin in their order, as the
    tasks of `AsyncLanes` do.
    """

    def __init__(self, at_once: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._last: dict[str, asyncio.Event] = {}
        self._done: dict[int, asyncio.Event] = {}

    async def begin(self, event_id: int, key: str) -> None:
        """Wait for the event's turn, and for a place."""
        before = self._last.get(key)
        self._last[key] = self._done[event_id] = asyncio.Event()
        if before is not None:
            await before.wait()
        await self._places.acquire()

    def leave(self) -> None:
        """Free the place. It is not yet the next one's turn: the key may have to be parked."""
        self._places.release()

    def end(self, event_id: int) -> None:
        """It is the next one's turn."""
        if done := self._done.pop(event_id, None):
            done.set()


class KeyOrder:
    """The same for threads, where there is one event after the other anyway."""

    def __init__(self, at_once: int) -> None:
        """There is one place."""

    def begin(self, event_id: int, key: str) -> None:
        """It is the event's turn."""

    def leave(self) -> None:
        """The place is free."""

    def end(self, event_id: int) -> None:
        """It is the next one's turn."""
