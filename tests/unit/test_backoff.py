"""Pauses between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgqpy._runtime.backoff import Backoff


@given(first=st.floats(0.001, 10), cap=st.floats(0.001, 1000), attempts=st.integers(1, 100))
def test_pauses_double_up_to_the_cap_and_start_over_after_success(
    first: float, cap: float, attempts: int
) -> None:
    backoff = Backoff(first, cap)
    for _ in range(2):
        for attempt in range(attempts):
            full = min(first * 2**attempt, cap)
            assert 0.49 * full <= backoff.pause() <= full * 1.001
        backoff.reset()
