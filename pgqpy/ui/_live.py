"""Pages kept up to date: server-sent events with the fragments that have changed.

The fragments of a page are made once for all viewers of a role, at most every `PAUSE` seconds and
for a tenth of the time, and not at all if there is no viewer. The state of the database is an
event, too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import suppress

from pgqpy.errors import PgqError
from pgqpy.log import logger

PAUSE = 2.0
#: A page that takes a second is made every ten seconds, one that takes longer as often.
LONGEST_PAUSE = 10.0
#: Seconds after which a silent stream says that it is alive.
KEEP_ALIVE = 15.0

Make = Callable[[], Awaitable[dict[str, str]]]


class _Feed:
    """The fragments of one page for one role, as they are now, and the task that makes them."""

    def __init__(self, make: Make) -> None:
        self.viewers = 0
        self.fragments: dict[str, str] = {}
        self.problem = ""
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(make))

    async def change(self) -> None:
        """Wait for the next round."""
        await self._changed.wait()

    async def _run(self, make: Make) -> None:
        while True:
            began, pause = time.monotonic(), PAUSE
            try:
                self.fragments, self.problem = await make(), ""
                pause = min(max(9 * (time.monotonic() - began), PAUSE), LONGEST_PAUSE)
            except PgqError as error:
                self.problem = error.message
            except Exception:
                logger.exception("console: a page cannot be made")
                self.problem = "the console failed: see its log"
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            await asyncio.sleep(pause)

    def stop(self) -> None:
        self._task.cancel()


class Live:
    """The feeds of all pages that are looked at."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, _Feed] = {}

    async def events(self, key: Hashable, make: Make, ends: float) -> AsyncIterator[str]:
        """Yield the events for one viewer of a page: all fragments first, later those that changed.

        ``ends`` is the time at which the viewer has to ask again; it is told to.
        """
        feed = self._feeds.get(key) or self._feeds.setdefault(key, _Feed(make))
        feed.viewers += 1
        sent: dict[str, str] = {}
        problem = None
        try:
            while time.time() < ends:
                before, sent = sent, feed.fragments
                for name, html in sent.items():
                    if before.get(name) != html:
                        yield _event("fragment", {"id": name, "html": html})
                if feed.problem != problem and (feed.problem or sent):
                    problem = feed.problem
                    yield _event("state", {"problem": problem})
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE):
                        await feed.change()
                        continue
                yield ": alive\n\n"
            yield _event("again", None)
        finally:
            feed.viewers -= 1
            if not feed.viewers:
                del self._feeds[key]
                feed.stop()


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
