"""Policies for failed events: when they are retried, and when they are given up."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from pgqpy._runtime.backoff import Backoff

__all__ = ["Backoff", "DeadLetter", "ExponentialBackoff", "FixedDelay", "Retry", "RetryPolicy"]

#: Returns the delay of an event after the attempt of that number (from 1) failed with that error,
#: in seconds or as an interval; None: no retry, it becomes a dead letter.
RetryPolicy: TypeAlias = Callable[[int, Exception], float | timedelta | None]


class Retry(Exception):
    """Raise it in `process_event` to retry the event later, whatever its attempts.

    Writes for the event are rolled back; calling `Event.retry` keeps them.
    """

    #: For telemetry.
    is_failure = False

    def __init__(self, delay: float | timedelta, reason: str | None = None) -> None:
        """``delay`` is in seconds or an interval. A task shows the ``reason`` as its error."""
        super().__init__(reason or "retried on purpose")
        self.delay = delay
        self.reason = reason


class DeadLetter(Exception):
    """Raise it in `process_event` to give the event up at once.

    It becomes a dead letter with this reason, and writes for it are rolled back;
    `Event.dead_letter` keeps them. With ``from error`` the dead letter has the traceback of that
    error; if the reason is an error, of the reason.
    """

    def __init__(self, reason: str | Exception) -> None:
        if isinstance(reason, Exception):
            self.__cause__ = reason
            reason = in_short(reason)
        self.reason = str(reason)
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """Retries after ``delay`` seconds, up to ``attempts`` attempts in all (None: without end)."""

    seconds: float
    attempts: int | None = 10

    def __post_init__(self) -> None:
        _check(self.attempts, seconds=self.seconds)

    def __call__(self, attempt: int, error: Exception) -> float | None:
        return None if _used_up(attempt, self.attempts) else self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Retries after ``first`` seconds, then each time ``factor`` times as long, up to ``cap``.

    At most ``attempts`` attempts in all (None: without end). Each delay is shortened by up to the
    share ``jitter`` at random, so that events that failed together are not retried together. By
    default the last of the 10 attempts is about 17 minutes after the first.
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


def in_short(error: Exception) -> str:
    """Return an error in one line, for logs and dead letters."""
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
