"""Retry policies: delays, limits, and settings that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy import DeadLetter, ExponentialBackoff, FixedDelay, Retry
from pgqpy._runtime.checks import check_policy
from pgqpy.event import PIECE, Retries
from pgqpy.retry import in_short
from pgqpy.tasks import TaskApp

ERROR = ValueError("why")


def test_a_fixed_delay_is_always_the_same_until_the_attempts_are_used_up() -> None:
    policy = FixedDelay(7.5, attempts=3)
    assert [policy(attempt, ERROR) for attempt in (1, 2, 3, 4)] == [7.5, 7.5, None, None]
    assert FixedDelay(1, attempts=None)(10**9, ERROR) == 1


def test_an_exponential_backoff_grows_to_its_cap() -> None:
    policy = ExponentialBackoff(first=1, cap=60, factor=3, jitter=0, attempts=8)
    delays = [policy(attempt, ERROR) for attempt in range(1, 9)]
    assert delays == [1, 3, 9, 27, 60, 60, 60, None]


@given(
    first=st.floats(0, 1e9),
    cap=st.floats(0, 1e9),
    factor=st.floats(1, 1e9),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 10**9),
)
def test_a_delay_is_never_negative_nor_longer_than_the_cap(
    first: float, cap: float, factor: float, jitter: float, attempt: int
) -> None:
    policy = ExponentialBackoff(first=first, cap=cap, factor=factor, jitter=jitter, attempts=None)
    delay = policy(attempt, ERROR)
    assert delay is not None
    assert 0 <= delay <= cap


def test_jitter_shortens_by_no_more_than_its_share_and_scatters() -> None:
    policy = ExponentialBackoff(first=100, jitter=0.3)
    delays = [policy(1, ERROR) or 0 for _ in range(100)]
    assert all(70 <= delay <= 100 for delay in delays)
    assert len(set(delays)) > 50


def test_settings_that_make_no_sense_are_refused() -> None:
    makes: list[Callable[[], Any]] = [
        lambda: FixedDelay(-1),
        lambda: FixedDelay(float("nan")),
        lambda: FixedDelay(1, attempts=0),
        lambda: ExponentialBackoff(cap=float("inf")),
        lambda: ExponentialBackoff(factor=0.5),
        lambda: ExponentialBackoff(jitter=1.5),
    ]
    for make in makes:
        with pytest.raises(ValueError, match="it must be"):
            make()


def test_a_policy_is_anything_that_takes_an_attempt_and_an_error() -> None:
    check_policy(FixedDelay(1))
    check_policy(lambda attempt, error: attempt * 2.0)
    with pytest.raises(TypeError, match="staticmethod"):
        check_policy(lambda attempt: 1)  # type: ignore[arg-type, misc]
    # Its attempt would be the delay.
    with pytest.raises(TypeError, match=r"class FixedDelay, not an object: FixedDelay\(\.\.\.\)"):
        check_policy(FixedDelay)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry_policy cannot be called"):
        TaskApp(retry_policy=5)  # type: ignore[arg-type]


def test_an_error_is_told_in_one_line() -> None:
    assert in_short(ValueError("two\n  lines")) == "ValueError: two lines"
    assert in_short(KeyError()) == "KeyError"
    assert in_short(DeadLetter("said so")) == "said so"
    assert in_short(Retry(timedelta(minutes=1))) == "retried on purpose"


def test_the_last_word_on_an_event_counts() -> None:
    retries = Retries()
    retries.add(1, 5)
    retries.give_up(1, "bad")
    retries.give_up(2, "bad")
    retries.add(2, 5)
    assert (len(retries), retries.dead_letters) == (1, 1)
    assert retries
    retries.forget([1, 2, 3])
    assert not retries


def test_dead_letters_are_sent_in_pieces() -> None:
    retries = Retries()
    for event_id in range(PIECE + 1):
        retries.give_up(event_id, str(event_id))
    first, second = retries.letters("UTF8")
    assert [len(first[0]), len(second[0])] == [PIECE, 1]
    assert first[0] + second[0] == list(range(PIECE + 1))
    assert first[1] + second[1] == [str(event_id) for event_id in range(PIECE + 1)]
