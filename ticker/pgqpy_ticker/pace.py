"""When to look for work again: pure arithmetic on monotonic time, so a wall clock may do as it
likes."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST = 0.0005
"""A round that is due at once still lets other databases' workers run."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What to do until the next round: wait ``seconds``, and sleep deeply if ``asleep``."""

    seconds: float
    asleep: bool


class Pace:
    """Polls often while events arrive, ever less while they do not, and finally sleeps.

    The pause is an eighth of the time since something was last found, so that waiting adds an
    eighth to the age of an event at most, between ``busy`` and ``idle`` seconds. It is counted
    from the end of a round, and at least half as long as the round: where rounds take long, for
    want of a faster machine or of fewer queues, ticks become fewer and larger, and the ticker
    leaves the server room for those who read them.
    """

    def __init__(self, now: float) -> None:
        self._found = now

    def after_round(
        self,
        now: float,
        *,
        took: float,
        found: bool,
        wait: float | None,
        busy: float,
        idle: float,
        sleep_after: float,
        sleep_at_most: float,
    ) -> Rest:
        """Decide on the pause after a round of ``took`` seconds that ``found`` new events, or none.

        ``wait`` is in how many seconds to look again even if nobody calls: for events that are
        not due yet, and for transactions whose end may bring events to light. None: no need.
        """
        if found:
            self._found = now
        quiet = now - self._found
        due = sleep_at_most if wait is None else max(wait, SHORTEST)
        if quiet >= sleep_after and due >= idle:
            return Rest(min(due, sleep_at_most), asleep=True)
        poll = min(max(quiet / 8, busy), idle)
        return Rest(max(min(due, poll), took / 2), asleep=False)
