"""The pause until the next round, and the number of its early ticks: pure arithmetic on monotonic
time, so changes of the wall clock do not matter."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pgqpy_ticker.config import Database

SHORTEST = 0.0005
"""A round that is due at once still lets other databases' workers run."""

PAUSE = 2
"""The minimum ratio of a pause to the work before it, so that work is a third of the time."""

LONG_PAUSE = 6
"""The ratio if more queues are due than the budget allows to tick: they have to wait anyway."""

ROUNDS = 8
"""The number of rounds whose least cost counts: other processes delayed the others."""

BURST = 0.25
"""The seconds for which early ticks that were not made can be made up for."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The time until the next round: wait ``seconds``, and sleep deeply if ``asleep``."""

    seconds: float
    asleep: bool


class Schedule:
    """Polls often while events arrive, less and less while they do not, and finally sleeps.

    The pause is an eighth of the time since something was last found, so that waiting adds at most
    an eighth to the age of an event, between ``poll_busy`` and ``poll_idle``. It is counted from
    the end of a round, and at least half as long as the round and `PAUSE` or `LONG_PAUSE` times the
    server's work for it: if rounds take long, because the machine is slow or there are many queues,
    ticks become fewer and larger, and the server has room for consumers.
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
        database: Database,
    ) -> Pause:
        """Decide on the pause after a round of ``took`` seconds that ``found`` new events, or none.

        During ``work`` seconds of these the server was busy, not waiting for us or its disk.
        ``limited`` by the budget, the round has left queues waiting. ``wait`` is the seconds after
        which to poll again even without a notification: for events that are not due yet, and for
        transactions whose end may make events visible. None: no need.
        """
        if found:
            self._found = now
        self._works.append(work)
        quiet = now - self._found
        due = database.sleep_at_most if wait is None else max(wait, SHORTEST)
        if quiet >= database.sleep_after and due >= database.poll_idle:
            return Pause(min(due, database.sleep_at_most), asleep=True)
        poll = min(max(quiet / 8, database.poll_busy), database.poll_idle)
        rest = min(self._works) * (LONG_PAUSE if limited else PAUSE)
        return Pause(max(min(due, poll), took / 2, rest), asleep=False)


class Budget:
    """The number of early ticks: each is work for every consumer of the queue.

    They are made ``spacing`` seconds apart on average, over all queues. So one busy queue gets its
    ticks as fast as the ticker polls; if hundreds are busy, each waits for its turn and has more
    events by then.
    """

    def __init__(self, now: float) -> None:
        self._saved = BURST
        self._now = now

    def early(self, now: float, spacing: float) -> int:
        """Return how many may be made now; at least one."""
        self._saved = min(self._saved + now - self._now, BURST)
        self._now = now
        return max(int(self._saved / spacing), 1)

    def spend(self, made: int, spacing: float) -> None:
        self._saved -= made * spacing
