"""What becomes of an event that failed: when it comes again, and when it is given up."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from pgqpy.errors import InvalidConsumer

#: How long an event waits after its attempt of that number (from 1) failed with that error, in
#: seconds or as an interval; None: never again, it becomes a dead letter.
RetryPolicy: TypeAlias = Callable[[int, Exception], float | timedelta | None]


class Retry(Exception):
    """Raise it in `process_event` to have the event again later, whatever its attempts.

    What was written for the event is rolled back; `Event.retry`, called, keeps it.
    """

    def __init__(self, after: float | timedelta) -> None:
        """``after`` in seconds or as an interval."""
        super().__init__("put back on purpose")
        self.after = after


class DeadLetter(Exception):
    """Raise it in `process_event` to give the event up at once.

    It becomes a dead letter with this reason, and what was written for it is rolled back;
    `Event.dead_letter` keeps it. With ``from error`` the dead letter has that one's traceback; an
    error as the reason is its own.
    """

    def __init__(self, reason: str | Exception) -> None:
        if isinstance(reason, Exception):
            self.__cause__ = reason
            reason = in_short(reason)
        self.reason = str(reason)
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """Again after so many seconds, up to so many attempts in all (None: without end)."""

    seconds: float
    attempts: int | None = 10

    def __post_init__(self) -> None:
        _check(self.attempts, seconds=self.seconds)

    def __call__(self, attempt: int, error: Exception) -> float | None:
        return None if _used_up(attempt, self.attempts) else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Again after ``first`` seconds, then each time ``factor`` times as long, up to ``cap``.

    Up to so many attempts in all (None: without end). Each delay is shortened by up to the share
    ``jitter`` at random, so that events which failed together do not come back together. As it
    stands the last of the 10 attempts is about 17 minutes after the first.
    """

    first: float = 2.0
    cap: float = 3600.0
    factor: float = 2.0
    jitter: float = 0.2
    attempts: int | None = 10

    def __post_init__(self) -> None:
        _check(self.attempts, first=self.first, cap=self.cap)
        if not self.factor >= 1:
            raise ValueError(f"factor is {self.factor}; it must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter}; it must be between 0 and 1")

    def __call__(self, attempt: int, error: Exception) -> float | None:
        if _used_up(attempt, self.attempts):
            return None
        try:
            delay = min(self.first * self.factor ** (attempt - 1), self.cap)
        except OverflowError:
            delay = self.cap
        return delay * random.uniform(1 - self.jitter, 1)


def check_policy(policy: RetryPolicy) -> None:
    """Raise InvalidConsumer for what cannot be called as a policy is."""
    try:
        inspect.signature(policy).bind(1, Exception())
    except TypeError as error:
        raise InvalidConsumer(
            f"retry_policy cannot be called with an attempt and an error: {error}; as an attribute "
            "of a class a function must be a staticmethod"
        ) from None


def in_short(error: Exception) -> str:
    """An error in one line, as logs and dead letters have it."""
    if isinstance(error, Retry | DeadLetter):
        return str(error)
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(what it says cannot be told: its __str__ fails)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _used_up(attempt: int, attempts: int | None) -> bool:
    return attempts is not None and attempt >= attempts


def _check(attempts: int | None, **seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} is {value}; it must be a number of seconds, not negative")
    if attempts is not None and attempts < 1:
        raise ValueError(f"attempts is {attempts}; it must be at least 1, or None for no limit")
