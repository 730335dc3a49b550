"""Pauses between attempts."""

from __future__ import annotations

import errno
import logging
import math
import os
import random
from time import monotonic

#: The longest pause in seconds while no server listens: an attempt costs next to nothing, and the
#: pause is added to the outage.
REFUSED = 0.25

#: The seconds for which further refused connections are no warnings.
_TOLD = 5.0

#: libpq passes on the system's words, in the language of the process: no server listens at the
#: address, or its socket is not there.
_REFUSED = tuple(os.strerror(number) for number in (errno.ECONNREFUSED, errno.ENOENT))


class Backoff:
    """Pauses in seconds: the first, then each twice the one before, up to a cap.

    Each is shortened by up to half at random, so that clients that failed together do not retry
    together.
    """

    def __init__(self, first: float, cap: float) -> None:
        self.first = first
        self.cap = cap
        self._next = min(first, cap)
        self._quiet_until = -math.inf
        #: The level at which to log the last failure.
        self.level = logging.WARNING

    def pause(self, error: BaseException | None = None) -> float:
        """The seconds to wait now; the next pause will be longer.

        After the ``error`` of a connection that was refused it is `REFUSED` at most.
        """
        refused, now = is_refused(error), monotonic()
        self.level = logging.DEBUG if refused and now < self._quiet_until else logging.WARNING
        if self.level == logging.WARNING:
            self._quiet_until = now + _TOLD
        cap = min(self.cap, REFUSED) if refused else self.cap
        pause = min(self._next, cap)
        self._next = min(pause * 2, cap)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the first pause, after an attempt that succeeded."""
        self._next = min(self.first, self.cap)
        self._quiet_until = -math.inf


def is_refused(error: BaseException | None) -> bool:
    """Whether no server listened at any of the addresses that were tried."""
    # Of several addresses psycopg writes a line for each.
    summary, *attempts = str(error).split("\n- host: ")
    return all(any(word in attempt for word in _REFUSED) for attempt in attempts or [summary])
