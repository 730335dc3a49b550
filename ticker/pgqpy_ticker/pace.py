"""When to look for work again, and how much to do then: pure arithmetic on monotonic time, so a
wall clock may do as it likes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SHORTEST = 0.0005
"""A round that is due at once still lets other databases' workers run."""

REST = 2
"""A pause is at least so many times the work before it, so that work is a third of the time."""

LONG_REST = 6
"""The same where more queues are due than the budget allows to tick: they have to wait anyway."""

ROUNDS = 8
"""What rounds cost is the least of so many: those in between were held up by other processes."""

BURST = 0.25
"""Early ticks that were not made can be made up for during so many seconds."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What to do until the next round: wait ``seconds``, and sleep deeply if ``asleep``."""

    seconds: float
    asleep: bool


class Pace:
    """Polls often while events arrive, ever less while they do not, and finally sleeps.

    The pause is an eighth of the time since something was last found, so that waiting adds an
    eighth to the age of an event at most, between ``busy`` and ``idle`` seconds. It is counted
    from the end of a round, and at least half as long as the round and `REST` or `LONG_REST` times
    what the server worked for it: where rounds take long, for want of a faster machine or of fewer
    queues, ticks become fewer and larger, and the server has room for those who read them.
    """

    def __init__(self, now: float) -> None:
        self._found = now
        self._works: deque[float] = deque(maxlen=ROUNDS)

    def after_round(
        self,
        now: float,
        *,
        took: float,
        work: float,
        found: bool,
        limited: bool,
        wait: float | None,
        busy: float,
        idle: float,
        sleep_after: float,
        sleep_at_most: float,
    ) -> Rest:
        """Decide on the pause after a round of ``took`` seconds that ``found`` new events, or none.

        During ``work`` seconds of these the server was busy, and not waiting for us or its disk.
        ``limited`` by the budget, the round has left queues waiting. ``wait`` is in how many
        seconds to look again even if nobody calls: for events that are not due yet, and for
        transactions whose end may bring events to light. None: no need.
        """
        if found:
            self._found = now
        self._works.append(work)
        quiet = now - self._found
        due = sleep_at_most if wait is None else max(wait, SHORTEST)
        if quiet >= sleep_after and due >= idle:
            return Rest(min(due, sleep_at_most), asleep=True)
        poll = min(max(quiet / 8, busy), idle)
        rest = min(self._works) * (LONG_REST if limited else REST)
        return Rest(max(min(due, poll), took / 2, rest), asleep=False)


class Budget:
    """How many early ticks to make: each is work for everybody who reads the queue.

    They are made ``spacing`` seconds apart on average, over all queues. So one busy queue gets its
    ticks as fast as the ticker looks, and where hundreds are busy, each waits for its turn and
    has more events by then.
    """

    def __init__(self, now: float) -> None:
        self._saved = BURST
        self._now = now

    def early(self, now: float, spacing: float) -> int:
        """How many may be made now; at least one."""
        self._saved = min(self._saved + now - self._now, BURST)
        self._now = now
        return max(int(self._saved / spacing), 1)

    def spend(self, made: int, spacing: float) -> None:
        """So many were made."""
        self._saved -= made * spacing
