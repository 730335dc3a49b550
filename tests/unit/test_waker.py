"""What waits is woken from any thread."""

from __future__ import annotations

import asyncio
from threading import Timer

from pgqpy._runtime.acompat import AsyncWaker
from tests.fixtures.fix_client import PATIENCE


def test_another_thread_wakes_an_event_loop() -> None:
    async def wait() -> None:
        waker = AsyncWaker()
        Timer(0.01, waker.wake).start()
        await asyncio.wait_for(waker.wait(3600), PATIENCE)

    # In debug mode a loop refuses calls that its thread would not notice.
    asyncio.run(wait(), debug=True)
