"""Where to look for rows that are due.

A row that is done leaves a dead entry in the index until it can be vacuumed, which no row can while
some transaction stays open. So who looks does not begin at the beginning, but where it last found a
row. What comes to light before that, because it was inserted by a transaction that took its time,
or because somebody gave it an earlier time, is found from time to time: then the look is a full
one.
"""

from __future__ import annotations

import threading
from time import monotonic

BEGINNING = "-infinity"

#: Seconds before the mark from which the next look begins when one has found nothing.
MARGIN = 10.0
#: Seconds from one full look to the next, and how many times as long as the last one took.
FULL_EVERY = 1.0
FULL_SHARE = 20


class TableMarks:
    """Of one worker; its lanes share it."""

    def __init__(self) -> None:
        self._ahead = BEGINNING
        self._full_at = 0.0
        #: Held by the lane that works on a row that was left. Of one process no more than one:
        #: if it is killed, the attempt counts for each of them.
        self.alone = threading.Lock()

    def looks(self) -> list[tuple[str, float]]:
        """Where to begin, and so many seconds before that; if nothing is found, the next."""
        if self._ahead == BEGINNING or monotonic() >= self._full_at:
            return [(BEGINNING, 0.0)]
        return [(self._ahead, 0.0), (self._ahead, MARGIN)]

    def looked(self, where: str, first: str | None, took: float) -> None:
        """A look from there took so many seconds, and ``first`` is the time of what it found."""
        if where == BEGINNING:
            self._full_at = monotonic() + max(FULL_EVERY, FULL_SHARE * took)
        if first is not None:
            self._ahead = first
