"""The order of events with one key, if several events are processed at once."""

from __future__ import annotations

import asyncio

#: The events that wait in memory for each that is processed: most may be of one key.
WAITING = 32


class AsyncKeyOrder:
    """Lets each event wait for the one before it with the same key, until that is done or parked.

    Of the events that need not wait, ``at_once`` are processed at a time. Events begin in their
    order, like the tasks of `AsyncLanes`.
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
        """Free the place. The next event must still wait: the key may have to be parked."""
        self._places.release()

    def end(self, event_id: int) -> None:
        """Let the next event of the key begin."""
        if done := self._done.pop(event_id, None):
            done.set()


class KeyOrder:
    """The order for threads, which process one event after the other anyway."""

    def __init__(self, at_once: int) -> None:
        """Make one place."""

    def begin(self, event_id: int, key: str) -> None:
        """Do nothing: it is the event's turn."""

    def leave(self) -> None:
        """Do nothing: the place is free."""

    def end(self, event_id: int) -> None:
        """Do nothing: events run one after the other."""
