"""Decide what becomes of an event, a task or a row for which an error was raised.

`decide` applies the error itself (`Retry`, `DeadLetter`) or the retry policy. Outages
(`is_outage`) are not decided here: everything is rolled back and tried again.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pgqpy.errors import is_transient
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry, RetryPolicy, in_short

#: The maximum characters of a stored traceback.
MAX_TRACEBACK = 4000
#: The delay if the retry policy itself fails.
_POLICY_FAILED = timedelta(minutes=1)
_LONGEST = timedelta(days=36500)
_EVENT = "pgqpy_event_id"


def is_outage(error: Exception, outages: tuple[type[Exception], ...] = ()) -> bool:
    """Whether an error is not the fault of what was processed, so that its attempt does not count.

    Those are transient errors of PostgreSQL, and the user's ``outages``.
    """
    if isinstance(error, Retry | DeadLetter):
        return False
    return isinstance(error, outages) or is_transient(error)


@dataclass(frozen=True, slots=True)
class Failure:
    """The decision: retry after ``delay``, or give up (None).

    ``error`` is the reason, which is the policy's own error if that failed. The attempt counts,
    unless it was a `Retry`.
    """

    error: Exception
    delay: timedelta | None

    @property
    def counts(self) -> bool:
        """Whether the attempt counts."""
        return not isinstance(self.error, Retry)

    @property
    def reason(self) -> str:
        """The error in one line."""
        return in_short(self.error)

    @property
    def cause(self) -> BaseException | None:
        """The error with a traceback of interest; None for decisions made on purpose."""
        # A deliberate DeadLetter may name a cause.
        if isinstance(self.error, Retry | DeadLetter):
            return self.error.__cause__
        return self.error

    def described(self) -> str:
        """Return the reason and the traceback."""
        if self.cause is None:
            return self.reason
        return f"{self.reason}\n\n{traceback_of(self.cause)}"

    def log(
        self,
        what: str,
        attempt: int,
        fields: Mapping[str, Any],
        *,
        end: str = "is given up",
        level: int = logging.ERROR,
        always_traceback: bool = False,
    ) -> None:
        """Log a warning for a retry; for the end, at ``level``, with the traceback.

        ``what`` names the event, task or row, ``end`` says what becomes of it without a retry.
        """
        extra = {**fields, "attempt": attempt}
        if self.delay is None:
            logger.log(
                level,
                "%s %s after attempt %s: %s",
                what,
                end,
                attempt,
                self.reason,
                exc_info=self.cause,
                extra=extra,
            )
            return
        pause = self.delay.total_seconds()
        logger.warning(
            "%s failed in attempt %s, again %s: %s",
            what,
            attempt,
            soon(pause),
            self.reason,
            exc_info=self.cause if always_traceback else None,
            extra=extra | {"pause": pause},
        )


def decide(error: Exception, attempt: int, policy: RetryPolicy | None) -> Failure:
    """Apply an error, or else the retry policy, to attempt number ``attempt`` (from 1).

    Raises ValueError for a delay that makes no sense, and what the policy raises. Without a policy
    raises the error, unless that is a decision.
    """
    if isinstance(error, Retry):
        return Failure(error, delay_of(error.delay))
    if isinstance(error, DeadLetter):
        return Failure(error, None)
    if policy is None:
        raise error
    delay = policy(attempt, error)
    return Failure(error, None if delay is None else delay_of(delay, "the retry_policy's delay"))


def decide_anyway(error: Exception, attempt: int, policy: RetryPolicy, what: str) -> Failure:
    """Like `decide`, but if that raises, log it and retry in a minute: nothing is lost."""
    try:
        return decide(error, attempt, policy)
    except Exception as worse:
        logger.exception("%s failed, and the retry policy, too", what)
        return Failure(worse, _POLICY_FAILED)


def interval(value: float | timedelta, what: str) -> timedelta:
    """Return seconds, or an interval, as an interval; ``what`` names it in errors."""
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{what} is {value!r}; it must be a number of seconds, or a timedelta"
        ) from None


def delay_of(value: float | timedelta, what: str = "the delay to retry after") -> timedelta:
    """Return a delay as an interval. Raises ValueError if it is negative, or over a century."""
    delay = interval(value, what)
    if not timedelta() <= delay <= _LONGEST:
        raise ValueError(f"{what} is negative, or more than a hundred years")
    return delay


def traceback_of(error: BaseException) -> str:
    """Return the traceback, with causes and groups; of a long one the end, which tells most."""
    return "".join(traceback.format_exception(error)).rstrip()[-MAX_TRACEBACK:]


def soon(pause: float) -> str:
    """Format the seconds until something is tried again: ``in 0.3 s``, ``at once``."""
    return f"in {pause:.1f} s" if pause >= 0.05 else "at once"


def storable(text: str, encoding: str) -> str:
    """Escape the characters of a text that a database of that encoding cannot store."""
    codec = "utf-8" if encoding == "UTF8" else "ascii"
    return text.replace("\0", "\\x00").encode(codec, "backslashreplace").decode(codec)


def blame(event_id: int, error: BaseException) -> None:
    """Mark an error as raised by the processing of an event."""
    # Some errors take no attributes.
    with suppress(Exception):
        setattr(error, _EVENT, event_id)


def blamed(error: BaseException) -> int | None:
    """Return the id of the event whose processing raised the error, if it is marked."""
    # A StopIteration becomes the cause of a RuntimeError.
    found: int | None = getattr(error, _EVENT, getattr(error.__cause__, _EVENT, None))
    return found
