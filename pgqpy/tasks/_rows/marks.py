"""The place to look for due rows.

A finished row leaves a dead entry in the index until vacuum removes it, which is impossible while
an old transaction stays open. So a look does not begin at the start of the index, but where the
last one found a row. Rows before that place, inserted by a slow transaction or given an earlier
time, are found from time to time by a full look.
"""

from __future__ import annotations

import threading
from time import monotonic

BEGINNING = "-infinity"

#: Seconds before the mark from which the next look begins if one has found nothing.
MARGIN = 10.0
#: Seconds from one full look to the next, at least, and a multiple of the last one's duration.
FULL_EVERY = 1.0
FULL_SHARE = 20


class TableMarks:
    """The marks of one worker; its executors share them."""

    def __init__(self) -> None:
        self._ahead = BEGINNING
        self._full_at = 0.0
        #: Held by the executor that works on a row that was left. A process works on one at a
        #: time: if it is killed, the attempt counts for each of them.
        self.alone = threading.Lock()

    def looks(self) -> list[tuple[str, float]]:
        """Return where to begin, and the seconds before that; if nothing is found, the next."""
        if self._ahead == BEGINNING or monotonic() >= self._full_at:
            return [(BEGINNING, 0.0)]
        return [(self._ahead, 0.0), (self._ahead, MARGIN)]

    def looked(self, where: str, first: str | None, took: float) -> None:
        """Record a look from there that took ``took`` seconds; ``first`` is the first row's
        time."""
        if where == BEGINNING:
            self._full_at = monotonic() + max(FULL_EVERY, FULL_SHARE * took)
        if first is not None:
            self._ahead = first
