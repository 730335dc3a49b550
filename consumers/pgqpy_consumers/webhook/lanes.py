"""Items by key: those of one key one after another, different keys at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Runs ``process`` for each item; at most ``window`` are waiting or being processed.

    A key whose item takes long delays only its own later items, until the window is full of
    them. The first error ends all.
    """

    def __init__(self, process: Callable[[T], Awaitable[None]], *, window: int) -> None:
        self._process = process
        self._room = asyncio.Semaphore(window)
        self._waiting: dict[str, deque[T]] = {}

    async def run(self, items: AsyncIterator[tuple[str, T]]) -> None:
        """Process all items. Raises the first error of ``process``, when the others have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                async for key, item in items:
                    await self._room.acquire()
                    lane = self._waiting.get(key)
                    if lane is not None:
                        lane.append(item)
                    else:
                        self._waiting[key] = deque([item])
                        group.create_task(self._run_lane(key))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_lane(self, key: str) -> None:
        lane = self._waiting[key]
        while lane:
            try:
                await self._process(lane.popleft())
            finally:
                self._room.release()
        del self._waiting[key]
