"""The running job, as its worker's heartbeat sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pgqpy.tasks._jobs.current import CurrentJob, async_call


def test_a_job_that_ends_just_when_it_is_cancelled_disturbs_no_heartbeat() -> None:
    task: Any = None
    job = CurrentJob(task)
    known: list[Callable[[], object] | None] = []

    async def function() -> None:
        known.append(job._cancel)

    asyncio.run(async_call(job, function))
    # The heartbeat's thread has read it, and had to wait for the processor.
    (cancel,) = known
    assert cancel is not None
    cancel()
