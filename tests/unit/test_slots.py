"""Concurrency slots: calls in threads, and the error of one of them."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from pgqpy._runtime.acompat import Slots


def test_an_error_is_not_lost_because_another_call_ends_at_the_same_time() -> None:
    slots = Slots(lambda: None)
    failed: Future[None] = Future()
    failed.set_exception(LookupError())

    class Beside(Future[None]):
        def exception(self, timeout: float | None = None) -> None:
            """Its thread loses the processor here, and the other's call ends."""
            slots._done(failed)

    slots._done(Beside())
    with pytest.raises(LookupError):
        slots.check()
